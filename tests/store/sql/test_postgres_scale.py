"""Ten million events behind it, a store is as fast as an empty one (row 29), on PostgreSQL.

`tests/store/test_scale_events.py` does the same on SQLite.
"""

import time

import pytest

from gridhand import Grid
from gridhand.store.reader import audit
from long_past import PAIRS, compare, furnish, long_ago, past_statements, prune_some
from postgres_server import Server, sql


def give_a_past(url, pairs, now):
    furnish(url)
    sql(url, long_ago(pairs, now))

    def numbers(most):
        return f"generate_series(1::bigint, {most}) AS i"

    for statement in past_statements(pairs, now, numbers, "format"):
        sql(url, statement)


def test_the_past_that_is_made_up_is_lawful(database):
    give_a_past(database, 50, time.time_ns() // 1_000_000)
    with Grid.at(database, owner="ann") as grid:
        grid.allocate(cpu=1)
        assert grid.release("a1-7").state == "released"
        assert list(grid.prune(0.05, most=30))[-1] == 0
    report = audit(database)
    assert report.violations == []
    assert report.live == 1


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("postgres")
def test_ten_million_events_do_not_slow_postgresql_down():
    settings = {
        "fsync": "on", "wal_level": "minimal", "max_wal_senders": "0", "max_wal_size": "2GB",
        "shared_buffers": "512MB", "autovacuum": "off",
    }  # fmt: skip
    with Server(**settings) as server:
        empty, full = server.new_database(), server.new_database()
        furnish(empty)
        now, start = time.time_ns() // 1_000_000, time.perf_counter()
        give_a_past(full, PAIRS, now)
        sql(full, "VACUUM ANALYZE gridhand.events, gridhand.allocations")
        sql(full, "CHECKPOINT")
        size = sql(full, "SELECT pg_database_size(current_database())")[0][0]
        print(f"\nmade in {time.perf_counter() - start:.0f} s, {size / 10**9:.1f} GB")
        ratio = compare("PostgreSQL", empty, full)
        start = time.perf_counter()
        sql(full, "SELECT max(length(subject)) FROM gridhand.events")
        scan = time.perf_counter() - start
        step = prune_some("PostgreSQL", full, now)
        sql(full, "CHECKPOINT")
    assert ratio >= 0.5
    assert step < scan  # one that looked at all there is would take longer
