"""Tell the processes of the grid from all others, and find the largest of the others.

Ours are the processes of jobs, our daemons, and all that descends from those.
"""

from __future__ import annotations

import os
import pwd
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gridhand.agent.messages import ProcessLoad
from gridhand.posix import procfs
from gridhand.posix.procfs import TICKS_PER_SECOND, Process, ProcessIdentity

_MOST_NAMED = 5  # by memory, and as many by CPU
_LEAST_BYTES = 50 * 10**6
_LEAST_CPU = 0.05


@dataclass(frozen=True, slots=True)
class Division:
    """The use by daemons of ours and what descends from them, and the largest other processes."""

    daemon_cpu: float = 0.0
    daemon_bytes: int = 0
    largest: tuple[ProcessLoad, ...] = ()


class Strangers:
    """Divides the processes of each sample. Not safe for several threads."""

    def __init__(
        self,
        *,
        root: Path = Path("/"),
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._root, self._clock = root, clock
        self._ticks: dict[ProcessIdentity, int] = {}
        self._at: float | None = None

    def divide(
        self, table: Mapping[int, Process], jobs: Collection[int], daemons: Iterable[int]
    ) -> Division:
        """Divide all processes, given the pids of all jobs and of our daemons."""
        rates = self._rates(table)
        ours = _descendants(table, daemons)
        daemon_pids = ours - set(jobs)
        others = [
            stat
            for pid, stat in table.items()
            if pid not in ours and pid not in jobs and not stat.zombie
        ]
        return Division(
            sum(rates.get(pid, 0.0) for pid in daemon_pids),
            sum(self._bytes(table[pid]) for pid in daemon_pids),
            self._largest(others, rates),
        )

    def _rates(self, table: Mapping[int, Process]) -> dict[int, float]:
        """Return the cores that each process has used since the previous sample."""
        now, before = self._clock(), self._ticks
        passed = 0.0 if self._at is None else now - self._at
        self._at, self._ticks = now, {stat.identity: stat.own_ticks for stat in table.values()}
        if passed <= 0:
            return {}
        return {
            stat.pid: (stat.own_ticks - before.get(stat.identity, 0)) / TICKS_PER_SECOND / passed
            for stat in table.values()
        }

    def _largest(
        self, others: list[Process], rates: Mapping[int, float]
    ) -> tuple[ProcessLoad, ...]:
        by_memory = sorted(others, key=lambda stat: -stat.rss_bytes)[:_MOST_NAMED]
        by_cpu = sorted(others, key=lambda stat: -rates.get(stat.pid, 0.0))[:_MOST_NAMED]
        loads = [self._load(stat, rates) for stat in dict.fromkeys([*by_memory, *by_cpu])]
        return tuple(
            load
            for load in loads
            if load["memory_bytes"] >= _LEAST_BYTES or load["cpu"] >= _LEAST_CPU
        )

    def _load(self, stat: Process, rates: Mapping[int, float]) -> ProcessLoad:
        return {
            "pid": stat.pid,
            "name": procfs.command_name(stat.pid, self._root),
            "user": owner_name(stat.pid, self._root),
            "cpu": round(max(0.0, rates.get(stat.pid, 0.0)), 3),
            "memory_bytes": self._bytes(stat),
        }

    def _bytes(self, stat: Process) -> int:
        anonymous = procfs.anonymous_bytes(stat.pid, self._root)
        return stat.rss_bytes if anonymous is None else anonymous


def owner_name(pid: int, root: Path = Path("/")) -> str:
    """Return the user whose process it is, by number if it has no name; "" if it has ended."""
    try:
        uid = os.stat(root / "proc" / str(pid)).st_uid
    except OSError:
        return ""
    return _user_name(uid)


@lru_cache(256)  # a directory service may take long to answer
def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _descendants(table: Mapping[int, Process], roots: Iterable[int]) -> set[int]:
    """Return those of the processes that exist, with all that descends from them."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid, stat in table.items():
        children[stat.parent].append(pid)
    found: set[int] = set()
    waiting = [pid for pid in roots if pid in table]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children[pid]
    return found
