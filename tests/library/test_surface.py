"""What a program sees of Grid and AsyncGrid, apart from what they count."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest

import gridhand
from gridhand import (
    Allocation,
    AsyncGrid,
    ControllerUnavailable,
    Function,
    Grid,
    GridClosed,
    GridError,
    HolderBusy,
    InvalidInput,
    Node,
    NoRoom,
    NotYours,
    OperationReused,
    Resources,
    StoreOwned,
    StrategyFailed,
    UnknownAllocation,
    UnknownNode,
)
from gridhand.controller.keeper.tracked_grants import Tracker
from gridhand.library.allocation_handle import AsyncAllocation
from until import until


@pytest.fixture
def grid(grid):
    grid.register_node("n1", cpu=4)
    return grid


def seen(grid):
    return {key: value for key, value in grid.dump().items() if key != "now"}


# ---- the two twins


def methods(kind):
    return {
        name: inspect.signature(found)
        for name, found in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


def shape(signature):
    """Names, kinds and defaults of the parameters: what a caller writes."""
    return [(one.name, one.kind, one.default) for one in signature.parameters.values()]


def test_grid_and_asyncgrid_have_the_same_methods_with_the_same_parameters():
    sync, twin = methods(Grid), methods(AsyncGrid)
    assert twin.keys() - sync.keys() == {"of"}
    assert sync.keys() - twin.keys() == set()
    for name, signature in sync.items():
        assert shape(signature) == shape(twin[name]), name


def test_what_asks_is_awaited_in_asyncgrid_and_nothing_else():
    for name in methods(Grid):
        found = inspect.getattr_static(AsyncGrid, name)
        awaited = inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found)
        assert awaited is (name not in ("at", "in_memory", "for_owner")), name


def test_the_allocations_of_both_have_the_same_methods_and_facts():
    assert methods(Allocation).keys() == methods(AsyncAllocation).keys()
    for name, signature in methods(Allocation).items():
        assert shape(signature) == shape(methods(AsyncAllocation)[name])

    def facts(kind):
        return {name for name, _ in inspect.getmembers(kind, lambda o: isinstance(o, property))}

    assert facts(Allocation) == facts(AsyncAllocation)


def test_every_public_name_is_there_and_sorted():
    assert gridhand.__all__ == sorted(gridhand.__all__)
    for name in gridhand.__all__:
        assert getattr(gridhand, name).__name__ == name
    with pytest.raises(AttributeError, match="Gird"):
        gridhand.Gird  # noqa: B018 - looking is what is tested


def test_every_public_method_says_what_it_does():
    for kind in (Grid, AsyncGrid, Allocation, AsyncAllocation):
        assert kind.__doc__
        for name in methods(kind):
            assert name in ("node",) or getattr(kind, name).__doc__, f"{kind.__name__}.{name}"


# ---- opening and closing


@pytest.mark.parametrize("kind", [Grid, AsyncGrid])
@pytest.mark.parametrize("given", [(), ("unix:/no/such/socket",), ("http://127.0.0.1:9",)])
def test_without_a_controller_the_error_says_so(kind, given):
    with pytest.raises(ControllerUnavailable) as caught:
        kind(*given)
    assert caught.value.code == "controller_unavailable"
    assert caught.value.hint


@pytest.mark.parametrize(
    "address", ["nonsense", "http://host", "ftp://a:1", "unix:x", 7, b"unix:/x"]
)
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(InvalidInput):
        Grid(address)


def asks_of(held):
    """Every method of Grid that asks something."""
    return {
        "register_node": lambda g: g.register_node("n2", cpu=1),
        "register_nodes": lambda g: g.register_nodes([Node.of("n2", cpu=1)]),
        "nodes": lambda g: g.nodes(),
        "node": lambda g: g.node("n1"),
        "drain": lambda g: g.drain("n1"),
        "resume": lambda g: g.resume("n1"),
        "set_health": lambda g: g.set_health("n1", "up"),
        "unregister": lambda g: g.unregister("n1"),
        "report_foreign": lambda g: g.report_foreign("n1", {}),
        "fits": lambda g: g.fits("n1", cpu=1),
        "explain": lambda g: g.explain(cpu=1),
        "allocate": lambda g: g.allocate(cpu=1),
        "allocate_group": lambda g: g.allocate_group([{"cpu": 1}]),
        "reserve": lambda g: g.reserve(cpu=1),
        "confirm": lambda g: g.confirm(held),
        "renew": lambda g: g.renew(held),
        "release": lambda g: g.release(held),
        "allocations": lambda g: g.allocations(),
        "status": lambda g: g.status(),
        "check": lambda g: g.check(),
        "dump": lambda g: g.dump(),
        "events": lambda g: g.events(),
        "prune": lambda g: list(g.prune(60)),
        "execute": lambda g: g.execute([Function("f", int)]),
        "stream": lambda g: g.stream([Function("x", type="input"), Function("f", int, args=["x"])]),
    }


JOBS = {
    "run": lambda g: g.run("true"),
    "run_array": lambda g: g.run_array("true", "1-3"),
    "run_gang": lambda g: g.run_gang("true", 3),
    "jobs": lambda g: g.jobs(),
    "job": lambda g: g.job("1"),
    "cancel": lambda g: g.cancel("1"),
    "queue": lambda g: g.queue(),
    "hold": lambda g: g.hold("1"),
    "unhold": lambda g: g.unhold("1"),
    "result": lambda g: g.result("1"),
}


def test_the_list_of_what_asks_is_complete():
    others = {"at", "in_memory", "for_owner", "close"}
    assert asks_of("").keys() | JOBS.keys() == methods(Grid).keys() - others


@pytest.mark.parametrize("ask", JOBS.values(), ids=JOBS)
def test_jobs_need_a_controller_and_the_error_says_so(ask):
    with Grid.in_memory() as grid, pytest.raises(GridError, match="need a controller") as caught:
        ask(grid)
    assert "Grid()" in caught.value.hint


def test_a_closed_grid_answers_everything_with_grid_closed():
    grid = Grid.in_memory(owner="ann")
    grid.register_node("n1", cpu=4)
    held, twin = grid.allocate(cpu=1), AsyncGrid.of(grid)
    grid.close()
    grid.close()  # twice is once
    for name, ask in asks_of(held.id).items():
        with pytest.raises(GridClosed) as caught:
            ask(grid)
        assert caught.value.hint, name
    with pytest.raises(GridClosed):
        held.release()
    with pytest.raises(GridClosed):
        asyncio.run(twin.status())


def test_a_grid_may_be_closed_while_others_still_ask():
    grid = Grid.in_memory(owner="ann")
    grid.register_node("n1", cpu=4)
    ended = []

    def ask():
        try:
            while True:
                grid.allocate(cpu=0.1).release()
        except GridClosed:
            ended.append("closed")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    grid.close()
    for thread in threads:
        thread.join(timeout=5)
    assert ended == ["closed"] * 4


def test_closing_gives_the_store_back_and_what_is_held_stays_held(tmp_path):
    path = str(tmp_path / "grid.db")
    with Grid.at(path, owner="ann") as grid:
        grid.register_node("n1", cpu=4, labels={"zone": "a"})
        held = grid.allocate(cpu=1, holder="train")
        with pytest.raises(StoreOwned) as caught:
            Grid.at(path)
        assert caught.value.pid == os.getpid()
        assert "Grid()" in caught.value.hint
    with Grid.at(f"sqlite:///{path}", owner="ann") as grid:
        again = grid.allocations()[0]
        assert (again.id, again.holder, again.node) == (held.id, "train", "n1")
        assert grid.node("n1").available == Resources.of(cpu=3)
        assert grid.node("n1").node.labels == {"zone": "a"}
        new = grid.allocate(cpu=1)
        assert new.fence > held.fence
        assert again.release().state == "released"
        assert grid.check() == []


def test_a_grid_that_failed_to_open_does_not_keep_the_store(tmp_path):
    path = str(tmp_path / "grid.db")
    Grid.at(path).close()
    with pytest.raises(GridError):
        Grid.at(path, strategy="worst")
    with pytest.raises(GridError):
        Grid.at(path, owner="")
    Grid.at(path).close()


def in_a_forked_child(work):
    """Whether `work` came back true in a forked child of this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)  # a child that waits for ever must not outlive the test
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_is_told_that_the_grid_is_not_its_own(grid):
    held = grid.allocate(cpu=1)

    def work():
        for ask in asks_of(held.id).values():
            with pytest.raises(GridClosed, match=str(os.getppid())):
                ask(grid)
        grid.close()  # not the child's to close
        return True

    assert in_a_forked_child(work)
    assert grid.release(held).state == "released"


