"""Simulates tasks that arrive and leave, and measures the allocation over time."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gridhand.core.model.names import AllocationId
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.simulate.arrivals import Arrival
from gridhand.simulate.replay import ReplayRun, SimulatedCluster, Tick
from gridhand.simulate.tally import MEASURED

POINTS = 100  # of the curve over time
_LOOKS = 10  # points per computation of the fragmentation, which is slow


def churn(
    nodes: Sequence[Node],
    arriving: Iterable[Arrival],
    strategy: str,
    *,
    warm_up_s: float,
    end_s: float,
    mix: Mapping[Request, int],
    tick: Tick | None = None,
) -> ReplayRun:
    """Let the tasks arrive and leave; average over the time from `warm_up_s` to `end_s`."""
    cluster = SimulatedCluster(nodes, strategy)
    watch = _Watch(cluster, warm_up_s, end_s, mix)
    leaving: list[tuple[float, int, AllocationId]] = []
    for number, (at_s, task, stays_s) in enumerate(arriving):
        while leaving and leaving[0][0] <= at_s:
            gone_s, _, id = heapq.heappop(leaving)
            watch.until(gone_s)
            cluster.leave(id, round(gone_s * 1000))
        watch.until(at_s)
        granted = cluster.arrive(task.asked, round(at_s * 1000))
        if granted is not None:
            heapq.heappush(leaving, (at_s + stays_s, number, granted))
        if tick is not None:
            tick(1)
    while leaving and leaving[0][0] <= end_s:
        gone_s, _, id = heapq.heappop(leaving)
        watch.until(gone_s)
        cluster.leave(id, round(gone_s * 1000))
    watch.until(end_s)
    watch.close()
    return cluster.finish()


class _Watch:
    """Integrates the allocation over time, and samples the cluster at regular times."""

    def __init__(
        self, cluster: SimulatedCluster, warm_up_s: float, end_s: float, mix: Mapping[Request, int]
    ) -> None:
        self._cluster, self._mix = cluster, mix
        self._warm_up_s, self._end_s = warm_up_s, end_s
        self._now_s = 0.0
        self._used_s = dict.fromkeys(MEASURED, 0.0)
        self._curve: dict[str, list[float | None]] = {name: [] for name in MEASURED}
        self._lost: list[float] = []
        self._warm = False

    def until(self, now_s: float) -> None:
        """Account for the time since the last call, in which nothing changed."""
        if not self._warm and now_s >= self._warm_up_s:
            self._warm = True  # failures before this do not count
            run = self._cluster.run
            run.arrived, run.failed, run.failed_by = 0, 0, Counter()
        while len(self._curve["gpu"]) < POINTS and self._time_of_point() <= now_s:
            self._look()
        lasted_s = now_s - max(self._now_s, self._warm_up_s)
        if lasted_s > 0:
            for name, used in self._cluster.tally.used.items():
                self._used_s[name] += used * lasted_s
        self._now_s = now_s

    def _time_of_point(self) -> float:
        return (len(self._curve["gpu"]) + 1) * self._end_s / POINTS

    def _look(self) -> None:
        warm = self._time_of_point() > self._warm_up_s
        for name, level in self._cluster.levels().items():
            self._curve[name].append(level)
        if warm and len(self._curve["gpu"]) % _LOOKS == 0:
            lost = self._cluster.tally.unusable(self._mix)
            self._lost += [] if lost is None else [lost]

    def close(self) -> None:
        run, capacity = self._cluster.run, self._cluster.tally.capacity
        lasted_s = self._end_s - self._warm_up_s
        run.curve = self._curve
        run.mean = {
            name: used_s / lasted_s / capacity[name] if capacity.get(name) else None
            for name, used_s in self._used_s.items()
        }
        run.fragmentation = sum(self._lost) / len(self._lost) if self._lost else None
