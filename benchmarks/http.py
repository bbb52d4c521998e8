"""Durable allocate + release over HTTP, beside a FastAPI route that does nothing.

Compared in one run, each server in a process of its own, with 100 connections of one client:

  nothing     a POST of FastAPI with the same models, which answers what ours would
  grid        `/resources/allocate` and `/resources/release`, durable in SQLite, with a token
  batches     the same, 1,000 items to a request
  listeners   as `grid`, while 100 clients follow all events

The rounds alternate, and medians are shown, because other work on the machine comes and goes. The
client takes its part of the machine in all cases alike.

    python benchmarks/http.py [--seconds 3] [--rounds 3] [--connections 100] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

BATCH = 1000
LISTENERS = 100
ALLOCATE, RELEASE = "/api/v1/resources/allocate", "/api/v1/resources/release"
LEASE = {"requirements": {"cpu_cores": 1, "memory_gb": 1}}

NOTHING = """
import socket, sys
import uvicorn
from fastapi import FastAPI
from gridhand.api.http import JSONResponse
from gridhand.api.schemas.resource_leases import LeaseMove, LeaseReply, ResourceRequest

app = FastAPI()
REPLY = {"success": True, "allocation_id": "a1-1", "worker_id": "n0", "resources": {"cpu_cores": 1,
    "memory_gb": 1, "gpu_count": 0, "gpu_memory_gb": 0, "disk_gb": 0, "network_bandwidth_mbps": 0,
    "gpu_compute_capability": None}, "expires_at": "2026-01-01T00:00:00.000Z", "task_id": None,
    "state": "active", "gpus": [], "quality": None, "fresh": True}

@app.post("/api/v1/resources/allocate", responses={200: {"model": LeaseReply}})
async def allocate(body: ResourceRequest):
    return JSONResponse(REPLY)

@app.post("/api/v1/resources/release", responses={200: {"model": LeaseReply}})
async def release(body: LeaseMove):
    return JSONResponse(REPLY)

listening = socket.create_server(("localhost", 0))
print(f"listening at http://localhost:{listening.getsockname()[1]}", flush=True)
plain = {"lifespan": "off", "access_log": False, "log_config": None}
uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", **plain)).run([listening])
"""


LISTENING = """
import selectors, socket, sys
from urllib.parse import urlsplit

url, count = urlsplit(sys.argv[1]), int(sys.argv[2])
token = sys.stdin.readline().strip()
head = (f"GET /api/v1/events HTTP/1.1\\r\\nhost: {url.netloc}\\r\\naccept: text/event-stream\\r\\n"
    f"authorization: Bearer {token}\\r\\n\\r\\n").encode()
poll, buffer = selectors.DefaultSelector(), bytearray(1 << 20)
for _ in range(count):
    one = socket.create_connection((url.hostname, url.port))
    one.sendall(head)
    assert b"200 OK" in one.recv(4096)
    poll.register(one, selectors.EVENT_READ)
print("all follow", flush=True)
while True:
    for ready, _ in poll.select():
        ready.fileobj.recv_into(buffer)
"""


class Figures(NamedTuple):
    """Calls per second, and milliseconds that 99 of 100 calls take at most."""

    rate: float
    p99_ms: float


class Connection:
    """A connection that is kept, and sends one request after the other."""

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url)
        self._address = parts.hostname, parts.port
        self._head = f"host: {parts.netloc}\r\nauthorization: Bearer {token}\r\n"

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(*self._address)

    def close(self) -> None:
        self._writer.close()

    async def post(self, path: str, body: Any) -> Any:
        data = json.dumps(body).encode()
        head = f"content-type: application/json\r\ncontent-length: {len(data)}\r\n{self._head}"
        self._writer.write(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        content = await self._reader.readexactly(length)
        assert answer.startswith(b"HTTP/1.1 200"), (answer, content)
        return json.loads(content)


class Client:
    """So many connections to one server."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url, self._token = url, token

    @contextlib.asynccontextmanager
    async def connected(self, count: int) -> Any:
        found = [Connection(self._url, self._token) for _ in range(count)]
        await asyncio.gather(*(one.open() for one in found))
        try:
            yield found
        finally:
            for one in found:
                one.close()

    async def pairs(self, connections: int, seconds: float) -> Figures:
        """Allocate and release on all connections at once."""
        times: list[float] = []
        end = time.perf_counter() + seconds

        async def call(connection: Connection, path: str, body: Any) -> Any:
            began = time.perf_counter()
            answer = await connection.post(path, body)
            times.append(time.perf_counter() - began)
            return answer

        async def work(connection: Connection) -> None:
            while time.perf_counter() < end:
                held = await call(connection, ALLOCATE, LEASE)
                await call(connection, RELEASE, {"allocation_id": held["allocation_id"]})

        async with self.connected(connections) as opened:
            began = time.perf_counter()
            await asyncio.gather(*map(work, opened))
            took = time.perf_counter() - began
        return Figures(len(times) / took, 1000 * statistics.quantiles(times, n=100)[98])

    async def batches(self, seconds: float) -> float:
        """Return items per second of requests with many items, on two connections."""
        count, end = 0, time.perf_counter() + seconds

        async def work(connection: Connection) -> None:
            nonlocal count
            while time.perf_counter() < end:
                made = await connection.post(f"{ALLOCATE}/batch", {"items": [LEASE] * BATCH})
                ids = [{"allocation_id": one["allocation_id"]} for one in made["results"]]
                await connection.post(f"{RELEASE}/batch", {"items": ids})
                count += 2 * BATCH

        async with self.connected(2) as opened:
            began = time.perf_counter()
            await asyncio.gather(*map(work, opened))
            return count / (time.perf_counter() - began)


