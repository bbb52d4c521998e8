"""A store that is another than expected, or older, is refused and left alone (row 26)."""

import shutil

import pytest

from gridhand import AsyncGrid, Grid, InvalidInput, StoreInvalid
from gridhand.store.sql.postgres import PostgresStore


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "grid.db")
    return request.getfixturevalue("database")


def noted(url):
    with Grid.at(url) as grid:
        return grid.identity


def test_the_ledger_that_was_noted_is_opened(url):
    before = noted(url)
    with Grid.at(url, expect=before) as grid:
        assert grid.identity != before
        assert grid.identity.split(":")[0] == before.split(":")[0]
    AsyncGrid.at(url, expect=before)._backend.close()


def test_one_that_is_older_than_it_has_been_is_refused(url):
    cluster, _, epoch = noted(url).partition(":")
    with pytest.raises(StoreInvalid, match="older than expected") as caught:
        Grid.at(url, expect=f"{cluster}:{int(epoch) + 1}")
    assert "backup" in caught.value.hint
    with Grid.at(url) as grid:  # the refused opening has left no trace
        assert grid.identity == f"{cluster}:{int(epoch) + 1}"


def test_a_restored_backup_is_noticed(tmp_path):
    path = tmp_path / "grid.db"
    with Grid.at(str(path)) as grid:
        grid.register_node("n", cpu=4)
    shutil.copy(path, tmp_path / "backup.db")
    with Grid.at(str(path)) as grid:
        grid.allocate(cpu=1)
        last = grid.identity
    shutil.copy(tmp_path / "backup.db", path)
    with pytest.raises(StoreInvalid, match="older than expected"):
        Grid.at(str(path), expect=last)


def test_another_ledger_is_refused(url, tmp_path):
    other = noted(str(tmp_path / "other.db"))
    noted(url)
    with pytest.raises(StoreInvalid, match="another ledger"):
        Grid.at(url, expect=other)


def test_nothing_is_made_where_a_ledger_is_expected(url):
    with pytest.raises(StoreInvalid, match="there is no store"):
        Grid.at(url, expect="0123456789abcdef:1")


@pytest.mark.parametrize(
    "expect", ["", "x", "abc:", ":1", "abc:-1", "abc:1x", "a b:1", 5, "a:" + "9" * 30]
)
def test_what_is_no_identity_is_refused_by_name(tmp_path, expect):
    with pytest.raises(InvalidInput, match="expect"):
        Grid.at(str(tmp_path / "grid.db"), expect=expect)


def test_a_store_that_was_closed_is_free_at_once(database, monkeypatch):
    """Not a moment later, when the server has ended the session: here it never does."""
    first, second = PostgresStore(database), PostgresStore(database)
    first.open()
    with monkeypatch.context() as patched:
        patched.setattr(PostgresStore, "_disconnect", lambda store: None)
        first.close()
    second.open()
    second.close()
    first.close()
