"""Which caller a grid has: warm processes of its controller, or threads of this process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol, cast

from gridhand.library.remote import Remote

if TYPE_CHECKING:
    from gridhand.library.backend import Backend
    from gridhand.library.caller import Caller
    from gridhand.library.calls import Calls

_making = threading.Lock()


class HasCaller(Protocol):
    """A grid, as far as this is concerned."""

    _backend: Backend
    _calls: Calls
    _caller: Caller | None


def caller_of(grid: HasCaller) -> Caller:
    """The caller of the grid, made when it is first asked for. It is closed with the grid."""
    with _making:
        if grid._caller is None:
            grid._caller = _made(grid._backend, grid._calls.owner)
        return grid._caller


def _made(backend: Any, owner: str) -> Caller:
    if isinstance(backend, Remote):
        from gridhand.library.pool import Pool

        return cast("Caller", Pool(backend, owner))
    from gridhand.library.threadcaller import ThreadCaller

    return ThreadCaller(backend, owner)


def close_caller(grid: HasCaller) -> None:
    """Stop what it calls and give back what that held, before the grid itself is closed."""
    with _making:
        caller, grid._caller = grid._caller, None
    if caller is not None:
        caller.close()
