"""The stores under test: each kind passes one contract."""

import pytest

from store_writer import DURABLE, PLACES, Writer, all_events, new_place


def pytest_generate_tests(metafunc):
    """A test that asks for a `kind` makes stores of that kind itself: `tools.new_place(kind)`."""
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", PLACES)


class Tools:
    """What the test modules share."""

    Writer = Writer
    new_place = staticmethod(new_place)
    all_events = staticmethod(all_events)


@pytest.fixture(scope="session")
def tools():
    return Tools


@pytest.fixture(params=PLACES)
def store(request):
    """An open, loaded store of each kind."""
    with new_place(request.param) as place:
        made = place.store()
        made.open()
        made.load()
        yield made


@pytest.fixture(params=DURABLE)
def durable(request):
    """A place of each kind that outlives its stores."""
    with new_place(request.param) as place:
        yield place
