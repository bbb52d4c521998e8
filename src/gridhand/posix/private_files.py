"""Files that only their owner may read, created or replaced as a whole."""

from __future__ import annotations

import contextlib
import os

_NEW = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


def open_private_file(path: str, *, dir_fd: int | None = None) -> int:
    """Open a file for reading and writing; create it, for its owner only, if there is none."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)


def create_private_file(path: str, content: bytes) -> None:
    """Write a new file for its owner only; raise FileExistsError if there is one."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write_all(fd, content)
    finally:
        os.close(fd)


def replace_file(path: str, content: bytes) -> None:
    """Replace the file's content; even a power cut leaves all of the old or all of the new.

    The new content is written to PATH.new first, so one process at a time may do this. Which of
    the two a power cut leaves is open until `sync_folder`.
    """
    os.close(replace_and_open(path, content))


def replace_and_open(path: str, content: bytes) -> int:
    """Do the same, and return the new file open for reading and appending."""
    unfinished = f"{path}.new"
    fd = os.open(unfinished, _NEW, 0o600)
    try:
        _write_all(fd, content)
        os.fdatasync(fd)
        os.rename(unfinished, path)
    except BaseException:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    return fd


def _write_all(fd: int, content: bytes) -> None:
    """Write everything; a full disk raises OSError even where a part still found room."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def sync_folder(folder: str) -> None:
    """Make the names in a folder, such as that of a file just replaced, survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
