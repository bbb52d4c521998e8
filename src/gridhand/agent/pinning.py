"""Keeps attempts on their cores while others come and go.

Whoever gets cores of his own must not find others there: those that share are moved before he
starts. They get the cores back a little later, so that short jobs do not move them all the time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

from gridhand.agent.cores import Cores
from gridhand.agent.runs import Key, Run

_PASSES = 3


class Pinning:
    """`members` tells the processes of a run."""

    def __init__(self, cpus: Iterable[int], members: Callable[[Run], Iterable[int]]) -> None:
        self._cores = Cores(cpus)
        self._members = members
        self._sharing: dict[Key, tuple[Run, list[int]]] = {}  # and where each was last put

    def take(self, key: Key, parts: int, *, pin: bool) -> tuple[list[int] | None, bool]:
        """The cores for a new attempt, None for all; and whether it shares them."""
        cores = self._cores.take(key, parts, pin=pin)
        if self._cores.own(key) and cores:
            taken = set(cores)
            for run, where in list(self._sharing.values()):
                if taken.intersection(where):
                    self._move(run)
        return cores, self._cores.shares(key)

    def begun(self, run: Run) -> None:
        """From now on it is moved along, if it shares."""
        if run.note.shares:
            self._sharing[run.key] = run, self._cores.rest()

    def keep(self, run: Run) -> None:
        """One of an agent before us."""
        self._cores.keep(run.key, run.note.cores, shares=run.note.shares)
        if run.note.shares:
            self._sharing[run.key] = run, []

    def give_back(self, key: Key) -> None:
        self._cores.give_back(key)
        self._sharing.pop(key, None)

    def spread(self) -> None:
        """Let those that share use all that is free by now."""
        rest = self._cores.rest() if self._sharing else []
        for run, where in list(self._sharing.values()):
            if where != rest:
                self._move(run)

    def _move(self, run: Run) -> None:
        rest = self._cores.rest()
        self._sharing[run.key] = run, rest
        done: set[int] = set()
        for _ in range(_PASSES):  # one that was just born has its parent's cores
            new = {thread for pid in self._members(run) for thread in _threads(pid)} - done
            if not new:
                return
            done |= new
            for thread in new:
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread, rest)


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
