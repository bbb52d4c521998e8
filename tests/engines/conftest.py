"""Engines to be held against one contract: the fake one, that of this machine, and external ones."""

import asyncio
import contextlib
import json
import os
import select

import pytest

from fake_engine import FakeEngine
from gridhand.agent.starter.starter_client import greet_starter
from gridhand.api.schemas.ledger import HeartbeatBody
from gridhand.api.schemas.workers import JoinBody, OrdersBody, ReportsBody, plain
from gridhand.core.errors import GridError, NodeTaken, StoreInvalid
from gridhand.engines.base import AttemptReport, StartOrder
from gridhand.engines.external import ExternalEngine, Joining
from gridhand.engines.local import LocalEngine
from gridhand.external.node_worker import NodeWorker
from gridhand.external.worker_folder import WorkerFolder
from gridhand.posix import procfs
from until import until

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

    def returned(self, known, node=None):
        self._take(self.returns, [known])

    async def settled(self, node): ...

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


class Box:
    """A node, and engines that speak with it one after the other."""

    async def reached(self, engine, sink, known):
        """Return what the node knows, once the engine has reached it."""
        return known

    async def delivered(self, engine):
        """Return when the node has been told all."""

    async def remembered(self):
        """Return what the node remembers, without changing anything there."""
        return await self.engine().look()

    async def refused(self, epoch):
        """Return whether an engine of this epoch gets nothing from the node."""
        with pytest.raises(StoreInvalid):
            await self.engine().open(epoch, Sink())
        return True


class FakeBox(Box):
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


class LocalBox(Box):
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
        await self._end_all(self.engine(), str(self.folder / "starter"))

    async def _end_all(self, engine, starter):
        sink = Sink()
        known = await engine.open(2**50, sink)
        sink.ended(known.ended)
        for key in sink.keys(known.running):
            await engine.stop(key, "cancelled", 0)
            await sink.end_of(key)
        await engine.forget(sink.keys(sink.ended_facts))
        greeting = greet_starter(starter)
        pids = [engine.facts()["pid"], greeting["pid"]]
        handles = [os.pidfd_open(pid) for pid in pids]
        await engine.close(end=True)
        for handle in handles:
            assert select.select([handle], [], [], PATIENCE_S)[0], "a process is left"
            os.close(handle)
        for gate in self._gates.values():
            os.close(gate)


class DirectLink:
    """The requests of a worker, checked as the routes do, without a network between."""

    address = "http://controller"

    def __init__(self, box):
        self._box = box

    async def post(self, what, body, timeout_s=None):
        if self._box.current is None:
            raise ConnectionRefusedError("no controller")
        body = json.loads(json.dumps(body))
        try:
            return await getattr(self, f"_{what}")(self._box.current, body)
        except GridError as error:
            self._box.refusals.append(error)
            raise

    async def _join(self, engine, raw):
        body = JoinBody.model_validate(raw)
        attempts = [AttemptReport.decode(one) for one in plain(body.attempts)]
        joining = Joining(raw["row"], [], body.incarnation, body.epoch, attempts)
        session = await engine.join("here", joining)
        return {"session": session, "cluster": "c1", "epoch": engine.epoch}

    async def _heartbeat(self, engine, raw):
        HeartbeatBody.model_validate(raw)
        return {"acknowledged": True, "stop": []}

    async def _orders(self, engine, raw):
        body = OrdersBody.model_validate(raw)
        found = await engine.orders("here", body.session, body.done, body.busy, 1.0)
        return json.loads(json.dumps({"orders": found}))

    async def _reports(self, engine, raw):
        body = ReportsBody.model_validate(raw)
        attempts = [AttemptReport.decode(one) for one in plain(body.attempts)]
        engine.report("here", body.session, attempts, body.answers())
        return {}

    async def _leave(self, engine, raw):
        return {}

    async def send_bytes(self, what, query, data):
        if self._box.current is None:
            raise ConnectionRefusedError("no controller")
        self._box.current.check_attempt("here", query["session"], (query["job"], query["attempt"]))
        return {"end": query["offset"] + len(data), "pause": False}

    def hang_up(self): ...

    def close(self): ...


class ExternalBox(LocalBox):
    """A real worker with its agent and starter, which finds whatever engine is open."""

    def __init__(self, folder):
        super().__init__(folder)
        self.current = None
        self.refusals, self._worker = [], None
        self._place = WorkerFolder(str(folder / "worker"))

    def engine(self):
        return ExternalEngine()

    async def reached(self, engine, sink, known):
        self.current = engine
        if self._worker is None:
            self._leaving = asyncio.Event()
            self._node_worker = NodeWorker(
                self._place, self._place.begin(), DirectLink(self), "here", print
            )
            self._worker = asyncio.create_task(self._node_worker.run(self._leaving))
        return (await sink.until(lambda: sink.returns or self._worker.done()))[-1]

    async def delivered(self, engine):
        await _until(lambda: not any(map(len, engine._outboxes.values())))
        self.current = None

    async def remembered(self):
        seen = await LocalEngine(self._place.agent, self._place.starter).look()
        return self._place.recall().epoch, seen.running

    async def refused(self, epoch):
        engine, sink = self.engine(), Sink()
        await engine.open(epoch, sink)
        self.current, self.refusals = engine, []
        await _until(lambda: any(isinstance(one, NodeTaken) for one in self.refusals))
        self.current = None
        return not sink.nodes and not sink.returns

    async def clean(self):
        if self._worker is not None:
            self._leaving.set()
            pid = self._node_worker._engine.facts()["pid"]
            await asyncio.wait_for(self._worker, PATIENCE_S)
            await _until(lambda: not procfs.is_alive(pid))
        engine = LocalEngine(self._place.agent, self._place.starter)
        await self._end_all(engine, self._place.starter)


async def _until(look):
    await asyncio.to_thread(until, look, PATIENCE_S)


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


@pytest.fixture(params=[FakeBox, LocalBox, ExternalBox], ids=["fake", "local", "external"])
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
    known = await box.reached(engine, sink, await engine.open(epoch, sink))
    try:
        yield engine, sink, known
        await box.delivered(engine)
    finally:
        await engine.close(end=end)