def test_a_forked_child_may_open_a_grid_of_its_own(grid):
    def work():
        with Grid.in_memory(owner="bob") as own:
            own.register_node("n9", cpu=1)
            return own.allocate(cpu=1).node == "n9"

    assert in_a_forked_child(work)
    assert [status.name for status in grid.nodes()] == ["n1"]


# ---- allocations as context managers


def test_leaving_the_block_gives_back(grid):
    with grid.allocate(cpu=2) as held:
        assert held.state == "active"
        assert grid.node("n1").available == Resources.of(cpu=2)
    assert held.state == "released"
    assert grid.node("n1").available == Resources.of(cpu=4)


def test_an_exception_in_the_block_gives_back_and_goes_on(grid):
    with pytest.raises(KeyError, match="mine"), grid.allocate(cpu=2) as held:
        raise KeyError("mine")
    assert held.state == "released"
    assert grid.allocations() == []


def test_releasing_within_the_block_is_fine(grid):
    with grid.allocate(cpu=2) as held:
        held.release()
        grid.release(held)
    assert held.state == "released"


def test_a_block_in_asyncio_gives_back_when_it_fails():
    async def work():
        async with AsyncGrid.in_memory(owner="ann") as grid:
            await grid.register_node("n1", cpu=4)
            with pytest.raises(KeyError):
                async with await grid.allocate(cpu=2):
                    raise KeyError("mine")
            assert await grid.allocations() == []
            async with await grid.reserve(cpu=1, ttl=60) as kept:
                await kept.confirm(ttl=60)
                assert (await kept.renew()).lifetime == "lease"
            assert kept.state == "released"

    asyncio.run(work())


