"""Runner: has what is durable done on the nodes, and what was done there made durable.

It decides nothing. A job that the ledger says is running is started until its node knows of it;
an end is told to the keeper until it is written, and only then may the node forget it. So it does
not matter where either side was killed: what one of them does not know, the other tells it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from gridhand.controller.commands import Desk, Read, Register, set_foreign
from gridhand.controller.environments import Environments
from gridhand.controller.job_commands import EndAttempts, Ended, note_spawned
from gridhand.controller.orders import make_order
from gridhand.core.allocations import Allocation
from gridhand.core.calls import Call
from gridhand.core.errors import GridError, StoreError, StoreFenced, StoreInvalid
from gridhand.core.jobs import End, Job, JobState, Reason
from gridhand.engines.base import Engine, Fact, Key, Known, Order
from gridhand.home import Home
from gridhand.store.rows import node_from_row

OWNER = "gridhand"  # in whose name nodes are registered and ends are noted
_AGAIN_S = 0.5
_MOST_ENDS = 1000  # in one transaction
_MOST_STARTS = 64
_MOST_OVER = 10_000
_GIVEN_UP_MS = 10_000  # to end in, for what is no longer ours

_log = logging.getLogger(__name__)

Ask = Callable[[Call[Any]], Awaitable[Any]]


class UnderWay(NamedTuple):
    """A job that the ledger says is running, and what it holds."""

    job: Job
    held: Allocation | None

    @property
    def key(self) -> Key:
        assert self.job.attempt is not None
        return self.job.id, self.job.attempt.number


class Runner:
    """Between the keeper and the engine. In the event loop only."""

    def __init__(
        self,
        ask: Ask,
        engine: Engine,
        home: Home,
        environments: Environments,
        now: Callable[[], int],
        failed: Callable[[BaseException], None],
        tell: Callable[[Job], None] = lambda job: None,
    ) -> None:
        """`failed` is told of a fault of ours: to begin anew is what sets everything right.

        `tell` hears of jobs whose process is there now, which is no change of the ledger.
        """
        self._ask = ask
        self._engine = engine
        self._home = home
        self._environments = environments
        self._now = now
        self._failed = failed
        self._tell = tell
        self._fences: dict[Key, str] = {}  # of the attempts whose end is not durable yet
        self._strangers: set[Key] = set()
        self._outbox: deque[tuple[str, Job, Allocation | None]] = deque()
        self._ends: dict[Key, Fact] = {}
        self._writing: set[Key] = set()
        self._over: dict[Key, None] = {}  # the latest of those whose end is durable
        self._wake_out, self._wake_in = asyncio.Event(), asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._nodes: dict[str, Mapping[str, Any]] = {}  # as they were last found
        self._foreign: set[str] = set()  # nodes on which strangers were measured
        self.usage: dict[str, Mapping[str, Any]] = {}
        self.problems: dict[str, Sequence[Mapping[str, Any]]] = {}

    async def open(self, epoch: int, *, new_cluster: bool) -> None:
        """Reach the nodes, and bring them and the ledger together."""
        known = await self._engine.open(epoch, self)
        await self._settle_tasks()
        await self._reconcile(known, first=not new_cluster)
        self._spawn(self._send_out())
        self._spawn(self._take_in())

    async def close(self, *, end: bool) -> None:
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        for task in list(self._tasks):
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._engine.close(end=end)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None or self._closed:
            return
        if isinstance(error, StoreError) and not isinstance(error, StoreFenced):
            _log.warning("the ledger cannot be asked: %s", error)
        else:
            self._failed(error)

    async def _surely(self, call: Call[Any]) -> Any:
        """The answer, however long the store is away."""
        while True:
            try:
                return await self._ask(call)
            except StoreFenced:
                raise
            except StoreError as error:
                _log.warning("the ledger cannot be asked yet: %s", error)
                await asyncio.sleep(_AGAIN_S)

    async def _settle_tasks(self) -> None:
        while pending := [task for task in self._tasks if not task.done()]:
            await asyncio.wait(pending)

    # ---- from the ledger to the nodes

    def changed(self, kind: str, job: Job, held: Allocation | None) -> None:
        """A change that is durable now."""
        if kind in ("job.started", "job.stopping"):
            assert job.attempt is not None
            key = job.id, job.attempt.number
            if key not in self._over:
                self._fences[key] = job.attempt.allocation
                self._send(kind, job, held)
        elif job.attempts:
            self._give_up((job.id, job.attempts[-1].number))

    def _send(self, kind: str, job: Job, held: Allocation | None) -> None:
        self._outbox.append((kind, job, held))
        self._wake_out.set()

    def _give_up(self, key: Key) -> None:
        """The ledger has ended it. If its node did not tell that it is over, it must not run on."""
        if key in self._fences and key not in self._ends and key not in self._writing:
            self._strangers.add(key)
            self._spawn(self._engine.stop(key, Reason.NODE_LOST, _GIVEN_UP_MS))

    def look_again(self) -> None:
        """The ledger was read anew, and may say what nobody was told of."""
        if not self._closed:
            self._spawn(self._send_again())

    async def _send_again(self) -> None:
        under_way = {one.key: one for one in await self._surely(_under_way())}
        for key in self._fences.keys() - under_way.keys():
            self._give_up(key)
        for job, held in under_way.values():
            stopping = job.attempt is not None and job.attempt.stopping is not None
            self.changed("job.stopping" if stopping else "job.started", job, held)

    async def _send_out(self) -> None:
        """One at a time and in order, so that a stop never comes before its start."""
        while True:
            await self._wake_out.wait()
            self._wake_out.clear()
            while self._outbox:
                orders = self._take_orders()
                if orders:
                    await self._engine.start(orders)
                elif self._outbox:
                    await self._stop(self._outbox.popleft()[1])

    def _take_orders(self) -> list[Order]:
        """The starts that come next; what cannot even be ordered has ended.

        Not many at a time: from here on nobody can see any more that one has ended meanwhile.
        """
        orders: list[Order] = []
        while self._outbox and self._outbox[0][0] == "job.started" and len(orders) < _MOST_STARTS:
            _, job, held = self._outbox.popleft()
            if held is not None and (order := self._order(job, held)) is not None:
                orders.append(order)
        return orders

    def _order(self, job: Job, held: Allocation) -> Order | None:
        attempt = job.attempt
        assert attempt is not None
        key = job.id, attempt.number
        if key not in self._fences or key in self._strangers:
            return None  # told twice, and over: its node has forgotten it, and would start it anew
        folder = self._home.job(job.id)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            environment = self._environments.load(job.work.environment)
        except (OSError, ValueError) as error:
            why = f"what it needs cannot be prepared: {error}"
            end = {"reason": Reason.START_FAILED, "message": why}
            self.ended([_fact(job.id, attempt.number, held.id, end)])
            return None
        pin = held.node in self._nodes
        return make_order(job, held, folder=folder, environment=environment, pin=pin)

    async def _stop(self, job: Job) -> None:
        attempt = job.attempt
        assert attempt is not None
        assert attempt.stopping is not None
        key = job.id, attempt.number
        if key in self._fences:
            await self._engine.stop(key, attempt.stopping, job.work.grace_ms)

    # ---- from the nodes to the ledger

    def spawned(self, facts: Sequence[Fact]) -> None:
        told = [(*_key(fact), int(fact.get("ran_ms") or 0)) for fact in facts]
        self._spawn(self._note(told))

    async def _note(self, told: Sequence[tuple[str, int, int]]) -> None:
        for job in await self._surely(note_spawned(told)):
            self._tell(job)

    def ended(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self._ends[_key(fact)] = fact
        self._wake_in.set()

    async def _take_in(self) -> None:
        """Have ends written, as many at a time as there are; then the nodes may forget them."""
        while True:
            await self._wake_in.wait()
            self._wake_in.clear()
            while self._ends:
                keys = list(self._ends)[:_MOST_ENDS]
                facts = [self._ends.pop(key) for key in keys]
                self._writing = set(keys)
                await self._write_ends(facts)
                self._writing = set()
                self._note_over(keys)
                await self._engine.forget(keys)

    def _note_over(self, keys: Sequence[Key]) -> None:
        """Their ends are durable. Whoever looked at the ledger before may think that they run."""
        for key in keys:
            self._fences.pop(key, None)
            self._strangers.discard(key)
            self._over[key] = None
        for key in list(self._over)[: max(0, len(self._over) - _MOST_OVER)]:
            del self._over[key]

    async def _write_ends(self, facts: Sequence[Fact]) -> None:
        ended = tuple(one for fact in facts if (one := self._read(fact)) is not None)
        if ended:
            await self._surely(EndAttempts(OWNER, ended=ended, jitter=random.random()))

    def _read(self, fact: Fact) -> Ended | None:
        """What the keeper is told of it; nothing where it was never ours."""
        key = _key(fact)
        fence = fact.get("fence") or self._fences.get(key)
        if fence is None or key in self._strangers:
            return None
        end = fact["end"]
        ran_ms = end.get("ran_ms")
        how = End(
            attempt=key[1],
            allocation=str(fence),
            reason=_reason(end["reason"]),
            exit_code=end.get("code"),
            signal=end.get("signal"),
            peak_bytes=end.get("peak_bytes"),
            message=str(end.get("message") or ""),
            started=None if ran_ms is None else self._now() - int(ran_ms),
        )
        return Ended(key[0], how)

    def node_changed(self, node: Mapping[str, Any], problems: Sequence[Mapping[str, Any]]) -> None:
        self.problems[node["name"]] = problems
        self._nodes[node["name"]] = node
        self._spawn(self._register(node))

    async def _register(self, node: Mapping[str, Any]) -> None:
        while self._nodes[node["name"]] is node:  # else it was found anew meanwhile
            try:
                await self._ask(Register(OWNER, nodes=(node_from_row(node),)))
                return
            except StoreFenced:
                raise
            except StoreError:
                await asyncio.sleep(_AGAIN_S)

    def measured(self, node: str, usage: Mapping[str, Any]) -> None:
        self.usage[node] = usage
        foreign = usage.get("foreign") or {}
        if foreign or node in self._foreign:
            self._spawn(self._plan_around(node, foreign))

    async def _plan_around(self, node: str, foreign: Mapping[str, int]) -> None:
        with contextlib.suppress(GridError):  # a device that has just gone
            await self._ask(set_foreign(node, foreign))
            (self._foreign.add if foreign else self._foreign.discard)(node)

    def returned(self, known: Known) -> None:
        self._spawn(self._reconcile(known, first=False))

    def broken(self, error: BaseException) -> None:
        self._failed(error)

    async def signal(self, job: Job, signum: int) -> bool:
        attempt = job.attempt
        return attempt is not None and await self._engine.signal((job.id, attempt.number), signum)

    async def read_log(self, path: str, offset: int, limit: int) -> list[tuple[int, bytes | int]]:
        return await self._engine.read_log(path, offset, limit)

    async def log_size(self, path: str) -> int:
        return await self._engine.log_size(path)

    def facts(self) -> Mapping[str, Any]:
        return self._engine.facts()

    # ---- after anything was away

    async def _reconcile(self, known: Known, *, first: bool) -> None:
        under_way = {one.key: one for one in await self._surely(_under_way())}
        running = {_key(fact): fact for fact in known.running}
        over = {_key(fact): fact for fact in known.ended}
        strangers = [key for key in (*running, *over) if key not in under_way]
        if first and any(key in running for key in strangers):
            await self._check_strangers([key for key in strangers if key in running])
        await self._surely(_never_again(strangers))
        self._adopt(under_way, running, over)
        for key in strangers:
            self._strangers.add(key)
            if key in running:
                _log.warning("attempt %s of job %s is no longer ours, and is stopped", *key[::-1])
                await self._engine.stop(key, Reason.NODE_LOST, _GIVEN_UP_MS)
        self.ended([fact for key, fact in over.items() if key in self._strangers])

    def _adopt(
        self,
        under_way: Mapping[Key, UnderWay],
        running: Mapping[Key, Fact],
        over: Mapping[Key, Fact],
    ) -> None:
        for key, (job, held) in under_way.items():
            assert job.attempt is not None
            if key in self._over:
                continue
            self._fences[key] = job.attempt.allocation
            if key in over:
                self.ended([over[key]])
                continue
            if key in running and running[key].get("pid") is not None:
                self.spawned([running[key]])
            if job.attempt.stopping is not None:  # an engine ends what its nodes do not know
                self.changed("job.stopping", job, held)
            elif key not in running:
                self.changed("job.started", job, held)

    async def _check_strangers(self, keys: Sequence[Key]) -> None:
        """A store that knows nothing of what runs is not the one these were started from."""

        def ask(desk: Desk) -> int:
            return desk.ledger.jobs.next_number

        next_number = await self._ask(Read(ask))
        unheard = [job for job, _ in keys if _number(job) >= next_number]
        if unheard:
            raise StoreInvalid(
                f"{len(unheard)} jobs run here of which the store knows nothing ({unheard[0]}, …):"
                " it is new, or older than they are",
                hint="Put the right store back. Or start with `grid serve --new-cluster`: the jobs"
                " are then stopped.",
            )


def _under_way() -> Read[list[UnderWay]]:
    def answer(desk: Desk) -> list[UnderWay]:
        ledger = desk.ledger
        return [
            UnderWay(job, ledger.live.get(job.attempt.allocation))
            for job in ledger.jobs.open.values()
            if job.state is JobState.RUNNING and job.attempt is not None
        ]

    return Read(answer)


def _never_again(strangers: Sequence[Key]) -> Read[None]:
    """Have no new job get the number of one that a node still knows of, and would not start."""

    def answer(desk: Desk) -> None:
        book = desk.ledger.jobs
        book.next_number = max([book.next_number, *(_number(job) + 1 for job, _ in strangers)])

    return Read(answer)


def _number(job: str) -> int:
    """The number in the id of a job, which in an array is that of the first."""
    return int(job.partition("_")[0])


def _reason(word: str) -> Reason:
    """Why an attempt is over; an agent of another version may have words that are not ours."""
    return Reason(word) if word in list(Reason) else Reason.AGENT_LOST


def _key(fact: Fact) -> Key:
    return str(fact["job"]), int(fact["attempt"])


def _fact(job: str, attempt: int, fence: str, end: Mapping[str, Any]) -> Fact:
    return {"job": job, "attempt": attempt, "fence": fence, "state": "ended", "end": end}
