"""The folders of a pool: its socket and secret, and the files that hold large values.

Only their owner can open them. A lock in them is held by the process that has made them, for as
long as it lives: what a process that was killed has left behind is removed by its workers, or by
the next pool that is made on this machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time

_PREFIX = "gridhand-pool-"
_SHARED = "/dev/shm"
_LONGEST = 80  # bytes of a folder in which a socket is to be
_YOUNG_S = 60.0


class PoolFolder:
    """`folders` are those for large values, the quickest first; in `own` is everything else."""

    def __init__(self) -> None:
        self.own = tempfile.mkdtemp(prefix=_PREFIX, dir=_temporary())
        self.folders = [self.own]
        self._lock = os.open(
            os.path.join(self.own, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):
            shared = tempfile.mkdtemp(prefix=_PREFIX, dir=_SHARED)
            os.symlink(os.path.join(self.own, "lock"), os.path.join(shared, "lock"))
            self.folders.insert(0, shared)
        self.secret = os.urandom(32)
        fd = os.open(
            os.path.join(self.own, "secret"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        with open(fd, "wb") as file:
            file.write(self.secret)

    @property
    def socket(self) -> str:
        return os.path.join(self.own, "socket")

    def remove(self) -> None:
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        self.let_go()

    def remove_those_of(self, prefix: str, kept: set[str]) -> None:
        """Files of a worker that is gone, but those that somebody has."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):
                    path = os.path.join(folder, name)
                    if name.partition(".")[0] == prefix and path not in kept:
                        os.unlink(path)

    def let_go(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _temporary() -> str:
    found = tempfile.gettempdir()
    return found if len(os.fsencode(found)) <= _LONGEST else "/tmp"


def sweep() -> None:
    """Remove what processes of ours have left that were killed."""
    for parent in (_SHARED, _temporary()):
        with contextlib.suppress(OSError):
            for name in os.listdir(parent):
                path = os.path.join(parent, name)
                if name.startswith(_PREFIX) and _is_left_behind(path):
                    shutil.rmtree(path, ignore_errors=True)


def _is_left_behind(path: str) -> bool:
    try:
        found = os.lstat(path)
        if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _YOUNG_S:
            return False
        fd = os.open(os.path.join(path, "lock"), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # the lock is gone, and with it the rest
        return True
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