def test_an_allocation_tells_what_it_is(grid):
    held = grid.allocate(cpu=2, holder="train", quality="draft")
    assert held.id
    assert (held.owner, held.holder, held.node) == ("ann", "train", "n1")
    assert held.resources == Resources.of(cpu=1)
    assert (held.state, held.quality) == ("active", "draft")
    assert held.lifetime in ("until_released", "session")  # the latter at a controller
    assert held.gpus == ()
    assert held.group is held.expires_at is None
    assert isinstance(held.fence, tuple)
    assert repr(held) == f"<{held.id} active: cpu=1 of n1>"


def test_an_allocation_is_confirmed_and_renewed_by_id_or_itself(grid):
    kept = grid.reserve(cpu=1, ttl=60)
    assert grid.confirm(kept, ttl=60).id == kept.id
    assert grid.renew(kept.id, ttl=90).id == kept.id
    assert grid.release(kept).id == kept.id


# ---- owners


def test_another_owner_is_the_same_grid_under_another_name(grid):
    bob = grid.for_owner("bob")
    assert (grid.owner, bob.owner) == ("ann", "bob")
    held = bob.allocate(cpu=1)
    assert held.owner == "bob"
    assert [one.id for one in grid.allocations()] == [held.id]
    held.release()


@pytest.mark.parametrize("move", ["confirm", "renew", "release"])
def test_only_its_owner_may_move_an_allocation(grid, move):
    kept = grid.reserve(cpu=1, ttl=60)
    before = seen(grid)
    with pytest.raises(NotYours, match="'bob'") as caught:
        getattr(grid.for_owner("bob"), move)(kept.id)
    assert caught.value.id == kept.id
    assert seen(grid) == before


def test_the_owner_is_the_user_unless_it_is_said():
    with Grid.in_memory() as grid:
        assert grid.owner
        assert grid.allocate is not None


# ---- what is not there


@pytest.mark.parametrize("move", ["confirm", "renew", "release"])
@pytest.mark.parametrize("id", ["a1-99", "a0-1", "a2-1", "b1-1", "1", "a1-1 ", "A1-1", "a1-01"])
def test_an_unknown_id_is_an_error(grid, move, id):
    grid.allocate(cpu=1)
    with pytest.raises(UnknownAllocation, match="there is no allocation"):
        getattr(grid, move)(id)


@pytest.mark.parametrize("ask", ["node", "drain", "resume", "unregister"])
def test_an_unknown_node_is_an_error(grid, ask):
    with pytest.raises(UnknownNode, match="'nx'"):
        getattr(grid, ask)("nx")


