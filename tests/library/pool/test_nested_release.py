"""A nested call that holds something besides what its caller has gives that back at its end."""

import time
from types import SimpleNamespace

import pytest

from gridhand.core.errors import GridError
from gridhand.core.ledger.allocations import AllocationMove
from gridhand.core.model.requests import Request
from gridhand.core.operations import Allocate, MoveAllocation
from gridhand.library.pool import nested
from gridhand.library.pool.call_log import Notes
from gridhand.library.pool.nested import Nested
from gridhand.library.pool.shape import Shape
from gridhand.library.pool.state import PoolState
from gridhand.worker import current_slot


class Remote:
    """A controller that grants what it is asked for, and records it."""

    def __init__(self):
        self.operations = []
        self.refuses = False

    def run(self, operation):
        self.operations.append(operation)
        if isinstance(operation, Allocate):
            if self.refuses:
                raise GridError("no room")
            return SimpleNamespace(allocations=[SimpleNamespace(id="a1-9")])
        return []


@pytest.fixture
def slot(monkeypatch):
    monkeypatch.setattr(
        current_slot, "slot", {"request": {"cpu": 10_000}, "node": "n", "allocation": "a1-1"}
    )


@pytest.fixture
def inside(slot):
    pool = SimpleNamespace(state=PoolState(1.0))
    made = Nested(pool, Remote(), "ann")
    made._running = 1
    return made


def shape():
    return Shape(1, Request.of(cpu=1, memory="1G"), Notes(lambda: None))


def released(inside):
    moves = [one for one in inside._remote.operations if isinstance(one, MoveAllocation)]
    return [(one.id, one.move) for one in moves]


def test_what_is_held_besides_is_held_on_the_node_and_given_back(inside):
    inside._work(shape(), {"memory": 10**9})
    asked, _ = inside._remote.operations
    assert asked.requests[0].node == "n"
    assert asked.requests[0].resources.parts() == {"memory": 10**9}
    assert released(inside) == [("a1-9", AllocationMove.RELEASE)]
    assert inside._running == 0
    assert not inside._threads


def test_it_is_given_back_when_the_call_fails_too(inside, monkeypatch):
    monkeypatch.setattr(inside, "_next", lambda shape: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        inside._work(shape(), {"memory": 10**9})
    assert released(inside) == [("a1-9", AllocationMove.RELEASE)]
    assert inside._running == 0


def test_where_there_is_no_room_besides_nothing_is_given_back_and_it_is_tried_again(inside):
    inside._remote.refuses = True
    inside._work(shape(), {"memory": 10**9})
    assert released(inside) == []
    assert inside._running == 0


def test_what_the_caller_has_is_not_held_again(inside):
    inside._work(shape(), {})
    assert inside._remote.operations == []


def test_one_more_may_begin_only_when_those_before_seem_to_wait(inside, monkeypatch):
    inside._running, inside._progress = 0, 0.0
    assert inside._may_begin()
    assert not inside._may_begin()
    inside._progress = time.monotonic() - 10
    assert inside._may_begin()
    assert inside._running == 2
    monkeypatch.setattr(nested, "_DEEPEST", 2)
    inside._progress = time.monotonic() - 10
    assert not inside._may_begin()
