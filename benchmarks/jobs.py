"""Short commands from end to end, durably, beside plain spawning and beside HyperQueue.

Each round runs the same number of /bin/true on the same cores three times:

  spawn       posix_spawn and wait, as many at once as there are cores: what the kernel takes
  gridhand    one array through a controller: rows and allocations on disk before each start, files
              for its output, cores of its own, limits, a journal of how it ended, history
  hyperqueue  one job of as many tasks on its LocalCluster, whose state is in memory

Rounds alternate and medians are shown, because other work on the machine comes and goes: what
counts is the ratio. HyperQueue's client looks for the end once a second, which is not to count
against it: its last tasks write down when they ran. Then, on a warm connection: the round trip of
one job, the memory of an idle controller and its agent, and what many queued jobs add to it and do
to the rate of submissions.

    python benchmarks/jobs.py [--jobs 1000] [--rounds 5] [--queued 100000]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from gridhand.client import Client, connect

CORES = len(os.sched_getaffinity(0))
TRUE = "/bin/true"
PATIENCE_S = 120.0


def rate(count: int, work: Callable[[int], None]) -> float:
    start = time.perf_counter()
    work(count)
    return count / (time.perf_counter() - start)


# ---- plain


def spawn(count: int) -> None:
    running = 0
    for _ in range(count):
        if running == CORES:
            os.wait()
            running -= 1
        os.posix_spawn(TRUE, [TRUE], {}, setsid=True)
        running += 1
    for _ in range(running):
        os.wait()


# ---- ours


@contextmanager
def gridhand() -> Iterator[Client]:
    home = tempfile.mkdtemp(prefix="gridhand-bench-")
    os.environ["GRIDHAND_HOME"] = os.path.join(home, "home")
    try:
        with connect() as client:
            yield client
            client.stop(jobs="kill")
    finally:
        time.sleep(1.0)
        shutil.rmtree(home, ignore_errors=True)


def submission(**more: Any) -> dict[str, Any]:
    return {
        "command": [TRUE],
        "folder": "/",
        "environment": {"PATH": "/usr/bin:/bin"},
        "request": {"cpu": 1},
        "detached": True,
        **more,
    }


def through(client: Client, count: int) -> None:
    """All of an array, until the last has ended."""
    jobs = client.submit(submission(array=f"1-{count}"))
    deadline = time.monotonic() + PATIENCE_S
    while any(client.status()["jobs"].values()):
        assert time.monotonic() < deadline
        time.sleep(0.02)  # a look costs the controller about as much as a job
    ended = client.jobs(array=jobs[0]["array"], limit=count)
    assert sum(job["state"] == "succeeded" for job in ended) == count


def round_trip(client: Client) -> float:
    start = time.perf_counter()
    (job,) = client.submit(submission(detached=False))
    for frame, _ in client.follow(job["id"], attach=True):
        job = frame.get("job", job)
    assert job["state"] == "succeeded"
    return time.perf_counter() - start


# ---- HyperQueue


@contextmanager
def hyperqueue() -> Iterator[Callable[[int], float] | None]:
    try:
        from hyperqueue import LocalCluster
        from hyperqueue.cluster import WorkerConfig
    except ImportError:
        print("hyperqueue is not installed: `make bench` does that")
        yield None
        return
    with LocalCluster() as cluster:
        cluster.start_worker(WorkerConfig(cores=CORES))
        with tempfile.TemporaryDirectory() as folder:
            yield lambda count: count / tasks(cluster.client(), count, folder)


def tasks(client: Any, count: int, folder: str) -> float:
    """Run them, and tell how long it took: its client looks once a second, so the last few say."""
    from hyperqueue import Job

    job = Job(default_workdir=folder)  # its output goes to files, as ours does
    for _ in range(count - CORES):
        job.program([TRUE])
    stamps = [os.path.join(folder, f"{number}") for number in range(CORES)]
    for path in stamps:
        job.program(["sh", "-c", f"date +%s.%N > {path}"])
    start = time.time()
    client.wait_for_jobs([client.submit(job)])
    return max(float(open(path).read()) for path in stamps) - start


# ---- memory


def resident(module: str) -> int:
    """The memory of our processes of this kind, in bytes."""
    found = 0
    home = os.environ["GRIDHAND_HOME"]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                words = file.read()
            with open(f"/proc/{pid}/environ") as file:
                variables = file.read()
            if module in words and (f"GRIDHAND_HOME={home}" in variables or home in words):
                with open(f"/proc/{pid}/statm") as file:
                    found += int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        except OSError:
            continue
    return found


def queued(client: Client, count: int) -> None:
    """What many queued jobs add to the controller's memory, and do to the rate of submissions."""
    blocker = client.submit(submission(command=["sleep", "600"], request={"cpu": CORES}))[0]
    empty = rate(200, lambda n: [client.submit(submission()) for _ in range(n)] and None)
    before = resident("gridhand.cli.main")
    client.submit(submission(array=f"1-{count}"))
    added = resident("gridhand.cli.main") - before
    full = rate(200, lambda n: [client.submit(submission()) for _ in range(n)] and None)
    print(f"{count:,} queued jobs add {added / 1e6:.0f} MB;", end=" ")
    print(f"submissions: {empty:.0f}/s before, {full:.0f}/s with them, {full / empty:.2f} x")
    client.cancel(blocker["id"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queued", type=int, default=100_000)
    asked = parser.parse_args()
    with ExitStack() as opened:
        client = opened.enter_context(gridhand())
        theirs = opened.enter_context(hyperqueue())
        idle = resident("gridhand.cli.main"), resident("gridhand.agent.main")
        starter = resident("gridhand.agent.starter")
        compare(client, theirs, asked.jobs, asked.rounds)
        trips = sorted(round_trip(client) * 1000 for _ in range(100))
        print(f"round trip of one job: median {trips[50]:.1f} ms, 90 % within {trips[90]:.1f} ms")
        print(f"idle: controller {idle[0] / 1e6:.0f} MB, agent {idle[1] / 1e6:.0f} MB,", end=" ")
        print(f"starter {starter / 1e6:.0f} MB")
        if asked.queued:
            queued(client, asked.queued)


def compare(client: Client, theirs: Callable[[int], float] | None, count: int, rounds: int) -> None:
    kinds: dict[str, Callable[[int], float]] = {
        "spawn": lambda n: rate(n, spawn),
        "gridhand": lambda n: rate(n, lambda n: through(client, n)),
    }
    if theirs is not None:
        kinds["hyperqueue"] = theirs
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, work in kinds.items():
            found[name].append(work(count))
    middle = {name: statistics.median(rates) for name, rates in found.items()}
    for name, rates in found.items():
        spread = f"{min(rates):.0f} to {max(rates):.0f}"
        print(f"{name:10} {middle[name]:6.0f} jobs/s ({spread}), {CORES} cores")
    for name in ("hyperqueue", "spawn"):
        if name in middle:
            print(f"gridhand = {middle['gridhand'] / middle[name]:.2f} x {name}")


if __name__ == "__main__":
    sys.exit(main())
