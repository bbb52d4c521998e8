"""Those who wait for room, where the keeper meets trouble."""

import threading
import time

import pytest

from failing_store import FailingStore
from gridhand import Grid, GridClosed, Node, NoRoom, Request, StoreUnavailable
from gridhand.controller.keeper.embedded import Embedded
from gridhand.controller.keeper.keeper import Keeper
from gridhand.controller.keeper.tickets import NOWHERE, Ticket
from gridhand.controller.keeper.wait_list import WaitList
from gridhand.core.errors import ControllerStopping, OutcomeUnknown
from gridhand.core.ledger.allocations import Terms
from gridhand.core.ledger.ledger import Change, Ledger
from gridhand.core.operations import Allocate
from gridhand.core.placement.place import place
from gridhand.core.placement.snapshot import Snapshot


@pytest.fixture
def store(tmp_path):
    return FailingStore(str(tmp_path / "grid.db"), tells=True)


@pytest.fixture
def keeper(store):
    return Keeper(store)


@pytest.fixture
def grid(keeper):
    with Grid(backend=Embedded(keeper), owner="ann") as grid:
        grid.register_node("n1", cpu=4)
        yield grid
        assert grid.check() == []
        assert not keeper._waiting


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
    store.faults.append(StoreUnavailable("it is away"))
    with pytest.raises(StoreUnavailable):
        held.release()
    assert isinstance(waiter.done(), StoreUnavailable)
    assert [one.id for one in grid.allocations()] == [held.id]


def test_a_commit_of_unknown_outcome_that_turns_out_well_serves_them(grid, store):
    held = grid.allocate(cpu=4)
    waiter = Waiter(lambda: grid.allocate(cpu=1, wait=10))
    store.faults.append((OutcomeUnknown("it was cut off"), True))
    held.release()
    assert waiter.done().id in [one.id for one in grid.allocations()]


def test_those_who_wait_are_no_reason_to_write(grid, store):
    grid.allocate(cpu=4)
    store.faults.append(StoreUnavailable("it is away"))
    with pytest.raises(NoRoom):
        grid.allocate(cpu=1, wait=0.1)
    assert store.faults.pop()


def test_one_who_has_gone_is_not_served(grid, keeper):
    held = grid.allocate(cpu=4)
    gone = Ticket(grid._operations.allocate(None, None, None, None, {"cpu": 4}, 10), NOWHERE)
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


def test_a_keeper_that_is_frozen_decides_nothing_and_still_answers_questions(grid, keeper):
    """Row 86: no grant, no release, no expiry; who waits is told to ask the next controller."""
    held = grid.allocate(cpu=3)
    lease = grid.allocate(cpu=1, ttl=0.5)
    waiter = Waiter(lambda: grid.allocate(cpu=4, wait=30))
    keeper.freeze()
    assert isinstance(waiter.done(), ControllerStopping)
    with pytest.raises(ControllerStopping):
        held.release()
    with pytest.raises(ControllerStopping):
        grid.allocate(cpu=1)
    time.sleep(0.7)
    assert {one.id for one in grid.allocations()} == {held.id, lease.id}


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


# ---- the list itself


@pytest.fixture
def snapshot():
    ledger = Ledger()
    ledger.register(Node.of("n1", cpu=4))
    taken = place(Request.of(cpu=4), Snapshot(ledger))
    ledger.grant([taken], Terms("ann"), now=0)
    return Snapshot(ledger)


def ticket_for(cpu, wait_ms):
    asked = Allocate("ann", None, (Request.of(cpu=cpu),), Terms("ann"), wait_ms=wait_ms)
    return Ticket(asked, NOWHERE)


#    what it shows                   cpu  wait_ms   now    abandoned   whether it waits
TAKES = {
    "no room yet":                  (2,   1000,     0,     False,      True),
    "it does not want to wait":     (2,   0,        0,     False,      False),
    "it can never fit":             (5,   1000,     0,     False,      False),
    "it has given up":              (2,   1000,     0,     True,       False),
}  # fmt: skip


@pytest.mark.parametrize(("cpu", "wait_ms", "now", "abandoned", "waits"), TAKES.values(), ids=TAKES)
def test_who_is_taken_to_wait(snapshot, cpu, wait_ms, now, abandoned, waits):
    ticket = ticket_for(cpu, wait_ms)
    ticket.abandoned = abandoned
    error = place(ticket.operation.requests[0], snapshot).error()
    assert WaitList().takes(ticket, error, now) is waits


def test_a_wait_ends_at_its_time_whatever_is_tried_meanwhile(snapshot):
    ticket, waiting = ticket_for(2, 1000), WaitList()
    error = place(ticket.operation.requests[0], snapshot).error()
    assert waiting.takes(ticket, error, 500)
    waiting.join(ticket, None)
    assert waiting.takes(ticket, error, 1499)
    assert waiting.next_due() == 1500
    assert waiting.to_try([], 1499) == []
    assert waiting.to_try([], 1500) == [ticket]
    assert not waiting.takes(ticket, error, 1500)


def test_all_are_tried_in_their_order_when_something_is_freed(snapshot):
    waiting = WaitList()
    tickets = [ticket_for(2, 1000) for _ in range(3)]
    for ticket in (*tickets, tickets[0]):
        ticket.wait_until = 1000
        waiting.join(ticket, None)
    for kind, tried in (
        ("allocation.released", tickets),
        ("node.resumed", tickets),
        ("job.started", []),
    ):
        change = Change(kind, "x", None, None, "")
        assert waiting.to_try([(change, "ann", None)], 0) == tried
    tickets[1].abandoned = True
    waiting.drop_abandoned(0)
    freed = Change("allocation.expired", "x", None, None, "")
    assert waiting.to_try([(freed, "ann", None)], 0) == [tickets[0], tickets[2]]
    assert tickets[1] not in waiting
