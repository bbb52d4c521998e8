"""Stores that are damaged, missing or empty, and readers that do not end (rows 25 to 30).

A corrupt page is met by reading what can be read and writing nothing. What is not there is not
made where it was not wanted.
"""

import contextlib
import hashlib
import sqlite3
from pathlib import Path

import pytest

from damaged_pages import PAGE, break_page, pages_of
from gridhand import Grid
from gridhand.core.errors import GridError, StoreDamaged, StoreError, StoreInvalid
from gridhand.core.model.call_record import CallRecord
from gridhand.store.base import Batch
from gridhand.store.ownership import Taking
from gridhand.store.reader import audit
from gridhand.store.urls import store_at
from postgres_server import sql


def fill(path, past=150):
    """A store of many pages."""
    with Grid.at(path, owner="ann") as grid:
        grid.register_node("a", cpu=1000)
        for number in range(past):
            grid.allocate(cpu=1, holder=f"gone-{number}", op_id=f"op-{number}").release()
        for number in range(60):
            grid.allocate(cpu=1, holder=f"kept-{number}")


def fill_jobs(path, tools, count=100):
    """Jobs of which half have ended."""
    store = store_at(path)
    store.open()
    store.load()
    writer = tools.Writer(store, now=10**13)
    made = writer.submit_array(range(count))
    for job in made[::2]:
        writer.cancel(job)
    writer.commit()
    store.close()


def fingerprint(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "grid.db")
    fill(path)
    return path


def assert_changes_are_refused(grid, held):
    changes = (
        lambda: grid.allocate(cpu=1),
        lambda: grid.allocate(cpu=1, op_id="new"),
        lambda: grid.reserve(cpu=1, ttl=60),
        lambda: grid.release(held),
        lambda: grid.register_node("b", cpu=1),
        lambda: grid.drain("a"),
        lambda: list(grid.prune(0.001)),
    )
    for change in changes:
        with pytest.raises(StoreDamaged) as caught:
            change()
        assert "damaged" in str(caught.value)
        assert "reading only" in caught.value.hint


@pytest.mark.parametrize("table", ["events", "operations_by_age"])
def test_with_damage_in_the_past_the_present_can_be_read_and_nothing_changed(path, table):
    break_page(path, pages_of(path, table)[-1])
    before = fingerprint(path)
    with Grid.at(path, owner="ann") as grid:
        held = grid.allocations()
        assert len(held) == 60
        assert grid.node("a").available["cpu"] == 940 * 10_000
        assert grid.check() == []
        assert_changes_are_refused(grid, held[0])
        assert len(grid.allocations()) == 60  # memory did not follow either
    assert fingerprint(path) == before


def test_events_before_the_damage_can_still_be_read(path):
    break_page(path, pages_of(path, "events")[-2])
    with Grid.at(path) as grid:
        assert [event.number for event in grid.events(limit=20)] == list(range(1, 21))
        with pytest.raises(StoreError):  # whichever of ours: not one of the driver's
            grid.events(limit=10_000)


@pytest.mark.parametrize("table", ["allocations", "nodes", "gridhand_meta", "live_allocations"])
def test_with_damage_in_the_present_it_is_said_and_nothing_is_written(path, table):
    break_page(path, pages_of(path, table)[-1])
    before = fingerprint(path)
    with contextlib.suppress(StoreDamaged), Grid.at(path, owner="ann") as grid:
        with contextlib.suppress(StoreDamaged):
            assert len(grid.allocations()) == 60  # all of them, or that it cannot be told
        with pytest.raises(StoreDamaged):
            grid.allocate(cpu=1)
    assert fingerprint(path) == before


def test_damage_in_what_has_ended_does_not_hide_what_lives(path):
    """The first leaf has the oldest allocations, which are closed: all that live, or an error."""
    break_page(path, pages_of(path, "allocations")[0])
    before = fingerprint(path)
    with contextlib.suppress(StoreDamaged), Grid.at(path, owner="ann") as grid:
        held = grid.allocations()
        assert len(held) == 60
        assert_changes_are_refused(grid, held[0])
    assert fingerprint(path) == before


