"""What the kernel tells in /proc: memory, CPU times, and every process.

Read directly: one file a process has all that is needed, session and start included, and takes a
tenth of the time that psutil does.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Identity(NamedTuple):
    """One process for ever: its number may be given to another, which then has another start."""

    pid: int
    start: int  # clock ticks after boot


class ProcessStat(NamedTuple):
    """One process now. `ticks` are of CPU, its own and those of children it has waited for."""

    identity: Identity
    parent: int
    session: int
    ticks: int
    threads: int
    rss_bytes: int
    zombie: bool


def identity(pid: int, root: Path = Path("/")) -> Identity | None:
    """The process that has this number now, to be told from later ones."""
    stat = _stat(f"{root}/proc/{pid}/stat")
    return stat.identity if stat else None


def processes(root: Path = Path("/")) -> dict[int, ProcessStat]:
    """Every process that we may see. One that ends meanwhile is left out."""
    proc = root / "proc"
    found = (_stat(f"{proc}/{name}/stat") for name in os.listdir(proc) if name.isdecimal())
    return {stat.identity.pid: stat for stat in found if stat}


def _stat(path: str) -> ProcessStat | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a file object costs twice as much
    except (FileNotFoundError, PermissionError):  # ended, or another user's where those are hidden
        return None
    try:
        return read_stat(os.read(fd, 4096))
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)


def read_stat(line: bytes) -> ProcessStat:
    """A line of /proc/PID/stat. The program's name may have spaces and parentheses, too."""
    pid = int(line[: line.index(b" ")])
    fields = line[line.rindex(b")") + 2 :].split()
    return ProcessStat(
        identity=Identity(pid, start=int(fields[19])),
        parent=int(fields[1]),
        session=int(fields[3]),
        ticks=sum(map(int, fields[11:15])),
        threads=int(fields[17]),
        rss_bytes=max(0, int(fields[21])) * PAGE_BYTES,
        zombie=fields[0] in (b"Z", b"X"),
    )


def pss_bytes(pid: int, root: Path = Path("/")) -> int | None:
    """Its memory, with its part of what it shares; None if it ended or is not ours to look at.

    The kernel walks the page tables for it: some milliseconds for each gigabyte.
    """
    try:
        text = (root / "proc" / str(pid) / "smaps_rollup").read_bytes()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return None


class CpuTimes(NamedTuple):
    """Ticks of one CPU since the start: spent working, and in all."""

    busy: int
    total: int


def cpu_times(root: Path = Path("/")) -> dict[int, CpuTimes]:
    """The times of each CPU by its number; one that is off-line has none."""
    found = {}
    for line in (root / "proc/stat").read_text().splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name != "cpu":
            # A guest's time is in its user's already; waiting for a disk is idling.
            times = [int(number) for number in numbers[:8]]
            idle = sum(times[3:5])
            found[int(name[3:])] = CpuTimes(sum(times) - idle, sum(times))
    return found


def cores_used(
    before: dict[int, CpuTimes], after: dict[int, CpuTimes], cpus: Collection[int]
) -> float:
    """How many of `cpus` were busy on average between two readings."""
    cores = 0.0
    for cpu in before.keys() & after.keys() & set(cpus):
        total = after[cpu].total - before[cpu].total
        busy = after[cpu].busy - before[cpu].busy
        if total > 0:
            cores += min(1.0, max(0.0, busy / total))
    return cores


class Memory(NamedTuple):
    """The machine's memory, and what of it can be had without swapping."""

    total_bytes: int
    available_bytes: int


def memory(root: Path = Path("/")) -> Memory:
    lines = (root / "proc/meminfo").read_text().splitlines()
    amounts = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if ":" in line}
    return Memory(amounts["MemTotal"], amounts["MemAvailable"])
