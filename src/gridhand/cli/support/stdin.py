"""The caller's standard input, on its way to a job that is nobody's child of ours.

A job is started by the starter of its node, which opens a path. A file is given by its own path;
for anything else there is a pipe, which is found under /proc by those who are the same user. This
process holds both ends of it from the beginning, so what is in it waits for the job, and for its
next attempt; and when the process is gone, however it went, nothing is left behind.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from _thread import start_new_thread

_CHUNK = 65536
_LOOK_AGAIN_S = 0.5


class Stdin:
    """What `grid run` was given on its standard input. `path` is None if that is nothing."""

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self._reader = self._writer = -1
        self.path = self._find()

    def pump(self) -> None:
        """Begin to pass on what comes, in a thread that ends with the process."""
        if self._writer < 0:
            return
        end, self._writer = self._writer, -1
        if os.isatty(self._fd):  # in the background a read shall fail, and not stop us
            signal.signal(signal.SIGTTIN, signal.SIG_IGN)
        start_new_thread(_pump, (self._fd, end))

    def close(self) -> None:
        for end in (self._reader, self._writer):
            if end >= 0:
                os.close(end)
        self._reader = self._writer = -1

    def _find(self) -> str | None:
        if self._fd < 0 or sys.stdin is None:  # closed; the number may stand for another file now
            return None
        found = os.fstat(self._fd)
        if stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(os.devnull).st_rdev:
            return None
        return _file(self._fd, found) or self._pipe()

    def _pipe(self) -> str:
        self._reader, self._writer = os.pipe()
        return f"/proc/{os.getpid()}/fd/{self._reader}"


def _file(fd: int, found: os.stat_result) -> str | None:
    """The path of a plain file that nothing has been read of yet, if it still has one."""
    if not stat.S_ISREG(found.st_mode) or os.lseek(fd, 0, os.SEEK_CUR) != 0:
        return None
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")
        return path if os.path.samestat(os.stat(path), found) else None
    except OSError:
        return None


def _pump(source: int, target: int) -> None:
    try:
        while data := _read(source):
            while data:
                data = data[os.write(target, data) :]
    except OSError:
        pass  # the source is broken: for the job that is the end of it
    os.close(target)


def _read(source: int) -> bytes:
    """The next bytes; waits while the terminal belongs to another program."""
    while True:
        try:
            return os.read(source, _CHUNK)
        except OSError:
            if not _in_background(source):
                raise
        from time import sleep

        sleep(_LOOK_AGAIN_S)


def _in_background(fd: int) -> bool:
    try:
        return os.tcgetpgrp(fd) != os.getpgrp()
    except OSError:
        return False
