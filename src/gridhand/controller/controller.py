"""Controller: the keeper, its queue, an engine, and those who wait, in one process.

The keeper decides in its own thread; everything else is in one event loop. A change becomes known
here when it is durable: `_settled` is called for it, has it done, and tells who listens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gridhand.controller.callbook import CallBook
from gridhand.controller.clients import Clients
from gridhand.controller.commands import Desk, Read
from gridhand.controller.dispatch import Dispatch
from gridhand.controller.embedded import Embedded
from gridhand.controller.environments import Environments
from gridhand.controller.feed import Feed
from gridhand.controller.job_commands import ADMIN, Cancel, Submit
from gridhand.controller.keeper import Keeper
from gridhand.controller.looking import (
    Seen,
    Wanted,
    counted,
    ended_ones,
    held_by,
    open_by_id,
    open_ones,
    over,
    stored,
)  # fmt: skip
from gridhand.controller.neighbours import Neighbours
from gridhand.controller.retention import KEPT_MS, Retention
from gridhand.controller.running import Runner
from gridhand.controller.sessions import EndWithSession, Sessions
from gridhand.core.allocations import Allocation, Lifetime
from gridhand.core.callrecords import CallRecord
from gridhand.core.calls import Call, Reply
from gridhand.core.errors import (
    GridClosed,
    GridError,
    InvalidInput,
    JobsRunning,
    NotYours,
    OutcomeUnknown,
    StoreFenced,
    StoreUnavailable,
    UnknownAllocation,
    UnknownJob,
)
from gridhand.core.jobs import After, Job, Reason, Work
from gridhand.core.ledger import Change
from gridhand.core.strategies import strategy_named
from gridhand.engines.base import Engine
from gridhand.engines.several import engine_of
from gridhand.home import Home
from gridhand.store.base import Store
from gridhand.store.urls import store_at

_KILLING_S = 60.0
_LONGEST_NUMBER = 19
_STORE_PAUSE_S = 0.5  # between looks whether it is back
MOST_AFTER = 10_000  # jobs that one is to run after

_log = logging.getLogger(__name__)


class Controller:
    """What the API speaks with. Methods are called in its event loop; `owner` is who asks."""

    def __init__(self, home: Home, store: Store, engine: Engine, *, strategy: Any = None) -> None:
        self.home = home
        self.store_url = store.url
        self.feed = Feed()
        self.started = time.time()
        self.since = time.monotonic()
        self.neighbours = Neighbours(home.folder)
        self.attached = Clients(self._clients_gone)
        self.callbook = CallBook(self.ask, self._in_background, KEPT_MS)
        self.sessions = Sessions(self._end_with_session, self.attached, self.callbook.lose)
        self._engine = engine
        self._store = store
        self._dispatch = Dispatch(self._committed, self._reloaded)
        chosen = None if strategy is None else strategy_named(strategy)
        self._keeper = Keeper(store, strategy=chosen, dispatch=self._dispatch)
        self._background: set[asyncio.Task[None]] = set()
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None

    async def open(self, *, new_cluster: bool = False) -> None:
        """Take the store, reach the nodes, adopt what runs there, and begin to start jobs."""
        self._loop = asyncio.get_running_loop()
        self._dispatch.pause()
        if new_cluster:
            await asyncio.to_thread(_outgrow, self._store, await self._engine.epoch_seen())
        self.calls = await asyncio.to_thread(Embedded, self._keeper)
        self._port = self.calls.port(self._loop)
        self.environments = Environments(self.home.environments)
        self._retention = Retention(self.ask, self.calls, self.callbook, self.home)
        self.runner = Runner(
            self.ask,
            self._engine,
            self.home,
            self.environments,
            self._keeper.clock.now,
            self._fail,
            self.feed.tell,
        )
        try:
            # Before anything can end: who ends takes its environment along if no other needs it.
            self.environments.sweep(await self.ask(Read(_environments)))
            await self.runner.open(self._keeper.opening.epoch, new_cluster=new_cluster)
            await self._take_over()
        except BaseException:
            await self.runner.close(end=False)
            await asyncio.to_thread(self.calls.close)
            raise
        self.neighbours.enter()
        for problem in self.problems():
            _log.warning("%s", problem["message"])
        await self._go_on()
        self._in_background(self._retention.hourly())

    async def _take_over(self) -> None:
        """Those who were connected to the controller before have a while to come back."""
        jobs, sessions = await self.ask(Read(_with_clients))
        runs = await self.callbook.open_runs()
        self.attached.expect(jobs)
        if sessions or runs:
            self.sessions.expect(sessions, runs)

    async def close(self) -> None:
        """Stop deciding, let go of the nodes and the store. Running jobs go on."""
        self.stopping.set()
        self.neighbours.leave()
        self._dispatch.pause()
        self.attached.close()
        self.sessions.close()
        for task in self._background:
            task.cancel()
        idle = await self.idle()
        await self.runner.close(end=idle)
        await asyncio.to_thread(self.calls.close)

    def ask(self, call: Call[Reply]) -> asyncio.Future[Reply]:
        answer = self._port.call(call)
        answer.add_done_callback(self._answered)
        return answer

    def _answered(self, answer: asyncio.Future[Any]) -> None:
        """A keeper that has ended, or whose store another has, does not come back: nor do we."""
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, StoreFenced | GridClosed) and not self.stopping.is_set():
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Something of ours is broken. Who comes after us adopts all that runs, so that is next."""
        _log.error("the controller ends, because of a fault of its own", exc_info=error)
        self.failure = self.failure or error
        self.stopping.set()

    def problems(self) -> list[dict[str, Any]]:
        """What is wrong with this machine, and with us, and what to do about it."""
        found = [
            {"node": node, **dict(one)}
            for node, several in self.runner.problems.items()
            for one in several
        ]
        return found + [
            {
                "node": None,
                "message": f"another controller (pid {pid}, in {home}) promises the cores of this"
                " machine, too",
                "hint": "Use one of them: set GRIDHAND_HOME or GRIDHAND_ADDRESS to the same.",
            }
            for pid, home in self.neighbours.others()
        ]

    # ---- what has become durable

    def _committed(self, changes: Sequence[Change], held: Mapping[str, Any]) -> None:
        """In the keeper's thread."""
        self._loop.call_soon_threadsafe(self._settled, changes, held)

    def _reloaded(self) -> None:
        """In the keeper's thread."""
        self._loop.call_soon_threadsafe(lambda: self.runner.look_again())

    def _settled(self, changes: Sequence[Change], held: Mapping[str, Any]) -> None:
        for kind, _, _, job, _ in changes:
            attempt = job.attempt
            self.runner.changed(kind, job, held.get(attempt.allocation) if attempt else None)
            if not job.open:
                self.sessions.forget_job(job.id)
                self.environments.drop(job.work.environment)
            self.feed.tell(job)

    # ---- jobs

    async def keep(self, environment: Mapping[str, str]) -> str:
        """Keep the variables of a job to come; `submit` must follow."""
        return await self.environments.keep(environment)

    async def submit(
        self,
        op_id: str | None,
        work: Work,
        *,
        indices: tuple[int, ...] = (),
        after: tuple[After, ...] = (),
    ) -> list[str]:
        """Queue it, and answer the ids. The environment it names must have been kept."""
        command = Submit(work.owner, op_id, work, indices, await self._each(after))
        count = max(1, len(indices))
        self.environments.need(work.environment, count - 1)
        try:
            ids = await self.ask(command)
        except OutcomeUnknown:
            raise  # it may be there, and need them
        except GridError:
            self.environments.drop(work.environment, count)
            raise
        if not command.fresh:
            self.environments.drop(work.environment, count)
        if not work.detached:
            self.attached.expect(ids)
        return ids

    async def _each(self, after: tuple[After, ...]) -> tuple[After, ...]:
        """For an array all its tasks, which are there from the moment it is submitted."""
        found: list[After] = []
        for one in after:
            tasks = [] if "_" in one.id else await self.jobs(Wanted(array=one.id, limit=MOST_AFTER))
            ids = [seen.job.id for seen in reversed(tasks)] or [one.id]
            found += [After(id, one.condition) for id in ids]
        if len(found) > MOST_AFTER:
            raise InvalidInput("after", f"{len(found)} jobs", f"at most {MOST_AFTER} jobs")
        return tuple(found)

    async def cancel(
        self, owner: str, ids: Sequence[str], reason: Reason = Reason.CANCELLED
    ) -> list[str]:
        return await self.ask(Cancel(owner, ids=tuple(ids), reason=reason))

    async def signal(self, owner: str, id: str, signum: int) -> bool:
        seen = await self.job(id)
        if owner not in (seen.job.work.owner, ADMIN):
            raise NotYours(id, owner, "job")
        return await self.runner.signal(seen.job, signum)

    async def job(self, id: str) -> Seen:
        found = await self.find([id])
        if not found:
            raise UnknownJob(id)
        return found[0]

    async def find(self, ids: Sequence[str]) -> list[Seen]:
        """Those jobs, in that order; unknown ones are left out."""
        known: dict[str, Seen] = await self.ask(open_by_id(self._queue, ids))
        missing = [id for id in ids if id not in known]
        if missing:
            known |= {job.id: over(job) for job in await self.ask(stored(missing))}
        return [known[id] for id in ids if id in known]

    async def find_surely(self, ids: Sequence[str]) -> list[Seen]:
        """As `find`, for those who were just changed: that is done, and not to be denied now
        because the store has gone since."""
        while True:
            try:
                return await self.find(ids)
            except StoreUnavailable:
                if self.stopping.is_set():
                    raise
                await asyncio.sleep(_STORE_PAUSE_S)

    async def jobs(self, wanted: Wanted) -> list[Seen]:
        """Newest first."""
        found = {seen.job.id: seen for seen in await self.ask(open_ones(self._queue, wanted))}
        for job in await self.ask(ended_ones(wanted)):
            found.setdefault(job.id, over(job))
        newest = sorted(found.values(), key=lambda seen: -seen.job.number)
        return newest[: wanted.limit]

    async def devices(self, job: Job) -> list[str]:
        """The devices that its last attempt had."""
        if not job.attempts:
            return []
        held = await self.ask(held_by([job.attempts[-1].allocation]))
        return [hold.device for one in held for hold in one.devices]

    def usage_of(self, job: Job) -> Mapping[str, Any] | None:
        """What it was last measured to use."""
        attempt = job.attempt
        if attempt is None:
            return None
        found: Mapping[str, Any] = self.runner.usage.get(attempt.node, {}).get("jobs", {})
        return found.get(job.id)

    async def counts(self) -> dict[str, int]:
        return await self.ask(Read(counted))

    async def idle(self) -> bool:
        try:
            return not any((await self.counts()).values())
        except GridError:
            return False

    def _queue(self) -> Any:
        return self._dispatch.queue

    # ---- those who are gone

    async def _clients_gone(self, ids: list[str]) -> None:
        async def cancel(id: str) -> None:
            gone = Cancel(ADMIN, ids=(id,), reason=Reason.CLIENT_GONE)
            await self._surely(gone, unless=lambda: self.attached.has(id))

        await asyncio.gather(*map(cancel, ids))  # asked in one turn, so written as one

    async def _end_with_session(self, held: Sequence[EndWithSession]) -> None:
        await asyncio.gather(*map(self._surely, held))

    async def _surely(self, call: Call[Any], unless: Callable[[], bool] | None = None) -> None:
        """Until it is written. What is over by itself meanwhile is as good."""
        while unless is None or not unless():
            try:
                await self.ask(call)
                return
            except StoreUnavailable:
                await asyncio.sleep(_STORE_PAUSE_S)
            except GridError:
                return

    async def allocation(self, id: str) -> Allocation:
        """The allocation with that id, live or closed."""
        live = await self.ask(Read(lambda desk: desk.ledger.live.get(id)))
        number = id.rpartition("-")[2]
        if live is None and number.isdecimal() and len(number) < _LONGEST_NUMBER:
            closed = await self.ask(held_by([id]))
            live = next((held for held in closed if held.id == id), None)
        if live is None:
            raise UnknownAllocation(id)
        return live

    async def hold_in(self, session: str, made: Sequence[Allocation]) -> bool:
        """What was made for a session ends with it; at once if that has ended meanwhile."""
        own = [held for held in made if held.lifetime is Lifetime.SESSION]
        if all(self.sessions.hold(held.owner, session, held.id) for held in own):
            return True
        await self._end_with_session([EndWithSession(held.owner, id=held.id) for held in own])
        return False

    async def come_back(
        self,
        owner: str,
        session: str,
        held: Sequence[str],
        jobs: Sequence[str],
        runs: Sequence[str] = (),
    ) -> tuple[list[str], list[str]]:
        """What a session had before the controller was restarted, as far as it is still there."""

        def answer(desk: Desk) -> tuple[list[str], list[str]]:
            return _sessions_own(desk, owner, held), _attached_of(desk, owner, jobs)

        live, running = await self.ask(Read(answer))
        for run in runs:
            self.sessions.report_on(owner, session, run)
        return (
            [id for id in live if self.sessions.hold(owner, session, id)],
            [id for id in running if self.sessions.attach(owner, session, id)],
        )

    # ---- calls

    async def report_calls(
        self, owner: str, session: str, run: str, calls: Sequence[CallRecord]
    ) -> None:
        """Write down what a client says of its calls."""
        if not self.sessions.report_on(owner, session, run):
            raise InvalidInput("session", session, "a session that is connected")
        # Asked for in the same turn: what is lost with the session is to be so after this.
        await self.callbook.write(calls)

    # ---- ending

    async def stop(self, jobs: str) -> None:
        """Ask for the end: `refuse` while jobs are open, `keep` them, or `kill` them first."""
        count = sum((await self.counts()).values())
        if count and jobs == "refuse":
            raise JobsRunning(count)
        _log.info("told to stop by a client, with %d jobs: %s", count, jobs)
        if jobs == "kill":
            self._dispatch.pause()
            try:
                await self._kill_all()
            except BaseException:
                await self._go_on()
                raise
        self.stopping.set()

    async def _go_on(self) -> None:
        """Start what waits, from now on."""
        self._dispatch.resume()
        await self.ask(Read(lambda desk: None))  # wakes the keeper

    async def _kill_all(self) -> None:
        ids = await self.ask(Read(lambda desk: tuple(desk.ledger.jobs.open)))
        await self.ask(Cancel(ADMIN, ids=ids))
        with self.feed.listen(None) as listening:
            deadline = time.monotonic() + _KILLING_S
            while time.monotonic() < deadline and not await self.idle():
                await listening.changes(timeout_s=0.5)

    def _in_background(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)


