"""Runner: carries out the durable decisions of the keeper on the nodes, and reports back.

It decides nothing. A job that runs according to the ledger is sent to its node until the node knows
it. The end of an attempt is sent to the keeper until it is durable, and only then may the node
forget it. So either side may be killed at any point: the other one repeats what it has missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from gridhand.controller.jobs.environment_files import Environments
from gridhand.controller.jobs.job_users import JobUsers
from gridhand.controller.jobs.placed_jobs import PlacedJob, attempts_elsewhere, placed_jobs
from gridhand.controller.jobs.start_orders import make_order
from gridhand.controller.keeper.questions import Read
from gridhand.controller.nodes.foreign_use import ForeignUse
from gridhand.controller.nodes.node_reports import NodeReports
from gridhand.controller.nodes.node_samples import NodeSamples
from gridhand.controller.store_retry import retry_while_store_is_away
from gridhand.core.errors import (
    ControllerStopping,
    StoreError,
    StoreFenced,
)
from gridhand.core.jobs.job import AttemptEnd, Job, Reason
from gridhand.core.ledger.allocations import Allocation
from gridhand.core.model.names import AllocationId, NodeName
from gridhand.core.model.nodes import Node
from gridhand.core.observations import (
    AwaitExit,
    NoteExit,
    NoteSpawned,
    SkipJobNumbers,
    Spawned,
)
from gridhand.core.operations import EndAttempts, Ended, Operation
from gridhand.engines.base import (
    AttemptReport,
    EndReport,
    Engine,
    Key,
    Known,
    StartOrder,
)
from gridhand.home import Home
from gridhand.posix.unix_users import UnknownUser

OWNER = "gridhand"  # the owner of the commands that register nodes and end attempts
_RETRY_S = 0.5
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EAGAIN})
_MOST_ENDS = 1000  # in one transaction
_MOST_STARTS = 64  # in one message
_MOST_SETTLED = 10_000  # ended attempts to remember
_GIVEN_UP_GRACE_MS = 10_000  # for attempts that the ledger has ended or does not know

_log = logging.getLogger(__name__)

Ask = Callable[[Operation[Any]], Awaitable[Any]]


class Runner(NodeReports):
    """The link between the keeper and the engine. Used in the event loop only."""

    def __init__(
        self,
        ask: Ask,
        engine: Engine,
        home: Home,
        environments: Environments,
        now: Callable[[], int],
        failed: Callable[[BaseException], None],
        tell: Callable[[Job], None],
        report_node: Callable[[Node], Awaitable[None]],
        samples: NodeSamples,
        foreign: ForeignUse,
        users: JobUsers,
        engine_of: Callable[[NodeName], str] = lambda node: "",
    ) -> None:
        """`failed` is called with a fault in this process, which only a restart mends.

        `tell` is called with jobs whose process has started: the ledger does not record that.
        `report_node` is called with nodes that were found or found changed. `users` says as which
        user a job runs, and `engine_of` which engine runs the jobs of a node that is elsewhere.
        """
        self._ask = ask
        self._engine = engine
        self._home = home
        self._environments = environments
        self._now = now
        self._failed = failed
        self._tell = tell
        super().__init__(report_node, samples, foreign)
        self._users = users
        self._engine_name = engine_of
        self._fences: dict[Key, AllocationId] = {}  # of attempts whose end is not durable
        self._places: dict[Key, NodeName] = {}  # and where they are
        self._strangers: set[Key] = set()  # attempts that the ledger has ended or does not know
        self._awaited: set[Key] = set()  # given up: the keeper waits until they have no process
        self._outbox: deque[tuple[str, Job, Allocation | None]] = deque()
        self._ends: dict[Key, AttemptReport] = {}
        self._writing: set[Key] = set()
        self._settled: dict[Key, None] = {}  # the latest whose end is durable, oldest first
        self._wake_out, self._wake_in = asyncio.Event(), asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._elsewhere: set[Key] = set()  # attempts on machines that we do not reach

    async def open(self, epoch: int) -> None:
        """Connect to the nodes, and reconcile them with the ledger."""
        known = await self._engine.open(epoch, self)
        await self._settle_tasks()
        here = {report.key for report in (*known.running, *known.ended)}
        self._elsewhere = await self._run_surely(Read(attempts_elsewhere)) - here
        await self._reconcile(known)
        self._spawn(self._send_out())
        self._spawn(self._take_in())

    async def close(self, *, end: bool) -> None:
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        for task in list(self._tasks):
            with contextlib.suppress(asyncio.CancelledError, ControllerStopping):
                await task  # an end that is not written is reported again to the next controller
        await self._engine.close(end=end)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._watch(asyncio.get_running_loop().create_task(work))

    def _watch(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None or self._closed:
            return
        if isinstance(error, StoreError) and not isinstance(error, StoreFenced):
            _log.warning("the ledger cannot be asked: %s", error)
        elif not isinstance(error, ControllerStopping):
            self._failed(error)

    async def _run_surely(self, operation: Operation[Any]) -> Any:
        """Run an operation, and repeat it for as long as the store is away."""
        return await retry_while_store_is_away(
            lambda: self._ask(operation),
            kind=StoreError,
            report=lambda error: _log.warning("the ledger cannot be asked yet: %s", error),
        )

    async def _settle_tasks(self) -> None:
        while pending := [task for task in self._tasks if not task.done()]:
            await asyncio.wait(pending)

    # ---- from the ledger to the nodes

    def changed(self, kind: str, job: Job, held: Allocation | None) -> None:
        """Act on a durable change of a job: start it, stop it, or give up its last attempt."""
        if kind in ("job.started", "job.stopping"):
            assert job.attempt is not None
            key = job.id, job.attempt.number
            if key not in self._settled and key not in self._elsewhere:
                self._note_place(job)
                self._send(kind, job, held)
        elif job.attempts:
            key = job.id, job.attempts[-1].number
            self._give_up(key)
            if job.attempts[-1].reason is Reason.NODE_LOST:
                self._awaited.add(key)
                self._note_exits_among([key])

    def _note_place(self, job: Job) -> None:
        """Take note of the fence and the node of the job's current attempt."""
        attempt = job.attempt
        assert attempt is not None
        key = job.id, attempt.number
        self._fences[key] = attempt.allocation
        if self._places.get(key) != attempt.node:
            self._places[key] = attempt.node
            self._engine.place(key, attempt.node, self._engine_name(attempt.node))

    def _send(self, kind: str, job: Job, held: Allocation | None) -> None:
        self._outbox.append((kind, job, held))
        self._wake_out.set()

    def _give_up(self, key: Key) -> None:
        """Stop an attempt that the ledger has ended, unless its node has reported its end."""
        if key in self._fences and key not in self._ends and key not in self._writing:
            self._strangers.add(key)
            self._spawn(self._engine.stop(key, Reason.NODE_LOST, _GIVEN_UP_GRACE_MS))

    def _note_exits_among(self, keys: Sequence[Key]) -> None:
        """Tell the keeper if it waits for any of these and their nodes know them no longer."""
        if any(key in self._awaited and key not in self._fences for key in keys):
            self._spawn(self._note_exits())

    async def _note_exits(self) -> None:
        """Tell the keeper which attempts that it waits for have no process left."""
        leftovers = Read(lambda context: context.ledger.leftovers.attempts())
        self._awaited |= await self._run_surely(leftovers)
        gone = self._awaited - self._fences.keys() - self._strangers
        self._awaited -= gone
        if gone:
            await self._run_surely(NoteExit(tuple(gone)))

    def look_again(self) -> None:
        """Compare again with the ledger: it was read again, and may have changed unnoticed."""
        if not self._closed:
            self._spawn(self._send_again())

    async def _placed(self, node: NodeName | None = None) -> dict[Key, PlacedJob]:
        """Return the jobs that run according to the ledger: all of ours, or those of a node."""
        placed = await self._run_surely(Read(placed_jobs))
        ours = {job.key: job for job in placed if job.key not in self._elsewhere}
        if node is None:
            return ours
        return {key: job for key, job in ours.items() if job.node == node}

    async def _send_again(self) -> None:
        placed = await self._placed()
        for key in self._fences.keys() - placed.keys():
            self._give_up(key)
        for job, held in placed.values():
            stopping = job.attempt is not None and job.attempt.stopping is not None
            self.changed("job.stopping" if stopping else "job.started", job, held)
        await self._note_exits()

    async def _send_out(self) -> None:
        """Send starts and stops one after the other, so that no stop comes before its start."""
        while True:
            await self._wake_out.wait()
            self._wake_out.clear()
            while self._outbox:
                orders = self._take_orders()
                if orders:
                    await self._engine.start(orders)
                elif self._outbox:
                    await self._stop(self._outbox.popleft()[1])

    def _take_orders(self) -> list[StartOrder]:
        """Remove the next starts from the outbox and return their orders.

        Only a few at a time: once an order is made, it is no longer checked whether its job has
        ended in the meantime.
        """
        orders: list[StartOrder] = []
        while self._outbox and self._outbox[0][0] == "job.started" and len(orders) < _MOST_STARTS:
            _, job, held = self._outbox.popleft()
            if held is not None and (order := self._make_order(job, held)) is not None:
                orders.append(order)
        return orders

    def _make_order(self, job: Job, held: Allocation) -> StartOrder | None:
        """Return the order; None if the attempt is over, cannot be prepared, or has to wait."""
        attempt = job.attempt
        assert attempt is not None
        key = job.id, attempt.number
        if key not in self._fences or key in self._strangers:
            return None  # a repeat of an ended attempt, which its node would start again
        folder = self._home.job(job.id)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            environment = self._environments.load(job.work.environment)
            user = self._users.find(job.work.owner)
        except (OSError, ValueError, UnknownUser) as error:
            if isinstance(error, OSError) and error.errno in _SHORTAGES:
                _log.warning("job %s is started later: %s", job.id, error)
                asyncio.get_running_loop().call_later(
                    _RETRY_S, self._send, "job.started", job, held
                )
                return None
            why = f"what it needs cannot be prepared: {error}"
            end = EndReport(Reason.START_FAILED, why)
            self.ended([AttemptReport(job.id, attempt.number, held.id, end=end)])
            return None
        pin = held.node in self._nodes
        return make_order(job, held, folder=folder, environment=environment, pin=pin, user=user)

    async def _stop(self, job: Job) -> None:
        attempt = job.attempt
        assert attempt is not None
        assert attempt.stopping is not None
        key = job.id, attempt.number
        if key in self._fences:
            await self._engine.stop(key, attempt.stopping, job.work.grace_ms)

    # ---- from the nodes to the ledger

    def spawned(self, reports: Sequence[AttemptReport]) -> None:
        spawned = (Spawned(*report.key, report.ran_ms or 0) for report in reports)
        self._spawn(self._note_spawned(tuple(spawned)))

    async def _note_spawned(self, spawned: tuple[Spawned, ...]) -> None:
        for job in await self._run_surely(NoteSpawned(spawned)):
            self._tell(job)

    def ended(self, reports: Sequence[AttemptReport]) -> None:
        for report in reports:
            self._ends[report.key] = report
        self._wake_in.set()

    async def _take_in(self) -> None:
        """Store ends, many in one transaction; then let the nodes forget the attempts."""
        while True:
            await self._wake_in.wait()
            self._wake_in.clear()
            while self._ends:
                keys = list(self._ends)[:_MOST_ENDS]
                reports = [self._ends.pop(key) for key in keys]
                self._writing = set(keys)
                await self._write_ends(reports)
                self._writing = set()
                self._settle(keys)
                await self._engine.forget(keys)

    def _settle(self, keys: Sequence[Key]) -> None:
        """Remember that these ends are durable: older answers of the keeper have them running."""
        for key in keys:
            self._drop(key)
            self._settled[key] = None
        self._note_exits_among(keys)
        for key in list(self._settled)[: max(0, len(self._settled) - _MOST_SETTLED)]:
            del self._settled[key]

    def _drop(self, key: Key) -> None:
        """Forget an attempt that no node has."""
        self._fences.pop(key, None)
        self._places.pop(key, None)
        self._strangers.discard(key)

    async def _write_ends(self, reports: Sequence[AttemptReport]) -> None:
        ended = tuple(end for report in reports if (end := self._end_of(report)) is not None)
        if ended:
            await self._run_surely(EndAttempts(OWNER, ended=ended, jitter=random.random()))

    def _end_of(self, report: AttemptReport) -> Ended | None:
        """Return the end for the keeper; None if the ledger does not know the attempt."""
        end, fence = report.end, report.fence or self._fences.get(report.key)
        if end is None or fence is None or report.key in self._strangers:
            return None
        how = AttemptEnd(report.attempt, fence, _reason(end.reason), end.code, end.signal)
        how = how._replace(
            peak_bytes=end.peak_bytes,
            message=end.message,
            ran_ms=end.ran_ms,
            ended=self._now() - end.ago_ms,
        )
        return Ended(report.job, how)

    async def sample_every(self, every_ms: int, for_ms: int) -> None:
        await self._engine.sample_every(every_ms, for_ms)

    def returned(self, known: Known, node: NodeName | None = None) -> None:
        sent = self._fences.keys() | self._strangers
        if node is None:
            self._spawn(self._reconcile(known, sent=sent))
            return
        there = {key for key in sent if self._places.get(key) == node}
        self._settle_later(node, self._reconcile(known, sent=there, node=node))

    def broken(self, error: BaseException) -> None:
        self._failed(error)

    async def signal(self, job: Job, signum: int) -> bool:
        attempt = job.attempt
        return attempt is not None and await self._engine.signal((job.id, attempt.number), signum)

    def note_reader(self, key: Key, offsets: Mapping[str, int]) -> None:
        """Tell the node how far an attached client has read; {} if it is gone."""
        self._spawn(self._engine.note_reader(key, offsets))

    def facts(self) -> Mapping[str, Any]:
        return self._engine.facts()

    # ---- after a connection or a process was lost

    async def _reconcile(
        self, known: Known, *, sent: Collection[Key] = (), node: NodeName | None = None
    ) -> None:
        """Compare the ledger with what the nodes know: adopt what is in both, stop strangers.

        `sent` are the attempts that the nodes were told of before they answered with `known`. With
        `node` it is that node which answered, and the attempts of others are left alone.
        """
        placed = await self._placed(node)
        running = {report.key: report for report in known.running}
        ended = {report.key: report for report in known.ended}
        strangers = [key for key in (*running, *ended) if key not in placed]
        if node is None:  # a worker elsewhere looks at the fence
            # A node would not start a new job with the number of one that it still knows.
            latest = max((int(job.partition("_")[0]) for job, _ in strangers), default=0)
            await self._run_surely(SkipJobNumbers(latest))
        self._adopt(placed, running, ended)
        for key in set(sent) - placed.keys() - running.keys() - ended.keys():
            self._drop(key)
        self._strangers.update(strangers)
        if node is not None:
            for key in strangers:
                self._places[key] = node
                self._engine.place(key, node, self._engine_name(node))
        if left := tuple(key for key in strangers if key in running):
            names = tuple(self._nodes) if node is None else (node,)
            await self._run_surely(AwaitExit(names, left))
        await self._note_exits()
        for key in strangers:
            if key in running:
                _log.warning("attempt %d of job %s is stopped: not in the ledger", key[1], key[0])
                await self._engine.stop(key, Reason.NODE_LOST, _GIVEN_UP_GRACE_MS)
        self.ended([report for key, report in ended.items() if key in self._strangers])

    def _adopt(
        self,
        placed: Mapping[Key, PlacedJob],
        running: Mapping[Key, AttemptReport],
        ended: Mapping[Key, AttemptReport],
    ) -> None:
        for key, (job, held) in placed.items():
            assert job.attempt is not None
            if key in self._settled:
                continue
            self._note_place(job)
            if key in ended:
                self.ended([ended[key]])
                continue
            if key in running and running[key].pid is not None:
                self.spawned([running[key]])
            if job.attempt.stopping is not None:  # unknown to its node, it is reported as ended
                self.changed("job.stopping", job, held)
            elif key not in running:
                self.changed("job.started", job, held)


def _reason(word: str) -> Reason:
    """Return the reason; AGENT_LOST for a word that only another version of the agent has."""
    return Reason(word) if word in list(Reason) else Reason.AGENT_LOST
