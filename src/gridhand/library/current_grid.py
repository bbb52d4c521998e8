"""Which grid is meant where none is named: the one of a `with` block, else this machine's."""

from __future__ import annotations

import atexit
import os
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gridhand.library.calling import HasCaller

_here: ContextVar[tuple[Any, ...]] = ContextVar("gridhand_grids", default=())
_anywhere: list[Any] = []  # the same for threads that were started inside of the block
_making = threading.Lock()
_own: tuple[int, Any] | None = None  # the process, and its grid


def enter(grid: HasCaller) -> None:
    """From now on this one is meant, by whatever runs inside of the block."""
    _here.set((*_here.get(), grid))
    _anywhere.append(grid)


def leave(grid: HasCaller) -> None:
    _here.set(tuple(one for one in _here.get() if one is not grid))
    if grid in _anywhere:
        _anywhere.remove(grid)


def current_grid() -> HasCaller:
    """The grid of the innermost `with` block, else one that is opened for this process."""
    if found := _here.get():
        return found[-1]  # type: ignore[no-any-return]
    if _anywhere:
        return _anywhere[-1]  # type: ignore[no-any-return]
    return _of_this_process()


def _of_this_process() -> HasCaller:
    global _own
    with _making:
        if _own is None or _own[0] != os.getpid():
            from gridhand.library.grid import Grid

            _own = os.getpid(), Grid()
            atexit.register(_own[1].close)
        return _own[1]


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    _here.set(())
    _anywhere.clear()


os.register_at_fork(after_in_child=_after_fork)
