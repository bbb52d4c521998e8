"""Runs several strategies on the same arrivals, for each seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gridhand.core.model.nodes import Node
from gridhand.core.placement.strategies import STRATEGIES, strategy_named
from gridhand.simulate.arrivals import ArrivalStream, Demand, arrivals
from gridhand.simulate.churn import churn
from gridhand.simulate.inputs import SimulatedTask
from gridhand.simulate.replay import ReplayRun, fill, mix_of
from gridhand.simulate.tally import Tally


def compare(
    nodes: Sequence[Node],
    tasks: Sequence[SimulatedTask],
    strategies: Sequence[str],
    *,
    load: float,
    seeds: Sequence[int],
    departures: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, list[ReplayRun]]:
    """Return a run for each strategy and seed. Arrivals depend on the seed only."""
    demand = Demand(Tally(nodes), tasks)
    mix = mix_of(tasks)
    runs: dict[str, list[ReplayRun]] = {name: [] for name in strategies}
    counter = _Counter(progress)
    stream = ArrivalStream(tasks, demand, load) if departures else None
    for index, seed in enumerate(seeds):
        arriving = [] if stream else arrivals(tasks, demand, load, seed)
        here = stream.expected if stream else len(arriving)
        counter.expect(here * len(strategies) * (len(seeds) - index))
        for name in strategies:
            if stream:
                times = {"warm_up_s": stream.warm_up_s, "end_s": stream.end_s}
                coming = stream.arrivals(seed)
                run = churn(nodes, coming, name, mix=mix, tick=counter.tick, **times)
            else:
                run = fill(nodes, arriving, demand, name, load=load, mix=mix, tick=counter.tick)
            runs[name].append(run)
    return runs


class _Counter:
    """Counts arrivals and reports progress now and then."""

    def __init__(self, progress: Callable[[int, int], None] | None) -> None:
        self._progress = progress
        self._done = self._total = 0

    def expect(self, more: int) -> None:
        self._total = self._done + more

    def tick(self, arrived: int) -> None:
        self._done += arrived
        if self._progress is not None and self._done % 64 == 0:
            self._progress(self._done, max(self._done, self._total))


def chosen(names: Sequence[str], nodes: Sequence[Node]) -> list[str]:
    """Return the named strategies, each once; by default the one this cluster would use."""
    if not names:
        return [default_strategy(nodes)]
    found = [name for given in names for name in (STRATEGIES if given == "all" else [given])]
    for name in found:
        strategy_named(name)  # raises for an unknown one before the work begins
    return list(dict.fromkeys(found))


def default_strategy(nodes: Sequence[Node]) -> str:
    """Return the strategy that a cluster of these nodes uses by default."""
    with_gpus = any(node.gpus for node in nodes)
    return "fragmentation" if with_gpus and "fragmentation" in STRATEGIES else "best_fit"
