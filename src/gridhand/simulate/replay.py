"""Replays tasks on a cluster, with the real ledger and placement.

`fill` lets tasks arrive until the load is reached, and nothing leaves; `churn.py` has tasks that
leave. The measured time is that of the decision and the grant, without the counting around them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

from gridhand.core.ledger.allocations import Allocation, AllocationMove, Terms
from gridhand.core.ledger.ledger import Ledger, Placement
from gridhand.core.model.names import AllocationId
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.core.placement.place import place
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import strategy_named
from gridhand.simulate.arrivals import Demand
from gridhand.simulate.inputs import SimulatedTask
from gridhand.simulate.tally import MEASURED, Tally

SMALL = 24  # nodes; up to this many, the final state is kept, to be drawn
_OWNER = Terms("simulate")

Tick = Callable[[int], None]
Levels = dict[str, float | None]


class Held(NamedTuple):
    """The allocation of one task at the end, and its number among the arrivals."""

    number: int
    asked: Request
    allocation: Allocation


@dataclass
class ReplayRun:
    """The results of one strategy with the arrivals of one seed.

    `curve` has the allocation of each resource by percent of load or, where tasks leave, at
    `POINTS` times; `mean` is its average over the measured time, and absent where nothing leaves.
    """

    curve: dict[str, list[float | None]] = field(default_factory=dict)
    end: Levels = field(default_factory=dict)
    mean: Levels = field(default_factory=dict)
    arrived: int = 0
    failed: int = 0
    failed_by: Counter[str] = field(default_factory=Counter)
    fragmentation: float | None = None
    decisions: int = 0
    seconds: float = 0.0
    held: list[Held] = field(default_factory=list)


class SimulatedCluster:
    """A ledger with nodes, a strategy, and a tally of the results."""

    def __init__(self, nodes: Sequence[Node], strategy: str) -> None:
        self.ledger = Ledger()
        for node in nodes:
            self.ledger.register(node)
        self.ledger.settle()
        self.snapshot = Snapshot(self.ledger)
        self.strategy = strategy_named(strategy)
        self.tally = Tally(nodes)
        self.run = ReplayRun()
        self._arrivals: dict[AllocationId, tuple[int, Request]] = {}

    def arrive(self, asked: Request, now_ms: int) -> AllocationId | None:
        """Place a request and return the id of its allocation; None if it fits nowhere."""
        run = self.run
        held: list[Allocation] = []
        began = perf_counter()
        self.snapshot.learn(asked)
        answer = place(asked, self.snapshot, self.strategy)
        if isinstance(answer, Placement):
            held = self.ledger.grant([answer], _OWNER, now=now_ms)
        run.seconds += perf_counter() - began
        run.decisions += 1
        run.arrived += 1
        self.ledger.settle()
        if not held:
            run.failed += 1
            run.failed_by[self.tally.cause(asked)] += 1
            return None
        [allocation] = held
        self.tally.add(allocation.node, allocation.amounts, allocation.devices)
        self._arrivals[allocation.id] = run.decisions, asked
        return allocation.id

    def leave(self, id: AllocationId, now_ms: int) -> None:
        gone = self.ledger.move(id, AllocationMove.RELEASE, now=now_ms)
        self.ledger.settle()
        self.tally.add(gone.node, gone.amounts, gone.devices, sign=-1)
        del self._arrivals[id]

    def levels(self) -> Levels:
        return {name: self.tally.allocation(name) for name in MEASURED}

    def finish(self) -> ReplayRun:
        self.run.end = self.levels()
        if len(self.tally.nodes) <= SMALL:
            live = self.ledger.live.items()
            self.run.held = [Held(*self._arrivals[id], allocation) for id, allocation in live]
        return self.run


def mix_of(tasks: Iterable[SimulatedTask]) -> Mapping[Request, int]:
    """Return how often each request is made."""
    counts = Counter(id(task.asked) for task in tasks)
    mix: Counter[Request] = Counter()
    for asked in {id(task.asked): task.asked for task in tasks}.values():
        mix[asked] += counts[id(asked)]
    return mix


class _Curve:
    """The mean allocation over the arrivals at which the load so far rounds to each percent."""

    def __init__(self, tally: Tally, last: int) -> None:
        self._tally = tally
        self._counts = [0] * (last + 1)
        self._sums = {name: [0] * (last + 1) for name in MEASURED}
        self._after = {name: [0] * (last + 1) for name in MEASURED}

    def add(self, percent: int) -> None:
        if percent >= len(self._counts):
            return
        self._counts[percent] += 1
        for name, used in self._tally.used.items():
            self._sums[name][percent] += used
            self._after[name][percent] = used

    def levels(self, name: str) -> list[float | None]:
        """Return the levels; a percent without arrivals keeps the level before it."""
        capacity = self._tally.capacity.get(name, 0)
        if not capacity:
            return [None] * len(self._counts)
        levels: list[float | None] = []
        before = 0
        for count, total, after in zip(
            self._counts, self._sums[name], self._after[name], strict=True
        ):
            levels.append((total / count if count else before) / capacity)
            before = after if count else before
        return levels


def fill(
    nodes: Sequence[Node],
    arriving: Sequence[SimulatedTask],
    demand: Demand,
    strategy: str,
    *,
    load: float,
    mix: Mapping[Request, int],
    tick: Tick | None = None,
) -> ReplayRun:
    """Let the tasks arrive one after another. One that fits nowhere is dropped."""
    cluster = SimulatedCluster(nodes, strategy)
    curve = _Curve(cluster.tally, percent_of(load))
    demanded, capacity = 0, demand.capacity
    for number, task in enumerate(arriving):
        cluster.arrive(task.asked, number)
        demanded += demand.of(task)
        curve.add((200 * demanded + capacity) // (2 * capacity))
        if tick is not None:
            tick(1)
    cluster.run.curve = {name: curve.levels(name) for name in MEASURED}
    cluster.run.fragmentation = cluster.tally.unusable(mix)
    return cluster.finish()


def percent_of(load: float) -> int:
    """Return the last whole percent that a load reaches; 1.15 reaches 115."""
    return int(100 * load + 1e-6)
