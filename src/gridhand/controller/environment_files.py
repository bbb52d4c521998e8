"""Environments: the variables of jobs, which may be secret, and so are never in the store.

Each is a file that only its owner can read, named by what is in it: a thousand jobs submitted from
one shell share one. It goes when the last job that needs it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import os
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping

from gridhand.core.errors import StoreFull, StoreUnavailable

_REMEMBERED = 64
_LARGE = 1 << 18


class Environments:
    """The files in a folder, and how many open jobs need each."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._needed: Counter[str] = Counter()
        self._written: set[str] = set()
        self._writing = asyncio.Lock()
        self._read: OrderedDict[str, dict[str, str]] = OrderedDict()
        os.makedirs(folder, mode=0o700, exist_ok=True)

    async def keep(self, variables: Mapping[str, str]) -> str:
        """Write them down durably, if they are not, and answer their name. They are needed now."""
        text = json.dumps(variables, sort_keys=True, separators=(",", ":")).encode()
        name = hashlib.sha256(text).hexdigest()
        self._needed[name] += 1  # first of all: nobody drops them from now on
        if name not in self._written:
            try:
                await self._surely_written(name, text)
            except OSError as error:
                self.drop(name)
                raise _unwritable(error) from error
        self._remember(name, dict(variables), len(text))
        return name

    async def _surely_written(self, name: str, text: bytes) -> None:
        async with self._writing:
            if name not in self._written:
                await asyncio.to_thread(self._write, name, text)
                self._written.add(name)

    def load(self, name: str) -> dict[str, str]:
        """The variables; raises `FileNotFoundError` if they are gone."""
        if not name:
            return {}
        found = self._read.get(name)
        if found is None:
            with open(self._path(name), "rb") as file:
                text = file.read()
            found = dict(json.loads(text))
            self._remember(name, found, len(text))
        return found

    def need(self, name: str, count: int = 1) -> None:
        self._needed[name] += count

    def drop(self, name: str, count: int = 1) -> None:
        """So many jobs less need them."""
        self._needed[name] -= count
        if self._needed[name] > 0 or not name:
            return
        del self._needed[name]
        self._read.pop(name, None)
        self._written.discard(name)
        with contextlib.suppress(OSError):
            os.unlink(self._path(name))

    def sweep(self, needed: Iterable[str]) -> None:
        """Begin with what open jobs need; files that none of them needs go."""
        self._needed = Counter(needed)
        there = set(os.listdir(self._folder))
        self._written = there & self._needed.keys()
        for name in there:
            if name not in self._needed:
                with contextlib.suppress(OSError):
                    os.unlink(self._path(name))

    def _write(self, name: str, text: bytes) -> None:
        """All of it or nothing, on disk before the job is: it may be needed after a power cut."""
        unfinished = self._path(f"{name}.new")
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(text)
                file.flush()
                os.fdatasync(fd)
            os.rename(unfinished, self._path(name))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise

    def _remember(self, name: str, variables: dict[str, str], size: int) -> None:
        """Large ones are read again each time: a user may send many of them."""
        if size > _LARGE:
            return
        self._read[name] = variables
        self._read.move_to_end(name)
        if len(self._read) > _REMEMBERED:
            self._read.popitem(last=False)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


def _unwritable(error: OSError) -> StoreUnavailable:
    kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreUnavailable
    return kind(f"the job's environment: {error.strerror or error}")
