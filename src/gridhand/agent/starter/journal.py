"""What the starter has done, on disk, one line of JSON for each thing.

It is written so that who was away can read what has ended, and so that a new starter knows what
one that was killed had begun. A line counts when it is complete: the end of a file that was being
written when the machine went down is left out, and so is a line that cannot be read.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

Record = dict[str, Any]

_NAME = "journal"
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


def line(record: Record) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


class Journal:
    """Lines wait in memory until `write`, and are safe from a crash of the machine after `sync`.

    A line that could not be written keeps waiting, in order, so nothing is lost by a full disk
    but time.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, _NAME)
        self._fd = os.open(self._path, _FLAGS, 0o600)
        self._waiting: list[bytes] = []
        self._unsynced = False
        self._torn = False  # the file has lines that may not have reached the disk
        self.damaged = 0
        self.size = 0  # up to here every line is complete

    def read(self) -> Iterator[Record]:
        """All complete lines, in order; what is behind the last of them is cut off."""
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
        self._waiting.append(line(record))

    def take_back(self, count: int) -> None:
        """Drop the last lines that were appended, and never written."""
        del self._waiting[len(self._waiting) - count :]

    @property
    def settled(self) -> bool:
        return not self._waiting and not self._unsynced

    def write(self) -> None:
        """Hand everything to the kernel: from here on it outlives this process."""
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
        """Everything appended so far is on the disk when this returns."""
        self.write()
        if not self._unsynced:
            return
        if self._torn:
            raise OSError(errno.EIO, "lines written before may not have reached the disk")
        try:
            os.fdatasync(self._fd)
        except OSError:
            self._torn = True  # trying again would answer that all is well, and it is not
            raise
        self._unsynced = False

    @property
    def must_rewrite(self) -> bool:
        return self._torn

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace everything, lines that wait included, by these records; all or nothing."""
        text = b"".join(map(line, records))
        path = f"{self._path}.new"
        fd = os.open(path, _FLAGS | os.O_TRUNC, 0o600)
        try:
            if os.write(fd, text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(fd)
            os.rename(path, self._path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        os.close(self._fd)
        self._fd, self.size = fd, len(text)
        self._waiting.clear()
        self._unsynced = self._torn = False
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        os.close(self._fd)