def test_what_ended_long_ago_is_still_answered(grid):
    held = grid.allocate(cpu=1).release()
    for _ in range(50):
        grid.allocate(cpu=1).release()
    assert grid.release(held.id).state == "released"


# ---- a tracker of one's own


def test_a_grid_is_a_tracker_and_so_is_anything_with_its_three_methods(grid):
    class Own:
        def fits(self, node, resources=None, **named):
            return True

        def allocate(self, resources=None, **named):
            return None

        def release(self, allocation):
            return None

    class Half:
        def fits(self, node, resources=None, **named):
            return True

    assert isinstance(grid, Tracker)
    assert isinstance(Own(), Tracker)
    assert not isinstance(Half(), Tracker)


def test_a_strategy_of_ones_own_decides():
    def largest(asked, snapshot, rows):
        return [snapshot.use(row).total["cpu"] for row in rows]

    with Grid.in_memory(strategy=largest) as grid:
        for name, cpu in (("a", 2), ("b", 8), ("c", 4)):
            grid.register_node(name, cpu=cpu)
        assert [grid.allocate(cpu=1).node for _ in range(8)] == ["b"] * 8
        assert grid.allocate(cpu=1).node == "c"
    with Grid.in_memory(strategy="first_available") as grid:
        for name, cpu in (("b", 1), ("a", 8)):
            grid.register_node(name, cpu=cpu)
        assert grid.allocate(cpu=1).node == "a"


def test_a_strategy_that_fails_fails_that_call_alone():
    def broken(asked, snapshot, rows):
        raise ZeroDivisionError("mine")

    with Grid.in_memory(strategy=broken) as grid:
        grid.register_node("a", cpu=4)
        grid.register_node("b", cpu=4)
        before = seen(grid)
        with pytest.raises(StrategyFailed, match="mine") as caught:
            grid.allocate(cpu=1)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert seen(grid) == before
        assert grid.allocate(cpu=1, node="b").node == "b"
        assert grid.check() == []


# ---- repeats

CHANGES = {
    "allocate": lambda g, op: g.allocate(cpu=1, op_id=op).id,
    "a lease": lambda g, op: g.allocate(cpu=1, ttl=60, op_id=op).expires_at,
    "a group": lambda g, op: [one.id for one in g.allocate_group([{"cpu": 1}] * 2, op_id=op)],
    "reserve": lambda g, op: g.reserve(cpu=1, ttl=60, op_id=op).id,
    "confirm": lambda g, op: g.confirm("a1-1", op_id=op).state,
    "renew": lambda g, op: g.renew("a1-2", ttl=100, op_id=op).expires_at,
    "release": lambda g, op: g.release("a1-2", op_id=op).state,
    "register_node": lambda g, op: g.register_node("n2", cpu=7, labels={"a": "b"}, op_id=op),
    "register_nodes": lambda g, op: g.register_nodes([Node.of("n2", cpu=7)], op_id=op),
    "drain": lambda g, op: g.drain("n1", op_id=op),
    "set_health": lambda g, op: g.set_health("n1", "suspect", why="silent", op_id=op),
    "unregister": lambda g, op: g.unregister("spare", op_id=op),
}


def prepare(grid):
    grid.register_node("n1", cpu=6)
    grid.register_node("spare", cpu=1)
    grid.drain("spare")
    assert grid.reserve(cpu=1, ttl=60, node="n1").id == "a1-1"
    assert grid.allocate(cpu=1, ttl=60, node="n1").id == "a1-2"


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_same_op_id_again_gives_the_same_reply_and_changes_nothing(grid, change):
    prepare(grid)
    first = change(grid, "op-1")
    before, events = seen(grid), grid.events()
    assert change(grid, "op-1") == first
    assert seen(grid) == before
    assert grid.events() == events


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_op_id_survives_a_restart(tmp_path, change):
    path = str(tmp_path / "grid.db")
    with Grid.at(path, owner="ann") as grid:
        prepare(grid)
        first = change(grid, "op-1")
    with Grid.at(path, owner="ann") as grid:
        before = seen(grid)
        assert change(grid, "op-1") == first
        assert seen(grid) == before
        assert grid.check() == []


