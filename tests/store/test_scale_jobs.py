"""A million jobs that have ended do not slow the present, nor a list of the newest.

Small in the normal suite, to see that it works; with the marker `soak` as large as promised, with
figures from one run on one machine. The past is made by the database itself, and is lawful.
"""

import contextlib
import sqlite3
import statistics
import time

import pytest

from gridhand.core.jobs.spec import JobSpec
from gridhand.core.model.requests import Request
from gridhand.store.reader import audit
from gridhand.store.sql.job_rows import work_json
from gridhand.store.urls import store_at
from postgres_server import sql

START = 1_600_000_000_000
WORK = work_json(JobSpec("OWNER", ("train", "--epochs", "9"), "/home/ann", Request.of(cpu=1)))
ATTEMPT = (
    '{"number":1,"node":"n","allocation":"a1-%i%","choice":0,"placed":1,"ended":2,'
    '"exit_code":%code%,"reason":"exit"}'
)
ROW = (
    '{"id":"%i%","number":%i%,"owner":"%owner%","name":null,"state":"%state%","array":null,'
    '"array_index":null,"submitted":1,"ended":%ended%,"reason":%reason%,"not_before":null,'
    '"request":null,"after":[],"attempts":[%attempts%]%work%}'
)
# One in ten thousand has failed; of a hundred each is another owner's.
FAILED = "(i % 10000 = 7)"
STATE = f"CASE WHEN {FAILED} THEN 'failed' ELSE 'succeeded' END"
CODE = f"CASE WHEN {FAILED} THEN '1' ELSE '0' END"
OWNER = "'u' || (i % 100)"


def filled(template, **values):
    """SQL for a text with `%name%` replaced by what each of `values` gives."""
    text = "'" + template.replace("'", "''") + "'"
    for name, value in {"i": "CAST(i AS VARCHAR)", **values}.items():
        text = f"replace({text}, '%{name}%', {value})"
    return text


def statements(count, numbers):
    """Jobs that were submitted, started and have ended: `count` of them, three events each."""
    attempt = filled(ATTEMPT, code=CODE)
    work = f"replace('{WORK}', 'OWNER', {OWNER})"
    begun = ATTEMPT.partition(',"ended"')[0] + "}"
    rows = {
        0: filled(ROW, owner=OWNER, state="'queued'", ended="'null'", reason="'null'", attempts="''", work=f"',\"work\":' || {work}"),
        1: filled(ROW, owner=OWNER, state="'running'", ended="'null'", reason="'null'", attempts=filled(begun), work="''"),
        2: filled(ROW, owner=OWNER, state=STATE, ended="'2'", reason="'\"exit\"'", attempts=attempt, work="''"),
    }  # fmt: skip
    yield (
        f"INSERT INTO jobs SELECT i, CAST(i AS VARCHAR), {OWNER}, NULL, {STATE}, NULL, NULL, NULL,"
        f" 1, 2, 'exit', NULL, {work}, NULL, '[]', '[' || {attempt} || ']' FROM {numbers}"
    )
    for place, kind in enumerate(("submitted", "started", "ended")):
        yield (
            f"INSERT INTO events SELECT 3 * i - 2 + {place}, {START}, 'job.{kind}',"
            f" CAST(i AS VARCHAR), {OWNER}, NULL, '', {rows[place]} FROM {numbers}"
        )
    yield f"UPDATE gridhand_meta SET next_job = {count + 1}, high_water_ms = {START}"


class File:
    def __init__(self, folder):
        self.url = str(folder / "grid.db")

    def run(self, count):
        numbers = f"(WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < {count}) SELECT i FROM c)"  # fmt: skip
        with contextlib.closing(sqlite3.connect(self.url)) as connection:
            for statement in statements(count, numbers):
                connection.execute(statement)
            connection.commit()


class Database:
    def __init__(self, url):
        self.url = url

    def run(self, count):
        for statement in statements(count, f"generate_series(1, {count}) AS g(i)"):
            sql(self.url, statement)
        sql(self.url, "ANALYZE")


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    if request.param == "sqlite":
        return File(tmp_path)
    return Database(request.getfixturevalue("database"))


def opened(place, count):
    """A store with so many ended jobs, and a writer that goes on."""
    store = store_at(place.url)
    store.open()
    store.close()
    place.run(count)
    store = store_at(place.url)
    store.open()
    return store


