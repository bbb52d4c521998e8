"""What every store promises, on PostgreSQL: the suite of `tests/store`, with other places in it."""

import importlib
import importlib.util
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridhand.store.urls import store_at

STORE_TESTS = Path(__file__).parents[1] / "store"
sys.path.insert(0, str(STORE_TESTS))
contract = importlib.import_module("test_contract")
_spec = importlib.util.spec_from_file_location("store_conftest", STORE_TESTS / "conftest.py")
theirs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(theirs)


def own(module):
    """The tests and fixtures of a module."""
    return {
        name: found
        for name, found in vars(module).items()
        if name.startswith("test_") or type(found).__name__ == "FixtureFunctionDefinition"
    }


def fewer(test, step):
    """A database for each example takes a tenth of a second, so there are fewer of them."""
    steps = st.lists(step, min_size=5, max_size=60)
    return settings(max_examples=20, deadline=None)(given(steps=steps)(test.hypothesis.inner_test))


# `store`, `durable`, `kind` and `tools` are ours.
globals().update(own(contract))
test_whatever_happened_and_was_forgotten_the_rest_can_be_replayed = fewer(
    contract.test_whatever_happened_and_was_forgotten_the_rest_can_be_replayed, contract.STEP
)


class Database:
    """A place that outlives its stores: each `store()` is a new owner of the same ledger."""

    durable = True

    def __init__(self, url):
        self.url = url
        self.made = []

    def store(self):
        self.made.append(store_at(self.url))
        return self.made[-1]


@pytest.fixture(scope="session", params=["postgresql"])
def kind(request):
    return request.param


@pytest.fixture(scope="session")
def tools(postgres):
    class Tools(theirs.Tools):
        @staticmethod
        @contextmanager
        def new_place(kind):
            url = postgres.new_database()
            try:
                yield Database(url)
            finally:
                postgres.drop(url)

    return Tools


@pytest.fixture
def durable(database):
    place = Database(database)
    yield place
    for made in place.made:
        made.close()


@pytest.fixture
def store(durable):
    made = durable.store()
    made.open()
    made.load()
    return made


def test_the_whole_contract_is_here():
    assert len([name for name in globals() if name.startswith("test_")]) > 30
