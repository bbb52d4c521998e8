"""Processes as the kernel tells of them: who they are, whose children, and how to signal one.

A pid alone names nobody: it is given to another process some time after its own has ended. A pid
with its start time does, until the machine is booted again.
"""

from __future__ import annotations

import os
import signal
import time
from typing import NamedTuple

_NEVER_AGAIN = 0x200000 | 0x4  # PF_KTHREAD, PF_EXITING
_EXEC_MS = 20
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Process(NamedTuple):
    pid: int
    parent: int
    session: int
    start: int  # clock ticks after boot: field 22 of /proc/<pid>/stat
    dead: bool  # a zombie: it holds nothing but its number


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def boot_ms() -> int:
    """Milliseconds since boot, suspended time included; setting the clock does not change it."""
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


def boot_id() -> str:
    """Which run of the machine this is."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def process(pid: int) -> Process | None:
    """The process that has this number now, or None."""
    try:
        stat = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The name is in brackets, and may hold brackets and spaces itself.
    fields = stat[stat.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    parent, session, start = int(fields[1]), int(fields[3]), int(fields[19])
    return Process(pid, parent, session, start, fields[0] in (b"Z", b"X"))


def lives(pid: int, start: int) -> bool:
    """Whether exactly this process lives: not ended, and not another with its number."""
    found = process(pid)
    return found is not None and found.start == start and not found.dead


def all_processes() -> dict[int, Process]:
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return {one.pid: one for one in found if one is not None}


def children(pid: int) -> set[int] | None:
    """The direct children, zombies included; None where the kernel does not tell."""
    try:
        return {int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()}
    except OSError:
        return None


def environment(pid: int) -> dict[bytes, bytes]:
    """What the process was started with; nothing when it is not ours to see."""
    try:
        text = _read(f"/proc/{pid}/environ")
        waits = 0 if text else _EXEC_MS
        while not text and waits:
            waits = waits - 1 if _between_programs(pid) else 0
            time.sleep(0.001 if waits else 0)
            text = _read(f"/proc/{pid}/environ")  # once more, too, if it was just done with it
    except OSError:
        return {}
    return dict(pair.split(b"=", 1) for pair in text.split(b"\0") if b"=" in pair)


def _between_programs(pid: int) -> bool:
    """Whether it is in the middle of `exec`, when it has no environment for a moment."""
    stat = _read(f"/proc/{pid}/stat")
    fields = stat[stat.rfind(b")") + 2 :].split()
    # Fields 9 and 51. One that is about to end, or a thread of the kernel, gets none any more.
    return len(fields) > 48 and fields[48] == b"0" and not int(fields[6]) & _NEVER_AGAIN


def send(target: Process, signum: int) -> bool:
    """Signal exactly this process; False when it has ended, whoever has its number by now."""
    try:
        handle = os.pidfd_open(target.pid)
    except OSError:
        return False
    try:
        if not lives(target.pid, target.start):
            return False
        signal.pidfd_send_signal(handle, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def _read(path: str) -> bytes:
    # Plain calls: a buffered file object costs three times as much, and this runs for each job.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, 65536)
        if len(text) < 4096:  # /proc gives a page at a time at least, so this was all
            return text
        parts = [text]
        while parts[-1]:
            parts.append(os.read(fd, 65536))
        return b"".join(parts)
    finally:
        os.close(fd)
