"""ReceivedOutput: keeps the output that workers send, in the files that local jobs would write.

A part of the output comes with its offset in what the attempt has written, so it may come twice.
The log of a job has the output of all its attempts, one after the other: where that of an attempt
begins is noted in a file beside the log, for the next controller. A file that the job's user named
may be written by others, too: there we note how much of the attempt's output it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
from collections.abc import Callable
from typing import NamedTuple

from gridhand.agent.jobs.capped_log import CappedLog
from gridhand.engines.base import Key
from gridhand.engines.file_reads import FileReads
from gridhand.posix.plain_open import open_plain
from gridhand.posix.unix_users import UnixUser

STREAMS = ("stdout", "stderr")
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StreamPlace(NamedTuple):
    """Where a stream of an attempt goes.

    `mode` is "empty" or "append" for a file that the user named, and "" for our own. A file of
    another user is opened with that user's rights.
    """

    path: str
    log_bytes: int
    mode: str = ""
    user: UnixUser | None = None


class Received(NamedTuple):
    """How far the output of an attempt is here, and whether its reader is far behind."""

    end: int
    pause: bool


class _Stream:
    """One stream of one attempt."""

    def __init__(self, place: StreamPlace, note: str) -> None:
        self.place, self._note = place, note
        self.begin, self.end = _read_note(note)
        if self.begin < 0:
            self._begin()
        elif not place.mode:
            self.end = max(self.end, _size(place.path) - self.begin)
        self.log = CappedLog(place.path, place.log_bytes, self.begin)

    def _begin(self) -> None:
        self.end = 0
        flags = os.O_TRUNC if self.place.mode == "empty" else 0
        os.close(self._open(flags))
        self.begin = _size(self.place.path)
        self._write_note()

    def _open(self, flags: int = 0) -> int:
        opener = os.open if self.place.user is None else open_plain
        mode = 0o666 if self.place.mode and self.place.user is None else 0o600
        return opener(self.place.path, _WRITE | flags, mode)

    def write(self, offset: int, data: bytes) -> None:
        """Write the part that is not here yet. A gap stays as a hole: it was cut out."""
        new = data[max(0, self.end - offset) :]
        end = max(self.end, offset + len(data))
        if end == self.end:
            return
        fd = self._open(os.O_APPEND if self.place.mode else 0)
        try:
            if self.place.mode:
                _write_all(fd, new)
            else:
                _write_all(fd, new, self.begin + end - len(new))
        finally:
            os.close(fd)
        self.end = end
        if self.place.mode:
            self._write_note()
        elif self.place.user is None:
            self.log.trim()

    def skip(self, offset: int, size: int) -> None:
        """Count output as received that the disk has no room for."""
        self.end = max(self.end, offset + size)

    def _write_note(self) -> None:
        with contextlib.suppress(OSError), open(self._note, "w") as file:
            json.dump([self.begin, self.end], file)


class ReceivedOutput:
    """The output of the attempts that workers run."""

    def __init__(self) -> None:
        self._streams: dict[tuple[Key, str], _Stream] = {}
        self._locks: dict[tuple[Key, str], asyncio.Lock] = {}
        self._readers: dict[Key, dict[str, int]] = {}
        self._files = FileReads()

    async def take(
        self, key: Key, stream: str, place: StreamPlace, folder: str, offset: int, data: bytes
    ) -> Received:
        """Keep a part of the output; `folder` is the job's own. Raise OSError if it cannot be.

        A worker that got no answer sends a part again while the first one is still being written:
        both at once would append it twice.
        """
        note = os.path.join(folder, f".{stream}.{key[1]}")

        def keep() -> _Stream:
            found = self._streams.get((key, stream)) or _Stream(place, note)
            try:
                found.write(offset, data)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                found.skip(offset, len(data))
            return found

        os.makedirs(folder, mode=0o700, exist_ok=True)
        async with self._locks.setdefault((key, stream), asyncio.Lock()):
            known = self._streams[key, stream] = await self._files.run(place.user, keep)
        return Received(known.end, self._is_behind(key, stream, known))

    def _is_behind(self, key: Key, stream: str, known: _Stream) -> bool:
        reader = self._readers.get(key, {}).get(stream)
        known.log.reader = reader
        return reader is not None and known.begin + known.end - reader > known.log.cap // 2

    def note_reader(self, key: Key, offsets: dict[str, int]) -> None:
        """Keep the output from these offsets of the log on; {} if nobody reads."""
        self._readers[key] = offsets
        for stream in STREAMS:
            if (known := self._streams.get((key, stream))) is not None:
                known.log.reader = offsets.get(stream)

    def forget(self, key: Key) -> None:
        """Cut logs exactly, and forget the attempt: it has ended."""
        self._readers.pop(key, None)
        for stream in STREAMS:
            self._locks.pop((key, stream), None)
            known = self._streams.pop((key, stream), None)
            if known is not None and not known.place.mode:
                known.log.reader = None
                known.log.finish()


def _write_all(fd: int, data: bytes, at: int | None = None) -> None:
    write: Callable[[bytes, int], int] = (
        (lambda part, _: os.write(fd, part)) if at is None else (lambda p, n: os.pwrite(fd, p, n))
    )
    done = 0
    while done < len(data):
        done += write(data[done:], (at or 0) + done)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _read_note(path: str) -> tuple[int, int]:
    try:
        with open(path) as file:
            begin, end = json.load(file)
        return int(begin), int(end)
    except (OSError, ValueError, TypeError):
        return -1, 0
