"""The past does not slow the present, and forgetting it disturbs nobody (rows 29 and 30).

Small in the normal suite, to see that it works; with the marker `soak` as large as promised, with
figures. Each figure is a ratio of, or a time from, one run on one machine.
"""

import asyncio
import resource
import statistics
import threading
import time
import tracemalloc

import pytest

from gridhand import AsyncGrid, Grid
from gridhand.core.ledger.allocations import Allocation, AllocationState, Lifetime
from gridhand.core.ledger.ledger import Change
from gridhand.core.model.nodes import Node
from gridhand.core.model.resources import Resources
from gridhand.store.base import Batch, StoredOperation
from gridhand.store.urls import store_at

START = 1_600_000_000_000  # long ago
CPU = Resources.of(cpu=0.01)


class Past:
    """Writes history straight into a store, as a keeper would have, only faster."""

    def __init__(self, path):
        self.path = path
        self.store = store_at(str(path))
        self.epoch = self.store.open().epoch
        self.number = self.store.load().next_number
        self.at = START

    def nodes(self, count):
        made = [Node.of(f"n{index:05}", cpu=64, memory="256GB") for index in range(count)]
        for start in range(0, count, 2_000):
            some = made[start : start + 2_000]
            self._commit([Change("node.registered", node.name, None, node, "") for node in some])
        return self

    def allocations(self, count, *, live=False, nodes=1):
        """Each with the operation that asked for it; unless `live`, released at once."""
        for start in range(0, count, 1_000):
            changes, operations = [], []
            for index in range(start, min(count, start + 1_000)):
                held = self._held(f"n{index % nodes:05}")
                changes.append(Change("allocation.active", held.id, None, held, ""))
                operations.append(StoredOperation("ann", f"op-{held.number}", "b" * 64, "[]"))
                if not live:
                    ended = held._replace(state=AllocationState.RELEASED)
                    changes.append(Change("allocation.released", held.id, held, ended, ""))
            self._commit(changes, operations)
        return self

    def _held(self, node):
        number, self.number = self.number, self.number + 1
        id = f"a{self.epoch}-{number}"
        return Allocation(
            id, number, self.epoch, "ann", id, node, CPU, (), AllocationState.ACTIVE,
            Lifetime.UNTIL_RELEASED, None, None, None, None, None, self.at,
        )  # fmt: skip

    def _commit(self, changes, operations=()):
        self.at += 1_000
        entries = [(change, "ann", None) for change in changes]
        self.store.commit(Batch(self.at, entries, list(operations)))

    def close(self):
        self.store.close()
        return str(self.path)


async def pairs_per_second(grid, *, seconds, tasks=50):
    """How many allocations are made and released, durably."""
    done = 0
    began = time.monotonic()

    async def work():
        nonlocal done
        while time.monotonic() < began + seconds:
            held = await grid.allocate(CPU)
            await held.release()
            done += 1

    await asyncio.gather(*(work() for _ in range(tasks)))
    return done / (time.monotonic() - began)


async def measure(full, empty, *, rounds, seconds):
    async with AsyncGrid.at(full) as one, AsyncGrid.at(empty) as other:
        for grid in (one, other):  # both are to be warm
            await pairs_per_second(grid, seconds=seconds)
        return [
            (
                await pairs_per_second(one, seconds=seconds),
                await pairs_per_second(other, seconds=seconds),
            )
            for _ in range(rounds)
        ]


def compare(full, empty, **how):
    """The median ratio of pairs per second, measured in turns, and the median of the first."""
    found = asyncio.run(measure(full, empty, **how))
    ratio = statistics.median(one / other for one, other in found)
    return ratio, statistics.median(one for one, _ in found)


def two_stores(tmp_path, count):
    full = Past(tmp_path / "full.db").nodes(4).allocations(count, nodes=4).close()
    return full, Past(tmp_path / "empty.db").nodes(4).close()


def test_a_little_past_does_not_slow_the_present(tmp_path):
    ratio, _ = compare(*two_stores(tmp_path, 5_000), rounds=3, seconds=0.15)
    assert ratio > 0.3  # only to see that it is measured: the machine may be busy


