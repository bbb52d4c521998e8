"""Waiting for room: who waits is served in turn, in time or not at all."""

import asyncio
import threading
import time

import pytest

from gridhand import AsyncGrid, Grid, GridClosed, InvalidInput, NeverFits, NoRoom, Resources
from gridhand.client import routes
from gridhand.client.transport import Address
from gridhand.controller.controller import Controller
from gridhand.library import remote_operations
from nodeless_controller import Running
from until import until


@pytest.fixture
def grid(grid):
    grid.register_node("n1", cpu=4)
    return grid


class Waiter(threading.Thread):
    """Somebody who asks and waits, and then keeps what it got."""

    def __init__(self, ask):
        super().__init__(daemon=True)
        self._ask = ask
        self.made = self.error = None
        self.start()

    def run(self):
        try:
            self.made = self._ask()
        except Exception as error:
            self.error = error

    def done(self):
        self.join(10)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.made


def standing(seconds=0.15):
    """Long enough for one who asks to stand in line."""
    time.sleep(seconds)


def test_one_who_waits_is_served_when_there_is_room(grid):
    held = grid.allocate(cpu=4)
    waiter = Waiter(lambda: grid.allocate(cpu=2, wait=120))
    standing()
    assert waiter.is_alive()
    assert len(grid.allocations()) == 1
    held.release()
    assert waiter.done().node == "n1"  # long before its time
    assert grid.node("n1").available == Resources.of(cpu=2)


def test_where_there_is_room_nobody_waits(grid):
    begin = time.monotonic()
    grid.allocate(cpu=4, wait=60)
    assert time.monotonic() - begin < 30


def test_after_its_time_one_is_refused_with_the_reasons(grid):
    grid.allocate(cpu=3)
    begin = time.monotonic()
    with pytest.raises(NoRoom, match=r"has 1\.00 available, task requires 2\.00"):
        grid.allocate(cpu=2, wait=0.2)
    assert time.monotonic() - begin > 0.19


def test_for_what_can_never_be_nobody_waits(grid):
    begin = time.monotonic()
    with pytest.raises(NeverFits):
        grid.allocate(cpu=5, wait=60)
    assert time.monotonic() - begin < 30


def test_those_who_wait_are_served_in_the_order_they_came(grid):
    held = grid.allocate(cpu=4)
    waiters = []
    for number in range(4):
        ask = lambda number=number: grid.allocate(cpu=2, holder=f"w{number}", wait=20)  # noqa: E731
        waiters.append(Waiter(ask))
        standing()
    held.release()
    first, second = waiters[0].done(), waiters[1].done()
    assert {one.holder for one in grid.allocations()} == {"w0", "w1"}
    second.release()
    waiters[2].done()
    assert {one.holder for one in grid.allocations()} == {"w0", "w2"}
    first.release()
    waiters[3].done()


def test_one_who_asks_for_much_does_not_keep_others_from_what_is_there(grid):
    first, _ = grid.allocate(cpu=2), grid.allocate(cpu=2)
    large = Waiter(lambda: grid.allocate(cpu=4, wait=0.6))
    standing()
    small = Waiter(lambda: grid.allocate(cpu=1, wait=10))
    standing()
    first.release()
    assert small.done().state == "active"
    with pytest.raises(NoRoom):
        large.done()


ROOM = {
    "a lease that ends": lambda g: None,
    "a node that is new": lambda g: g.register_node("n2", cpu=4),
    "a node that is larger": lambda g: g.register_node("n1", cpu=8),
    "a node that is resumed": lambda g: g.resume("spare"),
    "a node that is up": lambda g: g.set_health("sick", "up"),
}


@pytest.mark.parametrize("make", ROOM.values(), ids=ROOM)
def test_room_may_come_from_anywhere(grid, make):
    grid.register_node("spare", cpu=4)
    grid.drain("spare")
    grid.register_node("sick", cpu=4)
    grid.set_health("sick", "suspect")
    grid.allocate(cpu=4, ttl=0.3 if make is ROOM["a lease that ends"] else 60)
    waiter = Waiter(lambda: grid.allocate(cpu=4, wait=10))
    standing(0.1)
    make(grid)
    assert waiter.done().state == "active"


def test_groups_and_reservations_wait_too(grid):
    held = grid.allocate(cpu=4)
    group = Waiter(lambda: grid.allocate_group([{"cpu": 1}] * 2, wait=10))
    kept = Waiter(lambda: grid.reserve(cpu=2, ttl=60, wait=10))
    standing()
    held.release()
    assert len(group.done()) == 2
    assert kept.done().state == "reserved"


