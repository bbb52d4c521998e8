"""`Grid(tracker=…)`: a user's own tracker agrees to each grant and learns of each end."""

import asyncio
import threading
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from example_budget import examples
from gridhand import (
    AsyncGrid,
    Function,
    Graph,
    Grid,
    GridError,
    InvalidInput,
    NoRoom,
    StoreUnavailable,
    task,
)
from gridhand.core.model.resources import Resources
from until import until


class Book:
    """A tracker that allows so many cores on each node, and keeps book of them."""

    def __init__(self, **cores):
        self.free = {node: Resources.of(cpu=cpu) for node, cpu in cores.items()}
        self.held = {}
        self.seen = Counter()
        self.broken = None

    def fits(self, node, resources=None, **named):
        self.seen["fits"] += 1
        if self.broken is not None:
            raise self.broken
        return resources.fits_in(self.free[node])

    def allocate(self, resources=None, *, node, **named):
        self.seen["allocate"] += 1
        self.free[node] -= resources
        receipt = self.seen["allocate"], node
        self.held[receipt] = resources
        return receipt

    def release(self, allocation):
        self.seen["release"] += 1
        self.free[allocation[1]] += self.held.pop(allocation)


@pytest.fixture
def book():
    return Book(a=2, b=4)


@pytest.fixture
def grid(book):
    with Grid(tracker=book) as grid:
        grid.register_node("a", cpu=8)
        grid.register_node("b", cpu=8)
        yield grid
        assert grid.check() == []


def test_a_node_that_the_tracker_refuses_is_passed_over(grid, book):
    assert [grid.allocate(cpu=2).node for _ in range(3)] == ["a", "b", "b"]
    with pytest.raises(NoRoom, match="the tracker has no room for cpu=2 on ") as caught:
        grid.allocate(cpu=2)
    assert caught.value.refusal is None
    assert grid.status().allocated == Resources.of(cpu=6)
    assert len(book.held) == 3


def test_a_pinned_request_goes_nowhere_else(grid, book):
    with pytest.raises(NoRoom, match="the tracker has no room for cpu=3 on a"):
        grid.allocate(cpu=3, node="a")
    assert (grid.fits("a", cpu=3), grid.fits("b", cpu=3)) == (False, True)
    assert grid.allocations() == []


def test_the_ledger_refuses_before_the_tracker_is_asked(grid, book):
    with pytest.raises(NoRoom) as caught:
        grid.allocate(cpu=9)
    assert "Insufficient CPU" in str(caught.value.refusal.reasons())
    assert not book.seen


def test_a_group_is_granted_whole_or_not_at_all(grid, book):
    held = grid.allocate_group([{"cpu": 2}] * 3)
    assert sorted(one.node for one in held) == ["a", "b", "b"]
    with pytest.raises(NoRoom):
        grid.allocate_group([{"cpu": 1}, {"cpu": 1}])
    held[0].release()
    with pytest.raises(NoRoom):
        grid.allocate_group([{"cpu": 1}, {"cpu": 6}])
    assert book.held == {}


def test_every_way_to_end_tells_the_tracker_once(grid, book):
    with grid.allocate(cpu=1):
        pass
    grid.allocate(cpu=1, node="b")
    grid.set_health("b", "down")  # lost
    grid.reserve(cpu=1, ttl=0.05)
    until(lambda: not grid.allocations())  # expired
    until(lambda: not book.held)
    grid.allocate(cpu=1, node="a")
    grid.unregister("a", force=True)
    assert book.held == {}
    assert book.seen["allocate"] == book.seen["release"] == 4


def test_what_is_held_when_the_grid_is_closed_is_released():
    book = Book(a=2)
    with Grid(tracker=book) as grid:
        grid.register_node("a", cpu=8)
        grid.allocate(cpu=1)
        grid.allocate(cpu=1)
        assert len(book.held) == 2
    assert book.held == {}


def test_the_same_holder_and_the_same_op_id_are_asked_for_once(grid, book):
    first = grid.allocate(cpu=1, holder="me")
    assert grid.allocate(cpu=1, holder="me").id == first.id
    again = grid.allocate(cpu=1, op_id="x")
    assert grid.allocate(cpu=1, op_id="x").id == again.id
    assert len(book.held) == 2


def test_a_holder_finds_its_own_though_another_node_was_refused_first(grid, book):
    grid.allocate(cpu=2, node="a")
    first = grid.allocate(cpu=2, holder="me")
    assert first.node == "b"
    assert grid.allocate(cpu=2, holder="me").id == first.id


@pytest.mark.parametrize("error", [ValueError("lost its book"), SystemExit(1)], ids=repr)
def test_a_tracker_that_breaks_fails_the_request_alone(grid, book, error):
    book.broken = error
    for ask in (lambda: grid.allocate(cpu=1), lambda: grid.fits("a", cpu=1)):
        with pytest.raises(GridError, match="tracker: Book raised "):
            ask()
    book.broken = None
    assert grid.allocate(cpu=1).node == "a"
    assert len(grid.allocations()) == 1


