"""Ten million events behind it, a store is as fast as an empty one (row 29), on SQLite."""

import contextlib
import sqlite3
import time

import pytest

import long_past as scale
from gridhand import Grid
from gridhand.store.reader import audit


def give_a_past(path, pairs, now):
    scale.furnish(path)

    def numbers(most):
        counting = f"SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {most}"
        return f"(WITH RECURSIVE n(i) AS ({counting}) SELECT i FROM n)"

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(scale.long_ago(pairs, now))
        for statement in scale.past_statements(pairs, now, numbers, "printf"):
            connection.execute(statement)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def test_the_past_that_is_made_up_is_lawful(tmp_path):
    path = str(tmp_path / "grid.db")
    give_a_past(path, 50, time.time_ns() // 1_000_000)
    with Grid.at(path, owner="ann") as grid:
        grid.allocate(cpu=1)
        assert grid.release("a1-7").state == "released"
        assert list(grid.prune(0.05, most=30))[-1] == 0
    report = audit(path)
    assert report.violations == []
    assert report.live == 1


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ten_million_events_do_not_slow_sqlite_down(tmp_path):
    empty, full = tmp_path / "empty.db", tmp_path / "full.db"
    try:
        scale.furnish(str(empty))
        now, start = time.time_ns() // 1_000_000, time.perf_counter()
        give_a_past(str(full), scale.PAIRS, now)
        took, size = time.perf_counter() - start, full.stat().st_size
        print(f"\nmade in {took:.0f} s, {size / 10**9:.1f} GB")
        ratio = scale.compare("SQLite", str(empty), str(full))
        start = time.perf_counter()
        with contextlib.closing(sqlite3.connect(full)) as plain:
            plain.execute("SELECT max(length(subject)) FROM events").fetchone()
        scan = time.perf_counter() - start
        step = scale.prune_some("SQLite", str(full), now)
    finally:
        for made in tmp_path.iterdir():
            made.unlink()
    assert ratio >= 0.5
    assert step < scan  # one that looked at all there is would take longer
