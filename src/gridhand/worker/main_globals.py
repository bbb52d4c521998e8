"""Functions of a program's `__main__` share its globals, also where they are sent to.

Each is pickled by itself, and cloudpickle would give each globals of its own: what one sets, such
as an initializer, no other would see. Here they have one namespace in each process, as they had at
home. What a function brings along is put there if it is not there yet. If it is there, and the
program has meanwhile bound or changed it, the namespace goes on as a copy that has the new value:
functions that came before keep what they were sent with.
"""

from __future__ import annotations

import io
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from hashlib import blake2b
from types import CodeType, FunctionType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

Marks = dict[str, bytes]  # what the globals of a function were when it was sent, by name
_MARKS = "__gridhand_marks__"
_ABSENT = b""

_tokens: weakref.WeakKeyDictionary[FunctionType, bytes] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_current: dict[str, Any] = {_MARKS: {}}


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """As cloudpickle's, but for functions of `__main__`."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._known: dict[tuple[int, str], bytes] = {}

    def reducer_override(self, obj: Any) -> Any:
        made = super().reducer_override(obj)
        if type(obj) is not FunctionType or made is NotImplemented:
            return made
        if obj.__globals__.get("__name__") != "__main__":
            return made
        make, args, state, *nothing, set_state = made
        marks = self._marks(obj, state[1]["__globals__"])
        return _make, (make, args, marks), (set_state, state, marks), *nothing, _set

    def _marks(self, function: FunctionType, brought: dict[str, Any]) -> Marks:
        known = function.__globals__
        marks = {name: _ABSENT for name in _names(function.__code__) if name not in known}
        for name, value in brought.items():
            if (mark := self._known.get((id(known), name))) is None:
                mark = self._known[id(known), name] = _mark(value)
            marks[name] = mark
        return marks


# ---- where it is sent from


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if type(one) is CodeType:
            yield from _names(one)


def _mark(value: Any) -> bytes:
    """Another one when it has been bound or changed."""
    if _is_plain(value):
        return _token(value)
    file, digest = io.BytesIO(), blake2b(digest_size=16)

    def add(buffer: pickle.PickleBuffer) -> None:
        digest.update(buffer.raw())

    _Marker(file, protocol=5, buffer_callback=add).dump(value)
    digest.update(file.getbuffer())
    return digest.digest()


class _Marker(cloudpickle.Pickler):  # type: ignore[misc]
    """Does not look into functions: those refer to each other, and to half of a program."""

    def reducer_override(self, obj: Any) -> Any:
        if _is_plain(obj):
            return bytes, (_token(obj),)
        return super().reducer_override(obj)


def _is_plain(value: Any) -> bool:
    return type(value) is FunctionType and not value.__closure__ and not value.__dict__


def _token(function: FunctionType) -> bytes:
    return _tokens.setdefault(function, os.urandom(8))


# ---- where it is sent to


def _make(make: Callable[..., Any], args: tuple[Any, ...], marks: Marks) -> Any:
    code, base, *rest = args
    with _lock:
        namespace = _namespace(marks)
        for name, value in base.items():
            namespace.setdefault(name, value)
    return make(code, namespace, *rest)


def _namespace(marks: Marks) -> dict[str, Any]:
    global _current
    known: Marks = _current[_MARKS]
    changed = [name for name, mark in marks.items() if known.get(name, mark) != mark]
    if changed:
        _current = {name: value for name, value in _current.items() if name not in changed}
        _current[_MARKS] = {name: mark for name, mark in known.items() if name not in changed}
    return _current


def _set(function: FunctionType, given: tuple[Callable[..., Any], Any, Marks]) -> None:
    set_state, (state, slots), marks = given
    known = function.__globals__
    brought = slots["__globals__"]
    new = {name: value for name, value in brought.items() if name not in known}
    known[_MARKS].update((name, mark) for name, mark in marks.items() if name not in brought)
    known[_MARKS].update((name, marks[name]) for name in new)
    set_state(function, (state, {**slots, "__globals__": new}))
