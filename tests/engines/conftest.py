"""Engines to be held against one contract: the fake one, and that of this machine."""

import asyncio
import contextlib
import os
import select

import pytest

from fake_engine import FakeEngine
from gridhand.agent.starter.starter_client import greet_starter
from gridhand.engines.base import StartOrder
from gridhand.engines.local import LocalEngine

PATIENCE_S = 30


class Sink:
    """Hears all, and lets a test wait for it."""

    def __init__(self):
        self.spawned_facts, self.ended_facts = [], []
        self.nodes, self.returns, self.errors = [], [], []
        self._news = asyncio.Event()

    def spawned(self, facts):
        self._take(self.spawned_facts, facts)

    def ended(self, facts):
        self._take(self.ended_facts, facts)

    def node_changed(self, node, problems):
        self._take(self.nodes, [node])

    def measured(self, node, usage): ...

    def returned(self, known):
        self._take(self.returns, [known])

    def broken(self, error):
        self._take(self.errors, [error])

    def _take(self, where, what):
        where.extend(what)
        self._news.set()

    async def until(self, look):
        async with asyncio.timeout(PATIENCE_S):
            while not (found := look()):
                await self._news.wait()
                self._news.clear()
            return found

    def keys(self, facts):
        return [report.key for report in facts]

    async def spawn_of(self, key):
        return await self.until(lambda: last(self.spawned_facts, key))

    async def end_of(self, key):
        return (await self.until(lambda: last(self.ended_facts, key))).end


def last(facts, key):
    return next((one for one in reversed(facts) if one.key == key), None)


def start_order(job, attempt=1, **fields):
    """Return an order with nothing that a test does not ask for."""
    defaults = {
        "fence": f"a1-{job}", "node": "here", "argv": ["/bin/true"], "cwd": "/", "env": {},
        "cores": 0, "pin": False, "memory_bytes": None, "processes": 1000, "devices": [],
        "gpu_memory": {}, "time_limit_ms": None, "grace_ms": 100, "stdout": "/dev/null",
        "stderr": "/dev/null", "stdin": None, "log_bytes": 1 << 20,
    }  # fmt: skip
    return StartOrder(job=job, attempt=attempt, **(defaults | fields))


class FakeBox:
    """Fake engines that speak with one and the same node, one after the other."""

    def __init__(self, folder):
        self._engine = FakeEngine()

    def engine(self):
        return self._engine

    def order(self, job, attempt=1):
        return start_order(job, attempt)

    def finish(self, key, code):
        self._engine.end(key, code=code)

    def started(self, key):
        return self._engine.started(key)

    async def clean(self): ...


class LocalBox:
    """A real agent and starter in folders of their own; jobs wait at gates for how to end."""

    def __init__(self, folder):
        self.folder = folder
        self._gates = {}

    def engine(self):
        return LocalEngine(str(self.folder / "agent"), str(self.folder / "starter"))

    def order(self, job, attempt=1, *argv, **more):
        script = 'echo x >> "$1"; read code < "$2"; exit $code'
        gate = self._gate(job, attempt)
        words = argv or ("/bin/sh", "-c", script, "-", str(self._count(job, attempt)), gate)
        writes = {name: str(self.folder / f"{job}.{name}") for name in ("stdout", "stderr")}
        fields = {"argv": list(words), "cwd": str(self.folder), "env": {"PATH": os.defpath}}
        return start_order(job, attempt, **(fields | writes | more))

    def _gate(self, job, attempt):
        path = str(self.folder / f"gate-{job}-{attempt}")
        if path not in self._gates:
            os.mkfifo(path)
            self._gates[path] = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        return path

    def _count(self, job, attempt):
        return self.folder / f"count-{job}-{attempt}"

    def finish(self, key, code):
        os.write(self._gates[self._gate(*key)], f"{code}\n".encode())

    def started(self, key):
        count = self._count(*key)
        return len(count.read_text().split()) if count.exists() else 0

    async def clean(self):
        """End all that runs, then the agent; the starter ends after it."""
        engine, sink = self.engine(), Sink()
        known = await engine.open(2**50, sink)
        sink.ended(known.ended)
        for key in sink.keys(known.running):
            await engine.stop(key, "cancelled", 0)
            await sink.end_of(key)
        await engine.forget(sink.keys(sink.ended_facts))
        greeting = greet_starter(str(self.folder / "starter"))
        pids = [engine.facts()["pid"], greeting["pid"]]
        handles = [os.pidfd_open(pid) for pid in pids]
        await engine.close(end=True)
        for handle in handles:
            assert select.select([handle], [], [], PATIENCE_S)[0], "a process is left"
            os.close(handle)
        for gate in self._gates.values():
            os.close(gate)


async def _within(box, test):
    try:
        await test(box)
    finally:
        await box.clean()


@pytest.fixture
def within():
    """Run a coroutine that is given a box, and leave nothing of it."""

    def run(kind, folder, test):
        asyncio.run(_within(kind(folder), test))

    return run


@pytest.fixture(params=[FakeBox, LocalBox], ids=["fake", "local"])
def contract(request, tmp_path, within):
    return lambda test: within(request.param, tmp_path, test)


@pytest.fixture
def local(tmp_path, within):
    return lambda test: within(LocalBox, tmp_path, test)


@pytest.fixture
def tools():
    class Tools:
        """What tests need besides a box, without importing a module of tests."""

    Tools.Sink, Tools.opened = Sink, staticmethod(opened)
    Tools.start_order = staticmethod(start_order)
    return Tools


@contextlib.asynccontextmanager
async def opened(box, epoch=1, *, end=False):
    engine, sink = box.engine(), Sink()
    known = await engine.open(epoch, sink)
    try:
        yield engine, sink, known
    finally:
        await engine.close(end=end)
