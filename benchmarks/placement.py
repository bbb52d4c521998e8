"""Placement decisions per second for every strategy, beside a plain loop and numpy by hand.

Clusters of 100 to 100,000 nodes with up to 8 GPUs, of 20 shapes, filled to 50 % of their GPUs with
the openb mix by the strategy itself. A decision is: learn, place, grant, and release something
else, so that the load stays. Compared in one run, on one core, from what best_fit left:

  plain loop   over all nodes, in Python, with a list of free shares for each
  naive numpy  filter, score and argmax over all nodes, with `free[node, device]`
  by planes    the same with `free[device, node]`, which numpy likes better

They rank as best_fit does; that they choose the same nodes is checked. They know no names, owners,
deadlines, memory of devices or undo. Classes of requests seen before and new ones are told apart.
At last the same through the ledger: `Grid.in_memory`, allocate and release, group commit included.
Rounds alternate with numpy's, and medians are shown, because other work on the machine comes and
goes: what counts is the ratio. Decisions are timed on the processor's clock, which stands still
while others have the core; what goes through the ledger has two threads, and the clock on the wall.

    python benchmarks/placement.py [--sizes 100,1000] [--strategies best_fit,pack] [--openb DIR]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from _baselines import Baseline, NaiveNumpy, NumpyByPlanes, PlainLoop
from _cluster import SEED, gpus_asked, gpus_of, nodes_of, requests_of

from gridhand import Grid, Node
from gridhand.core.errors import NoRoom
from gridhand.core.ledger.allocations import Move
from gridhand.core.ledger.ledger import Ledger, Placement, Terms
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources
from gridhand.core.placement.place import place
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import NOWHERE, STRATEGIES, Strategy

SIZES = (100, 1_000, 10_000, 100_000)
LARGE = 100_000  # at this size, only these unless others are named
AT_LARGE = ("best_fit", "first_available", "fragmentation", "pack")
LEDGER_SIZE = 10_000
LEDGER_STRATEGIES = ("best_fit", "default")  # the default is fragmentation where there are GPUs
LOAD = 0.5
ROUNDS = 3
TERMS = Terms("bench")

Figures = dict[str, float]  # rate per second, p50 and p99 in microseconds


# ---- one strategy


class Cluster:
    """A ledger, the strategy that fills it, and the requests that come."""

    def __init__(self, nodes: list[Node], strategy: Strategy, requests: Sequence[Request]) -> None:
        self.ledger = Ledger()
        for node in nodes:
            self.ledger.register(node)
        self.ledger.settle()
        self.snapshot = Snapshot(self.ledger)
        self.strategy, self.requests = strategy, requests
        self.chance = random.Random(SEED)
        self.ids: list[str] = []
        self.total = gpus_of(nodes)
        self.refused = 0

    def fill(self) -> None:
        held, refused = 0, 0
        while held < LOAD * self.total:
            asked = self.chance.choice(self.requests)
            self.snapshot.learn(asked)
            placed = place(asked, self.snapshot, self.strategy)
            if isinstance(placed, Placement):
                self.ids.append(self.ledger.grant([placed], TERMS, now=0)[0].id)
                held += gpus_asked(asked)
            else:
                refused += 1
                assert refused < 1000 + len(self.ids), "the cluster cannot be filled so far"
            self.ledger.settle()

    def decide(self, asked: Request) -> None:
        """One decision. What fits nowhere is dropped, and nothing is released in its place."""
        ledger, ids = self.ledger, self.ids
        self.snapshot.learn(asked)
        placed = place(asked, self.snapshot, self.strategy)
        if isinstance(placed, Placement):
            ids.append(ledger.grant([placed], TERMS, now=0)[0].id)
            number = int(self.chance.random() * len(ids))
            ids[number], ids[-1] = ids[-1], ids[number]
            ledger.move(ids.pop(), Move.RELEASE, now=0)
        else:
            self.refused += 1
        ledger.settle()


def timed(
    decide: Callable[[Request], object],
    requests: Sequence[Request],
    clock: Callable[[], float] = time.thread_time,
) -> list[float]:
    """How long each took: on the processor, since waiting for it is not placement's doing."""
    times = []
    for asked in requests:
        begun = clock()
        decide(asked)
        times.append(clock() - begun)
    return times


