"""ThreadCaller: calls of functions in threads of this process, for a grid that is in it.

A call asks the ledger for what it needs and waits for room in the keeper's own line, without a
thread. For calls that ask for the same only a few places in that line are taken, since all who
stand there are tried whenever something is freed; what is granted goes to the call that came first.

A thread cannot be ended from outside. A call that is stopped while it runs counts as cancelled at
once and its result is discarded, but what it holds is given back only when its thread has ended.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gridhand.core.allocations import Allocation, Lifetime, Move, State
from gridhand.core.errors import (
    CallFailed,
    CallTimeout,
    GridClosed,
    GridError,
    NeverFits,
    NoRoom,
    StoreUnavailable,
)
from gridhand.core.ledger import Terms
from gridhand.library.caller import FunctionCall, Returned
from gridhand.library.crew import Alarms, Crew
from gridhand.library.shapes import force_cancel, lacking
from gridhand.library.threadcalls import At, InVain, Kept, Line, Open

if TYPE_CHECKING:
    from gridhand.controller.embedded import Embedded
    from gridhand.controller.tickets import Ticket
    from gridhand.core.requests import Request

MOST_ASKING = 8  # of calls that ask for the same, how many stand in line
MOST_THREADS = 1000
MOST_PLAIN = 64  # calls at a time of those that need nothing, and so would never wait
_WAIT_MS = 3_600_000  # after which it is asked again
_PATIENCE_S = 1.0  # for threads to end when the caller is closed
_TRIES = 5
_MOMENT_S = 0.1  # after which a call that another made is run in what that one holds


class ThreadCaller:
    """The caller of `Grid.in_memory()` and `Grid.at()`. Any thread may use it."""

    def __init__(self, backend: Embedded, owner: str) -> None:
        self._backend = backend
        self._owner = owner
        self._terms = Terms(owner, None, State.ACTIVE, Lifetime.UNTIL_RELEASED)
        self._lock = threading.Lock()
        self._lines: dict[Request, Line] = {}
        self._plain: dict[Open, None] = {}
        self._open: dict[Open, None] = {}
        self._running = 0  # of those that hold something
        self._running_plain = 0
        self._closed = False
        self._pid = os.getpid()
        self._crew = Crew("gridhand-call")
        self._alarms = Alarms("gridhand-limits")
        self._here = threading.local()
        self._vain = InVain()

    # ---- what a caller does

    def submit(self, call: FunctionCall) -> Future[Returned]:
        if os.getpid() != self._pid:
            raise GridClosed(
                f"this grid belongs to process {self._pid}, from which this one was forked",
                hint="Open a grid of its own in each process.",
            )
        one = Open(self, call)
        try:
            with self._lock:
                self._enter(one)
            self._ask()
        except BaseException:  # an interrupt: who called will never know of it
            self.stop(one)
            raise
        return one

    def _enter(self, one: Open) -> None:
        if self._closed:
            raise GridClosed("this grid was closed", hint="Open another one.")
        self._open[one] = None
        if not one.plain:
            self._lines.setdefault(one.call.request, Line(self)).waiting[one] = None
            if (made_by := getattr(self._here, "call", None)) is not None:
                one.made_by = made_by
                self._alarms.after(_MOMENT_S, lambda: self._lend(one, made_by))
        elif getattr(self._here, "call", None) is not None:
            # A thread of ours may wait for it, and must not keep it from running.
            self._begin(one)
        else:
            self._plain[one] = None
            self._begin_plain()

    def _lend(self, one: Open, made_by: Open) -> None:
        """Run it in what the call that made it holds, if it has found no room meanwhile.

        That one may wait for it, and there might never be any.
        """
        giver = made_by.lent or made_by
        with self._lock:
            if one.at is not At.WAITING or made_by.at is At.OVER or giver.holds is None:
                return
            if lacking(one.call.request, giver.holds.resources.parts()) != {}:
                if self._vain.add(one):
                    self._alarms.after(_MOMENT_S, self._look_for_a_standstill)
                return
            line = self._lines.get(one.call.request)
            if line is None or line.waiting.pop(one, self) is self:
                return
            one.lent = giver
            giver.lending += 1
            self._begin(one)
        self._ask()

    def _look_for_a_standstill(self) -> None:
        """Refuse the last call that waits for what those hold who wait themselves.

        Again and again, for as long as there may be such calls.
        """
        try:
            status = self._backend.call(self._backend.status())
        except GridError:
            return  # it was closed
        with self._lock:
            last = self._vain.last(self._open, status)
            if self._vain:
                self._alarms.after(_MOMENT_S, self._look_for_a_standstill)
            if last is None:
                return
            self._forget(last)
        with suppress(InvalidStateError):
            last.set_exception(self._vain.refusal(last))
        self._ask()

    def stop(self, call: Future[Returned]) -> None:
        if not isinstance(call, Open) or call.done():
            return
        with self._lock:
            waited = call.at is At.WAITING
            if call.at is At.RUNNING:
                call.at = At.LEFT
            elif waited:
                self._forget(call)
        if waited and self._ask():
            self._crew.run(lambda: self._surely_out(call))
        else:
            force_cancel(call)

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            calls = list(self._open)
        threads = [one for one in calls if one.at in (At.RUNNING, At.LEFT)]
        for one in calls:
            self.stop(one)
        pause = threading.Event()
        for _ in range(100):
            if all(one.done() for one in calls) and all(one.at is At.OVER for one in threads):
                return
            pause.wait(_PATIENCE_S / 100)
        for one in threads:  # nobody could give it back later
            if one.holds is not None:
                with suppress(GridError):
                    self._release(one.holds)

    # ---- leaving before it runs

    def left(self, one: Open) -> bool:
        """Take a call out while it waits, as `cancel` is to."""
        with self._lock:
            if one.at is not At.WAITING:
                return one.cancelled()
            self._forget(one)
        self._ask()
        return force_cancel(one)

    def _surely_out(self, one: Open) -> None:
        """Cancel it when what may have been granted for it meanwhile has been given back."""
        with suppress(GridError):
            for _ in range(2):  # by the first answer that is under way, by the second it is done
                self._backend.call(self._backend.allocations())
        force_cancel(one)

    def _forget(self, one: Open) -> None:
        one.at = At.OVER
        self._open.pop(one, None)
        self._plain.pop(one, None)
        line = self._lines.get(one.call.request)
        if line is not None:
            line.waiting.pop(one, None)

    # ---- asking for room

    def _ask(self) -> bool:
        """Stand in the keeper's line as often as it helps; whether some left it for good."""
        tickets: list[Ticket] = []
        try:
            with self._lock:
                left = [self._balance(*one, tickets) for one in list(self._lines.items())]
            if tickets:
                self._backend.submit(tickets)
        except GridError as error:
            for ticket in tickets:
                ticket.error = error
                ticket.port.deliver([ticket])
            return False
        except BaseException:  # an interrupt: some may be on their way, and others not
            with self._lock:
                for ticket in tickets:
                    ticket.abandoned = True
                    for line in self._lines.values():
                        line.asking.pop(ticket, None)
            raise
        return any(left)

    def _balance(self, request: Request, line: Line, tickets: list[Ticket]) -> bool:
        """Have as many places in line as there is use for; whether some were given up."""
        most = 0 if self._running >= MOST_THREADS else MOST_ASKING
        for _ in range(min(most, len(line.waiting)) - len(line.asking)):
            self._stand(request, line, tickets)
        left = False
        while len(line.asking) > len(line.waiting):
            # What it is granted at this moment the keeper takes back.
            line.asking.popitem()[0].abandoned = left = True
        if not line.waiting:
            del self._lines[request]
        return left

    def _stand(self, request: Request, line: Line, tickets: list[Ticket]) -> None:
        from gridhand.controller.tickets import Ticket

        wanted = self._backend.allocate(self._owner, None, (request,), self._terms, _WAIT_MS)
        ticket = Ticket(wanted, line)  # type: ignore[arg-type]
        tickets.append(ticket)
        line.asking[ticket] = None

    def answered(self, line: Line, ticket: Ticket) -> None:
        """The keeper has decided. This is its own thread: nothing here may wait for it."""
        error = ticket.error
        refused: list[Open] = []
        with self._lock:
            if line.asking.pop(ticket, self) is self:
                return  # it left, and the keeper takes back what it was granted
            if error is None:
                one = next(iter(line.waiting))
                del line.waiting[one]
                one.holds = ticket.reply[0]
                self._running += 1
                self._begin(one)
            elif not isinstance(error, NoRoom) or isinstance(error, NeverFits):
                # The others ask for the same, and would be told the same.
                refused = list(line.waiting)
                for one in refused:
                    self._forget(one)
        if refused:
            self._crew.run(lambda: self._refused(refused, error))
        self._ask()

    def _refused(self, calls: list[Open], error: BaseException | None) -> None:
        for one in calls:
            if isinstance(error, GridClosed):
                force_cancel(one)
                continue
            failed = CallFailed(one.call.name, "not_placed", str(error), hint=_hint(error))
            failed.__cause__ = error
            with suppress(InvalidStateError):
                one.set_exception(failed)

    # ---- running

    def _begin_plain(self) -> None:
        while self._plain and self._running_plain < MOST_PLAIN:
            one = next(iter(self._plain))
            del self._plain[one]
            self._begin(one)

    def _begin(self, one: Open) -> None:
        if one.plain:
            self._running_plain += 1
        one.at = At.RUNNING
        one.set_running_or_notify_cancel()
        self._crew.run(lambda: self._work(one))

    def _work(self, one: Open) -> None:
        self._here.call = one
        one.thread = threading.get_ident()
        call = one.call
        if call.time_limit_s is not None:
            limit_s = call.time_limit_s
            self._alarms.after(limit_s, lambda: self._late(one, limit_s))
        error: BaseException | None = None
        value: Any = None
        try:
            self._check(call)
            value = call.code(*map(_loaded, call.args), **_loaded_all(call.kwargs))
        except BaseException as raised:
            error = raised
        try:
            self._give_back(one)
        except GridError as lost:
            error = error or lost
        self._ended(one, value, error)

    def _ended(self, one: Open, value: Any, error: BaseException | None) -> None:
        with self._lock:
            wanted = one.at is At.RUNNING
            self._forget(one)
            if one.plain:
                self._running_plain -= 1
                self._begin_plain()
            else:
                self._running -= 1
            last = one.lent is not None and self._returned(one.lent)
        if last and one.lent is not None and one.lent.holds is not None:
            with suppress(GridError):
                self._release(one.lent.holds)
        if wanted:
            with suppress(InvalidStateError):
                if error is None:
                    one.set_result(Returned(Kept(value), one.node, one.held))
                else:
                    one.set_exception(error)
        self._ask()

    def _returned(self, giver: Open) -> bool:
        """Whether the last of those that ran in what it holds has ended, and it has, too."""
        giver.lending -= 1
        return giver.outlived and not giver.lending

    def _late(self, one: Open, limit_s: float) -> None:
        with self._lock:
            if one.at is not At.RUNNING:
                return
            one.at = At.LEFT
        with suppress(InvalidStateError):
            one.set_exception(CallTimeout(one.call.name, limit_s))

    # ---- what is held

    def _check(self, call: FunctionCall) -> None:
        """What was held for the call before must still be."""
        if call.held:
            live = self._backend.call(self._backend.allocations())
            if all(one.id != call.held for one in live):
                raise _lost(call)

    def _give_back(self, one: Open) -> None:
        """Release what it held; an error if that was lost meanwhile, and so the call with it."""
        with self._lock:
            one.outlived = one.lending > 0
        if one.outlived:
            return
        if one.holds is None:
            self._check(one.call)
        elif self._release(one.holds).state is State.LOST:
            raise _lost(one.call)

    def _release(self, held: Allocation) -> Allocation:
        pause = threading.Event()
        for again in range(_TRIES):
            try:
                move = self._backend.move(self._owner, None, held.id, Move.RELEASE, None)
                return self._backend.call(move)[0]
            except GridClosed:
                return held
            except StoreUnavailable:
                if again == _TRIES - 1:
                    raise
                pause.wait(0.1 * 2**again)
        raise AssertionError


def _lost(call: FunctionCall) -> CallFailed:
    return CallFailed(call.name, "node_lost", "the node it was on was lost meanwhile")


def _hint(error: BaseException | None) -> str:
    return error.hint if isinstance(error, GridError) else ""


def _loaded(argument: Any) -> Any:
    return argument.load() if isinstance(argument, Kept) else argument


def _loaded_all(named: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _loaded(value) for name, value in named.items()}
