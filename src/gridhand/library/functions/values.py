"""Values that workers returned, kept as they came until somebody needs them here.

As an argument of another call such a value is pickled as what it stands for: a worker that reads
it gets the value itself, from the message or from the file where another worker has put it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from gridhand.core.errors import GridClosed
from gridhand.worker import values
from gridhand.worker.wire import FILE

Reading = tuple[Callable[[int, bytes], Any], tuple[int, bytes]]


class InlineValue:
    """A small one, as bytes."""

    __slots__ = ("_data", "_kind")

    def __init__(self, kind: int, data: bytes) -> None:
        self._kind = kind
        self._data = data

    def load(self) -> Any:
        return values.load(self._kind, self._data)

    @property
    def packed(self) -> values.Packed:
        """As it is sent."""
        return self._kind, self._data

    def drop(self) -> None:
        """There is nothing to give back."""

    def __reduce__(self) -> Reading:
        return values.load, (self._kind, self._data)


class FileValue:
    """A large one, in a file that is removed with it."""

    __slots__ = ("__weakref__", "_contents", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._contents: mmap.mmap | None = None
        with _adding:
            _alive.add(self)

    def load(self) -> Any:
        if self._contents is None and not self._path:
            raise GridClosed("this value was dropped", hint="Load it before.")
        return values.read(self._contents or values.mapped(self._path))

    def drop(self) -> None:
        path, self._path = self._path, ""
        self._contents = None
        if path:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def keep(self) -> None:
        """Its file is about to go: have its contents for as long as this is there."""
        if self._path:
            with contextlib.suppress(OSError, ValueError):
                self._contents = values.mapped(self._path)
            self._path = ""

    @property
    def path(self) -> str:
        return self._path

    def __reduce__(self) -> Reading:
        if not self._path:
            raise GridClosed(
                "this value is not where workers can read it any more",
                hint="Give what load() returns.",
            )
        return values.load, (FILE, os.fsencode(self._path))

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be about to end
            self.drop()


_alive: weakref.WeakSet[FileValue] = weakref.WeakSet()
_adding = threading.Lock()


def _all_alive() -> list[FileValue]:
    with _adding:
        return list(_alive)


def keep_those_in(folders: list[str]) -> None:
    """These folders are about to be removed."""
    for value in _all_alive():
        if os.path.dirname(value.path) in folders:
            value.keep()


def paths_held() -> set[str]:
    """The files of all values that somebody has."""
    return {value.path for value in _all_alive()}


def _after_fork() -> None:
    """The files belong to the process we were forked from."""
    global _adding
    _adding = threading.Lock()
    for value in list(_alive):
        value.keep()


os.register_at_fork(after_in_child=_after_fork)
