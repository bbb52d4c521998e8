"""A past of ten million events, made by the database itself, in seconds.

It is lawful: `grid check` would pass it. `tests/store/test_scale_events.py` gives it to SQLite,
`tests/store/sql/test_postgres_scale.py` to PostgreSQL.
"""

import asyncio
import statistics
import time
from pathlib import Path

from gridhand import AsyncGrid, Grid, Node

PAIRS = 5_000_000
PRUNED = 200_000
STEP = 5_000
CALLERS = 50
NODES = [Node.of(f"n{index}", cpu=1000, memory="1TB") for index in range(4)]

# What `rows.allocation_json` gives, for a format of PostgreSQL's or of SQLite's.
ROW = (
    '{"id":"a1-%s","number":%s,"epoch":1,"owner":"ann","holder":"a1-%s","node":"n%s",'
    '"amounts":{"cpu":10000,"memory":100},"devices":[],"state":"%s","lifetime":"until_released",'
    '"deadline":null,"ttl":null,"group":null,"asked":null,"quality":null,"made_at":%s}'
)


def past_statements(pairs, now, numbers, function):
    """Allocations that were made and released: `pairs` of them, one event every millisecond.

    `numbers(n)` is SQL that gives a column i from 1 to n; `function` fills a row in.
    """
    start, pair = now - 2 * pairs, "((i + 1) / 2)"
    state = "CASE i % 2 WHEN 1 THEN 'active' ELSE 'released' END"
    made = f"{start} + 2 * {pair}"
    row = f"{function}('{ROW}', {pair}, {pair}, {pair}, {pair} % 4, {state}, {made})"
    allocations = (
        "INSERT INTO allocations SELECT i, 1, 'ann', 'a1-' || i, 'n' || (i % 4), NULL,"
        """ '{"cpu":10000,"memory":100}', '[]', 'released', 'until_released', NULL, NULL,"""
        f" NULL, NULL, NULL, {start} + 2 * i FROM {numbers(pairs)}"
    )
    events = (
        f"INSERT INTO events SELECT {len(NODES)} + i, {start} + 1 + i, 'allocation.' || {state},"
        f" 'a1-' || {pair}, 'ann', NULL, '', {row} FROM {numbers(2 * pairs)}"
    )
    meta = f"UPDATE gridhand_meta SET next_number = {pairs + 1}, high_water_ms = {now}"
    return allocations, events, meta


def furnish(url):
    with Grid.at(url, owner="ann") as grid:
        grid.register_nodes(NODES)


def long_ago(pairs, now):
    """The nodes were there when the past began."""
    return f"UPDATE events SET at = {now - 2 * pairs}"


def pairs_per_second(grid, seconds):
    """Allocate + release by many asyncio callers."""

    async def call(agrid, deadline):
        count = 0
        while time.perf_counter() < deadline:
            await agrid.release(await agrid.allocate(cpu=1, memory=100))
            count += 1
        return count

    async def main():
        agrid = AsyncGrid.of(grid)
        start = time.perf_counter()
        counts = await asyncio.gather(*(call(agrid, start + seconds) for _ in range(CALLERS)))
        return sum(counts) / (time.perf_counter() - start)

    return asyncio.run(main())


def one_decision_ms(grid):
    """The median time of one allocation by one caller."""
    took = []
    for _ in range(200):
        start = time.perf_counter()
        held = grid.allocate(cpu=1)
        took.append(time.perf_counter() - start)
        held.release()
    return statistics.median(took) * 1000


def compare(name, empty_url, full_url, seconds=3.0, rounds=3):
    """Rates with a past and without, taken in turns; prints them, and returns the ratio."""
    rates = {"empty": [], "full": []}
    start = time.perf_counter()
    with Grid.at(empty_url, owner="ann") as empty, Grid.at(full_url, owner="ann") as full:
        opened_s = time.perf_counter() - start
        for _ in range(rounds):
            rates["empty"].append(pairs_per_second(empty, seconds))
            rates["full"].append(pairs_per_second(full, seconds))
        single = one_decision_ms(empty), one_decision_ms(full)
        assert full.check() == []
    few, many = (statistics.median(rates[which]) for which in ("empty", "full"))
    print(
        f"\n{name}: {many:,.0f} pairs/s with {2 * PAIRS:,} events, {few:,.0f} without:"
        f" {many / few:.2f}; one allocation {single[1]:.2f} ms, {single[0]:.2f} without;"
        f" both opened in {opened_s:.2f} s"
    )
    return many / few


def prune_some(name, url, now):
    """Forget the oldest events, step by step; prints them, and returns what a step takes.

    First when little is old, then when nothing is, then a few steps when nearly everything is.
    """
    # An event every millisecond, `now` the last: so many are older than this.
    age_s = (2 * PAIRS - PRUNED) / 1000 + (time.time() - now / 1000)
    with Grid.at(url, owner="ann") as grid:
        medians = [
            _prune(f"{name}, {PRUNED:,} are old", grid, age_s, 100),
            _prune(f"{name}, nothing is old", grid, age_s + 3600, 100),
            _prune(f"{name}, nearly all are old", grid, 60 + time.time() - now / 1000, 4),
        ]
    return max(medians)


def _prune(name, grid, age_s, most_steps):
    before, steps, memory, left, start = _memory_mb(), [], [], 0, time.perf_counter()
    for left in grid.prune(age_s, most=STEP):  # noqa: B007 - the last one is shown
        steps.append(time.perf_counter() - start)
        memory.append(_memory_mb())
        start = time.perf_counter()
        if len(steps) == most_steps:
            break
    print(
        f"\n{name}: {len(steps)} steps of {STEP:,} events in {sum(steps):.1f} s, median"
        f" {statistics.median(steps) * 1000:.0f} ms, longest {max(steps) * 1000:.0f} ms, {left:,}"
        f" left; memory from {before:.0f} to at most {max(memory):.0f} MB"
    )
    assert max(memory) < before + 200
    return statistics.median(steps)


def _memory_mb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))