@pytest.mark.parametrize("name", ["jobs", "open_jobs", "jobs_by_id", "ended_jobs_by_owner"])
@pytest.mark.parametrize("which", [0, -1])
def test_with_damage_in_the_jobs_all_that_are_open_are_read_or_it_is_said(path, tools, name, which):
    fill_jobs(path, tools)
    break_page(path, pages_of(path, name)[which])
    before = fingerprint(path)
    with contextlib.suppress(StoreDamaged), contextlib.closing(store_at(path)) as store:
        store.open()
        with contextlib.suppress(StoreDamaged):
            assert len(store.load().jobs) == 50
        for read in (store.jobs, lambda: store.find_jobs(["1_3"])):
            with contextlib.suppress(StoreError):  # ours, whichever it is
                read()
        with pytest.raises(StoreDamaged):
            store.commit(Batch(10**13))
    assert fingerprint(path) == before
    assert audit(path).violations != []


@pytest.mark.parametrize("name", ["calls", "open_calls", "ended_calls", "ended_calls_by_name"])
def test_with_damage_in_the_calls_the_ledger_is_read_and_nothing_is_written(path, name):
    over = ("succeeded", None, None, None, 1, 2, 3, None)
    with contextlib.closing(store_at(path)) as store:
        store.open()
        store.write_calls([CallRecord("r", n, "ann", "f", *over) for n in range(1, 500)])
        still = ("queued", None, None, None, 1, None, None, None)
        store.write_calls([CallRecord("r", n, "ann", "f", *still) for n in range(500, 900)])
    break_page(path, pages_of(path, name)[-1])
    before = fingerprint(path)
    with contextlib.closing(store_at(path)) as store:
        store.open()
        assert len(store.load().allocations) == 60
        for read in (store.calls, store.open_runs, lambda: store.find_call("r", 3)):
            with contextlib.suppress(StoreError):  # ours, whichever it is
                read()
        for write in (
            lambda: store.write_calls([CallRecord("r", 900, "ann", "f", *over)]),
            lambda: store.lose_calls("ann", "r", at=9, why="gone", most=9),
            lambda: store.forget_calls(before=9, keep=0, most=9),
        ):
            with pytest.raises(StoreDamaged):
                write()
    assert fingerprint(path) == before
    assert audit(path).violations != []


def test_a_damaged_store_is_not_owned_by_the_attempt(path):
    break_page(path, pages_of(path, "events")[1])
    for _ in range(2):
        with Grid.at(path):
            pass


def test_damage_that_comes_later_is_met_when_it_is(path):
    """A page that goes bad while the store is open: our own errors, and nothing granted."""
    with Grid.at(path, owner="ann") as grid:
        list(grid.prune(3600))  # whatever was in the WAL may stay there
        store = grid._backend._keeper._store
        store._raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        store._raw.execute("PRAGMA shrink_memory").fetchall()
        for page in pages_of(path, "operations"):
            break_page(path, page)

        def work():
            for number in range(40):
                grid.allocate(cpu=1, op_id=f"later-{number}")
                grid.allocate(cpu=1, op_id=f"op-{number}")

        with pytest.raises(StoreError):
            work()


@pytest.mark.parametrize("at", [0, 40, 100, PAGE - 60])
def test_a_broken_first_page_is_an_error_of_ours(path, at):
    whole = bytearray(Path(path).read_bytes())
    whole[at : at + 60] = b"\xff" * 60
    Path(path).write_bytes(whole)
    before = fingerprint(path)
    with contextlib.suppress(GridError), Grid.at(path) as grid, pytest.raises(StoreError):
        grid.allocate(cpu=1)
    if at == 0:
        assert fingerprint(path) == before


