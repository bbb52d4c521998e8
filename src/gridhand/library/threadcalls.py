"""Calls in threads: how each of them stands, and which of them stand still."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from gridhand.core.errors import CallFailed, GridClosed
from gridhand.library.caller import FunctionCall, Returned
from gridhand.library.standstill import (
    SURE_S,
    Unchanged,
    Waiting,
    is_blocked,
    no_way_out,
    refusal,
)

if TYPE_CHECKING:
    from gridhand.controller.tickets import Ticket
    from gridhand.core.allocations import Allocation
    from gridhand.core.views import Status
    from gridhand.library.threadcaller import ThreadCaller


class Kept:
    """A value of this process: there is nowhere it would have to be fetched from."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = [value]

    def load(self) -> Any:
        if not self._value:
            raise GridClosed("this value was dropped", hint="Load it before.")
        return self._value[0]

    def drop(self) -> None:
        self._value.clear()


class At(Enum):
    WAITING = auto()
    RUNNING = auto()
    LEFT = auto()  # running, and nobody wants to know how it ends
    OVER = auto()


class Open(Future[Returned]):
    """One call, from its submission to its end."""

    def __init__(self, caller: ThreadCaller, call: FunctionCall) -> None:
        super().__init__()
        self.caller = caller
        self.call = call
        self.at = At.WAITING
        self.holds: Allocation | None = None
        self.made_by: Open | None = None  # the call that made it
        self.lent: Open | None = None  # whose call made this one, and has what it runs in
        self.lending = 0  # how many run in what this one holds
        self.outlived = False  # by some of them, the last of which gives it back
        self.thread: int | None = None

    @property
    def plain(self) -> bool:
        """Whether there is nothing to be held for it."""
        request = self.call.request
        within = self.call.held or self.lent
        return bool(within) or not (request.amounts or request.gpu)

    @property
    def node(self) -> str:
        within = self.holds or (self.lent and self.lent.holds)
        return (within.node if within else self.call.request.node) or ""

    @property
    def held(self) -> str:
        """The id of what it runs in."""
        within = self.holds or (self.lent and self.lent.holds)
        return within.id if within else self.call.held

    @property
    def amounts(self) -> dict[str, int]:
        return self.holds.resources.parts() if self.holds is not None else {}

    @property
    def giver(self) -> Open | None:
        """Whose holding the call that made this one runs in."""
        return self.made_by and (self.made_by.lent or self.made_by)

    def cancel(self) -> bool:
        return self.caller.left(self)


class Line:
    """Calls that ask for the same, in order. Whatever is granted goes to the first of them."""

    def __init__(self, caller: ThreadCaller) -> None:
        self.caller = caller
        self.waiting: dict[Open, None] = {}
        self.asking: dict[Ticket, None] = {}

    def deliver(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            self.caller.answered(self, ticket)


class InVain:
    """Calls in calls that ask for more than there is to lend, in the order they were found so."""

    def __init__(self) -> None:
        self._calls: dict[Open, None] = {}
        self._same = Unchanged()

    def add(self, one: Open) -> bool:
        """Whether it is the only one."""
        self._calls[one] = None
        return len(self._calls) == 1

    def __bool__(self) -> bool:
        return bool(self._calls)

    def last(self, calls: Iterable[Open], status: Status) -> Open | None:
        """The last one that will never have room, when that has been so for a while."""
        self._calls = {one: None for one in self._calls if one.at is At.WAITING}
        givers = {one.giver: None for one in self._calls if one.giver is not None}
        still = {one: None for one in givers if self._stands_still(one, calls)}
        seconds = self._same.seconds(tuple(map(id, still)), time.monotonic())
        if not still or seconds < SURE_S:
            return None
        waiting = [Waiting(0.0, one.held, one.node, one.amounts) for one in still]
        for one in reversed(self._calls):
            if one.giver in still and no_way_out(one.call.request, status, waiting):
                return one
        return None

    def refusal(self, one: Open) -> CallFailed:
        call = one.call
        return refusal(call.name, call.request, one.giver.amounts if one.giver else {})

    def _stands_still(self, giver: Open, calls: Iterable[Open]) -> bool:
        """Whether all that runs in what it holds waits, and nothing goes on that they have made."""
        there = {one for one in calls if giver in (one, one.lent) and one.at is At.RUNNING}
        made = [one for one in calls if one.made_by in there and one not in there]
        return all(is_blocked(one.thread) for one in there) and all(
            one in self._calls for one in made
        )
