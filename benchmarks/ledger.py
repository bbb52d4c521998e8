"""Durable allocate + release pairs per second, beside what the same disk and SQLite do by hand.

Compared in one run, on one disk, all with WAL and `synchronous=FULL`:

  fdatasync   a 4 KiB write and its sync: the floor under every durable commit
  by hand (a) a pair as two transactions of three guarded statements, one commit each
  by hand (b) the same statements, 100 transactions to a commit
  grid        `Grid.at` with 1, 10 and 200 callers, as threads and as asyncio tasks

By hand there are no rules, no names, no devices, no deadlines and no undo: it is the limit. The
rounds alternate, and medians are shown, because other work on the machine comes and goes.

    python benchmarks/ledger.py [--seconds 2] [--rounds 3] [--past 0] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gridhand import AsyncGrid, Grid, Node

CALLERS = (1, 10, 200)
NODES = [Node.of(f"n{index}", cpu=1000, memory="1TB") for index in range(4)]


# ---- the limits


def fdatasyncs(folder: Path, seconds: float) -> float:
    descriptor = os.open(folder / "sync", os.O_CREAT | os.O_RDWR)
    block, count, start = b"x" * 4096, 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        os.pwrite(descriptor, block, count % 256 * 4096)
        os.fdatasync(descriptor)
        count += 1
    os.close(descriptor)
    return count / (time.perf_counter() - start)


class ByHand:
    """The least that a guarded, durable pair can be: a counter, a row and an event."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE nodes (name TEXT PRIMARY KEY, free INTEGER CHECK (free >= 0))",
            """CREATE TABLE allocations (number INTEGER PRIMARY KEY, owner TEXT, holder TEXT,
            node TEXT, state TEXT, amounts TEXT)""",
            "CREATE TABLE events (number INTEGER PRIMARY KEY, at INTEGER, kind TEXT, row TEXT)",
            "INSERT INTO nodes VALUES ('n0', 10000000)",
        ):
            self.db.execute(statement)
        self.number = 0

    def allocate(self) -> int:
        self.number += 1
        number, run = self.number, self.db.execute
        row = (number, "ann", f"a1-{number}", "n0", "active", '{"cpu":10000}')
        taken = run("UPDATE nodes SET free = free - 10000 WHERE name = 'n0' AND free >= 10000")
        assert taken.rowcount == 1
        run("INSERT INTO allocations VALUES (?, ?, ?, ?, ?, ?)", row)
        run(
            "INSERT INTO events VALUES (?, ?, ?, ?)",
            (2 * number, 1_700_000_000_000, "allocation.active", json.dumps(row)),
        )
        return number

    def release(self, number: int) -> None:
        run = self.db.execute
        ended = run(
            "UPDATE allocations SET state = 'released' WHERE number = ? AND state = 'active'",
            (number,),
        )
        assert ended.rowcount == 1
        run("UPDATE nodes SET free = free + 10000 WHERE name = 'n0'")
        run(
            "INSERT INTO events VALUES (?, ?, ?, ?)",
            (2 * number + 1, 1_700_000_000_000, "allocation.released", json.dumps([number])),
        )

    def pairs(self, seconds: float, per_commit: int) -> float:
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            if per_commit == 1:
                number = self._committed(self.allocate)
                self._committed(lambda number=number: self.release(number))
                count += 1
            else:
                self.db.execute("BEGIN IMMEDIATE")
                numbers = [self.allocate() for _ in range(per_commit // 2)]
                for number in numbers:
                    self.release(number)
                self.db.execute("COMMIT")
                count += len(numbers)
        return count / (time.perf_counter() - start)

    def _committed(self, transaction: Callable[[], int | None]) -> int:
        self.db.execute("BEGIN IMMEDIATE")
        number = transaction()
        self.db.execute("COMMIT")
        return number or 0


# ---- the grid


def threads(grid: Grid, callers: int, seconds: float) -> float:
    counts = [0] * callers
    begin = threading.Barrier(callers + 1)
    deadline = 0.0

    def call(index: int) -> None:
        begin.wait()
        while time.perf_counter() < deadline:
            grid.release(grid.allocate(cpu=1, memory=100))
            counts[index] += 1

    pool = [threading.Thread(target=call, args=(index,)) for index in range(callers)]
    for thread in pool:
        thread.start()
    start = time.perf_counter()
    deadline = start + seconds
    begin.wait()
    for thread in pool:
        thread.join()
    return sum(counts) / (time.perf_counter() - start)


def tasks(grid: Grid, callers: int, seconds: float) -> float:
    async def call(agrid: AsyncGrid, deadline: float) -> int:
        count = 0
        while time.perf_counter() < deadline:
            await agrid.release(await agrid.allocate(cpu=1, memory=100))
            count += 1
        return count

    async def main() -> float:
        agrid = AsyncGrid.of(grid)
        start = time.perf_counter()
        counts = await asyncio.gather(*(call(agrid, start + seconds) for _ in range(callers)))
        return sum(counts) / (time.perf_counter() - start)

    return asyncio.run(main())


# ---- the run


def measure(folder: Path, seconds: float, rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    hand_a, hand_b = ByHand(folder / "a.db"), ByHand(folder / "b.db")
    with Grid.at(str(folder / "grid.db")) as grid:
        grid.register_nodes(NODES)
        cases: dict[str, Callable[[], float]] = {
            "fdatasync": lambda: fdatasyncs(folder, seconds / 2),
            "by hand (a)": lambda: hand_a.pairs(seconds, 1),
            "by hand (b)": lambda: hand_b.pairs(seconds, 100),
        }
        for count in CALLERS:
            cases[f"threads {count}"] = lambda count=count: threads(grid, count, seconds)
            cases[f"asyncio {count}"] = lambda count=count: tasks(grid, count, seconds)
        for number in range(rounds):
            for name, case in cases.items():
                print(f"\rround {number + 1}/{rounds}: {name:<14}", end="", flush=True)
                found.setdefault(name, []).append(case())
        violations = grid.check()
    print("\r" + " " * 40 + "\r", end="")
    assert not violations, violations
    return {name: statistics.median(rates) for name, rates in found.items()}


REACH = {
    "asyncio 200": ("by hand (b)", 0.5),
    "threads 200": ("by hand (b)", 0.15),
    "asyncio 10": ("by hand (a)", 4.0),
    "threads 10": ("by hand (a)", 4.0),
}


def report(rates: dict[str, float]) -> None:
    a, b = rates["by hand (a)"], rates["by hand (b)"]
    print(f"{'':<14}{'per second':>12}{'x (a)':>9}{'x (b)':>9}   reach")
    for name, rate in rates.items():
        base, aim = REACH.get(name, ("", 0.0))
        aimed = f"{aim} x {base[-3:]}: {rate / rates[base] / aim:.0%} of it" if base else ""
        if name == "fdatasync":
            print(f"{name:<14}{rate:>12,.0f}")
        else:
            print(f"{name:<14}{rate:>12,.0f}{rate / a:>9.2f}{rate / b:>9.3f}   {aimed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=2.0, help="per case and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where to write; a disk, not a tmpfs")
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder or ".") as folder:
        rates = measure(Path(folder), options.seconds, options.rounds)
    if options.json:
        print(json.dumps(rates))
    else:
        report(rates)


if __name__ == "__main__":
    main()
