"""Retention: old history is deleted a little at a time, so that nobody waits for it.

A job is deleted from the store first. Its folder is deleted after that, and only if it is as old: a
wrong store, which does not know the job, must not cost anybody their results.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gridhand.controller.clients.call_recorder import CallRecorder
from gridhand.controller.jobs.job_folders import JobFolders
from gridhand.controller.jobs.job_reader import find_stored
from gridhand.controller.keeper.questions import AskStore, Read
from gridhand.core.errors import GridError
from gridhand.core.model.names import JobId
from gridhand.core.operations import Operation, Prune
from gridhand.home import Home

_EVERY_S = 3600.0
_STEP = 2000
_FOLDERS = 200
_PAUSE_S = 0.2

_log = logging.getLogger(__name__)


class Retention:
    """Deletes old rows of the store, and the folders of jobs that it no longer has."""

    def __init__(
        self,
        ask: Callable[[Operation[Any]], Awaitable[Any]],
        callbook: CallRecorder,
        home: Home,
        kept_ms: Callable[[], int],
        folders: JobFolders,
    ) -> None:
        """`kept_ms` says for how long history is kept, which may change."""
        self._ask = ask
        self._callbook = callbook
        self._home = home
        self._kept_ms = kept_ms
        self._folders = folders

    async def hourly(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.forget()
            except GridError as error:
                _log.warning("old history cannot be forgotten now: %s", error)

    async def forget(self) -> None:
        """Delete everything that is old by now."""
        left, kept_ms = 1, self._kept_ms()
        while left:
            left = await self._ask(Prune(kept_ms, _STEP))
            await asyncio.sleep(_PAUSE_S if left else 0)
        await self._callbook.forget()
        await self._forget_folders(kept_ms / 1000)
        cut_ms = await self._ask(AskStore(lambda store, now: store.time_ago(kept_ms, now)))
        old = await asyncio.to_thread(_older, self._home.jobs, cut_ms / 1000, kept_ms / 1000)
        for first in range(0, len(old), _FOLDERS):
            gone = await self._unknown(old[first : first + _FOLDERS])
            await asyncio.to_thread(_remove, [self._home.job(id) for id in gone])

    async def _forget_folders(self, kept_s: float) -> None:
        """Delete old folders of jobs that were submitted over the network."""
        used = await self._ask(
            Read(lambda context: {job.work.folder for job in context.ledger.jobs.open.values()})
        )
        await asyncio.to_thread(self._folders.remove_old, time.time() - kept_s, used)

    async def _unknown(self, ids: Sequence[JobId]) -> list[JobId]:
        """Return the ids of jobs that are neither open nor in the store."""
        found = await self._ask(
            Read(lambda context: {id for id in ids if id in context.ledger.jobs.open})
        )
        found |= {job.id for job in await self._ask(find_stored(ids))}
        return [id for id in ids if id not in found]


def _older(folder: str, than: float, kept_s: float) -> list[JobId]:
    """Return the jobs whose folders were last changed before this time, by both clocks.

    Files have the time of the wall clock, which may have been set since: a file may be of a time
    that has not yet come.
    """
    now = time.time()
    least = min(than, now - kept_s)
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                changed = entry.stat(follow_symlinks=False).st_mtime
                if _is_job(entry.name) and (changed < least or now < changed < than):
                    found.append(JobId(entry.name))
    return found


def _is_job(name: str) -> bool:
    return all(part.isascii() and part.isdecimal() for part in name.split("_", 1))


def _remove(folders: Sequence[str]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
