"""Caller: what runs one call of a function with what it needs, wherever that is.

Graphs, tasks and executors decide what to call and whether to try again; a caller takes one call
at a time, holds its resources while it runs, and says how it ended. There is one that uses threads
of this process, for a grid in memory, and one that uses warm processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from gridhand.core.requests import Request


class Value(Protocol):
    """What a call returned, kept where it is until somebody needs it here.

    As an argument of another call it goes from worker to worker, and is read by neither this
    process nor the controller.
    """

    def load(self) -> Any:
        """The value itself."""

    def drop(self) -> None:
        """Nobody will ask for it any more. To say so again does nothing."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One call. Arguments that are `Value`s arrive as what they stand for."""

    code: Callable[..., Any]
    request: Request
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""  # for people: in logs, errors and what is shown while it runs
    time_limit_s: float | None = None
    apart: str = ""  # it shares its worker with calls of the same mark alone
    held: str = ""  # the id of what is held for it on the request's node: not to be held again


@dataclass(frozen=True, slots=True)
class Returned:
    """How a call went that ended well: its value, and where it ran."""

    value: Value
    node: str
    allocation: str  # the id of what it held


class Caller(Protocol):
    """A future's exception is what the function raised, or a `CallFailed`."""

    def submit(self, call: FunctionCall) -> Future[Returned]:
        """Have it called once there is room. Submitting many is cheap, however few can run.

        `cancel()` of the future takes it out while it waits; `stop` ends it even if it runs.
        """

    def stop(self, call: Future[Returned]) -> None:
        """End the call, its worker included; it then counts as cancelled. Over: does nothing."""

    def close(self) -> None:
        """Stop every call that is open, and give everything back."""
