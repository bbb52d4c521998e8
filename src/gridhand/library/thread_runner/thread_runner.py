"""Run function calls in threads of this process, for a grid whose ledger is in it.

Calls with the same request wait in one line. One thread asks the ledger for room for the first call
of each line; a call that gets room runs in a thread of its own.

A thread cannot be ended from outside. A call that is stopped while it runs counts as cancelled at
once and its result is discarded, but its allocation is released only when its thread ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gridhand.core.errors import (
    CallFailed,
    CallTimeout,
    GridClosed,
    GridError,
    NeverFits,
    NoRoom,
    StoreUnavailable,
)
from gridhand.core.jobs.spec import Priority
from gridhand.core.ledger.allocations import Allocation, AllocationState, Lifetime, Terms
from gridhand.core.operations import Allocate, GetStatus, Granted, ListAllocations, MoveAllocation
from gridhand.library.functions.function_runner import FunctionCall, Returned
from gridhand.library.functions.future_state import force_cancel
from gridhand.library.pool.shape import lacking
from gridhand.library.thread_runner.stalled_calls import StalledCalls, refusal_of
from gridhand.library.thread_runner.thread_call import Kept, Phase, ThreadCall

if TYPE_CHECKING:
    from gridhand.controller.keeper.embedded import Embedded
    from gridhand.controller.keeper.tickets import PendingReply
    from gridhand.core.model.requests import Request

MOST_THREADS = 1000
MOST_FREE = 64  # calls without a request that run at a time; nothing else would limit them
_WAIT_MS = 3_600_000  # after which room is asked for again
_CLOSING_S = 1.0  # for threads to end when the runner is closed
_TRIES = 5
_MOMENT_S = 0.1  # after which a nested call runs in the allocation of its caller


class Line:
    """Waiting calls with the same request, in order; room goes to the first."""

    def __init__(self) -> None:
        self.waiting: dict[ThreadCall, None] = {}
        self.pending: PendingReply[Granted] | None = None
        self.has_asker = False


class ThreadRunner:
    """The function runner of `Grid.in_memory()` and `Grid.at()`. Any thread may use it."""

    def __init__(self, backend: Embedded, owner: str) -> None:
        self._backend = backend
        self._owner = owner
        self._terms = Terms(owner, None, AllocationState.ACTIVE, Lifetime.UNTIL_RELEASED)
        self._lock = threading.Lock()
        self._lines: dict[tuple[Request, str | None], Line] = {}
        self._free_waiting: dict[ThreadCall, None] = {}
        self._open: dict[ThreadCall, None] = {}
        self._running = 0  # calls that hold an allocation
        self._free_running = 0
        self._closed = False
        self._pid = os.getpid()
        self._current = threading.local()  # the call that a thread runs
        self._stalled = StalledCalls()

    # ---- the interface of a runner

    def submit(self, call: FunctionCall) -> Future[Returned]:
        if os.getpid() != self._pid:
            raise GridClosed(
                f"this grid belongs to process {self._pid}, from which this one was forked",
                hint="Open a grid of its own in each process.",
            )
        submitted = ThreadCall(self, call, getattr(self._current, "call", None))
        try:
            with self._lock:
                self._enter(submitted)
        except BaseException:  # an interrupt: the caller will never know of the call
            self.stop(submitted)
            raise
        return submitted

    def stop(self, call: Future[Returned]) -> None:
        if not isinstance(call, ThreadCall) or call.done():
            return
        asked = False
        with self._lock:
            if call.phase is Phase.RUNNING:
                call.phase = Phase.STOPPED
            elif call.phase is Phase.WAITING:
                asked = self._forget(call)
        if asked:
            _start_thread(self._cancel_when_released, call)
        else:
            force_cancel(call)

    def release(self, mark: str) -> None:
        """Do nothing: what a call held is released before the call is over."""

    def cancel(self, call: ThreadCall) -> bool:
        """Take out a call that waits; return whether it is cancelled."""
        with self._lock:
            if call.phase is not Phase.WAITING:
                return call.cancelled()
            self._forget(call)
        return force_cancel(call)

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            calls = list(self._open)
        started = [call for call in calls if call.phase in (Phase.RUNNING, Phase.STOPPED)]
        for call in calls:
            self.stop(call)
        pause = threading.Event()
        for _ in range(100):
            ended = all(call.phase is Phase.ENDED for call in started)
            if ended and all(call.done() for call in calls):
                return
            pause.wait(_CLOSING_S / 100)
        for call in started:  # nobody could release it later
            if call.allocation is not None:
                with suppress(GridError):
                    self._release(call.allocation)

    # ---- waiting for room

    def _enter(self, call: ThreadCall) -> None:
        if self._closed:
            raise GridClosed("this grid was closed", hint="Open another one.")
        self._open[call] = None
        if not call.is_free:
            line = self._lines.setdefault((call.call.request, call.call.priority), Line())
            line.waiting[call] = None
            self._ask_for(line)
            if call.parent is not None:
                _later(_MOMENT_S, self._lend, call, call.parent)
        elif call.parent is not None:
            self._start(call)  # at once: a running call may wait for it
        else:
            self._free_waiting[call] = None
            self._start_free()

    def _ask_for(self, line: Line) -> None:
        if line.waiting and not line.has_asker and self._running < MOST_THREADS:
            line.has_asker = True
            _start_thread(self._ask, line)

    def _ask(self, line: Line) -> None:
        """Ask for room for the first call of the line until none waits."""
        while (pending := self._begin_asking(line)) is not None:
            error: BaseException | None = None
            granted: Granted | None = None
            try:
                granted = pending.result()
            except Exception as raised:
                error = raised
            with self._lock:
                line.pending = None
                call = next(iter(line.waiting), None)
                if granted is not None and call is not None:
                    del line.waiting[call]
                    call.allocation = granted.allocations[0]
                    self._running += 1
                    self._start(call)
                    continue
            if granted is not None:  # the last call was cancelled just now
                self._release(granted.allocations[0])
            elif isinstance(error, GridError) and _is_final(error):
                self._refuse(line, error)

    def _begin_asking(self, line: Line) -> PendingReply[Granted] | None:
        """Send the request of the line to the ledger; return None if nothing is to be asked."""
        with self._lock:
            call = next(iter(line.waiting), None)
            if call is None or self._running >= MOST_THREADS:
                line.has_asker = False
                if call is None:
                    self._lines = {key: one for key, one in self._lines.items() if one is not line}
                return None
            request = call.call.request
            priority = Priority.read(call.call.priority or "medium")
            try:
                line.pending = self._backend.begin(
                    Allocate(self._owner, None, (request,), self._terms, _WAIT_MS, priority)
                )
                return line.pending
            except GridError as raised:  # the grid was closed
                error = raised
        self._refuse(line, error)
        return self._begin_asking(line)

    def _refuse(self, line: Line, error: GridError) -> None:
        """End every call of the line: all of them would get the same answer."""
        with self._lock:
            calls = list(line.waiting)
            for call in calls:
                self._forget(call)
        for call in calls:
            if isinstance(error, GridClosed):
                force_cancel(call)
                continue
            failed = CallFailed(call.call.name, "not_placed", str(error), hint=error.hint)
            failed.__cause__ = error
            with suppress(InvalidStateError):
                call.set_exception(failed)

    def _forget(self, call: ThreadCall) -> bool:
        """Remove a call; return whether room had been asked for that nobody needs now."""
        call.phase = Phase.ENDED
        self._open.pop(call, None)
        self._free_waiting.pop(call, None)
        line = self._lines.get((call.call.request, call.call.priority))
        if line is None or call not in line.waiting:
            return False
        del line.waiting[call]
        if line.waiting or line.pending is None:
            return False
        line.pending.abandon()
        return True

    def _cancel_when_released(self, call: ThreadCall) -> None:
        """Cancel a call after what may have been granted for it meanwhile is released."""
        with suppress(GridError):
            for _ in range(2):  # the first answer comes after the grant, the second after its end
                self._backend.run(ListAllocations())
        force_cancel(call)

    # ---- nested calls

    def _lend(self, call: ThreadCall, parent: ThreadCall) -> None:
        """Run a nested call in its caller's allocation if it has found no room meanwhile.

        The caller may wait for it, and there might never be room.
        """
        lender = parent.holder
        with self._lock:
            if call.phase is not Phase.WAITING or parent.phase is Phase.ENDED:
                return
            if lender.allocation is None:
                return
            if lacking(call.call.request, lender.allocation.resources.parts()) != {}:
                if not self._stalled:
                    _later(_MOMENT_S, self._refuse_stalled)
                self._stalled.add(call)
                return
            self._forget(call)
            call.lender = lender
            lender.borrowers += 1
            self._open[call] = None
            self._start(call)

    def _refuse_stalled(self) -> None:
        """Refuse the last nested call that can never start, as long as there may be one."""
        try:
            status = self._backend.run(GetStatus())
        except GridError:
            return  # the grid was closed
        with self._lock:
            call = self._stalled.find_hopeless(self._open, status)
            if self._stalled:
                _later(_MOMENT_S, self._refuse_stalled)
            if call is None:
                return
            self._forget(call)
        with suppress(InvalidStateError):
            call.set_exception(refusal_of(call))

    # ---- running

    def _start_free(self) -> None:
        while self._free_waiting and self._free_running < MOST_FREE:
            call = next(iter(self._free_waiting))
            del self._free_waiting[call]
            self._start(call)

    def _start(self, call: ThreadCall) -> None:
        if call.is_free:
            self._free_running += 1
        call.phase = Phase.RUNNING
        call.set_running_or_notify_cancel()
        _start_thread(self._run, call)

    def _run(self, submitted: ThreadCall) -> None:
        self._current.call = submitted
        submitted.thread = threading.get_ident()
        call = submitted.call
        limit_s = call.time_limit_s
        timer = None if limit_s is None else _later(limit_s, self._time_out, submitted, limit_s)
        error: BaseException | None = None
        value: Any = None
        try:
            self._check_held(call)
            kwargs = {name: _load(value) for name, value in call.kwargs.items()}
            value = call.code(*map(_load, call.args), **kwargs)
        except BaseException as raised:
            error = raised
        if timer is not None:
            timer.cancel()
        try:
            self._give_back(submitted)
        except GridError as lost:
            error = error or lost
        self._end(submitted, value, error)

    def _end(self, call: ThreadCall, value: Any, error: BaseException | None) -> None:
        with self._lock:
            wanted = call.phase is Phase.RUNNING
            self._forget(call)
            if call.is_free:
                self._free_running -= 1
                self._start_free()
            else:
                self._running -= 1
                for line in self._lines.values():
                    self._ask_for(line)
            last = call.lender is not None and self._return_to(call.lender)
        if last and call.lender is not None and call.lender.allocation is not None:
            with suppress(GridError):
                self._release(call.lender.allocation)
        if wanted:
            with suppress(InvalidStateError):
                if error is None:
                    call.set_result(Returned(Kept(value), call.node, call.held_id))
                else:
                    call.set_exception(error)

    def _return_to(self, lender: ThreadCall) -> bool:
        """Count a borrower less; return whether it was the last and the lender has ended."""
        lender.borrowers -= 1
        return lender.outlived and not lender.borrowers

    def _time_out(self, call: ThreadCall, limit_s: float) -> None:
        with self._lock:
            if call.phase is not Phase.RUNNING:
                return
            call.phase = Phase.STOPPED
        with suppress(InvalidStateError):
            call.set_exception(CallTimeout(call.call.name, limit_s))

    # ---- allocations

    def _check_held(self, call: FunctionCall) -> None:
        """Raise if the allocation that the caller made for this call is gone."""
        if call.held:
            live = self._backend.run(ListAllocations())
            if all(held.id != call.held for held in live):
                raise _lost(call)

    def _give_back(self, call: ThreadCall) -> None:
        """Release its allocation; raise if that was lost meanwhile."""
        with self._lock:
            call.outlived = call.borrowers > 0
        if call.outlived:
            return
        if call.allocation is None:
            self._check_held(call.call)
        elif self._release(call.allocation).state is AllocationState.LOST:
            raise _lost(call.call)

    def _release(self, held: Allocation) -> Allocation:
        pause = threading.Event()
        for again in range(_TRIES):
            try:
                return self._backend.run(MoveAllocation(self._owner, id=held.id))[0]
            except GridClosed:
                return held
            except StoreUnavailable:
                if again == _TRIES - 1:
                    raise
                pause.wait(0.1 * 2**again)
        raise AssertionError


def _start_thread(target: Callable[..., object], *args: object) -> None:
    threading.Thread(target=target, args=args, name="gridhand-call", daemon=True).start()


def _later(seconds: float, target: Callable[..., object], *args: object) -> threading.Timer:
    timer = threading.Timer(seconds, target, args)
    timer.daemon = True
    timer.start()
    return timer


def _is_final(error: GridError) -> bool:
    """Return whether asking again would get the same answer: not so if there was only no room."""
    return not isinstance(error, NoRoom) or isinstance(error, NeverFits)


def _lost(call: FunctionCall) -> CallFailed:
    return CallFailed(call.name, "node_lost", "its node was lost")


def _load(argument: Any) -> Any:
    return argument.load() if isinstance(argument, Kept) else argument