OTHER_BODIES = {
    "another amount": lambda g: g.allocate(cpu=2, op_id="op-1"),
    "another holder": lambda g: g.allocate(cpu=1, holder="x", op_id="op-1"),
    "another time": lambda g: g.allocate(cpu=1, ttl=5, op_id="op-1"),
    "another node": lambda g: g.allocate(cpu=1, node="n1", op_id="op-1"),
    "a reservation": lambda g: g.reserve(cpu=1, op_id="op-1"),
    "a group": lambda g: g.allocate_group([{"cpu": 1}, {"cpu": 1}], op_id="op-1"),
    "a release": lambda g: g.release("a1-1", op_id="op-1"),
    "a node": lambda g: g.register_node("n2", cpu=1, op_id="op-1"),
    "a drain": lambda g: g.drain("n1", op_id="op-1"),
    "a removal": lambda g: g.unregister("n1", force=True, op_id="op-1"),
}


@pytest.mark.parametrize("other", OTHER_BODIES.values(), ids=OTHER_BODIES)
def test_the_same_op_id_with_another_body_is_refused(grid, other):
    grid.allocate(cpu=1, op_id="op-1")
    before = seen(grid)
    with pytest.raises(OperationReused, match="'op-1'"):
        other(grid)
    assert seen(grid) == before


def test_another_owner_may_use_the_same_op_id(grid):
    first = grid.allocate(cpu=1, op_id="op-1")
    assert grid.for_owner("bob").allocate(cpu=1, op_id="op-1").id != first.id


def test_a_repeat_after_the_release_answers_the_allocation_that_was_made(grid):
    held = grid.allocate(cpu=1, op_id="op-1")
    held.release()
    assert grid.allocate(cpu=1, op_id="op-1").id == held.id
    assert grid.allocations() == []


def test_what_was_refused_may_be_tried_again_under_the_same_op_id(grid):
    held = grid.allocate(cpu=4)
    with pytest.raises(NoRoom):
        grid.allocate(cpu=1, op_id="op-1")
    held.release()
    assert grid.allocate(cpu=1, op_id="op-1").node == "n1"


