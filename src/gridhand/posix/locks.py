"""File locks, which the kernel drops when the process that holds them ends.

`flock` locks belong to an open file: two threads that open the file exclude each other, and a child
that inherits the descriptor shares the lock. POSIX record locks belong to the process, work over
NFS, and are dropped when the process closes any descriptor of the file.
"""

from __future__ import annotations

import fcntl
import os
import select
import time
from math import inf

from gridhand.posix import procfs
from gridhand.posix.procfs import ProcessIdentity


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Take the `flock` lock of an open file; return False if another open file has it."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(fd: int, timeout_s: float = inf, *, pause_s: float = 0.02) -> bool:
    """Take the lock, trying for at most `timeout_s`; return whether that succeeded."""
    deadline = time.monotonic() + timeout_s
    while not try_lock(fd):
        if time.monotonic() >= deadline:
            return False
        select.select([], [], [], pause_s)
    return True


def try_record_lock(fd: int) -> bool:
    """Take a POSIX record lock on the whole file; return False if that is not possible."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sign_lock(fd: int) -> None:
    """Write into a lock file that this process has the lock, so that others can find it."""
    own = procfs.read_process(os.getpid())
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()} {own.start if own else 0}\n".encode(), 0)


def read_holder(path: str) -> ProcessIdentity | None:
    """Return the process that signed the lock file, or None unless it still runs."""
    try:
        with open(path, encoding="ascii") as file:
            pid, start = map(int, file.read(64).split())
    except (OSError, ValueError):
        return None
    return ProcessIdentity(pid, start) if procfs.is_alive(pid, start) else None
