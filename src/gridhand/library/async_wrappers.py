"""Turn the methods of `Grid` into methods of `AsyncGrid`, with the same parameters.

A wrapped method runs the body of `Grid`'s method with an `AsyncGrid` as `self`. The body checks its
arguments, builds an operation and hands it to `_run` or `_run_then`, which return an awaitable
there. Type checkers see the parameters through `ParamSpec`; `help` and `inspect.signature` see them
through `functools.wraps`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from gridhand.library.async_grid import AsyncGrid
    from gridhand.library.grid import Grid

P = ParamSpec("P")
R = TypeVar("R")
Handle = TypeVar("Handle")
AsyncMethod = Callable[Concatenate["AsyncGrid", P], Coroutine[Any, Any, R]]


def awaited(method: Callable[Concatenate[Grid, P], R]) -> AsyncMethod[P, R]:
    """Return `method` of `Grid` as a method of `AsyncGrid` that is awaited."""
    return _wrap(method, None)


def awaited_handle(
    method: Callable[Concatenate[Grid, P], object], handle: type[Handle]
) -> AsyncMethod[P, Handle]:
    """Return a method that returns a `handle`, where `method` of `Grid` returns its own."""
    return _wrap(method, handle.__name__)


def awaited_handles(
    method: Callable[Concatenate[Grid, P], Sequence[object]], handle: type[Handle]
) -> AsyncMethod[P, list[Handle]]:
    """Return a method that returns a list of `handle`s, where `method` returns its own."""
    return _wrap(method, f"list[{handle.__name__}]")


def _wrap(method: Callable[..., Any], returns: str | None) -> Callable[..., Any]:
    @functools.wraps(method)
    async def call(grid: AsyncGrid, /, *args: Any, **options: Any) -> Any:
        return await method(grid, *args, **options)

    call.__qualname__ = f"AsyncGrid.{method.__name__}"
    if returns is not None:  # `inspect.signature` would show what `Grid` returns
        shown: Any = call
        shown.__annotations__ = {**method.__annotations__, "return": returns}
        shown.__signature__ = inspect.signature(method).replace(return_annotation=returns)
    return call
