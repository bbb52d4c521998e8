"""The sum of the migrations is the schema, and a migration happens as a whole or not at all (row 28)."""

import contextlib
import importlib
import signal
import sqlite3
import subprocess
import sys
import types
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from gridhand import Grid
from gridhand.core.errors import StoreError, StoreInvalid
from gridhand.core.model.call_record import CallRecord
from gridhand.store import base
from gridhand.store.reader import audit
from gridhand.store.sql import schema
from gridhand.store.sql import sql_store as sql_module
from gridhand.store.sql.migrations import migrate
from gridhand.store.urls import store_at
from postgres_server import sql

HERE = Path(__file__).parent


class File:
    """Where a store may be made in a file."""

    def __init__(self, folder):
        self.url = str(folder / "grid.db")
        self.other = str(folder / "other.db")

    def engine(self, url):
        return sa.create_engine(f"sqlite:///{url}", poolclass=sa.NullPool)

    def restore(self, version):
        """Make the store as that version of Gridhand has left it."""
        with contextlib.closing(sqlite3.connect(self.url)) as connection:
            connection.executescript((HERE / f"version{version}.sqlite.sql").read_text())

    def sql(self, statement):
        with contextlib.closing(sqlite3.connect(self.url)) as connection:
            found = connection.execute(statement).fetchall()
            connection.commit()
            return found

    def written_down(self, connection):
        """Every table and index as SQLite keeps it: the text it was made with."""
        query = "SELECT type, name, tbl_name, sql FROM sqlite_master"
        return {
            (kind, name, table): None if text is None else " ".join(text.split())
            for kind, name, table, text in connection.exec_driver_sql(query)
        }


class Database:
    """Where a store may be made in a database."""

    def __init__(self, url, other):
        self.url, self.other = url, other

    def engine(self, url):
        def connect():
            connection = psycopg.connect(url, autocommit=True)
            connection.execute("CREATE SCHEMA IF NOT EXISTS gridhand")
            connection.execute("SET search_path TO gridhand")
            connection.autocommit = False
            return connection

        return sa.create_engine("postgresql+psycopg://", creator=connect, poolclass=sa.NullPool)

    def restore(self, version):
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute((HERE / f"version{version}.postgres.sql").read_text())

    def sql(self, statement):
        return sql(self.url, statement)

    def written_down(self, connection):
        """Every column, constraint and index, as PostgreSQL itself describes it."""
        found = {}
        for what, query in {
            "constraint": "SELECT conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)"
            " FROM pg_constraint WHERE connamespace = 'gridhand'::regnamespace",
            "index": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'gridhand'",
            "column": "SELECT table_name || '.' || column_name, data_type || is_nullable ||"
            " coalesce(column_default, '') || ordinal_position FROM information_schema.columns"
            " WHERE table_schema = 'gridhand'",
        }.items():
            found |= {(what, name): text for name, text in connection.exec_driver_sql(query)}
        return found


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    if request.param == "sqlite":
        yield File(tmp_path)
        return
    made = request.getfixturevalue("postgres")
    other = made.new_database()
    yield Database(request.getfixturevalue("database"), other)
    made.drop(other)


# ---- the sum of the steps


def test_the_migrations_make_what_is_declared(place):
    with place.engine(place.url).begin() as connection:
        migrate(connection, 0, base.SCHEMA_VERSION)
        migrated = place.written_down(connection)
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
    with place.engine(place.other).begin() as connection:
        schema.metadata.create_all(connection)
        assert place.written_down(connection) == migrated
    assert len(migrated) > 10


def test_the_guards_are_among_them(place):
    with place.engine(place.url).begin() as connection:
        migrate(connection, 0, base.SCHEMA_VERSION)
        text = str(place.written_down(connection))
    for table in schema.metadata.tables.values():
        for constraint in table.constraints:
            if isinstance(constraint, sa.CheckConstraint):
                assert str(constraint.name) in text
    assert text.count("live_node IS NOT NULL") >= 3  # the partial indexes, and a check


def test_there_is_a_step_for_every_version():
    folder = Path(importlib.import_module("gridhand.store.sql.migrations").__file__).parent
    steps = {path.stem for path in folder.glob("v*.py")}
    assert steps == {f"v{number}" for number in range(1, base.SCHEMA_VERSION + 1)}


