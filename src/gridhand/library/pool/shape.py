"""Shapes: calls that ask for the same wait in one line, for workers that hold just that.

How many calls a worker gets ahead depends on how long they take: short ones go many at a time,
since messages cost more than they do, and long ones one by one, so that none waits behind another
while a second worker has nothing to do.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import BrokenExecutor, Future
from typing import TYPE_CHECKING, Any

from gridhand.core.requests import Request
from gridhand.worker import wire

if TYPE_CHECKING:
    from gridhand.library.callnotes import Notes, Said
    from gridhand.library.functions import Function

AHEAD = 64
_AHEAD_S = 0.004  # of work that a worker has ahead
_SOON_S = 0.05  # work that is done before another worker would have begun
_STARVING_S, _YIELDING_S = 0.15, 2.0
_MOST_SENT = 500


class BrokenGridExecutor(BrokenExecutor):
    """The initializer failed, so nothing can be called. `__cause__` is what it raised."""


class CallFuture(Future[Any]):
    """A future that knows its call, for whoever wants to stop it."""

    call: Call | None = None


class Call:
    """One call, as bytes, from when it is submitted until its future is settled."""

    __slots__ = (
        "data", "ended", "expected", "function", "future", "kept", "kind", "limit_s", "name",
        "number", "shape", "started", "submitted", "told", "worker",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        future: CallFuture,
        function: Function,
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
        self.worker: Worker | None = None  # whom it was given to
        self.submitted = time.monotonic()
        self.started: float | None = None
        self.ended: float | None = None
        self.told: Said | None = None  # what was last reported of it

    def over(self) -> None:
        """Nobody needs what it was given any more. How it ended is noted."""
        if self.kept is not None:
            self.kept = self.future.call = None
            self.data = b""
            self.shape.notes.end(self)


class Worker:
    """A worker that is connected, and what it has been given."""

    def __init__(
        self, connected: socket.socket, pid: int, number: int, shape: Shape, told: list[str]
    ) -> None:
        self.socket = connected
        self.pid = pid  # 0 where it is in another namespace
        self.number = number
        self.shape = shape
        self.job, attempt, self.node, self.allocation = told
        self.attempt = int(attempt or 1)
        self.frames = wire.Frames()
        self.outbox = bytearray()
        self.running: dict[int, Call] = {}  # in the order in which it was given them
        self.load_s = 0.0  # how long all of that should take
        self.born = self.since = time.monotonic()  # since when it has had nothing to do
        self.begun = self.since  # when it got the call that runs
        self.recalled = False
        self.clears_up = False  # it has answered with something large, which it now gives back
        self.retiring = False
        self.doomed = False
        self._path: list[str] = []
        self._sent: set[int] = set()

    def new_path(self) -> list[str]:
        """Where modules are looked for here, which it is to know from now on."""
        self._path = list(sys.path)
        return [one for one in self._path if isinstance(one, str)]

    def frame(self, calls: list[Call]) -> bytes:
        functions: list[tuple[int, bytes]] = []
        sent = self._sent
        if len(sent) >= _MOST_SENT:
            sent.clear()
            functions.append((wire.FORGET, b""))
        for call in calls:
            function = call.function
            if function.number not in sent:
                sent.add(function.number)
                functions.append((function.number, function.data))
        path = None if self._path == sys.path else self.new_path()
        listed = [(one.number, one.function.number, one.kind, one.data) for one in calls]
        return wire.frame((wire.CALLS, path, functions, listed))


class Shape:
    """Those that ask for the same: the calls that wait, and the workers there are for them."""

    def __init__(
        self,
        number: int,
        request: Request,
        notes: Notes,
        setup: bytes | None = None,
        most: int | None = None,
        held: str = "",
        apart: str = "",
    ) -> None:
        self.number = number
        self.request = request
        self.notes = notes
        self.held = held  # the id of what is held for these calls already
        self.apart = apart
        self.alone = bool(held or apart)  # once these calls are over nobody needs its workers
        self.free = not (held or request.amounts or request.gpu)  # nothing is to be held
        self.setup = setup
        self.most = most
        self.waiting: deque[Call] = deque()
        self.workers: set[Worker] = set()
        self.idle: list[Worker] = []  # the last one that became so is the warmest
        self.asked: dict[str, float] = {}  # jobs that are to be workers, and since when
        self.asking = 0  # as many more are being asked for
        self.early: set[str] = set()  # jobs that were there before we were told their ids
        self.unwanted: set[str] = set()  # jobs that are being taken back
        self.seconds: float | None = None
        self.no_room = False  # whether what was asked for was seen to wait for room
        self.helped = 0  # how many of others were given back for it while it had none
        self.failures = 0
        self.broken: BaseException | None = None  # why it is of no use to wait

    def take(self, worker: Worker) -> list[Call]:
        """What this worker is to do next, besides what it has."""
        taken: list[Call] = []
        waiting, running = self.waiting, worker.running
        room = AHEAD - len(running)
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
            if not begin(call.future):
                call.over()  # it was cancelled while it waited
                continue
            call.expected = expected
            call.worker = worker
            load_s += expected
            taken.append(call)
            running[call.number] = call
        worker.load_s = load_s
        return taken

    def put_back(self, calls: list[Call]) -> None:
        """To be called first of all: these were given to a worker, and not begun."""
        for call in reversed(calls):
            _revert(call.future)
            call.worker = None
            self.waiting.appendleft(call)

    def forget_cancelled(self) -> None:
        """Those that were taken back do not wait any more: nothing is to be asked for them."""
        while self.waiting and self.waiting[0].future.done():
            call = self.waiting.popleft()
            begin(call.future)  # tells those who wait for it
            call.over()

    def first_name(self) -> str:
        """What the first function is called that waits."""
        try:
            return self.waiting[0].name
        except IndexError:  # it has just been given away
            return ""

    def took(self, seconds: float) -> None:
        self.seconds = seconds if self.seconds is None else 0.9 * self.seconds + 0.1 * seconds

    def missing(self, most: int, first: int) -> int:
        """How many more workers to ask for, if at most so many have room.

        As long as nobody knows how long these calls take there are to be `first` at most: when
        they are short, more would not have come up before all is done.
        """
        have = len(self.workers) + len(self.asked) + self.asking
        backlog = len(self.waiting)
        if not backlog:
            return 0
        late = time.monotonic() - _SOON_S
        quick = sum(1 for one in self.workers if not one.running or one.begun > late)
        if quick and self.seconds is not None and backlog * self.seconds / quick < _SOON_S:
            return 0
        if self.most is not None:
            most = min(most, self.most)
        if self.seconds is None and quick == len(self.workers):
            most = min(most, first)
        return max(0, min(most, len(self.workers) + backlog) - have)

    def starves(self, now: float) -> bool:
        """Whether it has waited for room for its first worker, and not for that to start alone.

        Not for ever: others may have what it waits for, and then it is of no use to yield.
        """
        if not self.waiting or self.workers or not self.asked or not self.no_room:
            return False
        return _STARVING_S < now - min(self.asked.values()) < _YIELDING_S

    def would_help(self, other: Shape) -> int:
        """How many workers of the other one have what one of this takes."""
        asked, theirs = self.request.resources.parts(), other.request.resources.parts()
        return max((-(-asked[name] // theirs[name]) for name in asked if name in theirs), default=0)


def begin(future: Future[Any]) -> bool:
    """Whether it may run: it was not cancelled, nor stopped, while it waited."""
    if future._state in ("PENDING", "CANCELLED"):
        with contextlib.suppress(RuntimeError):  # stopped just now
            return future.set_running_or_notify_cancel()
    return False


def _revert(future: Future[Any]) -> None:
    """A call that was not begun waits again, and can be cancelled again."""
    with future._condition:
        if future._state == "RUNNING":
            future._state = "PENDING"


def force_cancel(future: Future[Any]) -> bool:
    """Count it as cancelled even if it runs; whether it was open."""
    with future._condition:
        if future._state not in ("PENDING", "RUNNING"):
            return False
        future._state = "CANCELLED"
        future._condition.notify_all()
    future._invoke_callbacks()  # type: ignore[attr-defined]
    with contextlib.suppress(Exception):
        future.set_running_or_notify_cancel()
    return True


def lacking(asked: Request, held: Mapping[str, int]) -> dict[str, int] | None:
    """What a slot that holds so much needs besides to run such a call itself; None if it cannot.

    Not more of what it has: that is its limit. And no devices, which its process does not see.
    """
    parts = asked.resources.parts()
    besides = {name: amount for name, amount in parts.items() if name not in held}
    enough = all(held[name] >= parts[name] for name in parts if name in held)
    devices = asked.gpu is not None and any(
        name not in held for name in asked.gpu.resources().parts()
    )
    return besides if enough and not devices else None