@pytest.mark.soak
def test_a_million_past_allocations_do_not_slow_the_present(tmp_path):
    began = time.monotonic()
    stores = two_stores(tmp_path, 1_000_000)
    took = time.monotonic() - began
    ratio, rate = compare(*stores, rounds=7, seconds=1.5)
    print(
        f"\nafter 1,000,000 past allocations (made in {took:.0f} s): {rate:,.0f} pairs/s,"
        f" {ratio:.2f} of an empty store's (wanted: 0.8)"
    )
    assert ratio > 0.5


# ---- starting


def start_up(tmp_path, nodes, live):
    path = Past(tmp_path / "live.db").nodes(nodes).allocations(live, live=True, nodes=nodes).close()
    began = time.monotonic()
    with Grid.at(path) as grid:
        took = time.monotonic() - began
        held = grid.allocate(cpu=1)
        assert held.fence[1] == live + 1
        assert len(grid.allocations()) == live + 1
    return took


def test_everything_live_is_there_after_a_start(tmp_path):
    start_up(tmp_path, 50, 2_000)


@pytest.mark.soak
def test_a_large_cluster_starts_within_seconds(tmp_path):
    took = start_up(tmp_path, 10_000, 100_000)
    print(f"\n10,000 nodes and 100,000 live allocations: started in {took:.2f} s (promised: 5)")
    assert took < 5


# ---- forgetting


class Caller:
    """Somebody who allocates and releases all the time, and notes how long each pair took."""

    def __init__(self, grid):
        self._grid, self._stop = grid, threading.Event()
        self.took = []
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._stop.is_set():
            began = time.monotonic()
            self._grid.allocate(CPU).release()
            self.took.append(time.monotonic() - began)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def forget(tmp_path, past, *, most, measured=True):
    """Prune all of the past in steps, with a caller beside it. Measuring memory slows it down."""
    path = Past(tmp_path / "past.db").nodes(1).allocations(past).close()
    served, steps = [], []
    with Grid.at(path) as grid, Caller(grid) as caller:
        while not caller.took:
            time.sleep(0.001)
        before = len(caller.took)
        if measured:
            tracemalloc.start()
        for left in grid.prune(3600, most=most):
            steps.append(left)
            served.append(len(caller.took))
        peak = tracemalloc.get_traced_memory()[1] if measured else 0
        tracemalloc.stop()
        took = list(caller.took)
        assert grid.events(limit=1)[0].at > START + 10**9
        assert grid.check() == []
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == 0
    assert len(steps) >= (2 * past + 1) // most
    return steps, peak, served[-1] - before, max(took)


def test_forgetting_takes_small_steps_between_which_others_are_served(tmp_path):
    steps, peak, served, _ = forget(tmp_path, 3_000, most=200)
    assert len(steps) in (31, 32)
    assert served >= 5
    assert peak < 4_000_000


def test_what_is_forgotten_is_gone_from_the_file_too(tmp_path):
    past = Past(tmp_path / "past.db").nodes(1).allocations(2_000)
    store = past.store
    while store.prune(before=past.at + 1, most=700):
        pass
    assert store.events() == []
    assert store.find(range(1, 2_001)) == []
    assert store.operations([("ann", f"op-{number}") for number in range(1, 2_001)]) == []
    assert [row["name"] for row in store.checkpoint()] == ["n00000"]
    past.close()


@pytest.mark.soak
def test_forgetting_two_hundred_thousand_events_is_bounded(tmp_path):
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps, peak, _, _ = forget(tmp_path / "one", 100_000, most=5_000)
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss
    _, _, served, longest = forget(tmp_path / "two", 100_000, most=5_000, measured=False)
    print(
        f"\n200,000 events forgotten in {len(steps)} steps: {peak / 1e6:.1f} MB at the peak,"
        f" RSS +{more / 1e3:.0f} MB; {served} calls served meanwhile, the longest in"
        f" {longest * 1e3:.0f} ms"
    )
    assert peak < 60_000_000
    assert served >= len(steps) // 2


@pytest.mark.soak
def test_forgetting_nothing_costs_nothing_however_much_there_is(tmp_path):
    """What is too young to go must not be read to find that out."""
    path = Past(tmp_path / "past.db").nodes(1).allocations(500_000).close()
    with Grid.at(path) as grid:
        took = []
        for _ in range(5):
            began = time.monotonic()
            assert list(grid.prune(9 * 366 * 86_400, most=1_000)) == [0]
            took.append(time.monotonic() - began)
    print(f"\npruning nothing out of 1,000,000 events: {statistics.median(took) * 1e3:.1f} ms")
    assert statistics.median(took) < 0.05
