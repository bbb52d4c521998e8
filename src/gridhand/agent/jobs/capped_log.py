"""Logs that cannot fill the disk: jobs write directly to files, and the middle is cut out.

The beginning and the latest output are kept. What is between them is removed by punching a hole
into the file, so offsets do not change: a reader goes on from where it was, and the job notices
nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01
_BLOCK = 4096
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV)
_libc = ctypes.CDLL(None, use_errno=True)


class Cut(NamedTuple):
    """A number of bytes that were cut out."""

    bytes: int


class CappedLog:
    """A log file of one attempt; at most `cap` bytes from `base` on are kept on the disk.

    The bytes before `base` were in the file already, and are left alone. While there is a `reader`,
    nothing is cut from its offset on, however much that is.
    """

    def __init__(self, path: str, cap: int, base: int = 0) -> None:
        self.path, self.cap, self.base = path, cap, base
        self.reader: int | None = None
        self._cut_to = 0

    def behind(self) -> int:
        """Return how many bytes the reader has not read yet; 0 without one."""
        return 0 if self.reader is None else max(0, self.size() - self.reader)

    def size(self) -> int:
        """Return the size of the file, holes included; 0 if it is no regular file, or gone."""
        try:
            status = os.stat(self.path)
        except OSError:
            return 0
        return status.st_size if stat.S_ISREG(status.st_mode) else 0

    def trim(self) -> int:
        """Cut out what is over the cap; return the size. Needs no room on the disk."""
        size = self.size()
        begin, end = self._middle(size)
        # While the job still writes, less than an eighth is not worth a system call.
        if end - max(begin, self._cut_to) > self.cap // 8:
            with contextlib.suppress(OSError):
                self._cut(begin, end)
        return size

    def finish(self) -> int:
        """Cut exactly once the job is over; return the final size."""
        begin, end = self._middle(self.size())
        if end > max(begin, self._cut_to):
            with contextlib.suppress(OSError):
                self._cut(begin, end)
        return self.size()

    def _middle(self, size: int) -> tuple[int, int]:
        begin, end = _middle(self.base, size, self.cap)
        if self.reader is None:
            return begin, end
        return begin, max(begin, min(end, self.reader // _BLOCK * _BLOCK))

    def _cut(self, begin: int, end: int) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return
            if punch(fd, begin, end - begin):
                self._cut_to = end
            else:
                os.ftruncate(fd, begin)
        finally:
            os.close(fd)


class UnseenLog(CappedLog):
    """A file that another user named, which the agent of root neither looks at nor changes.

    The name may lead anywhere by now, and a file system of the user's own may never answer.
    """

    def size(self) -> int:
        return 0

    def _cut(self, begin: int, end: int) -> None:
        pass


def _middle(base: int, size: int, cap: int) -> tuple[int, int]:
    """Return the range between the first quarter of the cap and the last three, in whole blocks.

    >>> _middle(0, 1_000_000, 16 * 4096)
    (16384, 950272)
    """
    if size - base <= cap:
        return base, base
    begin = -(-(base + cap // 4) // _BLOCK) * _BLOCK
    end = (size - (cap - cap // 4)) // _BLOCK * _BLOCK
    return begin, max(begin, end)


def punch(fd: int, offset: int, length: int) -> bool:
    """Punch a hole into a file; return False if the file system cannot."""
    fallocate = _libc.fallocate
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, length) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code))


def read_range(
    path: str, offset: int, limit: int, opener: Callable[[str, int], int] = os.open
) -> list[tuple[int, bytes | Cut]]:
    """Return the pieces of a log from `offset` on, in order, with at most `limit` bytes.

    Where the log was cut there is one `Cut`, which does not count against the limit. The list is
    empty at the end of the file, and for a file that does not exist.
    """
    try:
        fd = opener(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except FileNotFoundError:
        return []
    try:
        return _read_range(fd, offset, limit)
    finally:
        os.close(fd)


def _read_range(fd: int, offset: int, limit: int) -> list[tuple[int, bytes | Cut]]:
    pieces: list[tuple[int, bytes | Cut]] = []
    size = os.fstat(fd).st_size
    while offset < size and limit > 0:
        data = _seek(fd, offset, os.SEEK_DATA, size)
        if data > offset:
            pieces.append((offset, Cut(data - offset)))
            offset = data
            continue
        hole = _seek(fd, offset, os.SEEK_HOLE, size)
        text = os.pread(fd, min(hole - offset, limit), offset)
        if not text:
            break  # it was cut short meanwhile
        pieces.append((offset, text))
        offset += len(text)
        limit -= len(text)
    return pieces


def _seek(fd: int, offset: int, what: int, size: int) -> int:
    """Return where data, or a hole, begins at or after `offset`.

    What is no regular file is treated as data to its end.
    """
    try:
        return min(size, os.lseek(fd, offset, what))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        return offset if what == os.SEEK_DATA else size
