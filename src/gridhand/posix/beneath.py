"""Open files beneath a folder that somebody else may change meanwhile.

Each step of a path is opened in the folder before it, and never through a link, so the path cannot
lead out of the folder, however often its parts are replaced while we walk.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPEST = 50
_LONGEST = 4096


def split_name(name: str) -> list[str]:
    """Return the steps of a relative path; raise ValueError if it could lead elsewhere.

    >>> split_name("data/in.csv")
    ['data', 'in.csv']
    """
    steps = name.split("/")
    plain = all(step not in ("", ".", "..") and "\0" not in step for step in steps)
    if not plain or len(steps) > _DEEPEST or len(os.fsencode(name)) > _LONGEST:
        raise ValueError(f"{name[:100]!r} is not a path within a folder")
    return steps


def open_folder(path: str) -> int:
    """Open a folder; its last step may not be a link."""
    return os.open(path, _FOLDER)


def open_beneath(
    folder_fd: int, name: str, flags: int, mode: int = 0, *, make: bool = False
) -> int:
    """Open a plain file beneath a folder; with `make`, create the folders on the way.

    Raise OSError if a step is a link, or if it is not a plain file. The result does not block.
    """
    *folders, last = split_name(name)
    at = os.dup(folder_fd)
    try:
        for step in folders:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(step, 0o700, dir_fd=at)
            at = _replaced(at, os.open(step, _FOLDER, dir_fd=at))
        safe = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        opened = os.open(last, flags | safe, mode, dir_fd=at)
    finally:
        os.close(at)
    if stat.S_ISREG(os.fstat(opened).st_mode):
        return opened
    os.close(opened)
    raise IsADirectoryError(f"{name} is not a plain file")


def _replaced(old: int, new: int) -> int:
    os.close(old)
    return new


def list_beneath(folder_fd: int, most: int) -> Iterator[tuple[str, int]]:
    """Yield the names and sizes of plain files beneath a folder, in order; links are left out."""
    found = 0
    for path, _, names, at in os.fwalk(".", dir_fd=folder_fd, follow_symlinks=False):
        for name in sorted(names):
            with contextlib.suppress(OSError):
                facts = os.stat(name, dir_fd=at, follow_symlinks=False)
                if stat.S_ISREG(facts.st_mode) and found < most:
                    found += 1
                    yield os.path.normpath(os.path.join(path, name)), facts.st_size
