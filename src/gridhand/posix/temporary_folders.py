"""Temporary folders that outlive nobody: what a killed process left behind is removed by others.

Each has a lock, held by the process that made it for as long as it lives. A folder gets its final
name once it is locked, so one of that name without a holder was left behind. Only a folder that is
ours, closed to others and has such a lock is ever removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time

from gridhand.posix.locks import try_lock
from gridhand.posix.private_files import open_private_file
from gridhand.posix.shared_parents import UnsafeFolder, open_folder_of

SHARED_MEMORY = "/dev/shm"
_LOCK = "lock"
_PREFIX = "gridhand-pool-"
_UNFINISHED = "gridhand-new-"
_NAME = re.compile(rf"({_PREFIX}|{_UNFINISHED})[a-z0-9_]{{8}}")
_YOUNG_S = 60.0  # for a folder to be finished
_LONGEST = 80  # bytes of a folder in which a socket is to be


def temporary_parent() -> str:
    """Return the folder for temporary files, whose path leaves room for that of a socket."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= _LONGEST else "/tmp"


def make_temporary_folder(parent: str) -> tuple[str, int]:
    """Make a folder that only we can enter; return its path and its lock, which we hold."""
    unfinished = tempfile.mkdtemp(prefix=_UNFINISHED, dir=parent)
    lock = open_private_file(os.path.join(unfinished, _LOCK))
    try_lock(lock)
    name = os.path.basename(unfinished).replace(_UNFINISHED, _PREFIX, 1)
    path = os.path.join(parent, name)
    os.rename(unfinished, path)
    return path, lock


def remove_temporary_folder(path: str, *, only_if_left_behind: bool = False) -> None:
    """Remove a folder that we made, or only if its maker is gone. Leave one that is not ours."""
    parent, name = os.path.split(path)
    with contextlib.suppress(OSError, UnsafeFolder):
        parent_fd = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _NAME.fullmatch(name):
                _remove(name, parent_fd, only_if_left_behind)
        finally:
            os.close(parent_fd)


def sweep() -> None:
    """Remove the folders that killed processes of our user left on this machine."""
    for parent in {SHARED_MEMORY, temporary_parent()}:
        with contextlib.suppress(OSError):
            for name in os.listdir(parent):
                remove_temporary_folder(os.path.join(parent, name), only_if_left_behind=True)


def _remove(name: str, parent_fd: int, only_if_left_behind: bool) -> None:
    folder = open_folder_of(os.geteuid(), name, parent_fd, 0o700)
    try:
        age_s = time.time() - os.fstat(folder).st_mtime
        if name.startswith(_UNFINISHED) and age_s < _YOUNG_S:
            return
        lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if try_lock(lock) or not only_if_left_behind:
                _empty(folder)
                os.rmdir(name, dir_fd=parent_fd)
        finally:
            os.close(lock)
    finally:
        os.close(folder)


def _empty(folder: int) -> None:
    """Remove everything; the lock goes last, since the rest is recognised by it."""
    for name in sorted(os.listdir(folder), key=_LOCK.__eq__):
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
