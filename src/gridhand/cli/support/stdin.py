"""Passes the standard input of `grid run` to its job, which is not a child of this process.

The starter of the node starts the job and opens a path for its input. A file is passed by its own
path. Anything else goes through a pipe, which processes of the same user find under /proc. This
process holds both ends of the pipe from the beginning, so what is in it waits for the job and for
its next attempt, and nothing is left behind when the process ends.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from _thread import start_new_thread

_CHUNK = 65536
_POLL_S = 0.5


class Stdin:
    """The standard input of `grid run`. `path` is None if there is none."""

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self._reader = self._writer = -1
        self.path = self._find()

    @property
    def is_pipe(self) -> bool:
        """Whether it can be read only once. What is typed at a terminal is no such thing."""
        return self._writer >= 0 and not os.isatty(self._fd)

    def pump(self) -> None:
        """Start to copy the input, in a thread that ends with the process."""
        if self._writer < 0:
            return
        end, self._writer = self._writer, -1
        if os.isatty(self._fd):  # in the background a read must fail and not stop us
            signal.signal(signal.SIGTTIN, signal.SIG_IGN)
        start_new_thread(_pump, (self._fd, end))

    def close(self) -> None:
        for end in (self._reader, self._writer):
            if end >= 0:
                os.close(end)
        self._reader = self._writer = -1

    def _find(self) -> str | None:
        if self._fd < 0 or sys.stdin is None:  # closed; the number may be another file now
            return None
        status = os.fstat(self._fd)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev:
            return None
        return _file(self._fd, status) or self._pipe()

    def _pipe(self) -> str:
        self._reader, self._writer = os.pipe()
        return f"/proc/{os.getpid()}/fd/{self._reader}"


def _file(fd: int, status: os.stat_result) -> str | None:
    """Return the path of a plain file that has not been read from, if it still has one."""
    if not stat.S_ISREG(status.st_mode) or os.lseek(fd, 0, os.SEEK_CUR) != 0:
        return None
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")
        return path if os.path.samestat(os.stat(path), status) else None
    except OSError:
        return None


def _pump(source: int, target: int) -> None:
    try:
        while data := _read(source):
            while data:
                data = data[os.write(target, data) :]
    except OSError:
        pass  # the source is broken: the job sees the end of its input
    os.close(target)


def _read(source: int) -> bytes:
    """Return the next bytes; wait while the terminal belongs to another program."""
    while True:
        try:
            return os.read(source, _CHUNK)
        except OSError:
            if not _in_background(source):
                raise
        from time import sleep

        sleep(_POLL_S)


def _in_background(fd: int) -> bool:
    try:
        return os.tcgetpgrp(fd) != os.getpgrp()
    except OSError:
        return False
