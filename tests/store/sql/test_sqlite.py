"""The SQLite store as a file: how it is opened, who owns it, and what it leaves alone."""

import contextlib
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gridhand.core.errors import (
    InvalidInput,
    StoreDamaged,
    StoreError,
    StoreFenced,
    StoreFull,
    StoreInvalid,
    StoreOwned,
    StoreUnavailable,
)
from gridhand.core.model.call_record import CallRecord
from gridhand.store.base import SCHEMA_VERSION, Batch
from gridhand.store.sql import schema
from gridhand.store.sql.sqlite import DEFAULT_TIMEOUT_S, SqliteStore
from gridhand.store.urls import memory_store, store_at

OWNER = """
import sys
from gridhand.store.urls import store_at
store = store_at(sys.argv[1])
store.open()
print("open", flush=True)
sys.stdin.read()
store.close()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "made" / "here" / "grid.db"


@pytest.fixture
def opened():
    """Opens stores, and closes them at the end of the test."""
    stores = []

    def open_store(path):
        stores.append(store_at(str(path)))
        stores[-1].open()
        stores[-1].load()
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


@pytest.fixture
def owner_elsewhere(path):
    """Another process that owns the store at `path`."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def permissions(path):
    return stat.S_IMODE(path.stat().st_mode)


def contents(folder):
    return {found.name: found.read_bytes() for found in folder.iterdir()}


# ---- settings


def test_what_was_answered_survives_a_power_cut(path, opened):
    store = opened(path)
    asked = ("journal_mode", "synchronous", "foreign_keys")
    found = [store._raw.execute(f"PRAGMA {name}").fetchone()[0] for name in asked]
    assert found == ["wal", 2, 1]  # 2 is FULL: the WAL is synced at every commit


def test_settings_are_there_again_after_a_recovery(path, opened):
    store = opened(path)
    store.recover()
    asked = ("journal_mode", "synchronous", "foreign_keys")
    found = [store._raw.execute(f"PRAGMA {name}").fetchone()[0] for name in asked]
    assert found == ["wal", 2, 1]


def test_a_store_that_was_taken_over_is_not_recovered(path, opened):
    store = opened(path)
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute(f"UPDATE {schema.meta.name} SET epoch = epoch + 1, writer = epoch + 1")
    with pytest.raises(StoreFenced):
        store.recover()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_owner_may_read_it(path, opened, umask):
    before = os.umask(umask)
    try:
        opened(path)
    finally:
        os.umask(before)
    found = {file.name: permissions(file) for file in path.parent.iterdir()}
    assert found.keys() >= {"grid.db", "grid.db-wal", "grid.db-shm", "grid.db.owner"}
    assert set(found.values()) == {0o600}
    assert permissions(path.parent) == 0o700


def test_nothing_is_left_beside_it_but_the_lock_and_the_reserve(path, opened, tools):
    writer = tools.Writer(opened(path))
    writer.register("n", cpu=1)
    writer.commit()
    assert {permissions(file) for file in path.parent.iterdir()} == {0o600}
    writer.store.close()
    left = {file.name for file in path.parent.iterdir()}
    assert left == {"grid.db", "grid.db.owner", "grid.db.reserve"}


def test_the_last_space_on_a_disk_is_not_for_calls(path, opened, monkeypatch):
    """It is kept for what gives something back; to end what is open is no more than before."""
    still = ("running", None, None, None, 1, 1, None, None)
    calls = [CallRecord("r", number, "ann", "f", *still) for number in (1, 2)]
    store = opened(path)
    store.write_calls(calls[:1])
    store.commit(Batch(10))  # which fills the reserve
    assert store.relieve()
    monkeypatch.setattr("gridhand.store.sql.sqlite.fill_reserve", lambda *_: False)
    with pytest.raises(StoreFull):
        store.write_calls(calls)
    assert store.lose_calls("ann", "r", at=9, why="gone", most=5) == 1
    monkeypatch.undo()
    store.write_calls(calls)
    assert [call.state for call in store.calls()] == ["running", "lost"]


