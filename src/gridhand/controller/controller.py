"""The controller: keeper, queue, engine and connected clients in one process.

The keeper decides in its own thread; everything else runs in one event loop. When a change is
durable, `_settled` passes it to the runner, which acts on it, and to everybody who listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gridhand.controller.clients.call_recorder import CallRecorder
from gridhand.controller.clients.client_sessions import (
    Sessions,
    still_there,
    with_clients,
)
from gridhand.controller.clients.connections import ConnectionCounts
from gridhand.controller.clients.nested_waits import NestedWaits
from gridhand.controller.clients.token_book import TokenBook
from gridhand.controller.jobs.array_dependencies import expand_arrays
from gridhand.controller.jobs.environment_files import Environments, environments_in_use
from gridhand.controller.jobs.job_feed import Feed
from gridhand.controller.jobs.job_folders import JobFolders
from gridhand.controller.jobs.job_logs import JobLogs
from gridhand.controller.jobs.job_reader import JobReader
from gridhand.controller.jobs.job_runner import Runner
from gridhand.controller.jobs.job_users import JobUsers
from gridhand.controller.keeper.dispatcher import Dispatch
from gridhand.controller.keeper.embedded import Embedded
from gridhand.controller.keeper.job_commands import ADMIN
from gridhand.controller.keeper.keeper import Keeper
from gridhand.controller.keeper.ledger_commands import Context
from gridhand.controller.keeper.questions import Read
from gridhand.controller.nodes.declared_nodes import DeclaredNodes
from gridhand.controller.nodes.external_nodes import ExternalNodes
from gridhand.controller.nodes.foreign_use import ForeignUse
from gridhand.controller.nodes.liveness_watcher import LivenessWatcher
from gridhand.controller.nodes.node_samples import NodeSamples
from gridhand.controller.other_controllers import Neighbours
from gridhand.controller.problem_list import list_problems
from gridhand.controller.read_model import ReadModel
from gridhand.controller.retention import Retention
from gridhand.controller.settings import Settings
from gridhand.controller.store_claim import StoreClaim
from gridhand.controller.store_retry import retry_while_store_is_away
from gridhand.core.errors import (
    ControllerStopping,
    GridClosed,
    GridError,
    InvalidInput,
    JobsRunning,
    NotYours,
    OutcomeUnknown,
    StoreFenced,
)
from gridhand.core.jobs.job import After, Job, JobSpec, Reason
from gridhand.core.ledger.allocations import Allocation, Lifetime
from gridhand.core.ledger.ledger import Change
from gridhand.core.model.call_record import CallRecord
from gridhand.core.model.names import AllocationId, JobId
from gridhand.core.notes import NoteAction, NoteSignal
from gridhand.core.operations import (
    Cancel,
    EndWithSession,
    Operation,
    Reply,
    Submit,
    Submitted,
)
from gridhand.engines.base import Engine
from gridhand.home import Home
from gridhand.store.base import Store
from gridhand.store.home_store import HomeStore

_KILLING_S = 60.0
_NOTE_S = 2.0  # what the controller does is not held up by a store that hangs

_log = logging.getLogger(__name__)


class Controller(JobReader):
    """Everything that the API offers. Methods run in its event loop; `owner` is the caller."""

    def __init__(
        self,
        home: Home,
        store: Store,
        engine: Engine,
        *,
        settings: Settings | None = None,
        belongs_to: HomeStore | None = None,
        machine: str = "",
        users: JobUsers | None = None,
        taken: Callable[[str], None] = lambda cluster_id: None,
    ) -> None:
        """`belongs_to` is the store that earlier controllers of the home have used.

        `machine` is the name of this machine, if others share the store. `users` are those who
        may submit. `taken` is called with the id of the ledger once the store is ours, before any
        node hears of it.
        """
        self.home = home
        self._belongs_to, self._machine, self._taken = belongs_to, machine, taken
        self.store_url, self._store = store.url, store
        self.started, self.since = time.time(), time.monotonic()
        self.feed, self.neighbours = Feed(), Neighbours(home.folder)
        self.attached = ConnectionCounts(self._clients_gone)
        self.settings = settings or Settings()
        self.users = users or JobUsers()
        self.logs, self.folders = JobLogs(engine, home, self.users), JobFolders(home, self.users)
        self.callbook = CallRecorder(self.ask, self._in_background, self.settings.kept_ms)
        self.nested_waits = NestedWaits(self.ask)
        self.now = lambda: self._keeper.clock.now()
        self.tokens = TokenBook(self.ask, self.now)
        self.liveness = LivenessWatcher(self.ask, self.now, store.shared)
        self.declared = DeclaredNodes(home.declared, self.ask, self.liveness.look_again)
        self.samples = NodeSamples()
        self.sessions = Sessions(self._end_with_session, self.attached, self.callbook.lose)
        self.external = ExternalNodes(self, self.users)
        self._engine = self.external.with_local(engine)
        self.model = ReadModel(lambda work: self._loop.call_soon_threadsafe(work))
        self._dispatch = Dispatch(self._committed, self._reloaded, self._startable, self._publish)
        strategy = self.settings.strategy
        self._keeper = Keeper(store, strategy=strategy, dispatch=self._dispatch, machine=machine)
        self._background: set[asyncio.Task[None]] = set()
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None

    async def open(self, *, new_cluster: bool = False) -> None:
        """Take the store, connect to the nodes, adopt what runs there, and begin to start jobs."""
        self._loop = asyncio.get_running_loop()
        self._dispatch.pause()
        self.environments = Environments(self.home.environments)
        seen = await self._engine.look()
        claim = StoreClaim(self.store_url, seen, self._belongs_to, new_cluster=new_cluster)
        self._backend = await asyncio.to_thread(Embedded, self._keeper, claim.next_epoch)
        self._port = self._backend.port(self._loop)
        await self._open_reads()
        kept_ms = self.settings.kept_ms
        self._retention = Retention(self.ask, self.callbook, self.home, kept_ms, self.folders)
        self.runner = Runner(
            self.ask,
            self._engine,
            self.home,
            self.environments,
            self._keeper.clock.now,
            self._fail,
            self._noted,
            self.declared.report,
            self.samples,
            ForeignUse(self.ask, self.settings.respects_foreign_use),
            self.users,
            self.external.engine_of,
        )
        try:
            self.cluster_id = self._keeper.opening.cluster_id
            self._taken(self.cluster_id)
            await self.settings.apply(self.ask)
            await (self._only_look() if self._damage else self._adopt())
        except BaseException:
            await self.runner.close(end=False)
            await self._close_reads()
            await asyncio.to_thread(self._backend.close)
            raise
        self.neighbours.enter()
        for problem in self.problems():
            _log.warning("%s", problem["message"])
        if not self._damage:
            await self._go_on()
            for work in (self._retention.hourly, self.tokens.keep_uses, *self.liveness.tasks):
                self._in_background(work())

    async def _adopt(self) -> None:
        # Before any job can end: the last job that needs an environment deletes it.
        self.environments.sweep(await self.ask(Read(environments_in_use)))
        await self.tokens.load()
        await self.runner.open(self._keeper.opening.epoch)
        await self._take_over()

    async def _only_look(self) -> None:
        """Connect to the nodes to see what runs there; nothing can be written, so nothing ends."""
        known = await self._engine.open(self._keeper.opening.epoch, self.runner)
        self.runner.spawned([report for report in known.running if report.pid is not None])

    async def _take_over(self) -> None:
        """Give the clients of the previous controller a while to come back."""
        jobs, sessions = await self.ask(Read(with_clients))
        runs = await self.callbook.open_runs()
        self.attached.expect(jobs)
        if sessions or runs:
            self.sessions.expect(sessions, runs)

    def begin_stopping(self) -> None:
        """Decide nothing any more, before the first connection is closed.

        Nothing is granted, released, cancelled, started or expired from now on: clients whose
        connections we close are not gone, and have their full time to come back to the next
        controller. Questions are answered until `close`.
        """
        self._dispatch.pause()
        self._keeper.freeze()
        self.attached.freeze()
        self.sessions.freeze()
        for task in self._background:
            task.cancel()
        self.stopping.set()

    async def close(self) -> None:
        """Let go of the nodes and the store. Running jobs go on."""
        self.begin_stopping()
        self.neighbours.leave()
        idle = await self.idle()
        await self.runner.close(end=idle)
        await self._close_reads()
        await asyncio.to_thread(self._backend.close)

    @property
    def identity(self) -> str:
        """The ledger, and how often it has changed hands."""
        return self._backend.identity

    def give_back(self, operation: Operation[Reply], reply: Reply) -> None:
        """Release what the operation alone was granted: nobody waits for its reply."""
        self._backend.give_back(operation, reply)

    def ask(self, operation: Operation[Reply]) -> asyncio.Future[Reply]:
        answer = self._port.run(operation)
        answer.add_done_callback(self._answered)
        return answer

    def _answered(self, answer: asyncio.Future[Any]) -> None:
        """End the controller if its keeper has ended or another one owns the store."""
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, StoreFenced | GridClosed) and not self.stopping.is_set():
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the controller after a fault of its own; the next one adopts all that runs."""
        if isinstance(error, ControllerStopping):
            return  # the next controller hears of it again
        _log.error("the controller ends, because of a fault of its own", exc_info=error)
        self.failure = self.failure or error
        self.begin_stopping()

    def problems(self) -> list[dict[str, Any]]:
        """Return what is wrong with this machine or this controller, with hints."""
        of_nodes = self.samples.with_problems(self.runner.problems)
        return list_problems(of_nodes, self.store_faults(), self.neighbours.others())

    # ---- durable changes

    def _committed(
        self, changes: Sequence[Change], held: Mapping[AllocationId, Allocation]
    ) -> None:
        """Pass durable changes to the event loop; called from the keeper's thread."""
        self._loop.call_soon_threadsafe(self._settled, changes, held)

    def _reloaded(self, context: Context) -> None:
        """Compare the nodes with a ledger that was read again; called from the keeper's thread."""
        self.model.loaded(context)
        self._loop.call_soon_threadsafe(lambda: self.runner.look_again())
        self._loop.call_soon_threadsafe(lambda: self._in_background(self.tokens.load()))

    def _startable(self, job: Job) -> bool:
        """Return whether this machine has what a job needs; called from the keeper's thread."""
        return not self._machine or self.environments.has(job.work.environment)

    def _settled(self, changes: Sequence[Change], held: Mapping[AllocationId, Allocation]) -> None:
        for kind, _, _, job, _ in changes:
            attempt = job.attempt
            if kind != "job.signalled":
                self.runner.changed(kind, job, held.get(attempt.allocation) if attempt else None)
            if not job.open:
                self.sessions.forget_job(job.id)
                self.environments.drop(job.work.environment)
            self.feed.tell(job)

    def _noted(self, job: Job) -> None:
        """Pass on that the process of a job has started."""
        self.model.note(job)
        self.feed.tell(job)

    # ---- jobs

    async def keep(self, environment: Mapping[str, str]) -> str:
        """Store the variables of a job and return their name; `submit` must follow."""
        return await self.environments.keep(environment)

    async def submit(
        self,
        op_id: str | None,
        work: JobSpec,
        *,
        indices: tuple[int, ...] = (),
        after: tuple[After, ...] = (),
        left_open: frozenset[str] = frozenset(),
    ) -> Submitted:
        """Queue a job or an array. The environment that `work` names must have been kept."""
        count, after = max(1, len(indices)), await expand_arrays(after, self)
        command = Submit(work.owner, op_id, work, indices, after, left_open)
        self.environments.need(work.environment, count - 1)
        try:
            submitted = await self.ask(command)
        except GridError as error:
            if not isinstance(error, OutcomeUnknown):  # else it may be stored, and need them
                self.environments.drop(work.environment, count)
            raise
        if not submitted.fresh:
            self.environments.drop(work.environment, count)
        if not work.detached:
            self.attached.expect(submitted.ids)
        return submitted

    async def cancel(
        self, owner: str, ids: Sequence[str], op_id: str | None = None, *, any_owner: bool = False
    ) -> list[JobId]:
        return await self.ask(Cancel(owner, op_id, tuple(ids), any_owner=any_owner))

    async def signal(
        self,
        owner: str,
        id: JobId,
        signum: int,
        op_id: str | None = None,
        *,
        any_owner: bool = False,
    ) -> bool:
        """Send a signal to a running job; return whether it was sent. An event says who did."""
        job = (await self.job(id)).job
        if owner != job.work.owner and not any_owner:
            raise NotYours(id, owner, "job")
        sent = await self.runner.signal(job, signum)
        if sent:  # even if the store is away, so it is recorded afterwards
            self._in_background(self._run_surely(NoteSignal(owner, op_id, job.id, signum)))
        return sent

    # ---- clients that are gone

    async def _clients_gone(self, ids: list[str]) -> None:
        async def cancel(id: str) -> None:
            gone = Cancel(ADMIN, ids=(id,), reason=Reason.CLIENT_GONE)
            await self._run_surely(gone, unless=lambda: self.attached.has(id))

        await asyncio.gather(*map(cancel, ids))  # sent in one turn, so one transaction

    async def _end_with_session(self, held: Sequence[EndWithSession]) -> None:
        await asyncio.gather(*map(self._run_surely, held))

    async def _run_surely(
        self, operation: Operation[Any], unless: Callable[[], bool] | None = None
    ) -> None:
        """Run an operation, however long the store is away; ignore that it was refused.

        It is refused if what it is to end has ended by itself meanwhile.
        """
        if unless is not None and unless():
            return
        with contextlib.suppress(GridError):
            await retry_while_store_is_away(lambda: self.ask(operation), give_up=unless)

    async def hold_in(self, session: str, made: Sequence[Allocation]) -> bool:
        """Attach allocations to a session, or release them and return False if it has ended."""
        own = [held for held in made if held.lifetime is Lifetime.SESSION]
        if all(self.sessions.hold(held.owner, session, held.id) for held in own):
            return True
        await self._end_with_session([EndWithSession(held.owner, id=held.id) for held in own])
        return False

    async def come_back(
        self,
        owner: str,
        session: str,
        held: Sequence[AllocationId],
        jobs: Sequence[JobId],
        runs: Sequence[str] = (),
    ) -> tuple[list[AllocationId], list[JobId]]:
        """Attach again what a session held before a restart; return what of it still exists."""
        live, running = await self.ask(Read(still_there(owner, held, jobs)))
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
        """Record what a client reports of its calls."""
        if not self.sessions.report_on(owner, session, run):
            raise InvalidInput("session", session, "a session that is connected")
        # Sent in the same turn: if the session ends, its calls are marked lost after this.
        await self.callbook.write(calls)

    # ---- ending

    async def note_action(self, owner: str, kind: str, subject: str, why: str = "") -> None:
        """Record who did something that changes no row, unless the store does not answer."""
        with contextlib.suppress(GridError, TimeoutError):
            async with asyncio.timeout(_NOTE_S):
                await self.ask(NoteAction(owner, None, kind, subject, why))

    async def stop(self, jobs: str, owner: str) -> None:
        """Stop the controller: `refuse` while jobs are open, `keep` them, or `kill` them first."""
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
        await self.note_action(owner, "admin.stopped", "controller", f"with {count} jobs: {jobs}")
        self.begin_stopping()

    async def _go_on(self) -> None:
        """Start waiting jobs from now on."""
        self._dispatch.resume()
        await self.ask(Read(lambda context: None))  # wakes the keeper

    async def _kill_all(self) -> None:
        ids = await self.ask(Read(lambda context: tuple(context.ledger.jobs.open)))
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
