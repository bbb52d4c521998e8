"""Keeps attempts on their cores while others come and go.

Whoever gets cores of his own must not find others there: those that share are moved before he
starts. They get the cores back a little later, so that short jobs do not move them all the time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Hashable, Iterable

from gridhand.agent.cores import Cores
from gridhand.agent.runs import Key, Run

_PASSES = 3


class Pinning:
    """`members` tells the processes of a run."""

    def __init__(self, cpus: Iterable[int], members: Callable[[Run], Iterable[int]]) -> None:
        self._cores = Cores(cpus)
        self._members = members
        self._having: dict[Hashable, set[Key]] = {}  # by fence: these take turns on what it has
        self._fences: dict[Key, Hashable] = {}
        self._sharing: dict[Key, tuple[Run, list[int]]] = {}  # and where each was last put

    def take(
        self, key: Key, fence: Hashable, parts: int, *, pin: bool
    ) -> tuple[list[int] | None, bool]:
        """The cores for a new attempt, None for all; and whether it shares them.

        Who comes with the fence of another has the cores of that one, once it is over.
        """
        first = fence not in self._having
        self._note(key, fence)
        if not first:
            shares = self._cores.shares(fence)
            return self._cores.rest() if shares else self._cores.own(fence), shares
        cores = self._cores.take(fence, parts, pin=pin)
        if self._cores.own(fence) and cores:
            taken = set(cores)
            for run, where in list(self._sharing.values()):
                if taken.intersection(where):
                    self._move(run)
        return cores, self._cores.shares(fence)

    def _note(self, key: Key, fence: Hashable) -> None:
        self._fences[key] = fence
        self._having.setdefault(fence, set()).add(key)

    def begun(self, run: Run, *, late: bool = False) -> None:
        """From now on it is moved along, if it shares; one that comes `late` at once."""
        if run.note.shares:
            self._sharing[run.key] = run, self._cores.rest()
            if late:
                self._move(run)

    def keep(self, run: Run) -> None:
        """One of an agent before us."""
        fence = run.key if run.fence is None else run.fence
        self._note(run.key, fence)
        self._cores.keep(fence, run.note.cores, shares=run.note.shares)
        if run.note.shares:
            self._sharing[run.key] = run, []

    def give_back(self, key: Key) -> None:
        self._sharing.pop(key, None)
        fence = self._fences.pop(key, None)
        having = self._having.get(fence, set())
        having.discard(key)
        if not having and self._having.pop(fence, None) is not None:
            self._cores.give_back(fence)

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
