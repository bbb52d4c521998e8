"""Retention: what is old is forgotten, a little at a time, so that nobody waits for it.

A job is forgotten by the store first. What it wrote goes after that, and only what is as old: a
store that knows nothing of it, because it is the wrong one, must not cost anybody their results.
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

from gridhand.controller.callbook import CallBook
from gridhand.controller.commands import Read
from gridhand.controller.embedded import Embedded
from gridhand.controller.looking import stored
from gridhand.core.calls import Call
from gridhand.core.errors import GridError
from gridhand.home import Home

KEPT_MS = 30 * 86_400_000  # how long history is kept
_EVERY_S = 3600.0
_STEP = 2000
_FOLDERS = 200
_PAUSE_S = 0.2

_log = logging.getLogger(__name__)


class Retention:
    """Forgets rows of the store, and the folders of jobs that are in it no more."""

    def __init__(
        self,
        ask: Callable[[Call[Any]], Awaitable[Any]],
        calls: Embedded,
        callbook: CallBook,
        home: Home,
    ) -> None:
        self._ask = ask
        self._calls = calls
        self._callbook = callbook
        self._home = home

    async def hourly(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.forget()
            except GridError as error:
                _log.warning("old history cannot be forgotten now: %s", error)

    async def forget(self) -> None:
        """Forget all that is old by now."""
        left = 1
        while left:
            left = await self._ask(self._calls.prune(KEPT_MS, _STEP))
            await asyncio.sleep(_PAUSE_S if left else 0)
        await self._callbook.forget()
        old = await asyncio.to_thread(_older, self._home.jobs, time.time() - KEPT_MS / 1000)
        for first in range(0, len(old), _FOLDERS):
            gone = await self._unknown(old[first : first + _FOLDERS])
            await asyncio.to_thread(_remove, [self._home.job(id) for id in gone])

    async def _unknown(self, ids: Sequence[str]) -> list[str]:
        """Those that are neither open nor in the store."""
        found = await self._ask(
            Read(lambda desk: {id for id in ids if id in desk.ledger.jobs.open})
        )
        found |= {job.id for job in await self._ask(stored(ids))}
        return [id for id in ids if id not in found]


def _older(folder: str, than: float) -> list[str]:
    """The jobs whose folders nobody has touched since."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if _is_job(entry.name) and entry.stat(follow_symlinks=False).st_mtime < than:
                    found.append(entry.name)
    return found


def _is_job(name: str) -> bool:
    return all(part.isascii() and part.isdecimal() for part in name.split("_", 1))


def _remove(folders: Sequence[str]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
