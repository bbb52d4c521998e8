"""Neighbours: other controllers on this machine, which promise the same cores as we do.

Each has a lock on a file of its own in a folder that all can write to, with its pid and home in it;
a file that nobody has locked was left by one that is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

FOLDER = "/tmp/gridhand-controllers"
_MOST = 1000  # marks that are looked at: anybody may leave some
_LONGEST_PID = 10


class Neighbours:
    """Our own mark, from `enter` to `leave`, and those of the others."""

    def __init__(self, home: str, folder: str = FOLDER) -> None:
        self._home = home
        self._folder = folder
        self._path = os.path.join(folder, f"{os.geteuid()}-{os.getpid()}")
        self._fd: int | None = None

    def enter(self) -> None:
        """Leave our mark. Where that cannot be done, nobody is warned, and all else works."""
        with contextlib.suppress(OSError):
            _read(self._path)  # one that had our pid before us may have left its mark
            if not os.path.isdir(self._folder):
                os.mkdir(self._folder)
                os.chmod(self._folder, 0o1777)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o644)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._fd, os.fsencode(f"{os.getpid()}\n{self._home}\n"))

    def leave(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(self._fd)
            self._fd = None

    def others(self) -> Iterator[tuple[int, str]]:
        """The pids and homes of the other controllers that run."""
        try:
            names = sorted(os.listdir(self._folder))[:_MOST]
        except OSError:
            return
        for name in names:
            path = os.path.join(self._folder, name)
            if path != self._path and (found := _read(path)) is not None:
                yield found


def _read(path: str) -> tuple[int, str] | None:
    """What is in a mark that somebody has locked; one that nobody has goes, if it is ours."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _said(os.fsdecode(os.read(fd, 5000)))
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
        return None
    finally:
        os.close(fd)


def _said(text: str) -> tuple[int, str] | None:
    """The pid and the home in a mark. Others wrote it, and it is shown to our user."""
    pid, _, home = text.strip().partition("\n")
    if not (pid.isascii() and pid.isdecimal() and len(pid) <= _LONGEST_PID):
        return None
    return int(pid), "".join(one if one.isprintable() else "?" for one in home)
