"""Moving a ledger to another store: whole, compared, and then the old one is closed for good."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select

import store_writer
from gridhand import Grid
from gridhand.clock import COUNTED_MS
from gridhand.core.errors import StoreError, StoreInvalid, StoreOwned
from gridhand.core.model.call_record import CallRecord
from gridhand.core.model.tokens import Token, digest_of
from gridhand.store import move as moving
from gridhand.store.move import move
from gridhand.store.ownership import Taking
from gridhand.store.reader import audit, reading
from gridhand.store.sql import schema
from gridhand.store.urls import store_at

TABLES = [table for table in schema.metadata.sorted_tables if table is not schema.meta]


def fill(url):
    """A store with some of everything; the answers of its op ids."""
    answers = {}
    with Grid.at(url, owner="ann") as grid:
        grid.register_node("old", cpu=1)
        grid.unregister("old")
        grid.register_node("a", cpu=32, memory="8GB", labels={"zone": "x"}, price="1.25")
        grid.register_node("B", cpu=8, gpus=[{"memory": "16GB", "model": "T4"}] * 2)
        grid.register_node("_c-e", cpu=1)
        for name in ("gone", "Gone"):
            grid.allocate(cpu=1, holder=name, op_id=f"{name}-0").release()
        for _ in grid.prune(0.001, most=3):
            pass
        answers["kept"] = grid.allocate(cpu=2, holder="kept", op_id="kept").id
        answers["ended"] = grid.allocate(cpu=1, op_id="ended").id
        grid.release(answers["ended"], op_id="end")
        grid.allocate(gpu=0.5, cpu=1, ttl=900)
        grid.reserve(memory="1GB", ttl=900, holder="Reserved/1")
        grid.allocate_group([{"cpu": 1}, {"gpu": 1}], holder="gang", op_id="gang")
        grid.for_owner("Bob").allocate(cpu=1, op_id="kept")
        grid.drain("_c-e")
    add_jobs(url)
    return answers


def add_jobs(url):
    """Jobs that wait, run and have ended, some of them from before the oldest event."""
    store = store_at(url)
    epoch = store.open().epoch
    contents = store.load()
    now = max(event.at for event in store.events())
    writer = store_writer.Writer(
        store, epoch=epoch, next_number=contents.next_number, next_job=contents.next_job, now=now
    )
    writer.ledger.load(contents.nodes, contents.allocations, contents.jobs)
    odd = writer.work("cpu=1 memory=1MB", name="Odd/1", command=("x", '":-1', "\udcff", "Ü"))
    first = writer.submit(odd)
    writer.submit_array([7, 3], odd)
    writer.commit()
    writer.start(first)
    writer.end(writer.start(writer.submit()), code=3, message="no luck")
    writer.commit()
    store.prune(before=now + 1, most=len(store.events()) - 3, answered_before=0)
    over = ("succeeded", None, None, None, 1, 2, 3, None)
    for run, owner in (("r1", "ann"), ("R2", "Bob"), ("r10", "ann")):
        store.write_calls([CallRecord(run, n, owner, "f", *over) for n in (1, 2, 10)])
    store.write_calls([CallRecord("r1", 3, "ann", "Ü", "queued", None, "1", None, 1, *[None] * 3)])
    digest = digest_of("secret")
    writer.ledger.put_token("admin.token_created", Token("t1", "ann", "read", digest, 5, 9), "new")
    batch = writer.batch()
    batch.tokens[0] = "t1"
    batch.shares = {"ann": 0.25, "Bob": 1e-5}
    store.commit(batch)
    store.note_token_use({"t1": 7})
    store.note_start(now + COUNTED_MS + 1)
    store.close()


def contents(url):
    """Every row of every table, but for who owns it."""
    with reading(url) as (_, connection):
        found = {
            table.name: sorted(map(tuple, connection.execute(select(table))), key=repr)
            for table in TABLES
        }
        meta = connection.execute(select(schema.meta)).mappings().one()
        kept = ("cluster_id", "high_water_ms", "next_number", "checkpoint_through", "next_job")
        return found | {name: meta[name] for name in kept}


def epoch(url):
    return audit(url).epoch


def moved(source, target, progress=lambda *_: None):
    return move(store_at(source, Taking(must_exist=True)), store_at(target), progress)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "grid.db")


def test_to_postgresql_and_back_nothing_is_changed(path, database, tmp_path):
    answers = fill(path)
    last = str(tmp_path / "back" / "grid.db")
    before = contents(path)
    assert all(before[table.name] for table in TABLES)  # some of everything, indeed
    for source, target in ((path, database), (database, last)):
        began = epoch(source)
        rows = moved(source, target)
        assert rows == sum(len(before[table.name]) for table in TABLES)
        assert contents(target) == before
        assert epoch(target) > began
        assert audit(target).violations == []
        with pytest.raises(StoreInvalid) as caught:
            Grid.at(source)
        assert store_at(target).url in str(caught.value)
        assert caught.value.hint
    with Grid.at(last, owner="ann", create=False) as grid:
        assert grid.check() == []
        assert grid.allocate(cpu=2, holder="kept", op_id="kept").id == answers["kept"]
        assert grid.release(answers["ended"], op_id="end").state == "released"
        assert grid.allocate(cpu=1, op_id="ended").id == answers["ended"]
        assert grid.allocate(cpu=1).fence[1] == before["next_number"]
    found = audit(last)
    assert found.violations == []
    assert (found.open_jobs, found.ended_jobs, before["next_job"]) == (3, 1, 5)
    assert (found.open_calls, found.ended_calls) == (1, 9)


def test_on_the_way_it_can_be_worked_with(path, database, tmp_path):
    answers = fill(path)
    moved(path, database)
    with Grid.at(database, owner="ann") as grid:
        grid.release(answers["kept"])
        for _ in grid.prune(0.001):
            pass
        later = grid.allocate(cpu=3, op_id="later").id
    moved(database, str(tmp_path / "back.db"))
    with Grid.at(str(tmp_path / "back.db"), owner="ann") as grid:
        assert grid.allocate(cpu=3, op_id="later").id == later
        assert answers["kept"] not in {held.id for held in grid.allocations()}
        assert grid.check() == []


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_pages_of_any_size_hold_every_row(path, database, monkeypatch, chunk):
    monkeypatch.setattr(moving, "_CHUNK", chunk)
    fill(path)
    before = contents(path)
    seen = []
    moved(path, database, lambda *step: seen.append(step))
    assert contents(database) == before
    assert {table: done for table, done, _ in seen} == {table: total for table, _, total in seen}


def test_a_database_that_sorts_as_people_do_is_the_same(path, tmp_path):
    """As PostgreSQL does in most languages: capitals among the small letters."""
    target = str(tmp_path / "sorted.db")
    Grid.at(target).close()
    with contextlib.closing(sqlite3.connect(target)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = replace(sql, 'VARCHAR NOT NULL',"
            " 'VARCHAR NOT NULL COLLATE NOCASE') WHERE name = 'nodes'"
        )
        connection.commit()
    fill(path)
    before = contents(path)
    moved(path, target)
    assert contents(target) == before


def test_a_store_with_nothing_in_it_can_be_moved(path, database):
    Grid.at(path).close()
    assert moved(path, database) == 0
    Grid.at(database).close()


# ---- refused


def assert_usable(url, before):
    assert contents(url) == before
    with Grid.at(url) as grid:
        assert grid.check() == []
        grid.allocate(cpu=1).release()
    assert audit(url).violations == []


def test_a_target_that_is_not_empty_is_refused(path, database):
    fill(path)
    before = contents(path)
    with Grid.at(database) as grid:
        grid.register_node("mine", cpu=1)
    theirs = contents(database)
    with pytest.raises(StoreInvalid, match="not empty"):
        moved(path, database)
    assert contents(database) == theirs
    assert_usable(path, before)


def test_a_source_that_somebody_owns_is_refused(path, database):
    fill(path)
    before = contents(path)
    with Grid.at(path) as grid:
        with pytest.raises(StoreOwned):
            moved(path, database)
        grid.allocate(cpu=1, holder="on").release()
    assert contents(path) != before
    moved(path, database)


def test_a_target_that_somebody_owns_is_refused(path, database):
    fill(path)
    before = contents(path)
    with Grid.at(database), pytest.raises(StoreOwned):
        moved(path, database)
    assert_usable(path, before)


def test_a_store_cannot_be_moved_onto_itself(path):
    fill(path)
    before = contents(path)
    with pytest.raises(StoreError):
        moved(path, path)
    assert_usable(path, before)


def test_a_source_that_is_not_there_is_refused_and_not_made(path, database):
    with pytest.raises(StoreInvalid, match="there is no store"):
        moved(path, database)
    assert not Path(path).exists()


def test_a_store_that_was_moved_cannot_be_moved_again(path, database, tmp_path):
    fill(path)
    moved(path, database)
    with pytest.raises(StoreInvalid, match="was moved to"):
        moved(path, str(tmp_path / "third.db"))
    with pytest.raises(StoreInvalid, match="was moved to"):
        Grid.at(path, take_over=True)


def test_a_password_does_not_stay_behind(path, database):
    fill(path)
    moved(path, database.replace("postgres@", "postgres:hunter2@"))
    with pytest.raises(StoreInvalid) as caught:
        Grid.at(path)
    assert "hunter2" not in str(caught.value)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        moved_to = connection.execute("SELECT moved_to FROM gridhand_meta").fetchone()[0]
    assert "hunter2" not in moved_to


def test_a_copy_that_differs_is_not_switched_to(path, database, monkeypatch):
    fill(path)
    before = contents(path)
    real = moving._pages

    def lossy(connection, table):
        for page in real(connection, table):
            sqlite = connection.dialect.name == "sqlite"
            yield page[1:] if table is schema.operations and sqlite and not_compared() else page

    compared = []
    compare = moving._compare

    def not_compared():
        return not compared

    def _compare(*args):
        compared.append(True)
        compare(*args)

    with monkeypatch.context() as patched:
        patched.setattr(moving, "_pages", lossy)
        patched.setattr(moving, "_compare", _compare)
        with pytest.raises(StoreInvalid, match="differs"):
            moved(path, database)
    assert_usable(path, before)
    moved(path, database)  # nothing of it was left there


# ---- killed

UNTIL_KILLED = """
import os, signal, sys
from gridhand.store import move as moving
from gridhand.store.sql.sql_store import SqlStore
from gridhand.store.urls import store_at