# ---- from a real store of the first version

TABLES_1 = ("nodes", "allocations", "events", "operations", "checkpoint")
NEW_SINCE_1 = ("checkpoint", "jobs", "calls")


def rows_of(place, tables=TABLES_1):
    return {table: sorted(place.sql(f"SELECT * FROM {table}"), key=repr) for table in tables}


def test_a_store_of_the_first_version_becomes_one_of_this(place):
    place.restore(1)
    before, meta = rows_of(place), place.sql("SELECT * FROM gridhand_meta")
    store = store_at(place.url)
    opening = store.open()
    contents = store.load()
    assert (contents.jobs, contents.next_job, contents.next_number) == ([], 1, 10)
    assert (opening.cluster_id, opening.epoch, opening.high_water_ms) == (meta[0][2], 3, meta[0][5])
    assert store.jobs() == []
    store.close()
    assert rows_of(place) == before
    assert versions(place) == [(base.SCHEMA_VERSION, 3)]
    assert audit(place.url).violations == []
    with place.engine(place.url).begin() as connection:
        migrated = place.written_down(connection)
    with place.engine(place.other).begin() as connection:
        schema.metadata.create_all(connection)
        declared = place.written_down(connection)
    assert migrated.keys() == declared.keys()
    # PostgreSQL words the checks of a table that was restored in another way.
    fresh = {key for key in declared if any(new in str(key) for new in NEW_SINCE_1)}
    assert {key: migrated[key] for key in fresh} == {key: declared[key] for key in fresh}


def test_what_was_held_in_the_first_version_is_held_on(place):
    place.restore(1)
    with Grid.at(place.url, owner="ann") as grid:
        assert {held.id for held in grid.allocations()} == {"a1-2", "a2-3", "a2-6", "a2-7", "a2-8"}
        assert grid.allocate(cpu=2, holder="kept", op_id="two").id == "a1-2"
        grid.release("a1-2")
        assert grid.allocate(cpu=1).fence == (3, 10)
        for _ in grid.prune(0.001):  # the checkpoint it came with goes on, too
            pass
        assert grid.check() == []
    assert audit(place.url).violations == []


def test_a_store_of_the_first_version_can_be_checked_as_it_is(place):
    """Checking only reads: it must not need the migration."""
    place.restore(1)
    before = rows_of(place)
    found = audit(place.url)
    assert found.violations == []
    assert (found.live, found.closed, found.open_jobs, found.ended_jobs) == (5, 1, 0, 0)
    assert rows_of(place) == before
    assert versions(place) == [(1, 2)]


CUT = """
import importlib, os, signal, sys
from alembic.operations import Operations
from gridhand.store.urls import store_at

url, wanted = sys.argv[1], int(sys.argv[2])
done = 0

def counted(real):
    def step(self, *args, **kwargs):
        global done
        done += 1
        if done == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *args, **kwargs)
    return step

for name in ("create_table", "drop_table", "create_index", "execute"):
    setattr(Operations, name, counted(getattr(Operations, name)))
store_at(url).open()
print(done)
"""