@contextlib.contextmanager
def listeners(url: str, token: str) -> Iterator[None]:
    """Follow all events many times, in a process of its own."""
    command = [sys.executable, "-c", LISTENING, url, str(LISTENERS)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as listening:
        assert listening.stdin is not None
        assert listening.stdout is not None
        listening.stdin.write(f"{token}\n")
        listening.stdin.flush()
        assert listening.stdout.readline() == "all follow\n"
        try:
            yield
        finally:
            listening.terminate()


# ---- servers


@contextlib.contextmanager
def running(command: list[str], **more: Any) -> Iterator[str]:
    """Run a server; yield its address, which it prints."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


@contextlib.contextmanager
def grid_server(folder: Path) -> Iterator[tuple[str, str]]:
    """Run a controller with four large nodes; yield its address and a token."""
    config = folder / "cluster_config.yaml"
    config.write_text("http: {requests_per_s: 1000000}\n")
    env = {**os.environ, "GRIDHAND_HOME": str(folder / "home")}
    grid = [sys.executable, "-c", "from gridhand.cli.main import main; main()"]
    serve = [*grid, "serve", "--port", "0", "--config", str(config)]
    errors = (folder / "log").open("w")
    with running(serve, env=env, cwd=folder, stderr=errors) as url:
        subprocess.run(
            [*grid, "token", "create", "--scope", "admin", "-o", "token"],
            env=env,
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        token = (folder / "token").read_text().strip()
        asyncio.run(_register(url, token))
        yield url, token
        check = [*grid, "check"]
        subprocess.run(check, env=env, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        stop = [*grid, "stop", "--keep-jobs"]
        subprocess.run(stop, env=env, cwd=folder, check=False, stdout=subprocess.DEVNULL)


async def _register(url: str, token: str) -> None:
    connection = Connection(url, token)
    await connection.open()
    nodes = [
        {"name": f"n{number}", "resources": {"cpu": 10_000, "memory": "100TB"}}
        for number in range(4)
    ]
    await connection.post("/api/v1/nodes", {"nodes": nodes})
    connection.close()


# ---- figures


def measure(folder: Path, seconds: float, rounds: int, connections: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {}
    lags: dict[str, list[float]] = {}
    with (
        running([sys.executable, "-c", NOTHING]) as nothing,
        grid_server(folder) as (url, token),
    ):
        ours, bare = Client(url, token), Client(nothing)

        def pairs(client: Client) -> Figures:
            return asyncio.run(client.pairs(connections, seconds))

        def pairs_with_listeners() -> Figures:
            with listeners(url, token):
                return pairs(ours)

        cases: dict[str, Callable[[], Figures]] = {
            "nothing": lambda: pairs(bare),
            "grid": lambda: pairs(ours),
            "listeners": pairs_with_listeners,
            "batches": lambda: Figures(asyncio.run(ours.batches(seconds)), 0.0),
        }
        for _ in range(rounds):
            for name, case in cases.items():
                found = case()
                rates.setdefault(name, []).append(found.rate)
                lags.setdefault(name, []).append(found.p99_ms)
    return {
        "per_second": {name: statistics.median(found) for name, found in rates.items()},
        "p99_ms": {name: statistics.median(found) for name, found in lags.items()},
        "all_rates": rates,
    }


def report(figures: dict[str, Any], connections: int) -> None:
    rates, lags = figures["per_second"], figures["p99_ms"]
    print(f"calls per second, with {connections} connections (batches: items)")
    print(f"{'':<12}{'per second':>12}{'p99 ms':>10}")
    for name, rate in rates.items():
        lag = f"{lags[name]:>10.1f}" if lags[name] else ""
        print(f"{name:<12}{rate:>12,.0f}{lag}")
    ratio, tail = rates["grid"] / rates["nothing"], lags["grid"] / lags["nothing"]
    per_item, cost = rates["batches"] / rates["grid"], 1 - rates["listeners"] / rates["grid"]
    print(f"\na durable call beside one that does nothing: {ratio:.2f} (reach 0.5)")
    print(f"the 99th percentile of both: {tail:.1f} x (reach under 10)")
    print(f"an item of a batch beside a call: {per_item:.1f} x (reach 5)")
    print(f"{LISTENERS} listeners cost {cost:.0%} (reach under 20 %)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=3.0, help="per case and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--folder", help="where to write; a disk, not a tmpfs")
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder or ".") as folder:
        place = Path(folder).resolve()
        figures = measure(place, options.seconds, options.rounds, options.connections)
    print(json.dumps(figures)) if options.json else report(figures, options.connections)


if __name__ == "__main__":
    main()
