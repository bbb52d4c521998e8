"""Those who wait for room, where the keeper meets trouble."""

import threading
import time

import pytest

from gridhand import Grid, GridClosed, NoRoom, StoreUnavailable
from gridhand.controller.embedded import Embedded
from gridhand.controller.keeper import Keeper
from gridhand.controller.tickets import NOWHERE, Ticket
from gridhand.core.errors import OutcomeUnknown
from gridhand.store.sqlite import SqliteStore


class FailingStore:
    """The real store; some commits fail."""

    def __init__(self, path):
        self._store = SqliteStore(path)
        self.faults = []
        self.written = False

    def __getattr__(self, name):
        return getattr(self._store, name)

    def commit(self, batch):
        if self.faults:
            self.written, error = self.faults.pop(0)
            if self.written:
                self._store.commit(batch)
            raise error
        self._store.commit(batch)

    def recover(self):
        self._store.recover()
        return self.written


@pytest.fixture
def store(tmp_path):
    return FailingStore(str(tmp_path / "grid.db"))


@pytest.fixture
def keeper(store):
    return Keeper(store)


@pytest.fixture
def grid(keeper):
    with Grid(backend=Embedded(keeper), owner="ann") as grid:
        grid.register_node("n1", cpu=4)
        yield grid
        assert grid.check() == []
        assert not keeper._line


class Waiter(threading.Thread):
    def __init__(self, ask):
        super().__init__(daemon=True)
        self._ask = ask
        self.answer = None
        self.start()
        time.sleep(0.05)

    def run(self):
        try:
            self.answer = self._ask()
        except Exception as error:
            self.answer = error

    def done(self):
        self.join(10)
        assert not self.is_alive()
        return self.answer


def test_a_commit_that_fails_answers_those_it_would_have_served_and_grants_nothing(grid, store):
    held = grid.allocate(cpu=4)
    waiter = Waiter(lambda: grid.allocate(cpu=1, wait=10))
    store.faults.append((False, StoreUnavailable("it is away")))
    with pytest.raises(StoreUnavailable):
        held.release()
    assert isinstance(waiter.done(), StoreUnavailable)
    assert [one.id for one in grid.allocations()] == [held.id]


def test_a_commit_of_unknown_outcome_that_turns_out_well_serves_them(grid, store):
    held = grid.allocate(cpu=4)
    waiter = Waiter(lambda: grid.allocate(cpu=1, wait=10))
    store.faults.append((True, OutcomeUnknown("it was cut off")))
    held.release()
    assert waiter.done().id in [one.id for one in grid.allocations()]


def test_those_who_wait_are_no_reason_to_write(grid, store):
    grid.allocate(cpu=4)
    store.faults.append((False, StoreUnavailable("it is away")))
    with pytest.raises(NoRoom):
        grid.allocate(cpu=1, wait=0.1)
    assert store.faults.pop()


def test_one_who_has_gone_is_not_served(grid, keeper):
    held = grid.allocate(cpu=4)
    gone = Ticket(grid._calls.allocate(None, None, None, None, {"cpu": 4}, 10), NOWHERE)
    keeper.submit([gone])
    waiter = Waiter(lambda: grid.allocate(cpu=4, wait=10))
    keeper.abandon(gone)
    held.release()
    assert waiter.done().state == "active"
    assert gone.reply is None


def test_a_keeper_that_ends_sends_them_away():
    grid = Grid.in_memory()
    grid.register_node("n1", cpu=1)
    grid.allocate(cpu=1)
    waiters = [Waiter(lambda: grid.allocate(cpu=1, wait=30)) for _ in range(3)]
    grid.close()
    assert [type(waiter.done()) for waiter in waiters] == [GridClosed] * 3


def test_a_hundred_who_wait_for_one_place_have_it_one_after_the_other(grid):
    held = grid.allocate(cpu=4)
    order = []

    def work(number):
        with grid.allocate(cpu=4, wait=30):
            order.append(number)

    waiters = [threading.Thread(target=work, args=[n], daemon=True) for n in range(100)]
    for waiter in waiters:
        waiter.start()
        time.sleep(0.002)
    held.release()
    for waiter in waiters:
        waiter.join(30)
        assert not waiter.is_alive()
    assert sorted(order) == list(range(100))
