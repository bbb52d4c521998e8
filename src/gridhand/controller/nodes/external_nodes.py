"""ExternalNodes: the requests of workers on other machines, which serve nodes of this controller.

A worker registers its node, says that it lives, fetches orders, and reports. The engine keeps what
waits and what runs; this adds what the ledger knows: whether a node may take work, and where the
output of a job belongs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gridhand.controller.jobs.job_folders import FilePart
from gridhand.controller.jobs.job_runner import OWNER
from gridhand.controller.jobs.job_users import JobUsers
from gridhand.controller.jobs.start_orders import LOG_BYTES, log_path, own_files
from gridhand.core.errors import InvalidInput, NodeTaken, UnknownJob, UnknownNode
from gridhand.core.jobs.job import Job
from gridhand.core.liveness.heartbeats import BeatAnswer, Heartbeat, Receipt
from gridhand.core.liveness.remote_nodes import recorded
from gridhand.core.model.names import NodeName
from gridhand.core.model.nodes import ENGINE_LABEL, REMOTE_ENGINES, Health, Node
from gridhand.core.operations import ReportHealth
from gridhand.core.rows.ledger import node_row
from gridhand.engines.base import AttemptReport, Engine, Key, ProblemReport, UsageEvent
from gridhand.engines.engine_group import EngineGroup
from gridhand.engines.external import ExternalEngine, Joining
from gridhand.engines.order_outbox import Order
from gridhand.engines.received_output import Received, StreamPlace
from gridhand.posix.unix_users import UnixUser, UnknownUser

if TYPE_CHECKING:
    from gridhand.controller.controller import Controller

EXTERNAL = "external"
_OURS = "gridhand."  # labels that mean something to us, and that a worker cannot set
_INPUT_BYTES = 1 << 20

Plain = Mapping[str, Any]

_log = logging.getLogger(__name__)


class WorkerSession(NamedTuple):
    """The answer to a worker that has joined."""

    session: str
    cluster: str
    epoch: int


class ExternalNodes:
    """The controller as external workers see it."""

    def __init__(self, controller: Controller, users: JobUsers) -> None:
        self._controller, self._users = controller, users
        self.engine = ExternalEngine(
            self._takes_work, lambda: controller.stopping.is_set(), self._has_files
        )

    def with_local(self, local: Engine) -> Engine:
        """Return an engine for this machine and for the nodes of workers."""
        # No job of a node that says that it is elsewhere is started here, whoever serves it.
        group = EngineGroup(local, dict.fromkeys(REMOTE_ENGINES, self.engine))
        self.engine.placed_on = group.node_of
        return group

    def engine_of(self, name: NodeName) -> str:
        """Return the engine of a node that is served elsewhere, else ""."""
        node = self._node(name)
        return "" if node is None else node.labels.get(ENGINE_LABEL, "")

    def _node(self, name: NodeName) -> Node | None:
        use = self._controller.model.ledger.nodes.get(name)
        return None if use is None else use.node

    def _takes_work(self, name: NodeName) -> bool:
        """Return whether a node may start something: it is up, and nothing stale runs there."""
        controller = self._controller
        return controller.liveness.takes_work(name) and not controller.model.has_leftovers(name)

    # ---- requests of workers

    async def join(
        self,
        node: Node,
        incarnation: int,
        cluster: str,
        epoch: int,
        attempts: Sequence[Plain],
        problems: Sequence[Plain],
    ) -> WorkerSession:
        """Register a node with what its worker knows; raise if it cannot be served by one.

        `cluster` and `epoch` are those that the worker has last seen.
        """
        known, ours = self._node(node.name), self._controller.cluster_id
        if known is not None and not known.remote:
            raise NodeTaken(node.name, "it is a node of the controller itself")
        if cluster not in ("", ours):
            raise NodeTaken(node.name, "its worker belongs to another cluster")
        row, known_problems = node_row(_external(node)), cast(Sequence[ProblemReport], problems)
        closed = node.health is not Health.UP
        joining = Joining(row, known_problems, incarnation, epoch, _decode(attempts), closed)
        session = await self.engine.join(node.name, joining)
        if self._node(node.name) is None:
            raise UnknownNode(node.name)  # it was removed by hand
        return WorkerSession(session, ours, self.engine.epoch)

    async def heartbeat(self, beat: Heartbeat, usage: Plain | None) -> BeatAnswer:
        """Take a sign of life with what the node uses."""
        liveness = self._controller.liveness
        answer = await liveness.heartbeat(beat)
        if answer.receipt is Receipt.TAKEN and usage is not None:
            self.engine.measured(beat.node, cast(UsageEvent, usage))
        if self.engine.answers_orders(beat.node):
            liveness.order_answered(beat.node)
        else:
            liveness.order_unanswered(beat.node)
        return answer

    async def orders(
        self,
        node: NodeName,
        session: str,
        done: Collection[int],
        busy: Collection[int],
        wait_s: float,
    ) -> list[Order]:
        return await self.engine.orders(node, session, done, busy, wait_s)

    def report(
        self,
        node: NodeName,
        session: str,
        attempts: Sequence[Plain],
        answers: Mapping[int, bool],
    ) -> None:
        self.engine.report(node, session, _decode(attempts), answers)

    def note_node(self, node: Node, session: str, problems: Sequence[Plain]) -> None:
        row, closed = node_row(_external(node)), node.health is not Health.UP
        known_problems = cast(Sequence[ProblemReport], problems)
        self.engine.note_node(node.name, session, row, known_problems, closed=closed)

    async def leave(self, name: NodeName, session: str, *, stopped: bool) -> None:
        """Give a node no more work; once its worker has stopped its jobs, mark it as down."""
        self.engine.leave(name, session, stopped=stopped)
        node, boot_id = self._node(name), ""
        if node is None or node.health is Health.DOWN:
            return
        health, why = Health.SUSPECT, "its worker is about to leave"
        if stopped:
            health, why = Health.DOWN, "its worker has left"
        boot_id = recorded(node).boot_id
        report = ReportHealth(OWNER, None, name, node.health, health, why, boot_id)
        await self._controller.ask(report)
        self._controller.liveness.look_again()

    async def take_output(
        self, node: NodeName, session: str, key: Key, stream: str, offset: int, data: bytes
    ) -> Received:
        """Keep a part of an attempt's output; that of an ended one is dropped."""
        open_there = self.engine.check_attempt(node, session, key)
        job = self._find(key)
        if not open_there or job is None:
            return Received(offset + len(data), pause=False)
        folder = self._controller.home.job(job.id)
        try:
            place = self._place(job, stream)
            return await self.engine.take_output(key, stream, place, folder, offset, data)
        except OSError as error:  # the user's own file cannot be written; the job goes on
            _log.warning("output of job %s is lost: %s", job.id, error)
            return Received(offset + len(data), pause=False)

    async def read_input(self, node: NodeName, session: str, key: Key, offset: int) -> bytes:
        """Return a part of the file that is an attempt's standard input; b"" at its end."""
        open_there = self.engine.check_attempt(node, session, key)
        job = self._find(key)
        if not open_there or job is None or job.work.stdin is None:
            return b""
        path, user = job.work.stdin, self._user(job)
        pieces = await self.engine.read_log(path, offset, _INPUT_BYTES, user)
        texts = (
            one if isinstance(one, bytes) else bytes(min(one, _INPUT_BYTES)) for _, one in pieces
        )
        return b"".join(texts)[:_INPUT_BYTES]

    # ---- files that a client on the network has sent for a job

    def _has_files(self, key: Key) -> bool:
        job = self._find(key)
        return job is not None and self._controller.folders.has(job)

    def _with_files(self, node: NodeName, session: str, key: Key) -> Job:
        """Return the job of an open attempt of a node; raise UnknownJob if it is over."""
        open_there, job = self.engine.check_attempt(node, session, key), self._find(key)
        if not open_there or job is None:
            raise UnknownJob(key[0])
        return job

    async def list_files(self, node: NodeName, session: str, key: Key) -> list[tuple[str, int]]:
        """Return the names and sizes of the files in the folder of a job."""
        return await self._controller.folders.list(self._with_files(node, session, key))

    async def read_file(
        self, node: NodeName, session: str, key: Key, name: str, offset: int
    ) -> FilePart:
        """Return a part of a file in the folder of a job."""
        job = self._with_files(node, session, key)
        return await self._controller.folders.read(job, name, offset, _INPUT_BYTES)

    async def write_file(
        self,
        node: NodeName,
        session: str,
        key: Key,
        name: str,
        offset: int,
        data: bytes,
        *,
        executable: bool,
    ) -> None:
        """Write a part of a file that a job has made, in its folder here."""
        job, folders = self._with_files(node, session, key), self._controller.folders
        if not folders.has(job):
            raise InvalidInput("job", job.id, "one that runs in a folder made by the controller")
        id = os.path.basename(job.work.folder)
        await folders.write(job.work.owner, id, name, offset, data, executable=executable)

    def _find(self, key: Key) -> Job | None:
        """Return the job of which this is the current attempt."""
        job = self._controller.model.ledger.jobs.open.get(key[0])
        current = job is not None and job.attempt is not None and job.attempt.number == key[1]
        return job if current else None

    def _place(self, job: Job, stream: str) -> StreamPlace:
        path = log_path(job, self._controller.home.job(job.id), stream)
        mode = own_files(job).get(stream, "")
        return StreamPlace(path, LOG_BYTES, mode, self._user(job) if mode else None)

    def _user(self, job: Job) -> UnixUser | None:
        try:
            return self._users.find(job.work.owner)
        except UnknownUser as error:
            raise PermissionError(str(error)) from error


def _decode(attempts: Sequence[Plain]) -> list[AttemptReport]:
    return [AttemptReport.decode(attempt) for attempt in attempts]


def _external(node: Node) -> Node:
    """Return a node that registers itself, as one that only heartbeats keep up."""
    labels = {key: text for key, text in node.labels.items() if not key.startswith(_OURS)}
    labels = dict(sorted({**labels, ENGINE_LABEL: EXTERNAL}.items()))
    return replace(node, labels=labels, health=Health.UP, draining=False)