def test_half_a_file_is_an_error_of_ours(path):
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[: len(whole) // 2 // PAGE * PAGE])
    before = fingerprint(path)
    with contextlib.suppress(StoreError), Grid.at(path) as grid, pytest.raises(StoreError):
        grid.allocate(cpu=1)
    assert fingerprint(path) == before


# ---- missing and empty


def empty_file(path):
    Path(path).touch()


def empty_database(path):
    sqlite3.connect(path).execute("VACUUM").connection.close()


def empty_wal_database(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")


NOTHING = {
    "no file": lambda path: None,
    "an empty file": empty_file,
    "an empty database": empty_database,
    "an empty database with a WAL": empty_wal_database,
}


@pytest.mark.parametrize("nothing", NOTHING.values(), ids=NOTHING)
def test_a_file_that_must_be_a_store_is_not_made_one(tmp_path, nothing):
    path = tmp_path / "grid.db"
    nothing(path)
    before = path.read_bytes() if path.exists() else None
    for _ in range(2):
        with pytest.raises(StoreInvalid, match="there is no store") as caught:
            Grid.at(str(path), create=False)
        assert caught.value.hint
    assert (path.read_bytes() if path.exists() else None) == before
    with Grid.at(str(path)) as grid:  # where it is wanted, it is made
        grid.register_node("a", cpu=1)
    with Grid.at(str(path), create=False) as grid:
        assert len(grid.nodes()) == 1


def test_a_folder_is_not_made_either(tmp_path):
    with pytest.raises(StoreInvalid):
        Grid.at(str(tmp_path / "some" / "grid.db"), create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "statements",
    [[], ["CREATE SCHEMA gridhand"], ["CREATE TABLE public.books (title TEXT)"]],
    ids=["an empty database", "an empty schema", "another program's table"],
)
def test_a_database_that_must_have_a_store_is_not_given_one(database, statements):
    for statement in statements:
        sql(database, statement)
    query = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN ('public', 'gridhand')"
    schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'gridhand'"
    before = sql(database, query), sql(database, schemas)
    for _ in range(2):
        with pytest.raises(StoreInvalid, match="there is no store"):
            Grid.at(database, create=False)
    assert (sql(database, query), sql(database, schemas)) == before
    Grid.at(database).close()
    Grid.at(database, create=False).close()


def test_a_database_that_is_not_there_is_not_made(postgres):
    with pytest.raises(StoreError):
        Grid.at(postgres.url("nowhere"), create=False)
    assert postgres.execute("SELECT 1 FROM pg_database WHERE datname = 'nowhere'") == []


# ---- an older state (row 26)


def test_a_restored_backup_is_seen_by_its_epoch(path, tmp_path):
    """It is the same cluster, earlier: what was granted since has later fences."""
    backup = Path(path).read_bytes()
    with Grid.at(path) as grid:
        late = grid.allocate(cpu=1).fence
        status = audit(path)
    Path(path).write_bytes(backup)
    store = store_at(path, Taking(must_exist=True))
    opening = store.open()
    store.close()
    assert opening.cluster_id == status.cluster_id
    assert opening.epoch <= late[0]


# ---- a reader that does not end (row 30)


def test_a_long_reader_lets_the_wal_grow_and_then_it_is_used_again(tmp_path):
    path = tmp_path / "grid.db"
    wal = Path(f"{path}-wal")
    with Grid.at(str(path)) as grid:
        grid.register_node("a", cpu=1000)
        store = grid._backend._keeper._store
        store._raw.execute("PRAGMA wal_autocheckpoint = 50").fetchall()  # pages; 4000 take too long

        def work(pairs):
            for _ in range(pairs):
                grid.allocate(cpu=1).release()
            return wal.stat().st_size

        settled = max(work(40), work(40))
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            seen = reader.execute("SELECT count(*) FROM events").fetchone()
            grown = work(150)
            assert grown > 2 * settled
            assert reader.execute("SELECT count(*) FROM events").fetchone() == seen
            reader.execute("COMMIT")
        again = work(40)
        assert work(200) <= max(again, grown)  # it begins anew instead of growing on
        busy, pages, done = store._raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        assert (busy, pages) == (0, done)
        assert grid.check() == []
    assert not wal.exists() or wal.stat().st_size == 0
    assert audit(str(path)).violations == []


def test_a_wal_that_was_large_is_cut_when_it_is_used_again(tmp_path):
    path = str(tmp_path / "grid.db")
    with Grid.at(path):
        pass
    store = store_at(path)
    store.open()
    limit = store._raw.execute("PRAGMA journal_size_limit").fetchone()[0]
    store.close()
    assert 0 < limit <= 2**28


def test_a_wal_that_grows_too_far_is_told(tmp_path, monkeypatch, caplog):
    """Once in a while, not at every commit."""
    monkeypatch.setattr("gridhand.store.sql.sqlite._WAL_ALARM", 10_000)
    path = str(tmp_path / "grid.db")
    with Grid.at(path) as grid:
        grid.register_node("a", cpu=1000)
        for _ in range(2):
            caplog.clear()
            grid._backend._keeper._store._next_care = 0.0  # it is time to look again
            for _ in range(5):
                grid.allocate(cpu=1).release()
            told = [text for record in caplog.records if "WAL" in (text := record.getMessage())]
            assert len(told) == 1
    assert path in told[0]
