"""A controller with a fake engine and a real file, which can be killed at any point."""

import asyncio
import contextlib
import inspect
import os
from dataclasses import asdict

from failing_store import FailingStore
from fake_engine import FakeEngine
from gridhand.audit import check_history, check_rebuild, check_state
from gridhand.controller.controller import Controller
from gridhand.controller.jobs.job_reader import JobFilter
from gridhand.core.jobs.job import JobSpec, JobState
from gridhand.core.ledger.status import dump
from gridhand.core.model.requests import Request
from gridhand.core.operations import DumpLedger, GetStatus, ListEvents
from gridhand.home import Home

PATIENCE_S = 20


class Place:
    """A home, an engine that outlives controllers, and the controller of the moment."""

    def __init__(self, folder, *, machine="", **engine):
        self.home = Home(str(folder))
        self.home.make()
        self.machine = machine
        self.engine = FakeEngine(**engine)
        self.controller = None
        self.settings = None

    async def open(self, *, store=None, new_cluster=False):
        self.store = FailingStore(store or self.home.store)
        self.controller = Controller(
            self.home, self.store, self.engine, machine=self.machine, settings=self.settings
        )
        await self.controller.open(new_cluster=new_cluster)
        return self.controller

    async def close(self):
        if self.controller is not None:
            controller, self.controller = self.controller, None
            await controller.close()

    async def kill(self):
        """As with kill -9: nothing more is sent or written, though the store is free again."""
        controller, self.controller = self.controller, None
        self.engine.sink = None
        runner = controller.runner
        runner._closed = True
        for task in [*runner._tasks, *controller._background]:
            task.cancel()
        await asyncio.gather(*runner._tasks, *controller._background, return_exceptions=True)
        controller.begin_stopping()
        await controller._close_reads()
        await asyncio.to_thread(controller._backend.close)
        await asyncio.sleep(0)

    async def restart(self, **how):
        await self.kill()
        return await self.open(**how)

    async def submit(self, cpu=1, *, op_id=None, indices=(), after=(), environment=None, **wishes):
        wishes.setdefault("detached", True)
        kept = await self.controller.keep({} if environment is None else environment)
        work = JobSpec("ann", ("true",), "/", Request.of(cpu=cpu), environment=kept, **wishes)
        submit = self.controller.submit
        made = await submit(op_id, work, indices=tuple(indices), after=tuple(after))
        ids = made.ids
        return ids if indices else ids[0]

    async def job(self, id):
        return (await self.controller.job(id)).job

    async def state(self, id):
        return (await self.job(id)).state

    async def running(self):
        found = await self.controller.jobs(JobFilter(states=(JobState.RUNNING,), limit=10_000))
        return sorted(seen.job.id for seen in found)

    async def until(self, look):
        """What `look` answers, once it is something: looked at after each turn of the loop."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if found := await answer(look):
                    return found
                await asyncio.sleep(0.001)

    async def sent(self, *keys):
        """Until these run on the node."""
        await self.until(lambda: all(key in self.engine.running for key in keys))

    async def ended(self, *ids):
        """The jobs, once they are over and their node has forgotten them."""

        async def over():
            jobs = [await self.job(id) for id in ids]
            known = {job for job, _ in (*self.engine.ended, *self.controller.runner._fences)}
            return jobs if not any(job.open or job.id in known for job in jobs) else None

        found = await self.until(over)
        return found[0] if len(ids) == 1 else found

    def environments(self):
        return sorted(os.listdir(self.home.environments))

    async def quiet(self):
        """Until nothing is on its way in either direction."""
        runner = self.controller.runner
        await self.until(lambda: not runner._outbox and not runner._ends)

    async def check(self):
        """The ledger is sound, and is what the events and the rows say; each ended once."""
        ask = self.controller.ask
        # Asked in one turn, so of one and the same moment.
        dumped, events = await asyncio.gather(ask(DumpLedger()), ask(ListEvents(0, 1_000_000)))
        assert check_state(dumped) == []
        plain = [event._asdict() for event in events]
        assert check_history(plain) == []
        assert check_rebuild(plain, dumped) == []
        ended = [event.subject for event in events if event.kind == "job.ended"]
        assert len(ended) == len(set(ended))
        freed = [event.subject for event in events if event.kind in FREED]
        assert len(freed) == len(set(freed))
        await self._reads_what_is_decided()

    async def _reads_what_is_decided(self):
        """The read model becomes a copy of the ledger; says what is not if it does not."""
        with contextlib.suppress(TimeoutError):
            await self.until(self._same_as_decided)
        assert await self._unlike() == {}

    async def _same_as_decided(self):
        return await self._unlike() == {}

    async def _unlike(self):
        """What is read, and what is decided, where the two differ."""
        dumped, status = await asyncio.gather(
            self.controller.ask(DumpLedger()), self.controller.ask(GetStatus())
        )
        model = self.controller.model
        copied = dump(model.ledger, {}, now=0)
        pages = model.pages.newest(owner=None, array=None, placed=False, before=None)
        by_number = sorted(model.ledger.jobs.open.values(), key=lambda job: -job.number)
        pairs = {
            rows: (by_id(copied[rows]), by_id(dumped[rows]))
            for rows in ("nodes", "allocations", "jobs")
        }
        pairs["pages"] = ([job.id for job in pages], [job.id for job in by_number])
        read, decided = asdict(self.controller.status()), asdict(status)
        for seen, node in zip(read.pop("nodes"), decided.pop("nodes"), strict=True):
            pairs |= {f"{field} of a node": (seen[field], node[field]) for field in node}
        pairs |= {field: (read[field], decided[field]) for field in decided}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


FREED = ("allocation.released", "allocation.lost", "allocation.expired")


def by_id(rows):
    return {row.get("id", row.get("name")): row for row in rows}


async def answer(look):
    found = look()
    return await found if asyncio.iscoroutine(found) else found


def in_place(**engine):
    """A test as a coroutine that is given an open place, which is checked and closed after it."""

    def wrap(test):
        own = [one for one in inspect.signature(test).parameters.values() if one.name != "place"]

        def run(tmp_path, **given):
            asyncio.run(_in_place(test, tmp_path / "home", engine, given))

        named = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = inspect.Signature([named, *own])
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        run.pytestmark = getattr(test, "pytestmark", [])
        return run

    return wrap


async def _in_place(test, folder, engine, given):
    place = Place(folder, **engine)
    try:
        await place.open()
        await test(place, **given)
        if place.controller is not None:
            await place.quiet()
            await place.check()
            assert place.controller.failure is None
    finally:
        await place.close()