def test_the_tables_hold_a_version(path, opened):
    opened(path).close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT schema_version FROM gridhand_meta").fetchall() == [(SCHEMA_VERSION,)]  # fmt: skip
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# ---- ownership


def test_a_second_owner_in_the_same_process_is_refused(path, opened):
    opened(path)
    for _ in range(3):  # trying must not break the lock
        with pytest.raises(StoreOwned) as caught:
            opened(path)
        assert caught.value.pid == os.getpid()
    assert str(path) in str(caught.value)


def test_an_owner_in_another_process_is_named(path, owner_elsewhere, opened):
    for _ in range(3):
        with pytest.raises(StoreOwned) as caught:
            opened(path)
        assert caught.value.pid == owner_elsewhere.pid
        assert str(owner_elsewhere.pid) in str(caught.value)


def test_this_process_keeps_others_out(path, opened):
    opened(path)
    with pytest.raises(StoreOwned):
        opened(path)
    other = subprocess.run(
        [sys.executable, "-c", OWNER, str(path)], input="", capture_output=True, text=True
    )
    assert other.returncode == 1
    assert f"is owned by process {os.getpid()}" in other.stderr


def test_closing_gives_the_store_to_the_next(path, owner_elsewhere, opened):
    owner_elsewhere.communicate()
    assert owner_elsewhere.returncode == 0
    opened(path).close()
    opened(path)


def test_a_killed_owner_owns_nothing(path, owner_elsewhere, opened):
    owner_elsewhere.send_signal(signal.SIGKILL)
    owner_elsewhere.wait()
    assert opened(path).load().next_number == 1


def test_an_attempt_that_was_refused_changes_nothing(path, owner_elsewhere, opened):
    with contextlib.closing(sqlite3.connect(path)) as database:
        epoch = database.execute("SELECT epoch FROM gridhand_meta").fetchall()
        with pytest.raises(StoreOwned):
            opened(path)
        assert database.execute("SELECT epoch FROM gridhand_meta").fetchall() == epoch == [(1,)]


def test_a_forked_child_does_not_own_what_its_parent_does(path, opened):
    """And it is told its parent's pid, not its own."""
    store = opened(path)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store_at(str(path)).open()
            os.write(writer, b"opened")
        except StoreOwned as error:
            os.write(writer, str(error.pid).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with open(reader, "rb") as answer:
        assert answer.read() == str(os.getpid()).encode()
    with pytest.raises(StoreOwned):
        opened(path)
    assert store.load().next_number == 1


def test_a_store_by_another_name_is_the_same_store(path, tmp_path, opened):
    opened(path)
    link = tmp_path / "other.db"
    link.symlink_to(path)
    with pytest.raises(StoreOwned):
        opened(link)


def test_a_symlinked_folder_leads_to_the_same_store(path, tmp_path, opened):
    opened(path)
    (tmp_path / "other").symlink_to(path.parent)
    with pytest.raises(StoreOwned):
        opened(tmp_path / "other" / "grid.db")
    opened(tmp_path / "other" / "another.db")


# ---- what is not ours


def test_a_file_that_is_no_database_is_refused_and_untouched(tmp_path, opened):
    path = tmp_path / "notes.db"
    path.write_bytes(b"dear diary, " * 1000)
    with pytest.raises((StoreInvalid, StoreDamaged), match=r"notes\.db"):
        opened(path)
    assert path.read_bytes() == b"dear diary, " * 1000


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_of_something_else_is_refused_and_untouched(tmp_path, opened, mode):
    path = tmp_path / "books.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA journal_mode = {mode}")
        database.execute("CREATE TABLE books (title)")
        database.execute("INSERT INTO books VALUES ('Moby-Dick')")
        database.commit()
    before = contents(tmp_path)
    with pytest.raises(StoreInvalid, match="another program"):
        opened(path)
    after = contents(tmp_path)
    after.pop("books.db.owner", None)
    assert after == before


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 99])
def test_a_store_of_another_version_is_refused_and_untouched(path, opened, version):
    opened(path).close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE gridhand_meta SET schema_version = ?", [version])
        database.commit()
    before = path.read_bytes()
    with pytest.raises(StoreInvalid, match=f"schema version {version}"):
        opened(path)
    assert path.read_bytes() == before
    with pytest.raises(StoreInvalid):  # nor is it owned now
        opened(path)


