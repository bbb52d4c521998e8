"""Gives functions of a program's `__main__` shared globals in the workers, too.

Each function is pickled by itself, and cloudpickle would give each globals of its own: what one
sets, such as an initializer, no other would see. Here they share one namespace in each process, as
they do in the program. The globals that a function brings along are added if they are new. If the
program has bound or changed one since, the namespace is replaced by a copy with the new value:
functions that came before keep the values they were sent with.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from hashlib import blake2b
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from gridhand.worker.importable_modules import is_importable

Marks = dict[str, bytes]  # fingerprints of the globals of a function when it was sent, by name
_MARKS = "__gridhand_marks__"
_ABSENT = b""
_MAIN = frozenset({"__main__", "__mp_main__"})  # the latter in children of `multiprocessing`

_tokens: weakref.WeakKeyDictionary[FunctionType, bytes] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
_current: dict[str, Any] = {_MARKS: {}}


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """The pickler of cloudpickle, with shared globals for functions of `__main__`."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._known: dict[tuple[int, str], bytes] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType | type):
            _send_by_value_unless_importable(obj.__module__)
        elif type(obj) is ModuleType:
            _send_by_value_unless_importable(obj.__name__)
        made = super().reducer_override(obj)
        if type(obj) is not FunctionType or made is NotImplemented:
            return made
        if obj.__globals__.get("__name__") not in _MAIN:
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


# ---- in the program


def _send_by_value_unless_importable(name: str | None) -> None:
    """Have cloudpickle send all of a module that workers could not import."""
    module = sys.modules.get(name or "__main__")
    if name is None or name == "__main__" or module is None or is_importable(name):
        return
    if getattr(module, "__name__", None) == name:
        cloudpickle.register_pickle_by_value(module)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if type(one) is CodeType:
            yield from _names(one)


def _mark(value: Any) -> bytes:
    """Return the fingerprint of a value: another one once it has been bound anew or changed."""
    if _is_plain(value):
        return _token(value)
    file, digest = io.BytesIO(), blake2b(digest_size=16)

    def add(buffer: pickle.PickleBuffer) -> None:
        digest.update(buffer.raw())

    _Marker(file, protocol=5, buffer_callback=add).dump(value)
    digest.update(file.getbuffer())
    return digest.digest()


class _Marker(cloudpickle.Pickler):  # type: ignore[misc]
    """Fingerprints without looking into functions, which refer to half of a program."""

    def reducer_override(self, obj: Any) -> Any:
        if _is_plain(obj):
            return bytes, (_token(obj),)
        return super().reducer_override(obj)


def _is_plain(value: Any) -> bool:
    return type(value) is FunctionType and not value.__closure__ and not value.__dict__


def _token(function: FunctionType) -> bytes:
    return _tokens.setdefault(function, os.urandom(8))


# ---- in the worker


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
