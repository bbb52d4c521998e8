"""Which store a home belongs to, as its note says."""

import os
import stat

import pytest

from gridhand import Grid
from gridhand.core.errors import InvalidInput, StoreInvalid
from gridhand.home import Home
from gridhand.store.home_store import find_ledger, ledger_at, read_home_store, remember_home_store
from gridhand.store.urls import hide_password, store_at

SECRET = "postgresql://ann:pw@db.example/grid"


@pytest.fixture
def home(tmp_path):
    home = Home(str(tmp_path / "home"))
    home.make()
    return home


def test_a_home_without_a_note_has_its_own_file(home):
    assert find_ledger(home) == read_home_store(home) == (home.store, None)
    with open(home.store, "w"):
        pass  # a start that was refused leaves an empty file
    assert find_ledger(home).cluster_id is None
    with Grid.at(home.store) as grid:
        ledger = grid.identity.partition(":")[0]
    assert read_home_store(home).cluster_id is None
    assert find_ledger(home) == (home.store, ledger)


def test_another_store_is_remembered_and_only_its_owner_reads_the_password(home):
    remember_home_store(home, SECRET, "c1")
    known = read_home_store(home)
    assert known == (SECRET, "c1")
    assert known.url == "postgresql://ann:***@db.example/grid"
    assert stat.S_IMODE(os.stat(home.store_note).st_mode) == 0o600
    remember_home_store(home, home.store, "c1")
    assert os.listdir(home.folder) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"address": 1', '{"address": "grid.db"}'])
def test_a_note_that_cannot_be_read_is_not_taken_for_none(home, text):
    with open(home.store_note, "w") as file:
        file.write(text)
    with pytest.raises(StoreInvalid, match=r"store\.json") as caught:
        read_home_store(home)
    assert "--new-cluster --store" in caught.value.hint


@pytest.mark.parametrize(
    "url", ["x/grid.db", "sqlite:///x/grid.db", "sqlite:///x/grid.db?timeout=7.5"]
)
def test_the_address_of_a_store_opens_it_from_anywhere(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    store = store_at(url)
    store.open()
    ledger = ledger_at(store.address)
    store.close()
    monkeypatch.chdir("/")
    again = store_at(store.address)
    assert (again.url, again.address) == (store.url, store.address)
    assert again._timeout_s == store._timeout_s
    assert again.open().cluster_id == ledger
    again.close()


SHOWN = {
    "postgresql://ann:pw@db/grid": "postgresql://ann:***@db/grid",
    "postgresql://ann:p/w@2@db:5432/grid": "postgresql://ann:***@db:5432/grid",
    "postgresql://ann@db:5432/grid": "postgresql://ann@db:5432/grid",
    "postgresql://ann@/grid?password=pw&host=/run": "postgresql://ann@/grid?password=***&host=/run",
    "sqlite:////grid.db": "sqlite:////grid.db",
}


@pytest.mark.parametrize(("url", "shown"), SHOWN.items())
def test_a_password_is_not_shown(url, shown):
    assert hide_password(url) == shown


@pytest.mark.parametrize("url", ["postgresql://ann:secret@db:x/grid", "mysql://ann:secret@db/grid"])
def test_nor_in_the_refusal_of_an_address(url):
    with pytest.raises(InvalidInput) as caught:
        store_at(url)
    assert "secret" not in str(caught.value)
