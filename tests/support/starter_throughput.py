"""How many commands a second are started and ended, by hand: `python tests/support/starter_throughput.py`.

In one run, each of `/bin/true`: plain `posix_spawn` and wait, one after the other; through a
starter; and through an agent, with a limit on processes, and on memory, too.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time

from gridhand.agent.bootstrap import ensure_agent
from starter_client import StarterClient, order

BATCH = 64


def plain(count):
    began = time.perf_counter()
    for _ in range(count):
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    return count / (time.perf_counter() - began)


def starter(folder, count):
    outputs = {"stdout": f"{folder}/out", "stderr": f"{folder}/err"}
    orders = [
        order(str(number), 0, ["/bin/true"], cwd=folder, env={"PATH": os.defpath}, **outputs)
        for number in range(count)
    ]
    with StarterClient.ensure(f"{folder}/alone") as client:
        client.watch()
        ended, done = client.ended(30), 0
        began = time.perf_counter()
        for first in range(0, count, BATCH):
            client.start(orders[first : first + BATCH])
            while done < first:
                next(ended)
                done += 1
        for _ in range(done, count):
            next(ended)
        rate = count / (time.perf_counter() - began)
        client.quit()
    return rate


class Counter:
    """How many have ended, and a way to wait until so many have."""

    def __init__(self):
        self.count = 0
        self._news = asyncio.Event()

    def heard(self, event):
        if event["event"] == "ended":
            self.count += len(event["attempts"])
            self._news.set()

    async def reaches(self, count):
        while self.count < count:
            self._news.clear()
            await self._news.wait()


def job(folder, number, memory_bytes):
    return {
        "job": str(number), "attempt": 1, "fence": f"f{number}", "node": "n", "argv": ["/bin/true"],
        "cwd": folder, "env": {"PATH": os.defpath}, "cores": 10_000, "pin": True,
        "memory_bytes": memory_bytes, "processes": 4096, "devices": [], "gpu_memory": {},
        "time_limit_ms": 60_000, "grace_ms": 1000, "stdout": f"{folder}/{number}.out",
        "stderr": f"{folder}/{number}.err", "stdin": None, "log_bytes": 10 << 20,
    }  # fmt: skip


async def agent(folder, count, memory_bytes):
    ended = Counter()
    link = await ensure_agent(f"{folder}/agent", f"{folder}/starter", epoch=1, on_event=ended.heard)
    await link.ask({"do": "watch"})
    took = []
    for number in range(50):
        began = time.perf_counter()
        await link.ask({"do": "start", "jobs": [job(folder, f"one{number}", memory_bytes)]})
        await ended.reaches(number + 1)
        took.append(time.perf_counter() - began)
    orders = [job(folder, number, memory_bytes) for number in range(count)]
    began = time.perf_counter()
    for first in range(0, count, BATCH):
        await link.ask({"do": "start", "jobs": orders[first : first + BATCH]}, 60)
        await ended.reaches(50 + first)
    await ended.reaches(50 + count)
    rate = count / (time.perf_counter() - began)
    await link.ask({"do": "quit"})
    link.close()
    with StarterClient(f"{folder}/starter", epoch=None) as last:
        last.quit()
    return rate, statistics.median(took) * 1000


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    with tempfile.TemporaryDirectory() as folder:
        print(f"plain posix_spawn            {plain(count):7.0f} /s")
        print(f"starter                      {starter(folder, count):7.0f} /s")
    for words, memory in (("agent and starter", None), ("the same, memory limited", 200 << 20)):
        with tempfile.TemporaryDirectory() as folder:
            rate, one = asyncio.run(agent(folder, count, memory))
            print(f"{words:28} {rate:7.0f} /s, one alone {one:.1f} ms")


if __name__ == "__main__":
    main()
