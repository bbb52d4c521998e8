"""Futures inside of arguments: found wherever a value can take their place, else refused.

A future that nobody found would be sent as its value if it happened to be done, and fail if not.
So one that is found in a place where it cannot be replaced is refused when the call is submitted,
and any other, such as one in an attribute of an object, when its arguments are pickled.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from types import FunctionType, NoneType
from typing import Any

from gridhand.library.functions.future import NoArgument, TaskFuture

_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_REFUSED = (NoArgument, Future)
_PLAIN = frozenset({bool, bytes, float, int, str, NoneType})


def depends_on(args: Any, found: list[TaskFuture[Any]]) -> None:
    """Collect the futures among arguments, also those inside of containers and dataclasses."""
    if type(args) is not tuple or not _PLAIN.issuperset(map(type, args)):
        _collect(args, found, [])


def _collect(container: Any, found: list[TaskFuture[Any]], within: list[Any]) -> None:
    within.append(container)
    for one in _parts(container):
        if type(one) in _PLAIN:
            continue
        if isinstance(one, TaskFuture):
            found.append(one)
        elif isinstance(one, _REFUSED):
            raise _refused(one)
        elif isinstance(one, _CONTAINERS) or dataclasses.is_dataclass(one):
            if not any(one is outer for outer in within):
                _collect(one, found, within)
        elif isinstance(one, FunctionType | partial):
            refuse_closure(one)
    within.pop()


def _parts(container: Any) -> Iterable[Any]:
    if isinstance(container, dict):
        return container.values()
    if isinstance(container, _CONTAINERS):
        return container
    if isinstance(container, type):
        return ()
    return [getattr(container, name, None) for name in _fields(container)]


def _fields(one: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(one)]


def refuse_closure(code: Any) -> None:
    """Raise if a function refers to a future: its value could not take the place of that."""
    if type(code) is FunctionType and code.__closure__ is None:
        return
    if isinstance(code, partial):
        held: list[TaskFuture[Any]] = []
        depends_on((code.args, code.keywords), held)
        cells: list[Any] = held
    else:
        cells = [_contents(cell) for cell in getattr(code, "__closure__", None) or ()]
    for one in cells:
        if isinstance(one, Future | NoArgument):
            raise TypeError(
                f"{getattr(code, '__name__', code)!r} refers to {one!r}: give that as an argument"
                " of the task"
            )


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def with_values(one: Any) -> Any:
    """Return the same with the values of the futures in it; wait for those that are not done."""
    if isinstance(one, TaskFuture):
        return one.result()
    if isinstance(one, _REFUSED):
        raise _refused(one)
    found: list[TaskFuture[Any]] = []
    if isinstance(one, _CONTAINERS) or dataclasses.is_dataclass(one):
        depends_on(one, found)
    return _rebuilt(one) if found else one


def _rebuilt(one: Any) -> Any:
    """Return a copy of a container in which values have taken the places of futures."""
    if isinstance(one, dict):
        same: Any = copy.copy(one)
        same.update({key: with_values(value) for key, value in one.items()})
        return same
    if isinstance(one, tuple) and hasattr(one, "_make"):
        return one._make(map(with_values, one))
    if isinstance(one, deque):
        return type(one)(map(with_values, one), one.maxlen)
    if isinstance(one, _CONTAINERS):
        return type(one)(map(with_values, one))
    same = copy.copy(one)
    for name in _fields(one):
        object.__setattr__(same, name, with_values(getattr(one, name)))
    return same


def _refused(one: object) -> TypeError:
    return TypeError(
        f"{one!r} cannot be an argument of a task: give what its result() returns, or a future"
        " that a task's submit() returned"
    )
