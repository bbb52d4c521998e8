"""Reads /proc: processes and their identity, CPU times, and memory.

A pid alone does not identify a process: the kernel reuses it after the process has ended. A pid
with a start time does until the next boot, and `boot_id` tells one boot from another.

The files are read directly: one file per process has all that is needed, and reading it takes a
tenth of the time that psutil does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from typing import NamedTuple

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

_NEVER_EXECS = 0x200000 | 0x4  # PF_KTHREAD, PF_EXITING
_EXEC_MS = 20

StrPath = str | os.PathLike[str]


class ProcessIdentity(NamedTuple):
    """A process, unmistakably until the next boot: a reused pid comes with another start."""

    pid: int
    start: int  # clock ticks after boot


class Process(NamedTuple):
    """One reading of a process. `ticks` are CPU time, with that of children it has waited for.

    `own_ticks` are without that of children.
    """

    identity: ProcessIdentity
    parent: int
    session: int
    ticks: int
    threads: int
    rss_bytes: int
    zombie: bool  # it has ended and only its pid is still taken
    own_ticks: int = 0

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def start(self) -> int:
        return self.identity.start


def boot_id() -> str:
    """Return the kernel's random id of this boot."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def list_pids(root: StrPath = "/") -> list[int]:
    return [int(name) for name in os.listdir(f"{root}/proc") if name.isdecimal()]


def read_process(pid: int, root: StrPath = "/") -> Process | None:
    """Return the process that has this pid now, or None if there is none that we may see."""
    try:
        return parse_stat(_read(f"{root}/proc/{pid}/stat"))
    except (OSError, ValueError, IndexError):
        return None


def read_processes(root: StrPath = "/") -> dict[int, Process]:
    """Return every process that we may see, by pid. One that ends meanwhile is left out."""
    processes = {}
    for pid in list_pids(root):
        try:
            processes[pid] = parse_stat(_read(f"{root}/proc/{pid}/stat"))
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # it has ended, or it is another user's and hidden
    return processes


def parse_stat(line: bytes) -> Process:
    """Parse /proc/PID/stat. The program's name is in parentheses and may contain some itself."""
    pid = int(line[: line.index(b" ")])
    fields = line[line.rindex(b")") + 2 :].split()
    return Process(
        identity=ProcessIdentity(pid, start=int(fields[19])),
        parent=int(fields[1]),
        session=int(fields[3]),
        ticks=sum(map(int, fields[11:15])),
        threads=int(fields[17]),
        rss_bytes=max(0, int(fields[21])) * PAGE_BYTES,
        zombie=fields[0] in (b"Z", b"X"),
        own_ticks=int(fields[11]) + int(fields[12]),
    )


def is_alive(pid: int, start: int | None = None) -> bool:
    """Return whether this process runs: it is no zombie and, with `start`, no later one."""
    process = read_process(pid)
    return process is not None and not process.zombie and start in (None, process.start)


def is_stopped(pid: int) -> bool:
    """Return whether a signal such as SIGSTOP, or a debugger, has stopped this process."""
    try:
        line = _read(f"/proc/{pid}/stat")
    except OSError:
        return False
    return line[line.rindex(b")") + 2 :][:1] in (b"T", b"t")


def pid_exists(pid: int) -> bool:
    """Return whether any process, of whatever user, has this pid; a zombie counts."""
    return os.path.exists(f"/proc/{pid}")


def children(pid: int) -> set[int] | None:
    """Return the direct children, zombies included; None where the kernel does not list them."""
    try:
        return _children_of(pid, pid)
    except OSError:
        return None


def _children_of(pid: int, thread: int) -> set[int]:
    return {int(child) for child in _read_to_end(f"/proc/{pid}/task/{thread}/children").split()}


def descendants(pid: int) -> list[int] | None:
    """Return all processes below this one; None where the kernel does not list children.

    The tree may change meanwhile: a process whose parent ends is missed if it was not read yet.
    """
    if children(pid) is None:
        return None
    found: list[int] = []
    unread = [pid]
    while unread:
        parent = unread.pop()
        for thread in threads(parent):
            with contextlib.suppress(OSError):  # it has ended
                below = _children_of(parent, thread)
                found += below
                unread += below
    return found


