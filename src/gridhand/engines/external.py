"""ExternalEngine: runs attempts on nodes whose workers fetch their orders.

A worker is a process on another machine. It joins with all that it knows, which gives it a session,
takes orders, and reports. A controller that was restarted does not know the session, so the worker
joins again. Whatever a worker says is about its own node: a report about an attempt of another node
is refused.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gridhand.core.errors import NodeSuperseded, NodeTaken, NotYours, WorkerUnknown
from gridhand.core.model.names import NodeName
from gridhand.engines.base import (
    AttemptReport,
    EndReport,
    Key,
    Known,
    ProblemReport,
    Seen,
    Sink,
    StartOrder,
    UsageEvent,
)
from gridhand.engines.log_files import LogFiles
from gridhand.engines.order_outbox import Order, OrderOutbox
from gridhand.engines.received_output import Received, ReceivedOutput, StreamPlace
from gridhand.posix.unix_users import UnixUser

_ANSWER_S = 10.0  # for a signal to be answered
_UNANSWERED_S = 10.0  # without a request for orders, although some wait
_SLICE_S = 1.0  # of a wait for orders: so often it is looked whether the node may take work

# The fields of an order that a worker gets as they are. The others are paths of this machine.
_FIELDS = (
    "job", "attempt", "fence", "argv", "cores", "pin", "memory_bytes", "processes", "devices",
    "gpu_memory", "time_limit_ms", "grace_ms", "log_bytes", "warn_signal", "warn_ms",
)  # fmt: skip


class Joining(NamedTuple):
    """A worker that joins: its node, and all that it knows."""

    row: Mapping[str, Any]
    problems: Sequence[ProblemReport]
    incarnation: int
    epoch: int  # the latest that it has seen
    attempts: Sequence[AttemptReport]
    closed: bool = False  # it can start nothing for now


@dataclass(slots=True)
class _Worker:
    """A worker that has joined."""

    session: str
    incarnation: int
    reconciled: bool = False
    closed: bool = False  # it can start nothing for now
    asking: int = 0  # requests for orders that are open
    asked_at: float = field(default_factory=time.monotonic)


class ExternalEngine:
    """The nodes of external workers, with an outbox of orders for each."""

    def __init__(
        self,
        takes_work: Callable[[NodeName], bool] = lambda node: True,
        stopping: Callable[[], bool] = lambda: False,
        has_files: Callable[[Key], bool] = lambda key: False,
    ) -> None:
        """`takes_work` says whether a node may start something now.

        `has_files` says whether the client of a job has sent files for it.

        `stopping` says whether the controller stops, so that nobody waits any longer.
        """
        self._takes_work, self._stopping, self._has_files = takes_work, stopping, has_files
        self._workers: dict[NodeName, _Worker] = {}
        self._outboxes: dict[NodeName, OrderOutbox] = {}
        self._node_of: dict[Key, NodeName] = {}
        self._answers: dict[tuple[NodeName, int], asyncio.Future[bool]] = {}
        self._logs, self._output = LogFiles(), ReceivedOutput()
        self._sink: Sink | None = None
        self.epoch = 0
        self.placed_on: Callable[[Key], NodeName | None] = self._node_of.get  # of all engines

    # ---- for the controller

    async def look(self) -> Seen:
        return Seen(0, [])  # workers are not reached: they come

    async def open(self, epoch: int, sink: Sink) -> Known:
        self.epoch, self._sink = epoch, sink
        return Known([], [])

    def place(self, key: Key, node: NodeName, engine: str = "") -> None:
        self._node_of[key] = node

    async def start(self, orders: Sequence[StartOrder]) -> None:
        for order in orders:
            self.place(order.key, order.node)
            wire = encode_order(order, files=self._has_files(order.key))
            size = sum(map(len, wire["env"].values())) + sum(map(len, order.argv))
            outbox = self._outbox(order.node)
            outbox.put(("start", *order.key), {"do": "start", "order": wire}, size)

    async def stop(self, key: Key, reason: str, grace_ms: int) -> None:
        job, attempt = key
        node = self._node_of.get(key)
        if node is None or self._outbox(node).withdraw_start(key):
            end = EndReport(reason, "it was stopped before it was started")
            self._ended([AttemptReport(job, attempt, None, end=end)])
            return
        order = {"do": "stop", "reason": str(reason), "grace_ms": grace_ms}
        self._outbox(node).put(("stop", *key), {**order, "job": job, "attempt": attempt})

    async def signal(self, key: Key, signum: int) -> bool:
        node = self._node_of.get(key)
        if node not in self._workers:
            return False
        order = {"do": "signal", "job": key[0], "attempt": key[1], "signal": signum}
        number = self._outbox(node).put(("signal", object()), order)
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._answers[node, number] = answer
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await answer
        except TimeoutError:
            return False
        finally:
            self._outbox(node).done([number])
            del self._answers[node, number]

    async def note_reader(self, key: Key, offsets: Mapping[str, int]) -> None:
        node = self._node_of.get(key)
        if node is not None:
            self._output.note_reader(key, dict(offsets))
            order = {"do": "reader", "job": key[0], "attempt": key[1], "attached": bool(offsets)}
            self._outbox(node).put(("reader", *key), order)

    async def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            node = self._node_of.pop(key, None)
            if node is not None:
                self._output.forget(key)
                self._outbox(node).withdraw_start(key)
                self._order_forget(node, key)

    def _order_forget(self, node: NodeName, key: Key) -> None:
        order = {"do": "forget", "job": key[0], "attempt": key[1]}
        self._outbox(node).put(("forget", *key), order)

    async def sample_every(self, every_ms: int, for_ms: int) -> None:
        for node in self._workers:
            order = {"do": "sample", "every_ms": every_ms, "for_ms": for_ms}
            self._outbox(node).put(("sample",), order)

    async def read_log(
        self, path: str, offset: int, limit: int, user: UnixUser | None = None
    ) -> list[tuple[int, bytes | int]]:
        return await self._logs.read(path, offset, limit, user)

    async def log_size(self, path: str, user: UnixUser | None = None) -> int:
        return await self._logs.size(path, user)

    def facts(self) -> Mapping[str, Any]:
        return {"pid": None, "workers": len(self._workers)}

    async def close(self, *, end: bool) -> None:
        self._workers.clear()
        self._sink = None

    # ---- for workers

    async def join(self, node: NodeName, joining: Joining) -> str:
        """Take over what a worker knows, and return its session."""
        known = self._workers.get(node)
        if known is not None and joining.incarnation < known.incarnation:
            raise NodeSuperseded(node, joining.incarnation, known.incarnation)
        if joining.epoch > self.epoch:
            raise _earlier_state(node, joining.epoch, self.epoch)
        assert self._sink is not None
        self._check_own(node, [report.key for report in joining.attempts])
        for report in joining.attempts:
            self._node_of.setdefault(report.key, node)
            self._outbox(node).withdraw_start(report.key)
        session = secrets.token_hex(16)
        worker = _Worker(session, joining.incarnation, closed=joining.closed)
        self._workers[node] = worker
        self._sink.node_changed(joining.row, joining.problems)
        running = [report for report in joining.attempts if report.state == "running"]
        ended = [report for report in joining.attempts if report.state == "ended"]
        self._sink.returned(Known(running, ended), node)
        await self._sink.settled(node)
        worker.reconciled = True
        return worker.session

    async def orders(
        self,
        node: NodeName,
        session: str,
        done: Collection[int],
        busy: Collection[int],
        wait_s: float,
    ) -> list[Order]:
        """Return the orders for a node, after waiting for some for at most `wait_s`."""
        worker, outbox = self._worker(node, session), self._outbox(node)
        outbox.done(done)
        worker.asking += 1
        try:
            deadline = time.monotonic() + wait_s
            while not (orders := self._take(node, worker, busy)):
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self._stopping():
                    break
                await outbox.wait(min(left_s, _SLICE_S))
                self._worker(node, session)  # another one may have joined meanwhile
            return orders
        finally:
            worker.asking -= 1
            worker.asked_at = time.monotonic()

    def _take(self, node: NodeName, worker: _Worker, busy: Collection[int]) -> list[Order]:
        starts = worker.reconciled and self._takes_work(node)
        return self._outbox(node).take(busy, starts=starts)

    def answers_orders(self, node: NodeName) -> bool:
        """Return whether the worker of a node carries out the orders that wait for it."""
        worker = self._workers.get(node)
        if worker is None or worker.closed:
            return worker is None
        if worker.asking or not len(self._outbox(node)):
            return True
        return time.monotonic() - worker.asked_at < _UNANSWERED_S

    def report(
        self,
        node: NodeName,
        session: str,
        attempts: Sequence[AttemptReport],
        answers: Mapping[int, bool],
    ) -> None:
        """Take reports of attempts that have begun or ended, and answers to signals."""
        self._worker(node, session)
        self._check_own(node, [report.key for report in attempts])
        assert self._sink is not None
        known = [report for report in attempts if report.key in self._node_of]
        for report in attempts:
            if report.key not in self._node_of:  # durable with us by now
                self._order_forget(node, report.key)
        begun = [report for report in known if report.state == "running" and report.pid]
        if begun:
            self._sink.spawned(begun)
        self._ended([report for report in known if report.state == "ended"])
        for number, sent in answers.items():
            answer = self._answers.get((node, number))
            if answer is not None and not answer.done():
                answer.set_result(sent)

    def leave(self, node: NodeName, session: str, *, stopped: bool) -> None:
        """Give a worker that ends nothing to start; forget it once it has stopped its jobs."""
        self._worker(node, session).reconciled = False
        if stopped:
            del self._workers[node]

    def note_node(
        self,
        node: NodeName,
        session: str,
        row: Mapping[str, Any],
        problems: Sequence[ProblemReport],
        *,
        closed: bool,
    ) -> None:
        """Take over what a node has now; if `closed` it can start nothing."""
        self._worker(node, session).closed = closed
        assert self._sink is not None
        self._sink.node_changed(row, problems)

    def measured(self, node: NodeName, usage: UsageEvent) -> None:
        """Take a measurement of a node, which is checked where it is used."""
        if self._sink is not None:
            self._sink.measured(node, usage)

    def check_attempt(self, node: NodeName, session: str, key: Key) -> bool:
        """Return whether an attempt is open on a node; raise NotYours if on another one."""
        self._worker(node, session)
        self._check_own(node, [key])
        return key in self._node_of

    async def take_output(
        self, key: Key, stream: str, place: StreamPlace, folder: str, offset: int, data: bytes
    ) -> Received:
        """Keep a part of the output of an attempt."""
        return await self._output.take(key, stream, place, folder, offset, data)

    def _worker(self, node: NodeName, session: str) -> _Worker:
        worker = self._workers.get(node)
        if worker is None or not secrets.compare_digest(worker.session, session):
            raise WorkerUnknown(node)
        return worker

    def _check_own(self, node: NodeName, keys: Collection[Key]) -> None:
        for key in keys:
            if (self.placed_on(key) or self._node_of.get(key, node)) != node:
                raise NotYours(key[0], node, "job")

    def _ended(self, reports: Sequence[AttemptReport]) -> None:
        for report in reports:
            if (node := self._node_of.get(report.key)) is not None:
                self._outbox(node).withdraw_start(report.key)
        if reports and self._sink is not None:
            self._sink.ended(reports)

    def _outbox(self, node: NodeName) -> OrderOutbox:
        if node not in self._outboxes:
            self._outboxes[node] = OrderOutbox()
        return self._outboxes[node]


def encode_order(order: StartOrder, *, files: bool) -> Order:
    """Return an order without paths of this machine: streams and folders are names there.

    `streams` says which file each stream goes to, and `files` whether the job's folder has files
    that the worker must fetch, and send back when they have changed. A home that is the job's
    folder here is its folder there.
    """
    env = {name: text for name, text in order.env.items() if name not in ("PWD", "OLDPWD")}
    if env.get("HOME") == order.cwd:
        del env["HOME"]
    merged = order.stdout == order.stderr
    streams = {"stdout": "stdout", "stderr": "stdout" if merged else "stderr"}
    wire = {name: getattr(order, name) for name in _FIELDS}
    given = {"input": order.stdin is not None, "files": files}
    return {**wire, "env": env, "streams": streams, **given}


def _earlier_state(node: NodeName, seen: int, epoch: int) -> NodeTaken:
    why = f"it has seen a later state of this cluster: epoch {seen}, and the store has {epoch}"
    return NodeTaken(node, f"{why}. Perhaps the store was restored from a copy")
