"""CPU affinity: whole cores belong to one attempt, and all other attempts share the rest.

Two jobs that were promised a core each must not take turns on one. A job that asked for a part of
a core, or for one and a half, runs on the cores that nobody has alone. Before an attempt gets
cores of its own, those that share are moved away from them; they get freed cores back a little
later, so that short jobs do not move them all the time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

from gridhand.agent.jobs.running_attempt import RunningAttempt
from gridhand.agent.messages import Key
from gridhand.core.model.resources import UNIT
from gridhand.posix import procfs

Loads = Mapping[int, int]

_PASSES = 3


class Cores:
    """The cores of a node: which have one owner, and who shares the rest."""

    def __init__(self, cpus: Iterable[int]) -> None:
        self._all = sorted(set(cpus))
        self._own: dict[Hashable, list[int]] = {}
        self._sharing: set[Hashable] = set()

    def take(
        self, owner: Hashable, parts: int, *, pin: bool, loads: Callable[[], Loads] = dict
    ) -> list[int] | None:
        """Return the cores that `owner` may run on; None for all of them.

        Of the free ones those with the least load are chosen. If too few are free, as on a node
        with more promised than it has, it shares the rest.
        """
        self.give_back(owner)
        if not pin or parts <= 0 or not self._all:
            return None
        free = self._free()
        count, fraction = divmod(parts, UNIT)
        if fraction or count > len(free) - bool(self._sharing):
            self._sharing.add(owner)
            return self.rest()
        if count < len(free):
            load = loads()
            free.sort(key=lambda core: load.get(core, 0))
        self._own[owner] = sorted(free[:count])
        return list(self._own[owner])

    def keep(self, owner: Hashable, own: Collection[int] | None, *, shares: bool) -> None:
        """Take over what an owner has from before: these cores, a share in the rest, or none."""
        self.give_back(owner)
        if own:
            self._own[owner] = sorted(own)
        elif shares:
            self._sharing.add(owner)

    def give_back(self, owner: Hashable) -> None:
        self._own.pop(owner, None)
        self._sharing.discard(owner)

    def own(self, owner: Hashable) -> list[int] | None:
        """Return the cores that the owner has alone."""
        return self._own.get(owner)

    def shares(self, owner: Hashable) -> bool:
        return owner in self._sharing

    def rest(self) -> list[int]:
        """Return the shared cores; all of them if each one has an owner."""
        return self._free() or list(self._all)

    def _free(self) -> list[int]:
        taken = {core for own in self._own.values() for core in own}
        return [core for core in self._all if core not in taken]


class CpuAffinity:
    """Keeps attempts on their cores while others come and go.

    `members` returns the pids of an attempt, `loads` the load of each core.
    """

    def __init__(
        self,
        cpus: Iterable[int],
        members: Callable[[RunningAttempt], Iterable[int]],
        loads: Callable[[], Loads] = dict,
    ) -> None:
        self._cores = Cores(cpus)
        self._loads = loads
        self._members = members
        self._holders: dict[Hashable, set[Key]] = {}  # by fence: these take turns on its cores
        self._fences: dict[Key, Hashable] = {}
        # Those that share, and the cores that each was last moved to.
        self._sharing: dict[Key, tuple[RunningAttempt, list[int]]] = {}

    def take(
        self, key: Key, fence: Hashable, parts: int, *, pin: bool
    ) -> tuple[list[int] | None, bool]:
        """Return the cores for a new attempt (None for all), and whether it shares them.

        An attempt with the fence of another gets the cores of that one: it runs after it.
        """
        first = fence not in self._holders
        self._note_holder(key, fence)
        if not first:
            shares = self._cores.shares(fence)
            return self._cores.rest() if shares else self._cores.own(fence), shares
        cores = self._cores.take(fence, parts, pin=pin, loads=self._loads)
        if self._cores.own(fence) and cores:
            taken = set(cores)
            for run, moved_to in list(self._sharing.values()):
                if taken.intersection(moved_to):
                    self._move(run)
        return cores, self._cores.shares(fence)

    def _note_holder(self, key: Key, fence: Hashable) -> None:
        self._fences[key] = fence
        self._holders.setdefault(fence, set()).add(key)

    def begun(self, run: RunningAttempt, *, late: bool = False) -> None:
        """Move the attempt along with the others from now on, if it shares.

        One that begins `late`, after waiting for its turn, is moved at once.
        """
        if run.note.shares:
            self._sharing[run.key] = run, self._cores.rest()
            if late:
                self._move(run)

    def keep(self, run: RunningAttempt) -> None:
        """Take over an attempt from an earlier agent."""
        fence = run.key if run.fence is None else run.fence
        self._note_holder(run.key, fence)
        self._cores.keep(fence, run.note.cores, shares=run.note.shares)
        if run.note.shares:
            self._sharing[run.key] = run, []

    def give_back(self, key: Key) -> None:
        """Free the cores of an attempt, unless others with its fence still need them."""
        self._sharing.pop(key, None)
        fence = self._fences.pop(key, None)
        holders = self._holders.get(fence, set())
        holders.discard(key)
        if not holders and self._holders.pop(fence, None) is not None:
            self._cores.give_back(fence)

    def spread(self) -> None:
        """Let those that share use all cores that are free by now."""
        rest = self._cores.rest() if self._sharing else []
        for run, moved_to in list(self._sharing.values()):
            if moved_to != rest:
                self._move(run)

    def _move(self, run: RunningAttempt) -> None:
        rest = self._cores.rest()
        self._sharing[run.key] = run, rest
        done: set[int] = set()
        for _ in range(_PASSES):  # a thread that was born meanwhile has its parent's cores
            new = {thread for pid in self._members(run) for thread in procfs.threads(pid)} - done
            if not new:
                return
            done |= new
            for thread in new:
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread, rest)