def test_the_same_op_id_twice_in_line_is_one_allocation(grid):
    held = grid.allocate(cpu=4)
    both = [Waiter(lambda: grid.allocate(cpu=1, wait=10, op_id="op-1")) for _ in range(2)]
    standing()
    held.release()
    assert both[0].done().id == both[1].done().id
    assert len(grid.allocations()) == 1


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), True, "5", None, 1e300, [1]])
def test_a_time_that_is_none_is_refused(grid, wait):
    with pytest.raises(InvalidInput, match="wait"):
        grid.allocate(cpu=1, wait=wait)


def test_a_task_that_is_cancelled_while_it_stands_in_line_leaves_nothing_held(grid):
    held = grid.allocate(cpu=4)

    async def work():
        twin = AsyncGrid.of(grid)
        tasks = [asyncio.create_task(twin.allocate(cpu=1, wait=20)) for _ in range(40)]
        await asyncio.sleep(0.3)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks[1:], return_exceptions=True)
        assert not await twin.fits("n1", cpu=1)
        await asyncio.to_thread(held.release)
        made = await tasks[0]
        deadline = time.monotonic() + 5
        while [one.id for one in await twin.allocations()] != [made.id]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(work(), 30))


def grants(grid):
    return sum(event.kind == "allocation.active" for event in grid.events(limit=10_000))


def test_a_task_that_is_cancelled_leaves_the_line_at_once_and_is_never_granted(grid, monkeypatch):
    monkeypatch.setattr(remote_operations, "_WHILE_S", 45.0)  # it is asked for once
    held = grid.allocate(cpu=4)
    before = grants(grid)

    async def work():
        twin = AsyncGrid.of(grid)
        tasks = [asyncio.create_task(twin.allocate(cpu=4, wait=60)) for _ in range(3)]
        lines = line_of(grid)
        await asyncio.to_thread(until, lambda: lines() == 3)
        for task in tasks[:2]:
            task.cancel()
        await asyncio.gather(*tasks[:2], return_exceptions=True)
        await asyncio.to_thread(until, lambda: lines() == 1, 20)  # nothing was freed meanwhile
        await asyncio.to_thread(held.release)
        return await tasks[2]

    made = asyncio.run(asyncio.wait_for(work(), 60))
    assert [one.id for one in grid.allocations()] == [made.id]
    assert grants(grid) == before + 1


def line_of(grid):
    """How many wait for room, as the keeper knows it."""
    backend = grid._backend
    keeper = backend._keeper if hasattr(backend, "_keeper") else CONTROLLERS[-1]._backend._keeper
    return lambda: len(keeper._waiting._waiting)


CONTROLLERS = []


@pytest.fixture(autouse=True)
def controllers(monkeypatch):
    """The controllers that a test starts in this process."""
    CONTROLLERS.clear()
    begin = Controller.__init__

    def noted(self, *args, **more):
        begin(self, *args, **more)
        CONTROLLERS.append(self)

    monkeypatch.setattr(Controller, "__init__", noted)


def test_a_program_that_is_gone_leaves_the_line_at_once(tmp_path):
    with Running(tmp_path / "home") as server, Grid(backend=server.backend(), owner="ann") as grid:
        grid.register_node("n1", cpu=1)
        held = grid.allocate(cpu=1)
        lines, before = line_of(grid), grants(grid)
        order = {"request": {"cpu": 1}, "lifetime": "until_released", "wait_s": 40}
        call = routes.allocate(order, None)
        connection = Address(server.home.socket).open(30)
        waiter = Waiter(lambda: connection.ask("POST", call.target, call.headers, call.body, 60))
        until(lambda: lines() == 1)
        connection.shut_down()
        until(lambda: lines() == 0)
        held.release()
        with pytest.raises(ConnectionError):
            waiter.done()
        connection.close()
        assert grants(grid) == before
        assert grid.allocations() == []


def test_closing_sends_away_those_who_wait():
    grid = Grid.in_memory()
    grid.register_node("n1", cpu=1)
    grid.allocate(cpu=1)
    waiters = [Waiter(lambda: grid.allocate(cpu=1, wait=30)) for _ in range(3)]
    time.sleep(0.1)
    grid.close()
    for waiter in waiters:
        with pytest.raises(GridClosed):
            waiter.done()