def threads(pid: int) -> list[int]:
    """Return the ids of the process's threads; none when it has ended."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def real_uid(pid: int) -> int | None:
    """Return the user who started the process; None when it has ended."""
    try:
        for line in _read(f"/proc/{pid}/status").splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[1])
    except OSError:
        pass
    return None


def environment(pid: int) -> dict[bytes, bytes]:
    """Return the variables the process was started with; none when we may not read them."""
    try:
        text = _read(f"/proc/{pid}/environ")
        waits = 0 if text else _EXEC_MS
        while not text and waits:
            waits = waits - 1 if _is_in_exec(pid) else 0
            time.sleep(0.001 if waits else 0)
            text = _read(f"/proc/{pid}/environ")  # also when exec has ended just now
    except OSError:
        return {}
    return dict(pair.split(b"=", 1) for pair in text.split(b"\0") if b"=" in pair)


def _is_in_exec(pid: int) -> bool:
    """Return whether the process is inside `exec`, where it has no environment for a moment."""
    stat = _read(f"/proc/{pid}/stat")
    fields = stat[stat.rfind(b")") + 2 :].split()
    # Fields 9 and 51. An exiting process and a kernel thread never get an environment again.
    return len(fields) > 48 and fields[48] == b"0" and not int(fields[6]) & _NEVER_EXECS


def send_signal(target: ProcessIdentity, signum: int) -> bool:
    """Signal exactly this process, never a later one with its pid; return False if it has ended."""
    try:
        handle = os.pidfd_open(target.pid)
    except OSError:
        return False
    try:
        if not is_alive(target.pid, target.start):
            return False
        signal.pidfd_send_signal(handle, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


class SharedMemory(NamedTuple):
    """The memory of a process with its share of shared pages, and the part that no file backs.

    The kernel can drop the pages of files at any time, so only the others are really in use.
    """

    all_bytes: int
    anonymous_bytes: int


def shared_memory(pid: int, root: StrPath = "/") -> SharedMemory | None:
    """Return its memory with its share of shared pages; None if it ended or we may not look.

    The kernel walks the page tables for this: some milliseconds per gigabyte.
    """
    amounts = _amounts(f"{root}/proc/{pid}/smaps_rollup")
    if "Pss" not in amounts:
        return None
    everything = amounts["Pss"]
    anonymous = amounts.get("Pss_Anon", everything) + amounts.get("Pss_Shmem", 0)
    return SharedMemory(everything, anonymous)


def anonymous_bytes(pid: int, root: StrPath = "/") -> int | None:
    """Return the memory of a process that no file backs; shared pages count in full."""
    amounts = _amounts(f"{root}/proc/{pid}/status")
    anonymous = amounts.get("RssAnon")
    return None if anonymous is None else anonymous + amounts.get("RssShmem", 0)


def _amounts(path: str) -> dict[str, int]:
    """Return the amounts in bytes of a file of lines `name: number kB`; none if it is not there."""
    try:
        lines = _read(path).decode(errors="replace").splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines if line.endswith(" kB"))
    return {word[0].rstrip(":"): int(word[1]) * 1024 for word in words if len(word) == 3}


def command_name(pid: int, root: StrPath = "/") -> str:
    """Return the name of its program, at most 15 characters; "" if it has ended."""
    try:
        return _read(f"{root}/proc/{pid}/comm").decode(errors="replace").strip()
    except OSError:
        return ""


class CpuTimes(NamedTuple):
    """Ticks of one CPU since boot: those spent working, and all."""

    busy: int
    total: int


def cpu_times(root: StrPath = "/") -> dict[int, CpuTimes]:
    """Return the times of each online CPU by its number."""
    times_by_cpu = {}
    for line in _read(f"{root}/proc/stat").decode().splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name != "cpu":
            # User time already includes guest time; waiting for a disk counts as idle.
            times = [int(number) for number in numbers[:8]]
            idle = sum(times[3:5])
            times_by_cpu[int(name[3:])] = CpuTimes(sum(times) - idle, sum(times))
    return times_by_cpu


def busy_part(before: CpuTimes, after: CpuTimes) -> float:
    """Return for which part of the time between two readings a CPU was busy."""
    total = after.total - before.total
    return min(1.0, max(0.0, (after.busy - before.busy) / total)) if total > 0 else 0.0


def cores_used(
    before: dict[int, CpuTimes], after: dict[int, CpuTimes], cpus: Collection[int]
) -> float:
    """Return how many of `cpus` were busy on average between two readings."""
    known = before.keys() & after.keys() & set(cpus)
    return sum(busy_part(before[cpu], after[cpu]) for cpu in known)


class Memory(NamedTuple):
    """The machine's memory, and how much of it is available without swapping."""

    total_bytes: int
    available_bytes: int


def memory(root: StrPath = "/") -> Memory:
    lines = _read(f"{root}/proc/meminfo").decode().splitlines()
    amounts = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if ":" in line}
    return Memory(amounts["MemTotal"], amounts["MemAvailable"])


def _read(path: str) -> bytes:
    """Return a file that the kernel writes as one record, and so gives in one read."""
    # Plain calls: a buffered file object costs three times as much, and this runs for each job.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, 65536)
        return text if len(text) < 4096 else text + _rest(fd)
    finally:
        os.close(fd)


def _read_to_end(path: str) -> bytes:
    """Return a file of many records: one read gives those that fit in a page, often not all."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _rest(fd)
    finally:
        os.close(fd)


def _rest(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 65536):
        parts.append(part)
    return b"".join(parts)
