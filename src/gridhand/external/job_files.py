"""JobFileCopies: copies the files of jobs to the worker, and what jobs have made of them back.

Only jobs of clients on the network have such files: they are in a folder that the controller made.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

from gridhand.core.errors import GridError, NodeSuperseded, WorkerUnknown
from gridhand.engines.base import Key
from gridhand.external.controller_link import ControllerLink
from gridhand.posix.beneath import list_beneath, open_beneath, open_folder

PART_BYTES = 1 << 20
MOST_FILES = 10_000
NOTE = "fetched"

_State = tuple[int, int]  # the size of a file, and when it was changed


class JobFileCopies:
    """The files of the attempts of a worker."""

    def __init__(self, link: ControllerLink, say: Callable[[str], object]) -> None:
        self._link, self._say = link, say

    async def fetch(self, session: str, key: Key, folder: str) -> None:
        """Copy all files of a job into its folder here."""
        query = {"session": session, "job": key[0], "attempt": key[1]}
        for file in (await self._link.read_facts("files", query))["files"]:
            await self._fetch(query, folder, file["name"])
        await asyncio.to_thread(_note_states, folder)

    async def _fetch(self, query: dict[str, Any], folder: str, name: str) -> None:
        offset = 0
        while True:
            asked = {**query, "file": name, "offset": offset}
            data, headers = await self._link.read_bytes("file", asked)
            executable = headers.get("x-gridhand-executable") == "1"
            await asyncio.to_thread(_write, folder, name, offset, data, executable)
            offset += len(data)
            if not data:
                return

    async def send_back(self, session: str, key: Key, folder: str) -> None:
        """Copy the files back that are new or have changed since they were fetched."""
        before = await asyncio.to_thread(_read_note, folder)
        if before is None:  # it has none, or all were sent
            return
        after = await asyncio.to_thread(_states, folder)
        query = {"session": session, "job": key[0], "attempt": key[1]}
        for name in (one for one, state in after.items() if before.get(one) != state):
            try:
                await self._send(query, folder, name)
            except (NodeSuperseded, WorkerUnknown):
                raise
            except GridError as error:  # it is not to keep the job from ending
                self._say(f"a file of job {key[0]} is not sent back: {error}")
        os.unlink(_note_of(folder))

    async def _send(self, query: dict[str, Any], folder: str, name: str) -> None:
        offset = 0
        while True:
            data, executable = await asyncio.to_thread(_read, folder, name, offset)
            if offset and not data:
                return
            asked = {**query, "file": name, "offset": offset, "executable": executable}
            await self._link.send_bytes("file", asked, data)
            offset += len(data)
            if not data:
                return


def _note_of(folder: str) -> str:
    """Return the file beside a job's folder that says what was fetched, for the next worker."""
    return os.path.join(os.path.dirname(folder), NOTE)


def _note_states(folder: str) -> None:
    with open(_note_of(folder), "w") as file:
        json.dump(_states(folder), file)


def _read_note(folder: str) -> dict[str, _State] | None:
    try:
        with open(_note_of(folder)) as file:
            return {name: (size, changed) for name, (size, changed) in json.load(file).items()}
    except (OSError, ValueError):
        return None


def _states(folder: str) -> dict[str, _State]:
    at = open_folder(folder)
    try:
        names = [name for name, _ in list_beneath(at, MOST_FILES)]
        facts = {name: os.stat(name, dir_fd=at, follow_symlinks=False) for name in names}
        return {name: (one.st_size, one.st_mtime_ns) for name, one in facts.items()}
    finally:
        os.close(at)


def _read(folder: str, name: str, offset: int) -> tuple[bytes, bool]:
    at = open_folder(folder)
    try:
        with os.fdopen(open_beneath(at, name, os.O_RDONLY), "rb") as file:
            file.seek(offset)
            return file.read(PART_BYTES), bool(os.fstat(file.fileno()).st_mode & 0o100)
    finally:
        os.close(at)


def _write(folder: str, name: str, offset: int, data: bytes, executable: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if offset == 0 else 0)
    at = open_folder(folder)
    try:
        mode = 0o700 if executable else 0o600
        with os.fdopen(open_beneath(at, name, flags, mode, make=True), "wb") as file:
            file.seek(offset)
            file.write(data)
    finally:
        os.close(at)
