"""Calls that run in threads: their state, and what they hold or borrow."""

from __future__ import annotations

from concurrent.futures import Future
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from gridhand.core.errors import GridClosed
from gridhand.library.functions.function_runner import FunctionCall, Returned

if TYPE_CHECKING:
    from gridhand.core.ledger.allocations import Allocation
    from gridhand.library.thread_runner.thread_runner import ThreadRunner


class Kept:
    """A value in this process; nothing has to be fetched to load it."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = [value]

    def load(self) -> Any:
        if not self._value:
            raise GridClosed("this value was dropped", hint="Load it earlier.")
        return self._value[0]

    def drop(self) -> None:
        self._value.clear()


class Phase(Enum):
    """Where a call stands."""

    WAITING = auto()
    RUNNING = auto()
    STOPPED = auto()  # its thread still runs, but its result is discarded
    ENDED = auto()


class ThreadCall(Future[Returned]):
    """One call, from its submission to its end."""

    def __init__(self, runner: ThreadRunner, call: FunctionCall, parent: ThreadCall | None) -> None:
        super().__init__()
        self.runner = runner
        self.call = call
        self.parent = parent  # the call that submitted this one
        self.phase = Phase.WAITING
        self.allocation: Allocation | None = None
        self.lender: ThreadCall | None = None  # the call whose allocation this one runs in
        self.borrowers = 0  # how many calls run in this one's allocation
        self.outlived = False  # whether borrowers are left, the last of which releases it
        self.thread: int | None = None

    @property
    def is_free(self) -> bool:
        """Whether nothing has to be allocated for it."""
        request = self.call.request
        has_room = self.call.held or self.lender
        return bool(has_room) or not (request.amounts or request.gpu)

    @property
    def holder(self) -> ThreadCall:
        """The call whose allocation this one runs in."""
        return self.lender or self

    @property
    def node(self) -> str:
        held = self.holder.allocation
        return (held.node if held else self.call.request.node) or ""

    @property
    def held_id(self) -> str:
        """The id of the allocation that it runs in."""
        held = self.holder.allocation
        return held.id if held else self.call.held

    @property
    def amounts(self) -> dict[str, int]:
        return self.allocation.resources.parts() if self.allocation is not None else {}

    def cancel(self) -> bool:
        return self.runner.cancel(self)
