"""The grid that tasks use when none is named: that of a `with` block, else this machine's."""

from __future__ import annotations

import atexit
import os
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gridhand.library.functions.function_runner import HasRunner

_entered: ContextVar[tuple[Any, ...]] = ContextVar("gridhand_grids", default=())
_entered_anywhere: list[Any] = []  # for threads started inside a block, which have no context
_making = threading.Lock()
_process_grid: tuple[int, Any] | None = None  # the process id, and its grid


def enter(grid: HasRunner) -> None:
    """Make `grid` the current one, at the beginning of its `with` block."""
    _entered.set((*_entered.get(), grid))
    _entered_anywhere.append(grid)


def leave(grid: HasRunner) -> None:
    """Undo `enter`; do nothing if the grid was not entered."""
    _entered.set(tuple(other for other in _entered.get() if other is not grid))
    if grid in _entered_anywhere:
        _entered_anywhere.remove(grid)


def current_grid() -> HasRunner:
    """Return the grid of the innermost `with` block, else one opened for this process."""
    if entered := _entered.get():
        return entered[-1]  # type: ignore[no-any-return]
    if _entered_anywhere:
        return _entered_anywhere[-1]  # type: ignore[no-any-return]
    return _grid_of_process()


def _grid_of_process() -> HasRunner:
    global _process_grid
    with _making:
        if _process_grid is None or _process_grid[0] != os.getpid():
            from gridhand.library.grid import Grid

            _process_grid = os.getpid(), Grid()
            atexit.register(_process_grid[1].close)
        return _process_grid[1]


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    _entered.set(())
    _entered_anywhere.clear()


os.register_at_fork(after_in_child=_after_fork)
