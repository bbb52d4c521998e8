"""Row 93: a database file that is removed or replaced while it is open."""

import os
from pathlib import Path

import pytest

from gridhand import Grid, Request
from gridhand.core.errors import StoreInvalid, StoreOwned, StoreRemoved, StoreUnavailable
from gridhand.store.sql.sqlite import SqliteStore

ONE = Request.of(cpu=1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "grid.db"


@pytest.fixture
def grid(path):
    with Grid.at(str(path)) as grid:
        grid.register_node("n", cpu=8)
        yield grid


def store_of(grid):
    return grid._backend._keeper._store


def rewrite(grid):
    from gridhand.controller.keeper.questions import AskStore

    return grid._backend.run(AskStore(lambda store, _: store.rewrite()))


def remove_all(path):
    for file in path.parent.glob("grid.db*"):
        file.unlink()


def remove_database(path):
    path.unlink()


def remove_log(path):
    Path(f"{path}-wal").unlink()


HARMS = [remove_all, remove_database, remove_log]


@pytest.mark.parametrize("harm", HARMS)
def test_nothing_is_acknowledged_that_goes_to_a_removed_file(grid, path, harm):
    held = grid.reserve(ONE, holder="before")
    harm(path)
    with pytest.raises(StoreRemoved) as caught:
        grid.reserve(ONE, holder="after")
    assert "grid doctor --repair" in caught.value.hint
    assert str(path) in str(caught.value)
    with pytest.raises(StoreRemoved):
        grid.release(held.id)
    assert [one.holder for one in grid.allocations()] == ["before"]  # questions are answered
    assert store_of(grid).lost_file().startswith(str(path))


@pytest.mark.parametrize("harm", HARMS)
def test_it_is_written_anew_on_request(grid, path, harm):
    grid.reserve(ONE, holder="before")
    harm(path)
    assert rewrite(grid) is True
    assert rewrite(grid) is False
    grid.reserve(ONE, holder="after")
    assert {one.holder for one in grid.allocations()} == {"before", "after"}
    assert grid.check() == []
    grid.close()
    assert not os.path.exists(f"{path}.new")
    assert path.stat().st_mode & 0o777 == 0o600
    with Grid.at(str(path), create=False) as again:
        assert {one.holder for one in again.allocations()} == {"before", "after"}


def test_a_file_that_is_put_back_is_used_again(grid, path):
    os.rename(path, path.with_suffix(".away"))
    with pytest.raises(StoreRemoved):
        grid.reserve(ONE, holder="a")
    os.rename(path.with_suffix(".away"), path)
    assert grid.reserve(ONE, holder="a")


def test_a_file_of_somebody_else_is_not_written_over(grid, path):
    remove_all(path)
    path.write_text("precious")
    with pytest.raises(StoreRemoved):
        grid.reserve(ONE, holder="a")
    with pytest.raises(StoreInvalid, match="another file"):
        rewrite(grid)
    assert path.read_text() == "precious"


def test_what_was_written_to_a_file_that_vanished_meanwhile_is_not_acknowledged(
    grid, path, monkeypatch
):
    """It is known after the file was written anew: memory is read again."""
    asked = []
    real = SqliteStore.lost_file

    def vanishing(store):
        asked.append(store)
        if len(asked) == 2:  # after the commit, before the reply
            remove_all(path)
        return real(store)

    monkeypatch.setattr(SqliteStore, "lost_file", vanishing)
    with pytest.raises(StoreUnavailable):
        grid.reserve(ONE, holder="unsure")
    assert rewrite(grid) is True
    assert [one.holder for one in grid.allocations()] == ["unsure"]
    assert grid.check() == []


def test_a_store_that_another_process_has_now_is_not_taken(grid, path, monkeypatch):
    remove_all(path)

    def owned(*_):
        raise StoreOwned(str(path), 1)

    monkeypatch.setattr("gridhand.store.sql.sqlite.OwnerLock", owned)
    with pytest.raises(StoreOwned):
        rewrite(grid)
    assert not path.exists()
    with pytest.raises(StoreRemoved):
        grid.reserve(ONE, holder="a")
