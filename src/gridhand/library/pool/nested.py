"""Calls that a function makes itself, inside a worker.

The function keeps its slot while it waits for them. If all slots belonged to such functions, there
would never be room for the calls they wait for. So a call that finds no room within a moment runs
in the slot of its caller, if that holds what the call asks for; what the slot does not mention,
such as memory where it has no limit, is held in addition. Such a call may make others in turn:
another one is taken up when those before it have made no progress for a while, all on the cores of
the slot. A call that asks for more than its caller has waits for room like any other. The
controller is told who waits for what, and names the calls that can never start.
"""

from __future__ import annotations

import pickle
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gridhand.client import routes
from gridhand.core.errors import GridError
from gridhand.core.ledger.allocations import AllocationMove
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources
from gridhand.library.functions.future_state import mark_running
from gridhand.library.ledger_methods import LedgerMethods
from gridhand.library.pool.blocked_threads import is_blocked, refusal
from gridhand.library.pool.shape import lacking
from gridhand.worker import current_slot, wire
from gridhand.worker.encoded_values import dumps, load
from gridhand.worker.errors import failure

if TYPE_CHECKING:
    from gridhand.core.ledger.allocations import Allocation
    from gridhand.library.pool.pool import Pool
    from gridhand.library.pool.shape import PendingCall, Shape
    from gridhand.library.remote import Remote

_MOMENT_S = 0.5
_STUCK_S = 0.1  # calls that run here and made no progress for so long wait for others
_REPORT_S = 1.0  # between two reports of a wait
_DEEPEST = 500

Wait = tuple[tuple[str, ...], tuple[str, ...], bool]  # queued jobs, running slots, blocked


class Nested:
    """The calls of the function that runs in this worker; in any other process it does nothing."""

    def __init__(self, pool: Pool, remote: Remote, owner: str) -> None:
        self._pool = pool
        self._remote = remote
        self._calls = LedgerMethods(owner)
        self._lock = threading.Lock()
        self._running = 0
        self._progress = 0.0  # when one of the calls that run here last began or ended
        self._threads: set[int] = set()
        self._reports = WaitReports()

    def help(self, shapes: list[Shape]) -> bool:
        """Run here or refuse calls that wait in vain; return whether to look again in a second."""
        slot = current_slot.slot
        if slot is None:
            return False
        in_vain: list[Shape] = []
        for shape in shapes:
            if self._waits_in_vain(shape):
                besides = lacking(shape.request, slot["request"])
                if besides is None:
                    in_vain.append(shape)
                elif self._may_begin():
                    threading.Thread(target=self._work, args=(shape, besides), daemon=True).start()
        # A function that holds nothing is in nobody's way, and may wait for whatever it likes.
        return bool(slot["request"]) and self._report(slot, in_vain, shapes)

    def _waits_in_vain(self, shape: Shape) -> bool:
        if not shape.waiting or shape.workers or not shape.asked:
            return False
        moment_s = _STUCK_S if self._running else _MOMENT_S
        return time.monotonic() - min(shape.asked.values()) >= moment_s

    # ---- what the controller is told

    def _report(self, slot: dict[str, Any], in_vain: list[Shape], shapes: list[Shape]) -> bool:
        """Tell the controller what this function waits for, and refuse what it says never starts.

        Return whether the function waits for anything.
        """
        with self._pool.state.lock:
            queued = {next(iter(shape.asked)): shape for shape in in_vain if shape.asked}
            busy = [worker for shape in shapes for worker in shape.workers if worker.running]
            others = any(
                shape.waiting and not shape.workers and shape not in in_vain for shape in shapes
            )
        running = {one.job if one.shape.free else one.allocation for one in busy}
        blocked = bool(queued or running) and not others and self._is_blocked()
        wait = tuple(queued), tuple(sorted(running)), blocked
        if self._reports.due(wait, time.monotonic()):
            for job, why in self._tell(slot["allocation"], wait).items():
                if (shape := queued.get(job)) is not None:
                    error = refusal(shape.first_name(), shape.request, slot["request"], why)
                    self._pool.fail_waiting(error, shape)
        return bool(queued or running)

    def _tell(self, allocation: str, wait: Wait) -> dict[str, str]:
        queued, running, blocked = wait
        body = {
            "allocation": allocation,
            "queued": list(queued),
            "running": list(running),
            "blocked": blocked,
        }
        with suppress(GridError):  # the controller is away, or an earlier version: all wait on
            refused: dict[str, str] = self._remote.ask(None, routes.report_wait(body))
            return refused
        return {}

    def _is_blocked(self) -> bool:
        """Return whether neither the function nor a call that runs here does anything but wait."""
        main = threading.main_thread().ident
        return all(is_blocked(thread) for thread in (main, *list(self._threads)))

    # ---- calls that run here

    def _may_begin(self) -> bool:
        """Return whether nothing runs here, or all that does seems to wait: then one more may."""
        with self._lock:
            stuck = time.monotonic() - self._progress > _STUCK_S
            if self._running and not (stuck and self._running < _DEEPEST):
                return False
            self._running += 1
            self._progress = time.monotonic()
            return True

    def _work(self, shape: Shape, besides: dict[str, int]) -> None:
        held: Allocation | None = None
        self._threads.add(threading.get_ident())
        try:
            held = self._hold(besides)
            while not shape.workers and (call := self._next(shape)) is not None:
                self._pool.settle_here(call, *self._outcome(call))
                self._progress = time.monotonic()
        except GridError:
            pass  # there is no room for what is needed in addition; it is tried again
        finally:
            if held is not None:
                with suppress(GridError):  # it ends with our session
                    self._remote.run(self._calls.move(held.id, AllocationMove.RELEASE, None, None))
            self._threads.discard(threading.get_ident())
            with self._lock:
                self._running -= 1
                self._progress = time.monotonic()

    def _hold(self, besides: dict[str, int]) -> Allocation | None:
        if not besides or current_slot.slot is None:
            return None
        asked = Request(Resources(besides), node=current_slot.slot["node"])
        return self._remote.run(self._calls.allocate(asked, None, None, None, {})).allocations[0]

    def _next(self, shape: Shape) -> PendingCall | None:
        with self._pool.state.lock:
            while shape.waiting:
                call = shape.waiting.popleft()
                if mark_running(call.future):
                    call.started = time.monotonic()
                    return call
                call.over()
        return None

    def _outcome(self, call: PendingCall) -> tuple[int, bytes]:
        """Call it as a worker would, with copies of its arguments: what it changes is its own."""
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


class WaitReports:
    """Decides when the controller is told of a wait."""

    def __init__(self) -> None:
        self._seen: Wait = (), (), False
        self._seen_since = 0.0
        self._sent: Wait = self._seen
        self._sent_at = 0.0

    def due(self, wait: Wait, now: float) -> bool:
        """Return whether to send this report; it then counts as sent.

        A wait for calls that have no room is sent at once, one for calls that run only if it
        lasts. Both are repeated, for reports that are not do not count; that a function goes on
        is sent once.
        """
        if wait != self._seen:
            self._seen, self._seen_since = wait, now
        queued, _, blocked = wait
        wanted = queued or self._sent[2] or (blocked and now - self._seen_since >= _REPORT_S)
        if not wanted or (wait == self._sent and now - self._sent_at < _REPORT_S):
            return False
        self._sent, self._sent_at = wait, now
        return True
