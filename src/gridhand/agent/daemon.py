"""How the starter becomes a process of its own: alone in its folder, bound to no terminal."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import time
from collections.abc import Callable

_SET_CHILD_SUBREAPER = 36
_LOCK = "lock"
_LOG = "log"
_PATIENCE_S = 2.0
_PAUSE_S = 0.02


def become_subreaper() -> None:
    """From here on, descendants whose parent has ended are our children."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot become a subreaper: {os.strerror(code)}")


def lock(folder_fd: int) -> int | None:
    """Have the folder for as long as this process lives; None when another keeps it.

    One that is about to end has stopped listening and still has the lock, so it is given a while.
    """
    fd = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=folder_fd)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return None
            select.select([], [], [], _PAUSE_S)
        else:
            return fd


def detach() -> Callable[[], None]:
    """Go on in a child that belongs to nobody; the caller of the program waits until it is ready.

    Returns, in the child, the function that says so. The process that was started exits with 0
    then, or with 1 when the child ends before. What the child prints goes to a file in the folder,
    which must be the current one.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    if os.fork() != 0:  # this early there is nothing yet that a fork could copy
        os.close(writing)
        os._exit(0 if os.read(reading, 1) else 1)
    os.close(reading)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for fd, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(fd, target)
    for fd in (nothing, log):
        if fd > 2:
            os.close(fd)

    def ready() -> None:
        os.write(writing, b"1")
        os.close(writing)

    return ready
