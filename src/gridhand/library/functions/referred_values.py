"""The values that a function refers to, and whether they are still the same.

A function that is sent by value takes along the globals and closure variables that it refers to,
and those of the functions that it calls. It is sent again once one of them was bound anew or has
changed. Whether a name is bound anew costs nothing to see. Whether a value has changed is seen from
its pickle, unless the function with all it refers to is large: then it would cost more than a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    ModuleType,
    NoneType,
)
from typing import Any

from gridhand.worker.importable_modules import is_importable

_ABSENT = object()
_LARGE_BYTES = 1_000_000
_PLAIN = frozenset({bool, bytes, complex, float, int, str, NoneType})
_STABLE = (ModuleType, FunctionType, BuiltinFunctionType, type)


class ReferredValues:
    """The values that a function referred to when it was pickled to so many bytes."""

    def __init__(self, code: FunctionType, size: int) -> None:
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._cells: list[tuple[CellType, Any]] = []
        _Collector(self._globals, self._cells).add(code)
        values = [one[-1] for one in (*self._globals, *self._cells)]
        self._may_change = size <= _LARGE_BYTES and not all(map(_is_fixed, values))

    def are_the_same(self) -> bool:
        """Return whether all are what they were, as far as that is known without pickling them."""
        if self._may_change:
            return False
        for known, name, value in self._globals:
            if known.get(name, _ABSENT) is not value:
                return False
        return not self._cells or all(_contents(cell) is value for cell, value in self._cells)


def is_sent_by_value(code: FunctionType) -> bool:
    """Return whether workers get the function itself, and not its name."""
    module = code.__module__
    return "<locals>" in code.__qualname__ or module == "__main__" or not is_importable(module)


def named_values(code: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function refers to, with what it is called there."""
    if not isinstance(code, FunctionType):
        return
    cells = code.__closure__ or ()
    for name, cell in zip(code.__code__.co_freevars, cells, strict=True):
        yield f"the variable {name!r}", _contents(cell)
    for name in _names(code.__code__):
        if name in code.__globals__:
            yield f"the global {name!r}", code.__globals__[name]


class _Collector:
    def __init__(
        self, names: list[tuple[dict[str, Any], str, Any]], cells: list[tuple[CellType, Any]]
    ) -> None:
        self._names = names
        self._cells = cells
        self._seen: set[int] = set()

    def add(self, code: FunctionType) -> None:
        if id(code) in self._seen or not is_sent_by_value(code):
            return
        self._seen.add(id(code))
        for name in _names(code.__code__):
            value = code.__globals__.get(name, _ABSENT)
            self._names.append((code.__globals__, name, value))
            self._follow(value)
        for cell in code.__closure__ or ():
            self._cells.append((cell, _contents(cell)))
            self._follow(_contents(cell))

    def _follow(self, value: Any) -> None:
        code = getattr(value, "_code", value) if not isinstance(value, type) else None
        if isinstance(code, FunctionType):
            self.add(code)


def _is_fixed(value: Any) -> bool:
    """Return whether a value stays the same as long as it is the same object."""
    if type(value) in _PLAIN or isinstance(value, _STABLE) or value is _ABSENT:
        return True
    if type(value) in (tuple, frozenset):
        return all(map(_is_fixed, value))
    return isinstance(getattr(value, "_code", None), FunctionType)  # a task


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if type(one) is CodeType:
            yield from _names(one)


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return _ABSENT
