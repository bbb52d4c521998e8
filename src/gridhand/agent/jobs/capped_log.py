"""Logs that cannot fill the disk: a job writes straight into its files, and the middle is cut out.

A hole is punched where the oldest output but the first was: what is kept stays where it is in the
file, so a reader that has come to some place goes on from there, and the job notices nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from typing import NamedTuple

_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01
_BLOCK = 4096
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV)
_libc = ctypes.CDLL(None, use_errno=True)


class Cut(NamedTuple):
    """That many bytes are not there any more."""

    bytes: int


class Log:
    """One file of one attempt, of which at most `cap` bytes from `base` on are kept on the disk.

    What was in the file before `base` is another's.
    """

    def __init__(self, path: str, cap: int, base: int = 0) -> None:
        self.path, self.cap, self.base = path, cap, base
        self._cut_to = 0

    def size(self) -> int:
        """How far it was written; 0 for what is not a file, or is gone."""
        try:
            found = os.stat(self.path)
        except OSError:
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) else 0

    def trim(self) -> int:
        """Cut out what is over the cap, and tell the size. Needs no room on the disk."""
        size = self.size()
        begin, end = _middle(self.base, size, self.cap)
        # Less than an eighth is not worth a call, as long as the job still writes.
        if end - max(begin, self._cut_to) > self.cap // 8:
            with contextlib.suppress(OSError):
                self._cut(begin, end)
        return size

    def finish(self) -> int:
        """Cut once more, exactly, and tell the size that it has for ever."""
        size = self.size()
        begin, end = _middle(self.base, size, self.cap)
        if end > max(begin, self._cut_to):
            with contextlib.suppress(OSError):
                self._cut(begin, end)
        return self.size()

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


def _middle(base: int, size: int, cap: int) -> tuple[int, int]:
    """What lies between the first quarter of the cap and the last three, in whole blocks.

    >>> _middle(0, 1_000_000, 16 * 4096)
    (16384, 950272)
    """
    if size - base <= cap:
        return base, base
    begin = -(-(base + cap // 4) // _BLOCK) * _BLOCK
    end = (size - (cap - cap // 4)) // _BLOCK * _BLOCK
    return begin, max(begin, end)


def punch(fd: int, offset: int, length: int) -> bool:
    """Give a part of a file back to the disk; False where the file system cannot."""
    call = _libc.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, length) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code))


def read_range(path: str, offset: int, limit: int) -> list[tuple[int, bytes | Cut]]:
    """What a log has from `offset` on, in order, at most `limit` bytes of it.

    Where it was cut, there is one `Cut` with the number of bytes that are gone, which do not count
    against the limit. Empty at the end of the file, and for one that is not there.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except FileNotFoundError:
        return []
    try:
        return _read_range(fd, offset, limit)
    finally:
        os.close(fd)


def _read_range(fd: int, offset: int, limit: int) -> list[tuple[int, bytes | Cut]]:
    found: list[tuple[int, bytes | Cut]] = []
    size = os.fstat(fd).st_size
    while offset < size and limit > 0:
        data = _seek(fd, offset, os.SEEK_DATA, size)
        if data > offset:
            found.append((offset, Cut(data - offset)))
            offset = data
            continue
        hole = _seek(fd, offset, os.SEEK_HOLE, size)
        text = os.pread(fd, min(hole - offset, limit), offset)
        if not text:
            break  # it was cut short meanwhile
        found.append((offset, text))
        offset += len(text)
        limit -= len(text)
    return found


def _seek(fd: int, offset: int, what: int, size: int) -> int:
    """Where data, or a hole, begins at or after `offset`; what is no file has all its data."""
    try:
        return min(size, os.lseek(fd, offset, what))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        return offset if what == os.SEEK_DATA else size
