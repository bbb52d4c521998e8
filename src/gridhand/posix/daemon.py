"""How a daemon becomes a process of its own: alone in its folder, bound to no terminal."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import time
from collections.abc import Callable, Iterator

_SET_CHILD_SUBREAPER = 36
_LOCK = "lock"
_LOG = "log"
_PATIENCE_S = 2.0
_PAUSE_S = 0.02
_OOM_SCORE = "/proc/self/oom_score_adj"
PROTECTED = -900  # the last to be ended when memory runs out


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


def read_oom_score() -> int:
    """How soon the kernel ends this process when memory runs out; children have the same."""
    try:
        with open(_OOM_SCORE) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def write_oom_score(score: int) -> bool:
    """Whether it could be set; to set it lower takes a privilege."""
    try:
        fd = os.open(_OOM_SCORE, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, str(score).encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


_before: tuple[int, tuple[int, int]] | None = None


def protect() -> None:
    """Be spared when memory runs out, and have as many files as may be."""
    global _before
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    _before = read_oom_score(), files
    write_oom_score(PROTECTED)
    _have_files(files[1], files[1])


@contextlib.contextmanager
def unprotected() -> Iterator[None]:
    """Around starting another process, which would inherit all that."""
    if _before is None:
        yield
        return
    score, files = _before
    write_oom_score(score)
    _have_files(*files)
    try:
        yield
    finally:
        write_oom_score(PROTECTED)
        _have_files(files[1], files[1])


def _have_files(most: int, bound: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, bound))