source, target, where, nth = sys.argv[1:]
owner, name = (moving, where) if hasattr(moving, where) else (SqlStore, where)
real, seen = getattr(owner, name), []

def until_killed(*args, **options):
    seen.append(name)
    if len(seen) == int(nth):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **options)

setattr(owner, name, until_killed)
moving.move(store_at(source), store_at(target))
"""


def kill_while_moving(source, target, where, nth):
    command = [sys.executable, "-c", UNTIL_KILLED, source, target, where, str(nth)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


@pytest.mark.parametrize("way", ["to postgresql", "to sqlite"])
@pytest.mark.parametrize(("where", "nth"), [("_copy_table", 3), ("_compare", 2), ("_copy_meta", 1)])
def test_killed_midway_the_source_is_as_it_was(path, database, way, where, nth):
    source, target = (path, database) if way == "to postgresql" else (database, path)
    fill(source)
    before = contents(source)
    kill_while_moving(source, target, where, nth)
    assert contents(source) == before
    with Grid.at(source, wait=5, owner="ann") as grid:
        grid.allocate(cpu=1, holder="later")
    before = contents(source)
    moved(source, target)  # and what was begun there is no hindrance
    assert contents(target) == before
    assert audit(target).violations == []


def test_killed_between_copy_and_switch_the_source_is_still_the_store(path, database):
    fill(path)
    before = contents(path)
    kill_while_moving(path, database, "mark_moved", 1)
    assert_usable(path, before)
    assert contents(database) == before
    with pytest.raises(StoreInvalid, match="not empty"):  # whole and unused: somebody must look
        moved(path, database)
