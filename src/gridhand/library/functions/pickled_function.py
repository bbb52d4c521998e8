"""Functions and their arguments as bytes, each function once."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Mapping
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any

from gridhand.core.errors import CallFailed
from gridhand.library.values import FileValue, InlineValue
from gridhand.worker.finding import ByName
from gridhand.worker.values import LARGE, Folders, Packed, dumps
from gridhand.worker.wire import INLINE

_KEPT = 1000  # functions that are remembered; a loop may make many
_SAME = frozenset({FunctionType, BuiltinFunctionType, ByName})  # those without a state
# What the quickest pickler reads and writes as it is.
_PLAIN = frozenset({bool, bytes, float, int, str, NoneType, InlineValue, FileValue})


class Function:
    """A function as it is sent, and how long its calls take."""

    __slots__ = ("data", "number", "seconds")

    def __init__(self, number: int, data: bytes) -> None:
        self.number = number
        self.data = data
        self.seconds: float | None = None  # none was seen yet

    def took(self, seconds: float) -> None:
        """Learn from a call. The first one may have had much to import."""
        known = self.seconds
        if known is None or seconds < known / 2:
            self.seconds = seconds
        else:
            self.seconds = 0.8 * known + 0.2 * seconds


class Functions:
    """A plain function is pickled once: what it refers to is as it was then.

    Anything else that can be called has a state of its own, and is pickled each time.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Callable[..., Any], Function]] = {}
        self._same: dict[bytes, Function] = {}
        self._count = 0
        self._lock = threading.Lock()

    def packed(self, code: Callable[..., Any], name: str = "") -> Function:
        found = self._known.get(id(code))
        if found is not None and found[0] is code:
            return found[1]
        try:
            data = bytes(dumps(code))
        except Exception as error:
            raise unsendable(
                name or getattr(code, "__name__", ""), "the function", error
            ) from error
        digest = blake2b(data, digest_size=16).digest()
        with self._lock:
            if len(self._known) >= _KEPT or len(self._same) >= _KEPT:
                self._known.clear()
                self._same.clear()
            function = self._same.get(digest)
            if function is None:
                self._count += 1
                function = self._same[digest] = Function(self._count, data)
            if type(code) in _SAME:
                self._known[id(code)] = code, function
        return function


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
        raise unsendable(name, "an argument", error) from error


def unsendable(name: str, what: str, error: Exception) -> CallFailed:
    said = " ".join(str(error).split())
    return CallFailed(
        name,
        "unsendable",
        f"{what} cannot be pickled: {type(error).__name__}: {said[:300]}",
        hint="Give what can be sent to another process, and make the rest inside of the function.",
    )
