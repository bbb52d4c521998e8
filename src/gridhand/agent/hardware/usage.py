"""What a node and the process trees on it really use now.

A tree is what came from some first processes: their descendants, and the sessions that any of them
lead, so that a daemon whose parent has ended still counts. Processes that were seen in a tree stay
in it wherever they go. Each process counts in one tree.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gridhand.agent import procfs
from gridhand.agent.bounds import Bounds, memory_used
from gridhand.agent.procfs import TICKS_PER_SECOND, Identity, ProcessStat

# What shared memory may be looked up of in one sample: the kernel needs up to 10 ms a gigabyte.
PSS_BUDGET_BYTES = 4 * 10**9


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """`cpu` is the number of our CPUs that were busy on average since the sample before.

    `memory_bytes` is what cannot be had again at once, in the machine, or in our control group if
    that is what limits us.
    """

    cpu: float
    memory_bytes: int
    processes: int


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """`cpu` is in cores since the sample before (or the start), `cpu_seconds` since the start.

    `memory_bytes` counts pages that several processes share once, where that could be looked up,
    and else for each of them, as `rss_bytes` always does.
    """

    pids: tuple[int, ...] = ()
    threads: int = 0
    cpu: float = 0.0
    cpu_seconds: float = 0.0
    rss_bytes: int = 0
    memory_bytes: int = 0

    @property
    def processes(self) -> int:
        return len(self.pids)


@dataclass(frozen=True, slots=True)
class Usage:
    node: NodeUsage
    trees: dict[str, TreeUsage]


@dataclass(slots=True)
class _Tree:
    """What is remembered of a tree from sample to sample."""

    roots: frozenset[Identity]
    members: set[Identity]
    at: float
    cpu_seconds: float = 0.0
    live: list[ProcessStat] = field(default_factory=list)


class Sampler:
    """Takes samples, each of what happened since the one before. Not for several threads."""

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

    def sample(self, trees: Mapping[str, Iterable[Identity]], *, pss: bool = True) -> Usage:
        """What the node uses, and each tree by its first processes.

        A tree that is left out is forgotten. One that was seen to have ended stays so, whoever
        gets its numbers later. With `pss` off, shared pages are not looked up: that is for looking
        often, when any doubt can be settled by looking closer.
        """
        table = procfs.processes(self._root)
        self._remember(trees)
        self._claim(table)
        budget = PSS_BUDGET_BYTES if pss else 0
        used = {}
        for key, tree in self._trees.items():
            rss_bytes = sum(stat.rss_bytes for stat in tree.live)
            # A process alone shares with nobody in its tree.
            closer = len(tree.live) > 1 and rss_bytes <= budget
            budget -= rss_bytes if closer else 0
            used[key] = self._used(tree, rss_bytes, closer=closer)
        return Usage(self._node(len(table)), used)

    def _remember(self, trees: Mapping[str, Iterable[Identity]]) -> None:
        before, self._trees = self._trees, {}
        for key, given in trees.items():
            roots = frozenset(given)
            tree = before.get(key)
            if tree is None:
                first = min((root.start for root in roots), default=0)
                tree = _Tree(frozenset(), set(), at=first / TICKS_PER_SECOND)
            tree.members |= roots - tree.roots  # those that were given before may have ended
            tree.roots |= roots
            self._trees[key] = tree

    def _claim(self, table: Mapping[int, ProcessStat]) -> None:
        """Give each process to the tree it was in, else to that of its parent or its session."""
        owners: dict[Identity, _Tree] = {}
        for tree in self._trees.values():
            owners |= dict.fromkeys(tree.members - owners.keys(), tree)
        for tree in self._trees.values():  # a tree's first processes are its own before all others
            owners |= dict.fromkeys(tree.roots & tree.members, tree)
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

    def _used(self, tree: _Tree, rss_bytes: int, *, closer: bool) -> TreeUsage:
        now = self._clock()
        # What ended without being waited for by one of its own takes its time along: never less.
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
            memory_bytes=sum(map(self._memory, tree.live)) if closer else rss_bytes,
        )

    def _memory(self, stat: ProcessStat) -> int:
        shared = procfs.pss_bytes(stat.identity.pid, self._root)
        return stat.rss_bytes if shared is None else shared

    def _node(self, processes: int) -> NodeUsage:
        before, self._times = self._times, procfs.cpu_times(self._root)
        machine = procfs.memory(self._root)
        used: int | None = None
        limit, folder = self._bounds.memory_bytes, self._bounds.memory_folder
        if limit is not None and folder is not None and limit < machine.total_bytes:
            used = memory_used(folder)
        if used is None:
            used = machine.total_bytes - machine.available_bytes
        return NodeUsage(
            cpu=procfs.cores_used(before, self._times, self._cpus),
            memory_bytes=used,
            processes=processes,
        )


def _below(table: Mapping[int, ProcessStat]) -> dict[int, list[ProcessStat]]:
    """The children of each process, and the others in the session that it leads."""
    below: dict[int, list[ProcessStat]] = defaultdict(list)
    for stat in table.values():
        below[stat.parent].append(stat)
        if stat.session not in (stat.identity.pid, stat.parent):
            below[stat.session].append(stat)
    return below