@pytest.mark.parametrize("wanted", [2, 3, 4, 5, 8, 9, 10, 14])
def test_killed_in_the_second_step_it_is_of_the_first_version(place, wanted):
    """And the next one migrates it."""
    place.restore(1)
    before = rows_of(place)
    command = [sys.executable, "-c", CUT, place.url, str(wanted)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert versions(place) == [(1, 2)]
    assert rows_of(place) == before
    with pytest.raises((sqlite3.Error, psycopg.Error)):
        place.sql("SELECT * FROM jobs")
    with pytest.raises((sqlite3.Error, psycopg.Error)):
        place.sql("SELECT * FROM set_aside")
    with Grid.at(place.url, wait=5, owner="ann") as grid:
        assert len(grid.allocations()) == 5
    assert audit(place.url).violations == []


# ---- from a real store of the second version

TABLES_2 = (*TABLES_1, "jobs")


def test_a_store_of_the_second_version_becomes_one_of_this(place):
    place.restore(2)
    before, meta = rows_of(place, TABLES_2), place.sql("SELECT * FROM gridhand_meta")
    store = store_at(place.url)
    opening = store.open()
    assert [job.id for job in store.load().jobs] == ["1", "2_7", "2_3"]
    assert (opening.cluster_id, opening.epoch, opening.high_water_ms) == (meta[0][2], 3, meta[0][5])
    assert (store.calls(), store.open_runs()) == ([], [])
    one = CallRecord("r", 1, "ann", "f", "running", "a", "1", "a2-3", 5, 6, None, None)
    store.write_calls([one])
    store.close()
    assert rows_of(place, TABLES_2) == before
    assert versions(place) == [(base.SCHEMA_VERSION, 3)]
    found = audit(place.url)
    assert (found.violations, found.open_calls, found.ended_calls) == ([], 1, 0)
    with place.engine(place.url).begin() as connection:
        migrated = place.written_down(connection)
    with place.engine(place.other).begin() as connection:
        schema.metadata.create_all(connection)
        declared = place.written_down(connection)
    assert migrated.keys() == declared.keys()
    fresh = {key for key in declared if "calls" in str(key)}
    assert len(fresh) >= 4
    assert {key: migrated[key] for key in fresh} == {key: declared[key] for key in fresh}


def test_a_store_of_the_second_version_can_be_checked_as_it_is(place):
    place.restore(2)
    before = rows_of(place, TABLES_2)
    found = audit(place.url)
    assert found.violations == []
    assert (found.live, found.closed, found.open_jobs, found.ended_jobs) == (2, 1, 3, 1)
    assert (found.open_calls, found.ended_calls) == (0, 0)
    assert rows_of(place, TABLES_2) == before
    assert versions(place) == [(2, 2)]


@pytest.mark.parametrize("wanted", [2, 3, 4])
def test_killed_in_the_third_step_it_is_of_the_second_version(place, wanted):
    """And the next one migrates it."""
    place.restore(2)
    before = rows_of(place, TABLES_2)
    command = [sys.executable, "-c", CUT, place.url, str(wanted)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert versions(place) == [(2, 2)]
    assert rows_of(place, TABLES_2) == before
    with pytest.raises((sqlite3.Error, psycopg.Error)):
        place.sql("SELECT * FROM calls")
    with Grid.at(place.url, wait=5, owner="ann") as grid:
        assert len(grid.allocations()) == 2
    assert audit(place.url).violations == []


def test_a_newer_store_cannot_be_checked(place):
    fill(place.url)
    place.sql(f"UPDATE gridhand_meta SET schema_version = {base.SCHEMA_VERSION + 1}")
    with pytest.raises(StoreInvalid, match="schema version"):
        audit(place.url)


# ---- the next version

NEXT = """
import os, signal, sys
import sqlalchemy as sa

def upgrade(op):
    op.create_table("extras", sa.Column("name", sa.String, primary_key=True))
    op.add_column("nodes", sa.Column("rack", sa.String, nullable=True))
    op.execute("UPDATE nodes SET rack = 'r-' || name")
    {then}
"""
NEXT_VERSION = base.SCHEMA_VERSION + 1


@pytest.fixture
def next_version(monkeypatch):
    """Makes this process one of the next version, whose step ends with `then`."""

    def install(then=""):
        name = f"gridhand.store.sql.migrations.v{NEXT_VERSION}"
        module = types.ModuleType(name)
        exec(NEXT.format(then=then), vars(module))
        monkeypatch.setitem(sys.modules, name, module)
        for user in (base, sql_module):
            monkeypatch.setattr(user, "SCHEMA_VERSION", NEXT_VERSION)

    return install


def fill(url):
    """A store with a past; what is held in it."""
    with Grid.at(url) as grid:
        grid.register_node("a", cpu=8)
        grid.allocate(cpu=1, holder="gone", op_id="one").release()
        grid.allocate(cpu=2, holder="kept", op_id="two")
        return grid.dump()["allocations"]


def versions(place):
    return place.sql("SELECT schema_version, epoch FROM gridhand_meta")


def test_a_store_is_upgraded_with_what_is_in_it(place, next_version):
    before = fill(place.url)
    next_version()
    with Grid.at(place.url) as grid:
        assert grid.dump()["allocations"] == before
        assert grid.allocate(cpu=2, holder="kept", op_id="two").id == before[0]["id"]
        grid.allocate(cpu=1)
    assert place.sql("SELECT name, rack FROM nodes") == [("a", "r-a")]
    assert place.sql("SELECT count(*) FROM extras") == [(0,)]
    assert versions(place) == [(NEXT_VERSION, 2)]
    assert audit(place.url).violations == []
    with Grid.at(place.url) as grid:  # and not once more
        assert len(grid.allocations()) == 2


def test_a_new_store_is_made_as_declared_and_takes_no_step(place, next_version):
    next_version("raise ValueError('a step')")
    fill(place.url)
    assert versions(place) == [(NEXT_VERSION, 1)]
    with place.engine(place.url).begin() as connection:
        made = place.written_down(connection)
    with place.engine(place.other).begin() as connection:
        schema.metadata.create_all(connection)
        assert place.written_down(connection) == made


@pytest.mark.parametrize("then", ["raise ValueError('a bug')", "op.execute('SELECT nonsense')"])
def test_a_step_that_fails_leaves_the_version_before(place, next_version, monkeypatch, then):
    before = fill(place.url)
    next_version(then)
    with pytest.raises((ValueError, StoreError)):
        Grid.at(place.url)
    monkeypatch.undo()
    assert_untouched(place, before)


UNTIL_KILLED = """
import sys, types
from gridhand import Grid
from gridhand.store import base
from gridhand.store.sql import sql_store

url, step, code = sys.argv[1:]
module = types.ModuleType("gridhand.store.sql.migrations.v" + step)
exec(code, vars(module))
sys.modules[module.__name__] = module
base.SCHEMA_VERSION = sql_store.SCHEMA_VERSION = int(step)
Grid.at(url)
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def killed_in(step, code, url):
    """Another process opens the store with this as one of its steps, and dies in it."""
    command = [sys.executable, "-c", UNTIL_KILLED, url, str(step), code]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def test_killed_in_the_middle_of_a_migration_it_is_the_version_before(place):
    before = fill(place.url)
    killed_in(NEXT_VERSION, NEXT.format(then=KILL), place.url)
    assert_untouched(place, before)


MAKING = """
import os, signal, sys
import sqlalchemy as sa
from gridhand import Grid
from gridhand.store.sql import schema

def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

sa.event.listen(schema.jobs, "after_create", kill)
Grid.at(sys.argv[1])
"""


def test_killed_in_the_middle_of_making_a_store_there_is_none(place):
    """The next one makes it."""
    command = [sys.executable, "-c", MAKING, place.url]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    with pytest.raises((sqlite3.Error, psycopg.Error)):
        place.sql("SELECT * FROM gridhand_meta")
    fill(place.url)
    assert versions(place) == [(base.SCHEMA_VERSION, 1)]


def assert_untouched(place, before):
    assert versions(place) == [(base.SCHEMA_VERSION, 1)]
    with pytest.raises((sqlite3.Error, psycopg.Error)):
        place.sql("SELECT rack FROM nodes")
    with pytest.raises((sqlite3.Error, psycopg.Error)):
        place.sql("SELECT * FROM extras")
    with Grid.at(place.url, wait=5) as grid:
        assert grid.dump()["allocations"] == before
        grid.allocate(cpu=1)
    assert audit(place.url).violations == []


@pytest.mark.parametrize("ahead", [1, 98])
def test_a_newer_store_is_refused_and_unchanged(place, ahead):
    fill(place.url)
    newer = base.SCHEMA_VERSION + ahead
    place.sql(f"UPDATE gridhand_meta SET schema_version = {newer}")
    tables = ("gridhand_meta", "nodes", "allocations", "events", "operations")
    before = [place.sql(f"SELECT * FROM {table}") for table in tables]
    for _ in range(2):  # nor is it owned by the attempt
        with pytest.raises(StoreInvalid, match=f"schema version {newer}") as caught:
            Grid.at(place.url)
        assert "newer" in caught.value.hint
    assert [place.sql(f"SELECT * FROM {table}") for table in tables] == before


def test_the_tables_of_something_else_are_left_alone(place):
    with place.engine(place.url).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE books (title TEXT)")
    with pytest.raises(StoreInvalid, match="another program"):
        Grid.at(place.url)
    with place.engine(place.url).begin() as connection:
        assert sa.inspect(connection).get_table_names() == ["books"]