def _sessions_own(desk: Desk, owner: str, ids: Sequence[str]) -> list[str]:
    found = [desk.ledger.live[id] for id in ids if id in desk.ledger.live]
    return [one.id for one in found if (one.owner, one.lifetime) == (owner, Lifetime.SESSION)]


def _attached_of(desk: Desk, owner: str, ids: Sequence[str]) -> list[str]:
    book = desk.ledger.jobs.open
    found = [book[id] for id in ids if id in book]
    return [job.id for job in found if job.work.owner == owner and not job.work.detached]


def local_controller(home: Home, store_url: str) -> Controller:
    """A controller of this machine, which runs jobs here."""
    return Controller(home, store_at(store_url), engine_of(home))


def _outgrow(store: Store, epoch: int) -> None:
    """Begin epochs until they are as late as one that nodes have seen in another store's name."""
    while store.open().epoch < epoch:
        store.close()
    store.close()


def _environments(desk: Desk) -> list[str]:
    """Those that open jobs need, as often as they do."""
    book = desk.ledger.jobs.open.values()
    return [job.work.environment for job in book if job.work.environment]


def _with_clients(desk: Desk) -> tuple[list[str], list[tuple[str, str]]]:
    """Attached jobs, and what sessions hold."""
    book = desk.ledger.jobs.open.values()
    sessions = [
        (held.owner, held.id)
        for held in desk.ledger.live.values()
        if held.lifetime is Lifetime.SESSION
    ]
    return [job.id for job in book if not job.work.detached], sessions