def figures(rounds: Sequence[list[float]]) -> Figures:
    """The median over the rounds, of each figure."""
    found: dict[str, list[float]] = {"rate": [], "p50_us": [], "p99_us": []}
    for times in rounds:
        ordered = sorted(times)
        found["rate"].append(len(times) / sum(times))
        found["p50_us"].append(1e6 * ordered[len(times) // 2])
        found["p99_us"].append(1e6 * ordered[int(0.99 * len(times))])
    return {name: statistics.median(values) for name, values in found.items()}


def new_classes(requests: Sequence[Request], count: int, chance: random.Random) -> list[Request]:
    """Requests like the others, each with a few ten-thousandths of a CPU more than any before."""
    known = {(asked.amounts, asked.gpu) for asked in requests}
    made: list[Request] = []
    more = 0
    while len(made) < count:
        more += 1
        like = chance.choice(requests)
        amounts = Resources({**like.amounts.parts(), "cpu": like.amounts["cpu"] + more})
        if (amounts, like.gpu) not in known:
            known.add((amounts, like.gpu))
            made.append(Request(amounts, like.gpu))
    return made


@contextmanager
def settled_garbage() -> Iterator[None]:
    """What lives long is not looked through again; the collector itself stays as it is."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


# ---- one size


class Comparison:
    """Everything at one size: the strategies one after the other, and numpy between the rounds."""

    def __init__(self, size: int, requests: Sequence[Request], decisions: int) -> None:
        self.size, self.requests, self.decisions = size, requests, decisions
        self.nodes = nodes_of(size)
        self.chance = random.Random(size)
        self.baselines: dict[str, Baseline] = {}
        self.found: dict[str, dict[str, Figures]] = {}

    def run(self, strategies: Sequence[str]) -> dict[str, dict[str, Figures]]:
        first = self._filled("best_fit")
        self._begin(first)
        for name in sorted(strategies, key=lambda name: name != "best_fit"):
            cluster = first if name == "best_fit" else self._filled(name)
            first = None  # one of them at a time is enough to remember
            say(f"{self.size:,} nodes: {name} decides")
            with settled_garbage():
                self.found[name] = self._measure(cluster)
        return self.found

    def _filled(self, name: str) -> Cluster:
        cluster = Cluster(self.nodes, STRATEGIES[name], self.requests)
        begun = time.perf_counter()
        cluster.fill()
        seconds = time.perf_counter() - begun
        say(f"{self.size:,} nodes: {name} put {len(cluster.ids):,} there in {seconds:.1f} s")
        return cluster

    def _begin(self, cluster: Cluster) -> None:
        """Start the baselines from what best_fit left, and see that they decide as it does."""
        kinds = {"naive numpy": NaiveNumpy, "by planes": NumpyByPlanes, "plain loop": PlainLoop}
        self.baselines = {name: kind(cluster.ledger) for name, kind in kinds.items()}
        for asked in self.chance.sample(self.requests, 40 if self.size < LARGE else 10):
            for name, baseline in self.baselines.items():
                assert agrees(baseline, cluster, asked), f"{name} decides otherwise: {asked}"

    def _measure(self, cluster: Cluster) -> dict[str, Figures]:
        rounds: dict[str, list[list[float]]] = {}
        first = not self.found
        fresh = new_classes(self.requests, ROUNDS * self._count(2_000_000), self.chance)
        for _ in range(ROUNDS):
            for name, baseline in self.baselines.items():
                loop = isinstance(baseline, PlainLoop)
                if first or not loop:
                    asked = self._draw(self._count(100_000 if loop else 2_000_000))
                    decide = deciding(baseline, self.chance)
                    rounds.setdefault(name, []).append(timed(decide, asked))
            asked = self._draw(self.decisions)
            rounds.setdefault("known", []).append(timed(cluster.decide, asked))
        refused = cluster.refused / (ROUNDS * self.decisions)
        part = len(fresh) // ROUNDS
        for start in range(0, len(fresh), part):  # last, because they drive known ones out
            times = timed(cluster.decide, fresh[start : start + part])
            rounds.setdefault("new", []).append(times)
        found = {name: figures(times) for name, times in rounds.items()}
        found["known"]["refused"] = refused
        return found

    def _draw(self, count: int) -> list[Request]:
        return self.chance.choices(self.requests, k=count)

    def _count(self, rows: int) -> int:
        """As many decisions as look at so many nodes, within reason."""
        return max(5 if rows <= LARGE else 100, min(self.decisions, rows // self.size, 500))


def agrees(baseline: Baseline, cluster: Cluster, asked: Request) -> bool:
    """Whether it chooses a node that is best for us too, and there the devices that we would."""
    scores = cluster.snapshot.scores(asked, cluster.strategy)
    best, row = max(scores), baseline.choose(asked)
    if row is None:
        return best == NOWHERE
    held = baseline.take(row, asked)
    baseline.give(held)
    ours = cluster.snapshot.use(row).room(asked, {})
    indexes = [int(one.device.rpartition("/")[2]) for one in ours or ()]
    return abs(scores[row] - best) < 1e-9 and indexes == held.devices


def deciding(baseline: Baseline, chance: random.Random) -> Callable[[Request], object]:
    return lambda asked: baseline.decide(asked, chance)


# ---- through the ledger


def through_ledger(
    size: int, strategy: str, requests: Sequence[Request], decisions: int
) -> Figures:
    """Allocate and release by way of `Grid.in_memory`, half full."""
    nodes, chance = nodes_of(size), random.Random(SEED)
    ids: list[str] = []
    with Grid.in_memory(strategy=strategy, owner="bench") as grid:
        grid.register_nodes(nodes)

        def allocate(asked: Request) -> bool:
            try:
                ids.append(grid.allocate(asked).id)
            except NoRoom:
                return False
            return True

        def decide(asked: Request) -> None:
            if allocate(asked):
                number = int(chance.random() * len(ids))
                ids[number], ids[-1] = ids[-1], ids[number]
                grid.release(ids.pop())

        held, total = 0, gpus_of(nodes)
        begun = time.perf_counter()
        while held < LOAD * total:
            asked = chance.choice(requests)
            held += gpus_asked(asked) if allocate(asked) else 0
        seconds = time.perf_counter() - begun
        say(f"{size:,} nodes: {strategy} put {len(ids):,} there by the ledger in {seconds:.1f} s")
        with settled_garbage():
            begun = time.process_time()
            rounds = [
                timed(decide, chance.choices(requests, k=decisions), time.perf_counter)
                for _ in range(ROUNDS)
            ]
            busy = time.process_time() - begun
        violations = grid.check()
    assert not violations, violations[:3]
    return {**figures(rounds), "cpu_us": 1e6 * busy / (ROUNDS * decisions)}


# ---- the report


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


Found = dict[int, dict[str, dict[str, Figures]]]


def speed_up(found: Found, size: int, strategy: str, baseline: str) -> float:
    of = found[size][strategy]
    return of["known"]["rate"] / of[baseline]["rate"]


def report_size(size: int, of: dict[str, dict[str, Figures]]) -> None:
    print(f"\n{size:,} nodes, half full; microseconds, of decisions with their release")
    print(
        f"{'':<17}{'per second':>11}{'p50':>8}{'p99':>9}{'new: p50':>10}{'p99':>9}"
        f"{'x numpy':>9}{'x planes':>9}{'refused':>9}"
    )
    for name, found in of.items():
        known, new = found["known"], found["new"]
        ratios = [known["rate"] / found[base]["rate"] for base in ("naive numpy", "by planes")]
        print(
            f"{name:<17}{known['rate']:>11,.0f}{known['p50_us']:>8,.0f}{known['p99_us']:>9,.0f}"
            f"{new['p50_us']:>10,.0f}{new['p99_us']:>9,.0f}{ratios[0]:>9.2f}{ratios[1]:>9.2f}"
            f"{known['refused']:>9.1%}"
        )
    first = next(iter(of.values()))
    for name in ("naive numpy", "by planes", "plain loop"):
        found_by = first[name]
        print(
            f"{name:<17}{found_by['rate']:>11,.0f}{found_by['p50_us']:>8,.0f}"
            f"{found_by['p99_us']:>9,.0f}"
        )


def reached(found: Found, ledger: dict[str, Figures]) -> list[tuple[str, str, str, bool]]:
    """What was to be reached, what was, and whether that is enough."""
    rows: list[tuple[str, str, str, bool]] = []
    for size, aim in ((1_000, 1.0), (10_000, 10.0)):
        for name in ("best_fit", "pack"):
            if name in found.get(size, {}):
                times = speed_up(found, size, name, "naive numpy")
                what = f"{name} vs naive numpy at {size:,}"
                rows.append((what, f"{times:.1f}x", f"at least {aim:g}x", times >= aim))
    at = found.get(10_000, {})
    if "fragmentation" in at:
        p99 = at["fragmentation"]["known"]["p99_us"] / 1000
        rows.append(("fragmentation at 10,000, p99", f"{p99:.2f} ms", "under 1 ms", p99 < 1))
        if "best_fit" in at:
            # Each against numpy's rounds beside it: the machine is not always equally fast.
            one, other = (
                speed_up(found, 10_000, name, "naive numpy")
                for name in ("best_fit", "fragmentation")
            )
            cost = one / other
            what = "fragmentation, cost in best_fits at 10,000"
            rows.append((what, f"{cost:.1f}x", "at most 5x", cost <= 5))
    for name, large in found.get(100_000, {}).items():
        if name in found.get(1_000, {}):
            growth = found[1_000][name]["known"]["rate"] / large["known"]["rate"]
            what = f"{name}, cost from 1,000 to 100,000"
            rows.append((what, f"{growth:.1f}x", "at most 10x", growth <= 10))
    for name, through in ledger.items():
        p50, p99 = through["p50_us"] / 1000, through["p99_us"] / 1000
        what = f"{name} through the ledger, p50 and p99"
        rows.append((what, f"{p50:.2f} and {p99:.2f} ms", "under 10 ms", p99 < 10))
    return rows


def report(found: Found, ledger: dict[str, Figures], ledger_size: int) -> None:
    for size, of in found.items():
        report_size(size, of)
    if ledger:
        print(f"\nthrough the ledger, {ledger_size:,} nodes, half full: allocate + release")
        print(f"{'':<17}{'per second':>11}{'p50':>8}{'p99':>9}{'busy':>10}")
    for name, of in ledger.items():
        print(
            f"{name:<17}{of['rate']:>11,.0f}{of['p50_us']:>8,.0f}{of['p99_us']:>9,.0f}"
            f"{of['cpu_us']:>10,.0f}"
        )
    print("\nreach")
    for what, was, aim, enough in reached(found, ledger):
        print(f"{'yes' if enough else 'NO':<5}{what}: {was} ({aim})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--strategies", help="by default all, and fewer with 100,000 nodes")
    parser.add_argument("--decisions", type=int, default=1000, help="in each of the rounds")
    parser.add_argument("--openb", default=os.environ.get("GRIDHAND_OPENB"), help="folder of it")
    parser.add_argument("--no-ledger", action="store_true", help="leave the last part out")
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    named = options.strategies.split(",") if options.strategies else None
    if unknown := set(named or ()) - STRATEGIES.keys():
        parser.error(f"no strategy is called {', '.join(sorted(unknown))}")
    requests, mix = requests_of(options.openb, nodes_of(100))
    if not options.json:
        print(f"mix: {mix}")
    found: Found = {}
    for size in sizes:
        chosen = named or (AT_LARGE if size >= LARGE else sorted(STRATEGIES))
        found[size] = Comparison(size, requests, options.decisions).run(chosen)
    ledger: dict[str, Figures] = {}
    ledger_size = max([size for size in sizes if size <= LEDGER_SIZE], default=0)
    for name in LEDGER_STRATEGIES if ledger_size and not options.no_ledger else ():
        ledger[name] = through_ledger(ledger_size, name, requests, options.decisions)
    if options.json:
        print(json.dumps({"mix": mix, "sizes": found, "ledger": ledger}))
    else:
        report(found, ledger, ledger_size)


if __name__ == "__main__":
    main()
