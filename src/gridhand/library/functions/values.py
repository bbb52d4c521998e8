"""Values that workers returned, kept as bytes until they are needed in this process.

As an argument of another call such a value is pickled as a reference: the worker that reads it gets
the value itself, from the message or from the file where another worker has put it.
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
from gridhand.worker import encoded_values
from gridhand.worker.wire import FILE

Reading = tuple[Callable[[int, bytes], Any], tuple[int, bytes]]


class InlineValue:
    """A small value, as bytes."""

    __slots__ = ("_data", "_kind")

    def __init__(self, kind: int, data: bytes) -> None:
        self._kind = kind
        self._data = data

    def load(self) -> Any:
        return encoded_values.load(self._kind, self._data)

    @property
    def packed(self) -> encoded_values.Packed:
        """The value as it is sent."""
        return self._kind, self._data

    def drop(self) -> None:
        """Do nothing: there is no file to remove."""

    def __reduce__(self) -> Reading:
        return encoded_values.load, (self._kind, self._data)


class FileValue:
    """A large value in a file, which is removed with this object."""

    __slots__ = ("__weakref__", "_contents", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._contents: mmap.mmap | None = None
        with _adding:
            _alive.add(self)

    def load(self) -> Any:
        if self._contents is None and not self._path:
            raise GridClosed("this value was dropped", hint="Load it before.")
        return encoded_values.read(self._contents or encoded_values.mapped(self._path))

    def drop(self) -> None:
        path, self._path = self._path, ""
        self._contents = None
        if path:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def keep(self) -> None:
        """Map the file, which is about to be removed, for as long as this object lives."""
        if self._path:
            with contextlib.suppress(OSError, ValueError):
                self._contents = encoded_values.mapped(self._path)
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
        return encoded_values.load, (FILE, os.fsencode(self._path))

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be about to end
            self.drop()


_alive: weakref.WeakSet[FileValue] = weakref.WeakSet()
_adding = threading.Lock()


def _all_alive() -> list[FileValue]:
    with _adding:
        return list(_alive)


def keep_those_in(folders: list[str]) -> None:
    """Keep the values in these folders, which are about to be removed."""
    for value in _all_alive():
        if os.path.dirname(value.path) in folders:
            value.keep()


def paths_held() -> set[str]:
    """Return the paths of all values that are still referred to."""
    return {value.path for value in _all_alive()}


def _after_fork() -> None:
    """Let go of the files in a child process: they belong to its parent."""
    global _adding
    _adding = threading.Lock()
    for value in list(_alive):
        value.keep()


os.register_at_fork(after_in_child=_after_fork)
