"""The files of an open SQLite database: are they still there, and how to write them anew.

A process goes on writing to a file that was removed, and nobody finds what it writes. So the files
at the path are compared with those that were opened.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from gridhand.posix.file_identity import Identity, file_identity
from gridhand.posix.private_files import sync_folder
from gridhand.store.ownership import open_private

_LOGS = ("-wal", "-shm")


class SqliteFiles:
    """The database and its logs, as they were found first after opening."""

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)  # SQLite resolves links when it opens the file
        self._paths = [os.fsencode(f"{self._path}{end}") for end in ("", *_LOGS)]
        self._found: dict[bytes, Identity] = {}
        self.lost()

    def lost(self) -> str:
        """Return the path of a file that was removed or replaced; "" if none was."""
        for path in self._paths:
            identity = file_identity(path)
            if identity != self._found.get(path):
                if path in self._found:
                    return os.fsdecode(path)
                if identity is not None:
                    self._found[path] = identity
        return ""

    def write_anew(self, connection: sqlite3.Connection) -> None:
        """Copy what an open connection reads, page by page, to the path of the lost files."""
        copy = f"{self._path}.new"
        for leftover in (copy, *(f"{path}{log}" for path in (copy, self._path) for log in _LOGS)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(leftover)
        fd = open_private(Path(copy))
        try:
            with contextlib.closing(sqlite3.connect(copy)) as target:
                connection.backup(target)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(copy, self._path)
        sync_folder(os.path.dirname(self._path))
