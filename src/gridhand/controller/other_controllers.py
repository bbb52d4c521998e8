"""Other controllers on this machine, which promise the same cores as this one.

Each controller locks a file with its pid and home, in a folder of its user that all can read and
nobody else can write. A file that nobody has locked was left by a controller that is gone.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator

from gridhand.posix.locks import try_lock
from gridhand.posix.shared_parents import UnsafeFolder, open_folder_of, open_own_folder

SHARED = "/tmp"
_PREFIX = "gridhand-controllers-"  # and the user's id
_MODE = 0o755
_FRESH_S = 10.0  # for which controllers of others are not looked for again
_MOST = 1000  # users, and marks of one user, that are looked at
_LONGEST_PID = 10
_LONGEST_MARK = 5000


class Neighbours:
    """The file of this controller, its mark, from `enter` to `leave`, and those of the others."""

    def __init__(self, home: str, shared: str = SHARED) -> None:
        self._home = home
        self._shared = shared
        self._name = str(os.getpid())
        self._folder_fd: int | None = None
        self._fd: int | None = None
        self._seen: tuple[float, list[tuple[int, int]]] | None = None

    def enter(self) -> None:
        """Create and lock our mark. If that fails, nobody is warned, and all else works."""
        with contextlib.suppress(OSError, UnsafeFolder):
            path = os.path.join(self._shared, f"{_PREFIX}{os.geteuid()}")
            self._folder_fd = open_own_folder(path, _MODE)
            # A controller that had our pid before us may have left a mark: take it over.
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._fd = os.open(self._name, flags, 0o644, dir_fd=self._folder_fd)
            if try_lock(self._fd):
                os.ftruncate(self._fd, 0)
                os.write(self._fd, os.fsencode(f"{os.getpid()}\n{self._home}\n"))

    def leave(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder_fd)
            os.close(self._fd)
            self._fd = None
        if self._folder_fd is not None:
            os.close(self._folder_fd)
            self._folder_fd = None

    def others(self) -> Iterator[tuple[int, str]]:
        """Yield the pids and homes of the other running controllers."""
        return (mark for _, mark in self._marks())

    def of_other_users(self) -> list[tuple[int, int]]:
        """Return the users and pids of controllers of other users, as of a while ago."""
        now = time.monotonic()
        if self._seen is None or now - self._seen[0] > _FRESH_S:
            own = os.geteuid()
            self._seen = now, [(uid, mark[0]) for uid, mark in self._marks() if uid != own]
        return self._seen[1]

    def _marks(self) -> Iterator[tuple[int, tuple[int, str]]]:
        """Yield the mark of each other running controller, with its user."""
        try:
            shared = os.open(self._shared, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            for uid in _users(shared):
                for mark in self._of_user(uid, shared):
                    yield uid, mark
        finally:
            os.close(shared)

    def _of_user(self, uid: int, shared: int) -> Iterator[tuple[int, str]]:
        try:
            folder = open_folder_of(uid, f"{_PREFIX}{uid}", shared, _MODE)
        except (OSError, UnsafeFolder):
            return
        try:
            ours = uid == os.geteuid()
            for name in sorted(os.listdir(folder))[:_MOST]:
                if not (ours and name == self._name):
                    mark = _read(name, folder, uid)
                    if mark is not None:
                        yield mark
        finally:
            os.close(folder)


def _users(shared: int) -> list[int]:
    """Return the users that have a folder for marks."""
    users = (name.removeprefix(_PREFIX) for name in os.listdir(shared) if name.startswith(_PREFIX))
    return sorted(int(uid) for uid in users if _is_number(uid) and str(int(uid)) == uid)[:_MOST]


def _read(name: str, folder: int, uid: int) -> tuple[int, str] | None:
    """Return the content of a mark that is locked; remove one of ours that is not.

    Only a file that is a mark by its content is removed.
    """
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=folder)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid:
            return None
        mark = _parse(os.fsdecode(os.read(fd, _LONGEST_MARK)))
        if mark is None or not try_lock(fd, shared=True):
            return mark
        if uid == os.geteuid() and str(mark[0]) == name:
            os.unlink(name, dir_fd=folder)
        return None
    except OSError:
        return None
    finally:
        os.close(fd)


def _parse(text: str) -> tuple[int, str] | None:
    """Return the pid and the home in a mark. Others wrote it, and it is shown to our user."""
    pid, _, home = text.strip().partition("\n")
    if not _is_number(pid) or not home.startswith("/"):
        return None
    return int(pid), "".join(char if char.isprintable() else "?" for char in home)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST_PID