@pytest.mark.parametrize("where", [100, 4096 * 2 + 10, 4096 * 5 + 5])
def test_a_damaged_store_is_told_apart_or_works(path, opened, where):
    """Whatever is broken in it, nothing but our own errors comes out."""
    opened(path).close()
    damaged = bytearray(path.read_bytes())
    damaged[where : where + 2000] = b"\xff" * 2000
    path.write_bytes(damaged)
    with contextlib.suppress(StoreError):
        assert opened(path).load().nodes == []


def test_an_empty_file_becomes_a_store(path, opened):
    path.parent.mkdir(parents=True)
    path.touch()
    assert opened(path).load().next_number == 1


def test_a_folder_is_no_store(tmp_path, opened):
    with pytest.raises(StoreError):
        opened(tmp_path)


def test_a_path_through_a_file_is_no_store(tmp_path, opened):
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable):
        opened(tmp_path / "file" / "grid.db")


def test_a_store_that_could_not_be_opened_can_be_closed(tmp_path):
    store = SqliteStore(str(tmp_path / "grid.db"))
    (tmp_path / "grid.db").write_bytes(b"x" * 5000)
    with pytest.raises((StoreInvalid, StoreDamaged)):
        store.open()
    store.close()
    (tmp_path / "grid.db").unlink()
    store.open()
    store.close()


# ---- addresses


URLS = {
    "a relative path": ("grid.db", "{cwd}/grid.db"),
    "an absolute path": ("/var/x/grid.db", "/var/x/grid.db"),
    "the home folder": ("~/grid.db", "{home}/grid.db"),
    "a path with dots": ("a/../grid.db", "{cwd}/a/../grid.db"),
    "a relative address": ("sqlite:///grid.db", "{cwd}/grid.db"),
    "an absolute address": ("sqlite:////var/grid.db", "/var/grid.db"),
    "a path with a space": ("my grid.db", "{cwd}/my grid.db"),
    "a path that looks like an option": ("-v", "{cwd}/-v"),
}


@pytest.mark.parametrize(("url", "path"), URLS.values(), ids=URLS)
def test_addresses_that_are_understood(tmp_path, monkeypatch, url, path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    wanted = path.format(cwd=tmp_path, home=tmp_path / "home")
    store = store_at(url)
    assert (store._path, store.url) == (wanted, f"sqlite:///{wanted}")
    assert store._timeout_s == DEFAULT_TIMEOUT_S


def test_a_path_object_is_a_path(tmp_path):
    assert store_at(tmp_path / "grid.db").url == f"sqlite:///{tmp_path}/grid.db"


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("0.2", 0.2), ("3600", 3600)])
def test_a_timeout_may_be_given(tmp_path, text, seconds):
    assert store_at(f"sqlite:///{tmp_path}/grid.db?timeout={text}")._timeout_s == seconds


REFUSED = [
    "", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://host/grid.db",
    "mysql://h/db", "file:///grid.db", "http://h/x", "a\0b",
    "sqlite:///g.db?timeout=-1", "sqlite:///g.db?timeout=x", "sqlite:///g.db?timeout=nan",
    "sqlite:///g.db?timeout=inf", "sqlite:///g.db?timeout=3601", "sqlite:///g.db?mode=ro",
    "sqlite:///g.db?timeout=1&cache=shared", None, 7, b"grid.db",
]  # fmt: skip


@pytest.mark.parametrize("url", REFUSED, ids=repr)
def test_addresses_that_are_refused(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput) as caught:
        store_at(url)
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_memory_touches_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, two = memory_store(), memory_store()
    assert one.open().cluster_id != two.open().cluster_id
    assert list(Path().iterdir()) == []
    one.close()
    two.close()
