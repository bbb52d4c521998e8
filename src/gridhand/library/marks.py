"""Marks: how the workers of this machine tell each other that they wait in vain.

Each has a file with a lock, which goes with its process; whoever finds one without it removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
import zlib
from collections.abc import Mapping

from gridhand.library.standstill import Waiting


class Marks:
    """Those of the workers that have the same controller, and of the same user."""

    def __init__(self, controller: str) -> None:
        name = f"gridhand-waiting-{os.geteuid()}-{zlib.crc32(controller.encode()):08x}"
        self._folder = os.path.join(tempfile.gettempdir(), name)
        self._fd = -1
        self._path = ""

    def set(self, id: str, node: str, held: Mapping[str, int]) -> None:
        """This process waits in vain, and holds that. To be said again for as long as it does."""
        if self._fd >= 0 and os.fstat(self._fd).st_nlink:
            return
        self.unset()
        self._path = os.path.join(self._folder, id)
        since = time.time()
        try:
            self._make_folder()
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self._path, flags, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            text = json.dumps({"since": since, "node": node, "held": dict(held)})
            os.write(self._fd, text.encode())
        except OSError:  # somebody has looked at it just now; or nobody is to know, and all wait on
            self.unset()

    def unset(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(self._fd)
            self._fd = -1

    def all(self) -> list[Waiting]:
        """Who waits in vain now, who has done so the longest first."""
        found: list[Waiting] = []
        with contextlib.suppress(OSError):
            self._check_folder()
            found += filter(None, map(self._read, os.listdir(self._folder)))
        return sorted(found, key=lambda one: (one.since, one.id))

    def _read(self, id: str) -> Waiting | None:
        path = os.path.join(self._folder, id)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None  # it has just gone on
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # not all of it is there yet
                told = json.loads(os.read(fd, 1 << 16))
                return Waiting(float(told["since"]), id, told["node"], told["held"])
            return None
        else:
            with contextlib.suppress(OSError):
                os.unlink(path)  # its process is gone
            return None
        finally:
            os.close(fd)

    def _make_folder(self) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        self._check_folder()

    def _check_folder(self) -> None:
        """Nobody else may say that somebody waits: it has calls refused."""
        found = os.lstat(self._folder)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(self._folder)
