"""Function runners: run one call of a function at a time with the resources that it needs.

Graphs, tasks and executors decide what to call and whether to try again; a runner holds the
resources of a call while it runs, and says how it ended. A grid in memory uses threads of this
process, a grid with a controller uses warm processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from gridhand.core.model.requests import Request

if TYPE_CHECKING:
    from gridhand.library.backend import Backend
    from gridhand.library.ledger_methods import LedgerMethods

_making = threading.Lock()


class Value(Protocol):
    """The value that a call returned, kept where it is until it is needed here.

    As an argument of another call it goes from worker to worker, and is read by neither this
    process nor the controller.
    """

    def load(self) -> Any:
        """Return the value itself."""

    def drop(self) -> None:
        """Let go of the value. Repeating this does nothing."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One call of a function. Arguments that are `Value`s arrive as the values they stand for."""

    code: Callable[..., Any]
    request: Request
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""  # for people: in logs, errors and what is shown while it runs
    time_limit_s: float | None = None
    apart: str = ""  # it shares its worker only with calls of the same mark
    held: str = ""  # the id of the allocation that it runs in, on the request's node
    priority: str | None = None  # while it waits for room


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of a successful call: its value, and where it ran."""

    value: Value
    node: str
    allocation: str  # the id of what it held


class FunctionRunner(Protocol):
    """Runs calls. The exception of a future is what the function raised, or a `CallFailed`."""

    def submit(self, call: FunctionCall) -> Future[Returned]:
        """Run the call once there is room. Submitting many is cheap, however few can run.

        `cancel()` of the future withdraws it while it waits; `stop` ends it even if it runs.
        """

    def stop(self, call: Future[Returned]) -> None:
        """End the call and its worker; it then counts as cancelled. If it is over, do nothing."""

    def release(self, mark: str) -> None:
        """Return when nothing is held for calls whose `apart` begins so; they must be over."""

    def close(self) -> None:
        """Stop every open call, and release everything."""


class HasRunner(Protocol):
    """A grid, as far as its function runner is concerned."""

    _backend: Backend
    _operations: LedgerMethods
    _caller: FunctionRunner | None


def runner_of(grid: HasRunner) -> FunctionRunner:
    """Return the runner of the grid, made when it is first needed. It is closed with the grid."""
    with _making:
        if grid._caller is None:
            grid._caller = _new_runner(grid._backend, grid._operations.owner)
        return grid._caller


def _new_runner(backend: Any, owner: str) -> FunctionRunner:
    from gridhand.library.remote import Remote

    if isinstance(backend, Remote):
        from gridhand.library.pool.pool import Pool

        return cast("FunctionRunner", Pool(backend, owner))
    from gridhand.library.thread_runner.thread_runner import ThreadRunner

    return ThreadRunner(backend, owner)


def close_runner(grid: HasRunner) -> None:
    """Stop all calls of the grid and release what they hold, before the grid itself is closed."""
    with _making:
        runner, grid._caller = grid._caller, None
    if runner is not None:
        runner.close()