def test_a_tracker_that_cannot_release_stops_nothing(grid, book, caplog):
    held = grid.allocate(cpu=1)
    book.held.clear()
    assert held.release().state == "released"
    assert "the tracker could not release" in caplog.text
    assert grid.allocate(cpu=1).node == "a"


def test_whoever_waits_is_served_when_the_tracker_has_room_again(grid, book):
    book.free = {"a": Resources(), "b": Resources()}
    got = []
    waiting = threading.Thread(target=lambda: got.append(grid.allocate(cpu=1, wait=60).node))
    waiting.start()
    until(lambda: book.seen["fits"] >= 2)
    book.free = {"a": Resources(), "b": Resources.of(cpu=1)}  # nobody tells the grid
    waiting.join(60)
    assert got == ["b"]


def test_functions_and_graphs_hold_what_the_tracker_grants(grid, book):
    @task(cpu=2, grid=grid)
    def doubled(x):
        return 2 * x, len(book.held)

    results = [one.result(60) for one in [doubled.submit(x) for x in range(6)]]
    assert [value for value, _ in results] == [0, 2, 4, 6, 8, 10]
    assert max(held for _, held in results) <= 3
    graph = Graph([Function(f"f{n}", lambda: len(book.held), cost={"cpu": 2}) for n in range(4)])
    assert max(grid.execute(graph).results.values()) <= 3
    assert book.held == {}


def test_a_grid_may_be_the_tracker_of_another_and_refuses_in_its_own_words():
    with Grid.in_memory() as inner:
        inner.register_node("a", cpu=1)
        with Grid.in_memory(tracker=inner, strategy="pack") as outer:
            outer.register_node("a", cpu=8)
            with outer.allocate(cpu=1):
                assert inner.status().allocated == Resources.of(cpu=1)
                with pytest.raises(NoRoom):
                    outer.allocate(cpu=1)
            assert inner.allocations() == []


def test_the_async_grid_has_it_too():
    async def main():
        book = Book(a=1)
        async with AsyncGrid.in_memory(tracker=book) as grid:
            await grid.register_node("a", cpu=8)
            async with await grid.allocate(cpu=1):
                assert len(book.held) == 1
                with pytest.raises(NoRoom):
                    await grid.allocate(cpu=1)
        return book.held

    assert asyncio.run(main()) == {}


def test_what_could_not_be_written_is_given_back(grid, book, monkeypatch):
    store = grid._backend._keeper._store

    def failing(batch):
        raise StoreUnavailable("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(store, "commit", failing)
        with pytest.raises(StoreUnavailable):
            grid.allocate(cpu=1)
        assert book.held == {}
    assert grid.allocate(cpu=1).node == "a"


WRONG = {
    "one that lacks a method": (lambda: Grid(tracker=object())),
    "a class": (lambda: Grid(tracker=Book)),
    "one with an address": (lambda: Grid("unix:/nowhere", tracker=Book())),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_what_is_no_tracker_is_refused(make):
    with pytest.raises(InvalidInput, match="tracker: "):
        make()


class Books(RuleBasedStateMachine):
    """Whatever is done in whatever order, the book of the tracker is that of the grid."""

    def __init__(self):
        super().__init__()
        self.book = Book(a=3, b=3, c=2)
        self.grid = Grid(tracker=self.book)
        for name in self.book.free:
            self.grid.register_node(name, cpu=4)

    @rule(cpu=st.integers(1, 4), node=st.sampled_from([None, "a", "b", "c"]))
    def allocate(self, cpu, node):
        free = {name: self.book.free[name]["cpu"] for name in [node] if name} or {
            name: left["cpu"] for name, left in self.book.free.items()
        }
        open_ = {name for name in free if self.grid.node(name).node.health == "up"}
        fits = any(free[name] >= cpu * 10_000 for name in open_)
        try:
            assert self.grid.allocate(cpu=cpu, node=node).node in open_
            assert fits
        except NoRoom:
            assert not fits

    @rule(sizes=st.lists(st.integers(1, 3), min_size=2, max_size=3))
    def allocate_group(self, sizes):
        before = dict(self.book.free)
        try:
            self.grid.allocate_group([{"cpu": cpu} for cpu in sizes])
        except NoRoom:
            assert self.book.free == before

    @precondition(lambda self: self.book.held)
    @rule(which=st.integers(0, 99))
    def release(self, which):
        live = self.grid.allocations()
        live[which % len(live)].release()

    @rule(name=st.sampled_from("abc"))
    def lose(self, name):
        self.grid.set_health(name, "down")
        self.grid.set_health(name, "up")

    @invariant()
    def both_books_agree(self):
        theirs = Counter((held.node, held.resources) for held in self.grid.allocations())
        assert theirs == Counter((node, self.book.held[n, node]) for n, node in self.book.held)
        assert self.grid.check() == []

    def teardown(self):
        self.grid.close()
        assert self.book.held == {}


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=examples(25), stateful_step_count=20, deadline=None)