def test_many_repeats_at_once_make_one_allocation(grid):
    made = []
    threads = [
        threading.Thread(target=lambda: made.append(grid.allocate(cpu=1, op_id="op-1").id))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 12
    assert len(set(made)) == 1
    assert grid.node("n1").available == Resources.of(cpu=3)


# ---- nobody waits for the answer any more


class Gate:
    """A strategy that stands still until it is let go: whoever asks meanwhile waits."""

    def __init__(self):
        self.entered, self.open = threading.Event(), threading.Event()

    def __call__(self, asked, snapshot, rows):
        self.entered.set()
        assert self.open.wait(10)
        return [0.0] * len(rows)


def gated():
    gate = Gate()
    grid = Grid.in_memory(strategy=gate, owner="ann")
    grid.register_nodes([Node.of("n1", cpu=4), Node.of("n2", cpu=4)])
    return gate, grid


async def emptied(grid):
    """Wait until nothing is held any more, for two seconds."""
    deadline = time.monotonic() + 2
    while await grid.allocations():
        assert time.monotonic() < deadline, "what nobody waits for is still held"
        await asyncio.sleep(0.005)


ABANDONED = {
    "an allocation": lambda g: g.allocate(cpu=1),
    "a lease": lambda g: g.allocate(cpu=1, ttl=60),
    "a reservation": lambda g: g.reserve(cpu=1, ttl=60),
    "a group": lambda g: g.allocate_group([{"cpu": 1}, {"cpu": 1}]),
    "one with an op id": lambda g: g.allocate(cpu=1, op_id="op-1"),
}


@pytest.mark.parametrize("ask", ABANDONED.values(), ids=ABANDONED)
def test_a_task_that_is_cancelled_while_it_waits_leaves_nothing_held(ask):
    gate, grid = gated()

    async def work():
        twin = AsyncGrid.of(grid)
        task = asyncio.create_task(ask(twin))
        await asyncio.to_thread(gate.entered.wait, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open.set()
        await emptied(twin)

    with grid:
        asyncio.run(asyncio.wait_for(work(), 10))
        assert grid.allocations() == []
        assert grid.node("n1").available == Resources.of(cpu=4)
        assert grid.check() == []


def test_a_task_that_is_cancelled_before_it_was_sent_leaves_nothing_held():
    async def work():
        async with AsyncGrid.in_memory(owner="ann") as grid:
            await grid.register_node("n1", cpu=4)
            for _ in range(20):
                task = asyncio.create_task(grid.allocate(cpu=0.1))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await emptied(grid)

    asyncio.run(work())


def test_a_task_that_is_cancelled_just_as_its_answer_comes_leaves_nothing_held():
    """The answer is there, the task has not woken up yet, and another one cancels it."""

    async def canceller(grid, victims):
        async with await grid.allocate(cpu=0.1):
            victims.pop().cancel()

    async def work():
        async with AsyncGrid.in_memory(owner="ann") as grid:
            await grid.register_node("n1", cpu=4)
            for _ in range(20):
                victims = []
                first = asyncio.create_task(canceller(grid, victims))
                second = asyncio.create_task(grid.allocate(cpu=0.1))
                victims.append(second)
                await asyncio.gather(first, second, return_exceptions=True)
                if not second.cancelled():
                    await second.result().release()
            await emptied(grid)

    asyncio.run(work())


def test_a_timeout_of_asyncio_leaves_nothing_held():
    gate, grid = gated()

    async def work():
        twin = AsyncGrid.of(grid)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(twin.allocate(cpu=1), 0.02)
        gate.open.set()
        await emptied(twin)

    with grid:
        asyncio.run(asyncio.wait_for(work(), 10))


def test_a_loop_that_ends_before_its_answers_leaves_nothing_held():
    gate, grid = gated()

    async def work():
        twin = AsyncGrid.of(grid)
        task = asyncio.ensure_future(twin.allocate(cpu=1))
        await asyncio.to_thread(gate.entered.wait, 5)
        return task

    with grid:
        loop = asyncio.new_event_loop()
        task = loop.run_until_complete(work())
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        gate.open.set()
        until(lambda: not grid.allocations())


def test_cancelling_a_repeat_does_not_take_what_the_holder_had():
    async def work():
        async with AsyncGrid.in_memory(owner="ann") as grid:
            await grid.register_node("n1", cpu=4)
            held = await grid.allocate(cpu=1, holder="train")
            once = await grid.allocate(cpu=1, op_id="op-1")
            for ask in (
                lambda: grid.allocate(cpu=1, holder="train"),
                lambda: grid.allocate(cpu=1, op_id="op-1"),
            ):
                task = asyncio.create_task(ask())
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(0.05)
            assert {one.id for one in await grid.allocations()} == {held.id, once.id}
            with pytest.raises(HolderBusy):
                await grid.allocate(cpu=2, holder="train")

    asyncio.run(work())


INTERRUPTED = """
import os, signal, sys, threading, time
from gridhand import Grid, Node

entered, go_on = threading.Event(), threading.Event()

def gate(asked, snapshot, rows):
    entered.set()
    assert go_on.wait(10)
    return [0.0] * len(rows)

def interrupt():
    entered.wait(10)
    time.sleep(0.05)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    time.sleep(0.05)
    go_on.set()

grid = Grid.in_memory(strategy=gate, owner="ann")
grid.register_nodes([Node.of("n1", cpu=4), Node.of("n2", cpu=4)])
threading.Thread(target=interrupt).start()
try:
    grid.allocate(cpu=1)
except KeyboardInterrupt:
    deadline = time.monotonic() + 5
    while grid.allocations():
        assert time.monotonic() < deadline, "it is still held"
        time.sleep(0.005)
    assert grid.check() == []
    print("given back")
else:
    print("not interrupted")
"""


def test_ctrl_c_while_a_thread_waits_leaves_nothing_held():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == "given back\n", done.stderr


def _history(grid):
    """The events, but for those that say who deleted the others."""
    return [event for event in grid.events() if not event.kind.startswith("admin.")]


def test_a_call_may_be_repeated_for_a_day_however_short_the_history_is_kept(grid):
    held = grid.allocate(cpu=1, op_id="start")
    held.release()
    deadline = time.monotonic() + 5
    while _history(grid) and time.monotonic() < deadline:
        list(grid.prune(0.001))
    assert _history(grid) == []
    assert grid.allocate(cpu=1, op_id="start").id == held.id
    assert grid.allocations() == []
