"""The environment variables of jobs, in files: they may be secret, and so are never in the store.

Each environment is a file that only its owner can read, named by its hash: a thousand jobs
submitted from one shell share one. It is deleted when the last job that needs it has ended.
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

from gridhand.controller.keeper.ledger_commands import Context
from gridhand.core.errors import StoreFull, StoreUnavailable
from gridhand.posix.private_files import replace_file

_MOST_CACHED = 64
_LARGEST_CACHED = 1 << 18  # bytes


class Environments:
    """The files in a folder, with the number of open jobs that need each."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._needed: Counter[str] = Counter()
        self._written: set[str] = set()
        self._writing = asyncio.Lock()
        self._cache: OrderedDict[str, dict[str, str]] = OrderedDict()
        os.makedirs(folder, mode=0o700, exist_ok=True)

    async def keep(self, variables: Mapping[str, str]) -> str:
        """Write the variables durably and return their name; count one job that needs them."""
        text = json.dumps(variables, sort_keys=True, separators=(",", ":")).encode()
        name = hashlib.sha256(text).hexdigest()
        self._needed[name] += 1  # before the file is written, so that `drop` does not delete it
        if name not in self._written:
            try:
                await self._write_once(name, text)
            except OSError as error:
                self.drop(name)
                raise _unwritable(error) from error
        self._remember(name, dict(variables), len(text))
        return name

    async def _write_once(self, name: str, text: bytes) -> None:
        async with self._writing:
            if name not in self._written:
                # On disk before the job is: the job may need it after a power cut.
                await asyncio.to_thread(replace_file, self._path(name), text)
                self._written.add(name)

    def has(self, name: str) -> bool:
        """Return whether the variables are here; on another machine's home they are not."""
        return not name or name in self._written or os.path.exists(self._path(name))

    def load(self, name: str) -> dict[str, str]:
        """Return the variables, or raise FileNotFoundError if they are gone."""
        if not name:
            return {}
        variables = self._cache.get(name)
        if variables is None:
            with open(self._path(name), "rb") as file:
                text = file.read()
            variables = dict(json.loads(text))
            self._remember(name, variables, len(text))
        return variables

    def need(self, name: str, count: int = 1) -> None:
        """Note that `count` more jobs need it."""
        self._needed[name] += count

    def drop(self, name: str, count: int = 1) -> None:
        """Note that `count` jobs no longer need it; delete the file after the last one."""
        self._needed[name] -= count
        if self._needed[name] > 0 or not name:
            return
        del self._needed[name]
        self._cache.pop(name, None)
        self._written.discard(name)
        with contextlib.suppress(OSError):
            os.unlink(self._path(name))

    def sweep(self, needed: Iterable[str]) -> None:
        """Start with the environments that open jobs need, and delete all other files."""
        self._needed = Counter(needed)
        names = set(os.listdir(self._folder))
        self._written = names & self._needed.keys()
        for name in names:
            if name not in self._needed:
                with contextlib.suppress(OSError):
                    os.unlink(self._path(name))

    def _remember(self, name: str, variables: dict[str, str], size: int) -> None:
        """Cache small environments; large ones are read each time, as there may be many."""
        if size > _LARGEST_CACHED:
            return
        self._cache[name] = variables
        self._cache.move_to_end(name)
        if len(self._cache) > _MOST_CACHED:
            self._cache.popitem(last=False)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


def _unwritable(error: OSError) -> StoreUnavailable:
    """Return the error for an environment that cannot be written."""
    kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreUnavailable
    return kind(f"the job's environment: {error.strerror or error}")


def environments_in_use(context: Context) -> list[str]:
    """Return the environments of open jobs, each as often as it is needed."""
    open_jobs = context.ledger.jobs.open.values()
    return [job.work.environment for job in open_jobs if job.work.environment]
