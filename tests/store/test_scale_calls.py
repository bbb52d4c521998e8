"""A million calls that ended do not slow the present."""

import contextlib
import statistics
import time

import pytest

from gridhand.core.model.call_record import CallRecord
from gridhand.store.reader import audit
from gridhand.store.sql.call_queries import count_ended, newest, next_owner, oldest, open_of
from gridhand.store.urls import store_at

START = 1_700_000_000_000
ALL = {"states": (), "name": None, "run": None, "owner": None, "owners": ["u1"], "limit": 100}

#    what is asked                          the question                                          the index
PLANS = {
    "everything":                          (newest(**ALL),                                       ("ended_calls ", "open_calls ")),
    "open":                                (newest(**{**ALL, "states": ["running"]}),            ("open_calls ",)),
    "open of an owner":                    (newest(**{**ALL, "states": ["queued"], "owner": "u"}), ("open_calls ",)),
    "failed":                              (newest(**{**ALL, "states": ["failed"]}),             ("ended_calls ",)),
    "failed of a name":                    (newest(**{**ALL, "states": ["failed"], "name": "f"}), ("ended_calls_by_name",)),
    "of a name and an owner":              (newest(**{**ALL, "name": "f", "owner": "u"}),        ("ended_calls_by_name", "open_calls ")),
    "of a run":                            (newest(**{**ALL, "run": "r", "states": ["lost"]}),   ("PRIMARY KEY",)),
    "those to be forgotten":               ([oldest("u", "lost", 5, 9), oldest("u", "lost", None, 9)],                            ("COVERING INDEX ended_calls ",)),
    "how many there are":                  ([count_ended()],                                     ("COVERING INDEX ended_calls",)),
    "the next owner":                      ([next_owner("u")],                                   ("ended_calls",)),
    "open of a run":                       ([open_of("u", "r", 9)],                              ("open_calls ",)),
}  # fmt: skip


@pytest.mark.parametrize(("queries", "indexes"), PLANS.values(), ids=PLANS)
def test_sqlite_answers_each_question_from_the_end_of_one_index(tmp_path, queries, indexes):
    """It has no statistics to go by, so the queries must leave it no choice."""
    with contextlib.closing(store_at(str(tmp_path / "grid.db"))) as store:
        store.open()
        for query in queries:
            text = query.compile(store.connection, compile_kwargs={"literal_binds": True})
            plan = str(store.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}").all())
            assert "TEMP B-TREE" not in plan
            assert any(index in plan for index in indexes), plan


def calls(first, count):
    """Of a few functions, owners and runs; one in a thousand has failed."""
    for number in range(first, first + count):
        failed = number % 1000 == 0
        at = START + number
        yield CallRecord(
            f"r{number // 100_000}", number, f"u{number // 100_000 % 3}", f"f{number % 7}",
            "failed" if failed else "succeeded", "n", "7", "a1-1", at, at, at,
            "ValueError: no" if failed else None,
        )  # fmt: skip


def took_ms(call, times=5):
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        found.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(found)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_a_million_ended_calls_do_not_slow_the_present(tmp_path):
    store = store_at(str(tmp_path / "grid.db"))
    store.open()
    begin = time.perf_counter()
    for first in range(1, 1_000_000, 2_000):
        for owner in {one.owner: None for one in calls(first, 2_000)}:
            store.write_calls([one for one in calls(first, 2_000) if one.owner == owner])
    print(f"\n1,000,000 calls written in {time.perf_counter() - begin:.0f} s")
    questions = {
        "all": {}, "failed": {"states": ["failed"]}, "of a name": {"name": "f3"},
        "failed of a name": {"name": "f3", "states": ["failed"]}, "of an owner": {"owner": "u1"},
        "of a run": {"run": "r3"}, "open": {"states": ["running"]},
    }  # fmt: skip
    figures = {
        name: took_ms(lambda asked=asked: store.calls(**asked)) for name, asked in questions.items()
    }
    more = [one._replace(run="new") for one in calls(1, 2_000)]
    mine = [one._replace(owner="u0") for one in more]
    figures["write 2,000"] = took_ms(lambda: store.write_calls(mine), 1)
    figures["count and forget 2,000"] = took_ms(
        lambda: store.forget_calls(before=0, keep=990_000, most=2_000), 1
    )
    figures["forget 2,000"] = took_ms(
        lambda: store.forget_calls(before=0, keep=990_000, most=2_000), 3
    )
    print(", ".join(f"{name}: {ms:.1f} ms" for name, ms in figures.items()))
    assert {name: ms for name, ms in figures.items() if ms > 1_000} == {}
    store.close()
    assert audit(str(tmp_path / "grid.db")).violations == []
