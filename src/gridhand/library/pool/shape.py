"""Shapes: calls that ask for the same resources wait in one line for workers that hold just that.

How many calls a worker gets ahead depends on how long they take: short ones go many at a time,
since messages cost more than the calls do, and long ones one by one, so that none waits behind
another while a second worker is idle.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from gridhand.core.model.requests import Request
from gridhand.library.functions.future_state import mark_pending, mark_running
from gridhand.library.pool.worker_group import ANY, WorkerGroup

if TYPE_CHECKING:
    from gridhand.library.functions.pickled_function import PickledFunction
    from gridhand.library.pool.call_log import CallSummary, Notes
    from gridhand.library.pool.event_loop import WorkerConnection

AHEAD = 64
_AHEAD_S = 0.004  # of work that a worker has ahead
_SOON_S = 0.05  # work that is done before another worker would have begun
_STARVING_S, _YIELDING_S = 0.15, 2.0


class CallFuture(Future[Any]):
    """A future that knows its call, so that the call can be stopped."""

    call: PendingCall | None = None


class PendingCall:
    """One call, as bytes, from when it is submitted until its future is settled."""

    __slots__ = (
        "data", "ended", "expected", "function", "future", "kept", "kind", "limit_s", "name",
        "number", "shape", "started", "submitted", "told", "worker",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        future: CallFuture,
        function: PickledFunction,
        packed: tuple[int, bytes],
        name: str,
        limit_s: float | None,
        kept: Any,
    ) -> None:
        self.number = number
        self.future = future
        self.function = function
        self.kind, self.data = packed
        self.name = name
        self.limit_s = limit_s
        self.kept = kept  # its arguments: among them may be values whose files it needs
        self.expected = 0.0
        self.shape: Shape
        self.worker: WorkerHandle | None = None  # that it was given to
        self.submitted = time.monotonic()
        self.started: float | None = None
        self.ended: float | None = None
        self.told: CallSummary | None = None  # what was last reported of it

    def over(self) -> None:
        """Let go of its arguments, and log how it ended. Repeating this does nothing."""
        if self.kept is not None:
            self.kept = self.future.call = None
            self.data = b""
            self.shape.notes.end(self)


class WorkerHandle:
    """A connected worker and the calls that it has been given."""

    connection: WorkerConnection

    def __init__(self, number: int, pid: int, shape: Shape, told: list[str]) -> None:
        self.number = number
        self.pid = pid  # 0 where it is in another namespace
        self.shape = shape
        self.job, attempt, self.node, self.allocation = told
        self.attempt = int(attempt or 1)
        self.given = 0  # how many calls it was given and has not given back
        self.running: dict[int, PendingCall] = {}  # in the order in which it was given them
        self.load_s = 0.0  # how long all of that should take
        self.born = self.since = time.monotonic()  # since when it has had nothing to do
        self.begun = self.since  # when it got the call that runs
        self.recalled = False
        self.clears_up = False  # it has answered with something large, which it now frees
        self.retiring = False
        self.doomed = False

    def slot(self) -> dict[str, Any]:
        """Return what the worker is told of the resources that it holds."""
        parts = {} if self.shape.free else self.shape.request.resources.parts()
        return {"request": parts, "node": self.node, "allocation": self.allocation}


class Shape:
    """The waiting calls that ask for the same resources, and the workers that hold these."""

    def __init__(
        self,
        number: int,
        request: Request,
        notes: Notes,
        group: WorkerGroup = ANY,
        held: str = "",
        apart: str = "",
        priority: str | None = None,
    ) -> None:
        self.number = number
        self.request = request
        self.priority = priority  # of the slots, while they wait
        self.notes = notes
        self.held = held  # the id of the allocation that these calls run in
        self.apart = apart
        self.group = group
        # Once these calls are over, its workers are of no use, or their executor is.
        self.alone = bool(held or apart) or group is not ANY
        self.free = not (held or request.amounts or request.gpu)  # its workers hold nothing
        self.waiting: deque[PendingCall] = deque()
        self.workers: set[WorkerHandle] = set()
        self.idle: list[WorkerHandle] = []  # the last one that became so is the warmest
        self.asked: dict[str, float] = {}  # jobs that are to be workers, and since when
        self.asking = 0  # as many more are being asked for
        self.early: set[str] = set()  # jobs that connected before their ids were known here
        self.unwanted: set[str] = set()  # jobs that are being cancelled
        self.seconds: float | None = None
        self.no_room = False  # whether a job that was asked for was seen to wait for room
        self.helped = 0  # how many workers of other shapes were given back for it
        self.failures = 0

    def take(self, worker: WorkerHandle) -> list[PendingCall]:
        """Give the worker the calls that it is to do next; return them."""
        taken: list[PendingCall] = []
        waiting, running = self.waiting, worker.running
        room = AHEAD - len(running)
        if self.group.most_calls is not None:
            room = min(room, self.group.most_calls - worker.given)
        if len(self.workers) > 1:
            room = min(room, -(-len(waiting) // len(self.workers)))
        load_s = worker.load_s
        while waiting and len(taken) < room:
            call = waiting[0]
            expected = call.function.seconds
            if expected is None:
                expected = _AHEAD_S
            if (taken or running) and load_s + expected > _AHEAD_S:
                break
            waiting.popleft()
            if not mark_running(call.future):
                call.over()  # it was cancelled while it waited
                continue
            call.expected = expected
            call.worker = worker
            load_s += expected
            taken.append(call)
            running[call.number] = call
        worker.load_s = load_s
        worker.given += len(taken)
        return taken

    def put_back(self, calls: list[PendingCall]) -> None:
        """Put calls first in line that were given to a worker and not begun."""
        for call in reversed(calls):
            mark_pending(call.future)
            if call.worker is not None:
                call.worker.given -= 1
            call.worker = None
            self.waiting.appendleft(call)

    def rest(self, worker: WorkerHandle, now: float) -> None:
        """Count the worker as idle."""
        worker.load_s = 0.0
        worker.since = now
        if worker.clears_up:  # others are quicker
            self.idle.insert(0, worker)
        else:
            self.idle.append(worker)

    def has_worn_out(self, worker: WorkerHandle) -> bool:
        """Return whether the worker has done all the calls that one of its group may do."""
        return self.group.most_calls is not None and worker.given >= self.group.most_calls

    def leave(self, worker: WorkerHandle) -> None:
        """Give the worker no more calls."""
        self.workers.discard(worker)
        if worker in self.idle:
            self.idle.remove(worker)

    def forget_cancelled(self) -> None:
        """Drop cancelled calls at the head of the line: no worker is needed for them."""
        while self.waiting and self.waiting[0].future.done():
            call = self.waiting.popleft()
            mark_running(call.future)  # notifies those who wait for it
            call.over()

    def first_name(self) -> str:
        """Return the name of the first function that waits."""
        try:
            return self.waiting[0].name
        except IndexError:  # it has just been given away
            return ""

    def took(self, seconds: float) -> None:
        """Learn how long a call took."""
        self.seconds = seconds if self.seconds is None else 0.9 * self.seconds + 0.1 * seconds

    def missing(self, most: int, first: int) -> int:
        """Return how many more workers to ask for, if at most `most` have room.

        As long as it is not known how long these calls take, there are to be `first` at most: if
        they are short, all is done before more workers would have started.
        """
        have = len(self.workers) + len(self.asked) + self.asking
        backlog = len(self.waiting)
        if not backlog:
            return 0
        late = time.monotonic() - _SOON_S
        quick = sum(1 for one in self.workers if not one.running or one.begun > late)
        if quick and self.seconds is not None and backlog * self.seconds / quick < _SOON_S:
            return 0
        if self.group.most_workers is not None:
            most = min(most, self.group.most_workers)
        if self.seconds is None and quick == len(self.workers):
            most = min(most, first)
        return max(0, min(most, len(self.workers) + backlog) - have)

    def starves(self, now: float) -> bool:
        """Return whether it has waited for room for its first worker, not just for its start.

        Not for ever: something else may hold what it waits for, and then yielding is of no use.
        """
        if not self.waiting or self.workers or not self.asked or not self.no_room:
            return False
        return _STARVING_S < now - min(self.asked.values()) < _YIELDING_S

    def would_help(self, other: Shape) -> int:
        """Return how many workers of the other shape hold what one of this shape needs."""
        asked, theirs = self.request.resources.parts(), other.request.resources.parts()
        return max((-(-asked[name] // theirs[name]) for name in asked if name in theirs), default=0)


def lacking(asked: Request, held: Mapping[str, int]) -> dict[str, int] | None:
    """Return what a slot with so much needs in addition to run the call; None if it cannot.

    Not more of what it has: that is its limit. And no devices, which its process does not see.
    """
    parts = asked.resources.parts()
    besides = {name: amount for name, amount in parts.items() if name not in held}
    enough = all(held[name] >= parts[name] for name in parts if name in held)
    devices = asked.gpu is not None and any(
        name not in held for name in asked.gpu.resources().parts()
    )
    return besides if enough and not devices else None