QUERIES = {
    "the newest": {},
    "before": {"before": 500},
    "of an owner": {"owner": "u7"},
    "of an owner who has none": {"owner": "nobody"},
    "open": {"states": ["queued", "running"]},
    "running": {"states": ["running"]},
    "open of an owner": {"states": ["queued", "running"], "owner": "u7"},
    "failed": {"states": ["failed"]},
    "failed of an owner": {"states": ["failed"], "owner": "u7"},
    "failed of an owner who has none": {"states": ["failed"], "owner": "u8"},
    "lost": {"states": ["lost", "cancelled"]},
    "succeeded or failed": {"states": ["succeeded", "failed"]},
    "of an array": {"array": "1"},
    "of an array, failed": {"array": "1", "states": ["failed"], "owner": "u1"},
}


def took(call, times=5):
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return statistics.median(found) * 1e3


def work_on(store, tools, most_ms):
    """With some jobs open besides, every reading and writing takes milliseconds."""
    contents = store.load()
    writer = tools.Writer(store, now=START + 1, next_job=contents.next_job)
    mine = writer.work(owner="u7", command=("x",) * 20)
    waiting = [writer.submit(mine) for _ in range(1_000)]
    writer.commit()
    figures = {name: took(lambda more=more: store.jobs(**more)) for name, more in QUERIES.items()}
    ids = [str(number) for number in range(1, 400)]
    figures["by id"] = took(lambda: store.find_jobs(ids))
    figures["load"] = took(store.load)

    def turn():
        writer.submit(mine)
        writer.cancel(waiting.pop())
        writer.commit()

    figures["commit"] = took(turn, 20)
    print("\n" + ", ".join(f"{name}: {ms:.1f} ms" for name, ms in figures.items()))
    assert {name: ms for name, ms in figures.items() if ms > most_ms} == {}
    assert len(store.jobs(states=["failed"], owner="u7")) > 0


def test_jobs_that_ended_do_not_slow_the_present(place, tools):
    with contextlib.closing(opened(place, 3_000)) as store:
        work_on(store, tools, most_ms=300)
        assert len(store.jobs(states=["succeeded"], limit=5_000)) == 2_999
        assert len(store.jobs(owner="u9", states=["succeeded"])) == 30
    assert audit(place.url).violations == []


PLANS = {
    "the newest": "",
    "of an owner": "jobs_by_owner",
    "open": "open_jobs",
    "open of an owner": "open_jobs",
    "failed": "ended_jobs ",
    "failed of an owner": "ended_jobs_by_owner",
    "of an array": "jobs_of_array",
    "of an array, failed": "jobs_of_array",
}


@pytest.mark.parametrize("name", PLANS)
def test_sqlite_answers_each_question_from_the_end_of_one_index(tmp_path, name):
    """It has no statistics to go by, so the queries must leave it no choice."""
    from gridhand.store.sql.job_queries import newest

    more = {"states": (), "owner": None, "array": None, "before": 10**9, "limit": 100}
    with contextlib.closing(opened(File(tmp_path), 10)) as store:
        for query in newest(**{**more, **QUERIES[name]}):
            text = query.compile(store.connection, compile_kwargs={"literal_binds": True})
            plan = store.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}").all()
            assert "TEMP B-TREE" not in str(plan)
            assert (f"USING INDEX {PLANS[name]}" if PLANS[name] else "PRIMARY KEY") in str(plan)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_a_million_ended_jobs_do_not_slow_the_present(place, tools):
    with contextlib.closing(opened(place, 1_000_000)) as store:
        work_on(store, tools, most_ms=60)
        began = time.perf_counter()
        left = store.prune(before=START + 1, most=5_000)
        print(f"forgetting 5,000 of 3,000,000 events: {time.perf_counter() - began:.2f} s")
        assert left >= 2_995_000
        assert store.jobs(before=1_500, owner="u7") == []


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_two_hundred_thousand_open_jobs_are_loaded_in_seconds(tmp_path, tools):
    store = store_at(str(tmp_path / "grid.db"))
    store.open()
    store.load()
    writer = tools.Writer(store)
    work = writer.work(command=("x",) * 20)
    began = time.perf_counter()
    for _ in range(200):
        writer.submit_array(range(1_000), work)
        writer.commit()
    wrote = time.perf_counter() - began
    began = time.perf_counter()
    jobs = store.load().jobs
    loaded = time.perf_counter() - began
    print(f"\n200,000 jobs written in {wrote:.1f} s, loaded in {loaded:.1f} s")
    assert len(jobs) == 200_000
    assert len({id(job.work) for job in jobs}) == 1
    assert loaded < 5 * wrote  # reading is not slower by an order than writing was
    store.close()
