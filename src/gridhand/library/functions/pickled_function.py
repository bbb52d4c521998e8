"""Functions and their arguments as bytes. A function is pickled once, until it changes."""

from __future__ import annotations

import pickle
import threading
import warnings
from collections.abc import Callable, Mapping
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any, NamedTuple

from gridhand.core.errors import CallFailed
from gridhand.library.functions.referred_values import (
    ReferredValues,
    is_sent_by_value,
    named_values,
)
from gridhand.library.functions.values import FileValue, InlineValue
from gridhand.worker.by_name import ByName
from gridhand.worker.encoded_values import LARGE, Folders, Packed, dumps
from gridhand.worker.wire import INLINE

_MUCH = 10_000_000  # bytes of a function that are warned of
_KEPT = 1000  # functions that are remembered; a loop may make many
_SAME = frozenset({FunctionType, BuiltinFunctionType, ByName})  # those without a state
# Types that plain pickle can handle, which is quicker than cloudpickle.
_PLAIN = frozenset({bool, bytes, float, int, str, NoneType, InlineValue, FileValue})


class PickledFunction:
    """A function as it is sent, and how long its calls take."""

    __slots__ = ("data", "number", "seconds")

    def __init__(self, number: int, data: bytes) -> None:
        self.number = number
        self.data = data
        self.seconds: float | None = None  # None: no call has ended yet

    def took(self, seconds: float) -> None:
        """Learn from a call. The first one may have imported much, so a shorter one counts more."""
        known = self.seconds
        if known is None or seconds < known / 2:
            self.seconds = seconds
        else:
            self.seconds = 0.8 * known + 0.2 * seconds


class KnownFunction(NamedTuple):
    """A function that was pickled, and what it referred to if that was pickled with it."""

    code: Callable[..., Any]
    function: PickledFunction
    refers_to: ReferredValues | None

    def is_current(self) -> bool:
        return self.refers_to is None or self.refers_to.are_the_same()


class Functions:
    """Pickles functions. A plain one is pickled again once something it refers to has changed.

    Any other callable may have a state of its own, and is pickled each time.
    """

    def __init__(self) -> None:
        self._known: dict[int, KnownFunction] = {}
        self._same: dict[bytes, PickledFunction] = {}
        self._count = 0
        self._lock = threading.Lock()

    def packed(self, code: Callable[..., Any], name: str = "") -> PickledFunction:
        found = self._known.get(id(code))
        if found is not None and found.code is code and found.is_current():
            return found.function
        try:
            data = bytes(dumps(code))
        except Exception as error:
            name = name or getattr(code, "__name__", "")
            raise unsendable(name, _culprit(code), error) from error
        digest = blake2b(data, digest_size=16).digest()
        with self._lock:
            if len(self._known) >= _KEPT or len(self._same) >= _KEPT:
                self._known.clear()
                self._same.clear()
            function = self._same.get(digest)
            if function is None:
                self._count += 1
                function = self._same[digest] = PickledFunction(self._count, data)
            if type(code) in _SAME:
                refers_to = None
                if isinstance(code, FunctionType) and is_sent_by_value(code):
                    refers_to = ReferredValues(code, len(data))
                self._known[id(code)] = KnownFunction(code, function, refers_to)
        if len(data) > _MUCH:
            _warn_of_size(name or getattr(code, "__qualname__", ""), len(data))
        return function


def _culprit(code: Any) -> str:
    """Return what it is of a function that cannot be pickled."""
    for what, value in named_values(code):
        if not _can_be_pickled(value):
            return f"{what} of the function, a {type(value).__qualname__},"
    return "the function"


def _can_be_pickled(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True


_warned: set[str] = set()


def _warn_of_size(name: str, size: int) -> None:
    """Warn once of a function that brings much along."""
    if name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"{name or 'a function'} refers to {size / 10**6:.0f} MB of data, which every worker is"
            " sent and keeps: give it as an argument, or load it in the function",
            stacklevel=4,
        )


def packed_arguments(
    folders: Folders, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str = ""
) -> Packed:
    if not kwargs and _PLAIN.issuperset(map(type, args)):
        data = pickle.dumps((args, None), 5)
        if len(data) <= LARGE:
            return INLINE, data
    try:
        return folders.pack((args, dict(kwargs) or None), dumps)
    except Exception as error:
        raise unsendable(name, _wrong_argument(args, kwargs), error) from error


def packed_call(
    code: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> tuple[bytes, bytes]:
    """Return a function and its arguments as bytes that can be kept in a file."""
    try:
        data = bytes(dumps(code))
    except Exception as error:
        raise unsendable(name, _culprit(code), error) from error
    try:
        return data, bytes(dumps((args, kwargs)))
    except Exception as error:
        raise unsendable(name, _wrong_argument(args, kwargs), error) from error


def _wrong_argument(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return which argument it is that cannot be pickled."""
    named = [(f"argument {number}", value) for number, value in enumerate(args, 1)]
    named += [(f"argument {name!r}", value) for name, value in kwargs.items()]
    for what, value in named:
        if not _can_be_pickled(value):
            return f"{what}, a {type(value).__qualname__},"
    return "an argument"


def unsendable(name: str, what: str, error: Exception) -> CallFailed:
    said = " ".join(str(error).split())
    return CallFailed(
        name,
        "unsendable",
        f"{what} cannot be pickled: {type(error).__name__}: {said[:300]}",
        hint="Give what can be sent to another process, and make the rest inside of the function.",
    )
