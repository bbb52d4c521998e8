"""Calls that a function makes itself, inside of a worker.

The function waits for them while it has its slot, and if all slots are of such functions there
would be no room for what they wait for, ever. So a call that finds none within a moment is run in
the slot of the one that made it, if that has what the call asks for; what the slot says nothing of,
such as memory where it has no limit, is held besides. Such a call may make others in turn: another
is taken up when those before it have got nowhere for a while, all on the cores of the slot. A call
that asks for more than its caller has waits for room as any other, but not if there cannot be any:
because no node has both, or because all who could make room wait in the same way (`standstill.py`).
"""

from __future__ import annotations

import pickle
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gridhand.core.allocations import Move
from gridhand.core.errors import GridError
from gridhand.core.requests import Request
from gridhand.core.resources import Resources
from gridhand.library.calls import Calls
from gridhand.library.marks import Marks
from gridhand.library.shapes import begin, lacking
from gridhand.library.standstill import (
    SURE_S,
    Unchanged,
    Waiting,
    is_blocked,
    no_way_out,
    refusal,
)
from gridhand.worker import here, wire
from gridhand.worker.failing import failure
from gridhand.worker.values import dumps, load

if TYPE_CHECKING:
    from gridhand.core.allocations import Allocation
    from gridhand.core.views import Status
    from gridhand.library.pool import Pool
    from gridhand.library.remote import Remote
    from gridhand.library.shapes import Call, Shape

_MOMENT_S = 0.5
_STUCK_S = 0.1  # those that run here and have got no further for so long wait for others
_DEEPEST = 500


class Nested:
    """Helps a pool in a worker; in any other process it does nothing."""

    def __init__(self, pool: Pool, remote: Remote, owner: str) -> None:
        self._pool = pool
        self._remote = remote
        self._calls = Calls(remote, owner)
        self._lock = threading.Lock()
        self._running = 0
        self._moved = 0.0  # when one of them last began or ended
        self._threads: set[int] = set()
        self._marks = Marks(remote.client(None).address)
        self._same = Unchanged()

    def help(self, shapes: list[Shape], status: Status | None) -> None:
        """Take up calls that wait in vain; refuse those for which there will never be room."""
        if here.slot is None:
            return
        vain: list[Shape] = []
        for shape in shapes:
            if self._waits_in_vain(shape):
                besides = lacking(shape.request, here.slot["request"])
                if besides is None:
                    vain.append(shape)
                elif self._may_begin():
                    threading.Thread(target=self._work, args=(shape, besides), daemon=True).start()
        if vain and status is not None:
            self._refuse(vain, shapes, status)
        else:
            self._marks.unset()

    def _waits_in_vain(self, shape: Shape) -> bool:
        if not shape.waiting or shape.workers or not shape.asked:
            return False
        moment_s = _STUCK_S if self._running else _MOMENT_S
        return time.monotonic() - min(shape.asked.values()) >= moment_s

    def _refuse(self, vain: list[Shape], shapes: list[Shape], status: Status) -> None:
        slot = here.slot or {}
        own = Waiting(0.0, slot["allocation"], slot["node"], slot["request"])
        for shape in vain:
            if no_way_out(shape.request, status, [own]):
                error = refusal(shape.first_name(), shape.request, own.held, alone=True)
                self._pool.fail_waiting(error, shape)
                return
        if not self._stands_still(vain, shapes):
            self._marks.unset()
            return
        self._marks.set(own.id, own.node, own.held)
        waiting = self._marks.all()
        seconds = self._same.seconds(tuple(one.id for one in waiting), time.monotonic())
        last = waiting[-1].id if waiting else None  # none where no marks can be left
        if seconds < SURE_S or last != own.id:  # the last one who came is to go
            return
        for shape in vain:
            if no_way_out(shape.request, status, waiting):
                error = refusal(shape.first_name(), shape.request, own.held)
                self._pool.fail_waiting(error, shape)

    def _stands_still(self, vain: list[Shape], shapes: list[Shape]) -> bool:
        """Whether nothing here goes on: neither this function, nor anything that it has called."""
        if any(shape.workers or (shape.waiting and shape not in vain) for shape in shapes):
            return False
        main = threading.main_thread().ident
        return all(is_blocked(one) for one in (main, *list(self._threads)))

    def _may_begin(self) -> bool:
        """Whether nothing runs here, or all that does seems to wait: then one more may."""
        with self._lock:
            stuck = time.monotonic() - self._moved > _STUCK_S
            if self._running and not (stuck and self._running < _DEEPEST):
                return False
            self._running += 1
            self._moved = time.monotonic()
            return True

    def _work(self, shape: Shape, besides: dict[str, int]) -> None:
        held: Allocation | None = None
        self._threads.add(threading.get_ident())
        try:
            held = self._hold(besides)
            while not shape.workers and (call := self._next(shape)) is not None:
                self._pool.settle_here(call, *self._outcome(call))
                self._moved = time.monotonic()
        except GridError:
            pass  # there is no room for what is needed besides; it is tried again
        finally:
            if held is not None:
                with suppress(GridError):  # it ends with our session
                    self._remote.call(self._calls.move(held.id, Move.RELEASE, None, None))
            self._threads.discard(threading.get_ident())
            with self._lock:
                self._running -= 1
                self._moved = time.monotonic()

    def _hold(self, besides: dict[str, int]) -> Allocation | None:
        if not besides or here.slot is None:
            return None
        asked = Request(Resources(besides), node=here.slot["node"])
        return self._remote.call(self._calls.allocate(asked, None, None, None, {}))[0]

    def _next(self, shape: Shape) -> Call | None:
        with self._pool.lock:
            while shape.waiting:
                call = shape.waiting.popleft()
                if begin(call.future):
                    call.started = time.monotonic()
                    return call
                call.over()
        return None

    def _outcome(self, call: Call) -> tuple[int, bytes]:
        """As in a worker, and by way of bytes: what it changes is its own."""
        try:
            code = pickle.loads(call.function.data)
            args, kwargs = load(call.kind, call.data)
            value: Any = code(*args, **(kwargs or {}))
        except BaseException as error:
            return wire.RAISED, failure(error)
        try:
            return self._pool.packed(value, dumps)
        except Exception as error:
            return wire.RAISED, failure(error, "what it returned cannot be sent: ")
