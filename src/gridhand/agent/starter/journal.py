"""The starter's journal: a file with one line of JSON for each thing that it has done.

From it an agent that was away learns what has ended, and a new starter learns what a killed one
had begun. A line counts when it is complete: a torn end of the file, from a crash of the machine,
is cut off, and a line that cannot be read is skipped.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from gridhand.posix.private_files import replace_and_open, sync_folder

Record = dict[str, Any]

_NAME = "journal"
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


def encode_line(record: Record) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


class Journal:
    """An append-only file of records.

    Lines wait in memory until `write`, and survive a crash of the machine after `sync`. A line
    that could not be written keeps waiting, in order, so a full disk loses nothing but time.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, _NAME)
        self._fd = os.open(self._path, _FLAGS, 0o600)
        self._waiting: list[bytes] = []
        self._unsynced = False
        self._torn = False  # whether written lines may not have reached the disk
        self.damaged = 0
        self.size = 0  # up to here every line is complete

    def read(self) -> Iterator[Record]:
        """Yield the records of all complete lines; cut off what is behind the last of them."""
        with open(self._path, "rb") as file:
            for text in file:
                if not text.endswith(b"\n"):
                    break
                self.size += len(text)
                try:
                    record = json.loads(text)
                except ValueError:
                    record = None
                if isinstance(record, dict):
                    yield record
                else:
                    self.damaged += 1
        os.ftruncate(self._fd, self.size)

    def append(self, record: Record) -> None:
        self._waiting.append(encode_line(record))

    def take_back(self, count: int) -> None:
        """Drop the last `count` lines, which were appended and never written."""
        del self._waiting[len(self._waiting) - count :]

    @property
    def settled(self) -> bool:
        return not self._waiting and not self._unsynced

    def write(self) -> None:
        """Hand all waiting lines to the kernel: from here on they outlive this process."""
        if not self._waiting:
            return
        text = b"".join(self._waiting)
        try:
            written = os.write(self._fd, text)
            if written < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size)  # half a line would spoil the next one
            raise
        self._waiting.clear()
        self._unsynced = True
        self.size += written

    def sync(self) -> None:
        """Put everything appended so far on the disk."""
        self.write()
        if not self._unsynced:
            return
        if self._torn:
            raise OSError(errno.EIO, "lines written before may not have reached the disk")
        try:
            os.fdatasync(self._fd)
        except OSError:
            self._torn = True  # a second fdatasync would report success, wrongly
            raise
        self._unsynced = False

    @property
    def must_rewrite(self) -> bool:
        return self._torn

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace the whole file and all waiting lines by these records, atomically."""
        text = b"".join(map(encode_line, records))
        fd = replace_and_open(self._path, text)
        os.close(self._fd)
        self._fd, self.size = fd, len(text)
        self._waiting.clear()
        self._unsynced = self._torn = False
        sync_folder(self._folder)

    def close(self) -> None:
        os.close(self._fd)
