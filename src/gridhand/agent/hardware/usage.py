"""Measure what a node and the process trees on it really use.

A tree has some first processes, their descendants, and the sessions that any of them lead, so that
a daemon whose parent has ended still counts, also if only the mark in its limits tells whose it is.
A process that was seen in a tree stays in it wherever it goes. Each process counts in one tree.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gridhand.agent.hardware.own_limits import Bounds, memory_used
from gridhand.posix import procfs
from gridhand.posix.limit_mark import marked_alike
from gridhand.posix.procfs import TICKS_PER_SECOND, Process, ProcessIdentity, SharedMemory

# How much memory may be searched for shared pages in one sample: it takes up to 10 ms a gigabyte.
PSS_BUDGET_BYTES = 4 * 10**9


@dataclass(frozen=True, slots=True)
class MeasuredUsage:
    """The use of a whole node.

    `cpu` is the number of our CPUs that were busy on average since the previous sample.
    `memory_bytes` is what is not available, in the machine, or in our control group if that is
    what limits us.
    """

    cpu: float
    memory_bytes: int
    processes: int


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """The use of a process tree.

    `cpu` is in cores since the previous sample (or the start), `cpu_seconds` since the start.
    `memory_bytes` counts pages that several processes share once, if that could be looked up,
    else for each of them, as `rss_bytes` always does. `anonymous_bytes` is the part that no file
    backs, which is what the machine lacks because of it; it is measured together with `pss`.
    """

    pids: tuple[int, ...] = ()
    threads: int = 0
    cpu: float = 0.0
    cpu_seconds: float = 0.0
    rss_bytes: int = 0
    memory_bytes: int = 0
    anonymous_bytes: int = 0

    @property
    def processes(self) -> int:
        return len(self.pids)


@dataclass(frozen=True, slots=True)
class Usage:
    node: MeasuredUsage
    trees: dict[str, TreeUsage]
    processes: Mapping[int, Process]  # all that there are, by pid


@dataclass(slots=True)
class _Tree:
    """The state of a tree from sample to sample."""

    roots: frozenset[ProcessIdentity]
    members: set[ProcessIdentity]
    at: float
    cpu_seconds: float = 0.0
    live: list[Process] = field(default_factory=list)


class Sampler:
    """Takes samples, each of the time since the previous one. Not safe for several threads."""

    def __init__(
        self,
        cpus: Iterable[int] | None = None,
        bounds: Bounds | None = None,
        *,
        root: Path = Path("/"),
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._root = root
        self._clock = clock
        self._times = procfs.cpu_times(root)
        self._cpus = frozenset(self._times if cpus is None else cpus)
        self._bounds = bounds or Bounds()
        self._trees: dict[str, _Tree] = {}

    def sample(
        self,
        trees: Mapping[str, Iterable[ProcessIdentity]],
        *,
        pss: bool = True,
        walk: bool = True,
    ) -> Usage:
        """Return the use of the node, and of each tree, which is given by its first processes.

        A tree that is left out is forgotten. A process that was seen to have ended stays so, even
        if another one gets its pid. Without `pss` shared pages are not looked up, for frequent
        samples: a closer one can settle doubts. Without `walk` no process is read, which costs
        next to nothing; there must be no trees then.
        """
        table = procfs.read_processes(self._root) if walk or trees else {}
        self._remember(trees)
        self._claim(table)
        budget = PSS_BUDGET_BYTES if pss else 0
        used = {}
        for key, tree in self._trees.items():
            rss_bytes = sum(stat.rss_bytes for stat in tree.live)
            # A single process shares no pages within its tree.
            closer = len(tree.live) > 1 and rss_bytes <= budget
            budget -= rss_bytes if closer else 0
            used[key] = self._used(tree, rss_bytes, self._memory(tree, closer=closer, pss=pss))
        return Usage(self._node(len(table)), used, table)

    def _remember(self, trees: Mapping[str, Iterable[ProcessIdentity]]) -> None:
        before, self._trees = self._trees, {}
        for key, given in trees.items():
            roots = frozenset(given)
            tree = before.get(key)
            if tree is None:
                first = min((root.start for root in roots), default=0)
                tree = _Tree(frozenset(), set(), at=first / TICKS_PER_SECOND)
            tree.members |= roots - tree.roots  # roots of earlier samples may have ended
            tree.roots |= roots
            self._trees[key] = tree

    def _claim(self, table: Mapping[int, Process]) -> None:
        """Assign each process to the tree it was in, else to that of its parent or its session."""
        owners: dict[ProcessIdentity, _Tree] = {}
        for tree in self._trees.values():
            owners |= dict.fromkeys(tree.members - owners.keys(), tree)
        for tree in self._trees.values():  # a tree's first processes are its own before all others
            owners |= dict.fromkeys(tree.roots & tree.members, tree)
        self._claim_orphans(table, owners)
        below = _below(table)
        for tree in self._trees.values():
            known = {member for member in tree.members if owners[member] is tree}
            here = [table[member.pid] for member in known if member.pid in table]
            live = [stat for stat in here if stat.identity in known]
            leaderless = {one for one in known if one.pid not in table and below.get(one.pid)}
            waiting = [*leaderless, *(stat.identity for stat in live)]
            while waiting:
                above = waiting.pop()
                for stat in below.get(above.pid, ()):
                    if stat.identity.start >= above.start and stat.identity not in owners:
                        owners[stat.identity] = tree
                        live.append(stat)
                        waiting.append(stat.identity)
            tree.members = {stat.identity for stat in live} | leaderless
            tree.live = sorted(stat for stat in live if not stat.zombie)

    def _claim_orphans(
        self, table: Mapping[int, Process], owners: dict[ProcessIdentity, _Tree]
    ) -> None:
        """Assign processes that have left a tree unseen, and are known by their mark alone."""
        parents = {table[member.pid].parent for member in owners if member.pid in table}
        orphans = [
            stat
            for stat in table.values()
            if stat.parent in parents and stat.identity not in owners
        ]
        for tree in self._trees.values():
            for root in tree.roots & tree.members if orphans else ():
                leader = table.get(root.pid)
                if leader is not None and leader.identity == root:
                    found = {stat.identity for stat in marked_alike(leader, orphans)}
                    owners |= dict.fromkeys(found, tree)
                    tree.members |= found

    def _used(self, tree: _Tree, rss_bytes: int, memory: SharedMemory) -> TreeUsage:
        now = self._clock()
        # The time of a process that nobody in the tree waited for is lost; it must not decrease.
        seconds = sum(stat.ticks for stat in tree.live) / TICKS_PER_SECOND
        seconds = max(tree.cpu_seconds, seconds)
        passed = now - tree.at
        cpu = (seconds - tree.cpu_seconds) / passed if passed > 0 else 0.0
        tree.at, tree.cpu_seconds = now, seconds
        return TreeUsage(
            pids=tuple(stat.identity.pid for stat in tree.live),
            threads=sum(stat.threads for stat in tree.live),
            cpu=cpu,
            cpu_seconds=seconds,
            rss_bytes=rss_bytes,
            memory_bytes=memory.all_bytes,
            anonymous_bytes=memory.anonymous_bytes,
        )

    def _memory(self, tree: _Tree, *, closer: bool, pss: bool) -> SharedMemory:
        found = [self._memory_of(stat, closer=closer, pss=pss) for stat in tree.live]
        return SharedMemory(
            sum(one.all_bytes for one in found), sum(one.anonymous_bytes for one in found)
        )

    def _memory_of(self, stat: Process, *, closer: bool, pss: bool) -> SharedMemory:
        shared = procfs.shared_memory(stat.pid, self._root) if closer else None
        if shared is not None:
            return shared
        anonymous = procfs.anonymous_bytes(stat.pid, self._root) if pss else None
        return SharedMemory(stat.rss_bytes, stat.rss_bytes if anonymous is None else anonymous)

    def _node(self, processes: int) -> MeasuredUsage:
        before, self._times = self._times, procfs.cpu_times(self._root)
        machine = procfs.memory(self._root)
        used: int | None = None
        limit, folder = self._bounds.memory_bytes, self._bounds.memory_folder
        if limit is not None and folder is not None and limit < machine.total_bytes:
            used = memory_used(folder)
        if used is None:
            used = machine.total_bytes - machine.available_bytes
        return MeasuredUsage(
            cpu=procfs.cores_used(before, self._times, self._cpus),
            memory_bytes=used,
            processes=processes,
        )


def _below(table: Mapping[int, Process]) -> dict[int, list[Process]]:
    """Return for each process its children, and the others in the session that it leads."""
    below: dict[int, list[Process]] = defaultdict(list)
    for stat in table.values():
        below[stat.parent].append(stat)
        if stat.session not in (stat.identity.pid, stat.parent):
            below[stat.session].append(stat)
    return below
