"""Calls in threads of this process: what they hold, when they wait, and how they are stopped."""

import subprocess
import sys
import threading
from concurrent.futures import CancelledError, wait

import pytest

from gridhand import CallFailed, CallTimeout, Grid, GridClosed, NeverFits, Request, UnknownNode
from gridhand.core.model.resources import Resources
from gridhand.library.functions.function_runner import FunctionCall, runner_of
from gridhand.library.thread_runner.thread_runner import MOST_FREE, Kept, ThreadRunner
from until import until

NOTHING = Request(Resources())
ONE = Request.of(cpu=1)


@pytest.fixture
def grid():
    with Grid.in_memory(owner="ann") as opened:
        opened.register_node("n1", cpu=2)
        yield opened


@pytest.fixture
def caller(grid):
    found = runner_of(grid)
    assert type(found) is ThreadRunner
    return found


def free(grid):
    until(lambda: not grid.allocations())
    assert grid.check() == []


class Gate:
    """A function that tells when it has begun, and returns when it is let."""

    def __init__(self):
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()
        self.calls = 0

    def __call__(self, value=None):
        self.calls += 1
        self.begun.release()
        assert self.open.wait(20)
        return value

    def has_begun(self, times=1):
        for _ in range(times):
            assert self.begun.acquire(timeout=30)


def test_a_call_holds_what_it_needs_while_it_runs_and_nothing_after(grid, caller):
    gate = Gate()
    call = caller.submit(FunctionCall(gate, Request.of(cpu=2), ("v",), name="f"))
    gate.has_begun()
    [held] = grid.allocations()
    assert (held.node, held.resources) == ("n1", Resources.of(cpu=2))
    assert call.running()
    gate.open.set()
    returned = call.result(30)
    assert (returned.value.load(), returned.node, returned.allocation) == ("v", "n1", held.id)
    assert grid.allocations() == []  # as soon as it is known to be over, not some time later


def test_arguments_that_are_values_arrive_as_what_they_stand_for(caller):
    first = caller.submit(FunctionCall(lambda: [1], ONE)).result(30).value
    second = FunctionCall(lambda *a, **k: (a, k), ONE, (first, 2), {"x": first})
    args, named = caller.submit(second).result(30).value.load()
    assert args == ([1], 2)
    assert args[0] is named["x"] is first.load()


def test_a_value_that_was_dropped_is_gone_and_to_drop_it_again_does_nothing():
    value = Kept([1])
    value.drop()
    value.drop()
    with pytest.raises(GridClosed):
        value.load()


def test_what_a_function_raises_is_what_the_future_raises(grid, caller):
    class Own(BaseException):
        pass

    def fail():
        raise Own("no")

    call = caller.submit(FunctionCall(fail, ONE))
    with pytest.raises(Own, match="no"):
        call.result(30)
    free(grid)


def test_many_calls_wait_without_a_thread_each_and_run_in_order(grid, caller):
    gate, ran = Gate(), []
    before = threading.active_count()
    blocked = [caller.submit(FunctionCall(gate, ONE)) for _ in range(2)]
    gate.has_begun(2)
    calls = [caller.submit(FunctionCall(ran.append, ONE, (n,))) for n in range(500)]
    assert threading.active_count() <= before + 4
    assert not any(call.running() or call.done() for call in calls)
    gate.open.set()
    wait([*blocked, *calls], 20)
    assert all(call.exception(0) is None for call in calls)
    assert sorted(ran) == list(range(500))
    granted = [int(call.result(0).allocation.rpartition("-")[2]) for call in calls]
    assert granted == sorted(granted)
    free(grid)


def test_those_that_ask_for_much_do_not_keep_others_from_what_is_there(grid, caller):
    gate = Gate()
    caller.submit(FunctionCall(gate, ONE))
    gate.has_begun()
    large = [caller.submit(FunctionCall(int, Request.of(cpu=2))) for _ in range(20)]
    small = caller.submit(FunctionCall(int, ONE))
    assert small.result(30).value.load() == 0
    assert not any(call.done() for call in large)
    gate.open.set()
    wait(large, 30)
    assert all(call.done() for call in large)


def test_room_that_others_give_back_is_taken(grid, caller):
    held = grid.allocate(cpu=2)
    call = caller.submit(FunctionCall(int, ONE))
    assert not call.done()
    held.release()
    assert call.result(30).node == "n1"


def test_calls_that_need_nothing_hold_nothing_and_are_not_without_bound(grid, caller):
    gate = Gate()
    calls = [caller.submit(FunctionCall(gate, NOTHING)) for _ in range(MOST_FREE + 10)]
    gate.has_begun(MOST_FREE)
    assert not gate.begun.acquire(timeout=0.05)
    assert grid.allocations() == []
    gate.open.set()
    wait(calls, 10)
    assert gate.calls == MOST_FREE + 10
    assert calls[0].result(0).node == ""
    pinned = caller.submit(FunctionCall(int, Request(Resources(), node="n1")))
    assert (pinned.result(30).node, pinned.result(30).allocation) == ("n1", "")


def test_calls_that_wait_for_calls_that_need_nothing_do_not_wait_for_ever(caller):
    everybody = threading.Barrier(MOST_FREE)

    def outer(n):
        everybody.wait(10)  # until no thread is left
        return caller.submit(FunctionCall(lambda: n, NOTHING)).result(30).value.load()

    calls = [caller.submit(FunctionCall(outer, NOTHING, (n,))) for n in range(2 * MOST_FREE)]
    assert [call.result(20).value.load() for call in calls] == list(range(2 * MOST_FREE))


# ---- being stopped


def test_cancelling_takes_a_call_out_while_it_waits(grid, caller):
    held = grid.allocate(cpu=2)
    calls = [caller.submit(FunctionCall(int, ONE)) for _ in range(8 + 3)]
    first, last = calls[0], calls[-1]
    assert first.cancel()
    assert last.cancel()
    assert first.cancel()  # again is the same
    assert first.cancelled()
    assert last.cancelled()
    with pytest.raises(CancelledError):
        first.result(0)
    assert wait([first, last], 0).not_done == set()
    held.release()
    for call in calls[1:-1]:
        assert call.result(30)
    free(grid)


def test_a_running_call_cannot_be_cancelled_but_stopped(grid, caller):
    gate = Gate()
    call = caller.submit(FunctionCall(gate, Request.of(cpu=2)))
    gate.has_begun()
    assert not call.cancel()
    caller.stop(call)
    assert call.cancelled()
    # A thread cannot be ended: what it holds is given back when it has, and not before.
    assert len(grid.allocations()) == 1
    waiting = caller.submit(FunctionCall(int, Request.of(cpu=2)))
    assert not waiting.done()
    gate.open.set()
    assert waiting.result(30)
    free(grid)
    caller.stop(call)  # over: does nothing


def test_stopping_calls_that_wait_leaves_nothing_held_when_they_are_cancelled(grid, caller):
    for _ in range(20):
        calls = [caller.submit(FunctionCall(int, ONE)) for _ in range(12)]
        for call in calls:
            caller.stop(call)
        wait(calls, 30)
        running = [one for one in caller._open if not one.done()]
        until(lambda: not caller._open)
        assert not running or all(one.cancelled() or one.done() for one in running)
        free(grid)


def test_a_call_that_takes_too_long_is_told_so(grid, caller):
    gate = Gate()
    call = caller.submit(FunctionCall(gate, ONE, name="slow", time_limit_s=0.05))
    with pytest.raises(CallTimeout, match="slow: killed: time limit exceeded") as caught:
        call.result(30)
    assert caught.value.reason == "timeout"
    assert len(grid.allocations()) == 1
    gate.open.set()
    free(grid)
    quick = caller.submit(FunctionCall(int, ONE, time_limit_s=0.05))
    assert quick.result(30).value.load() == 0
    limits = [caller.submit(FunctionCall(int, ONE, time_limit_s=s)) for s in (30, 0.001, 20)]
    assert wait(limits, 30).not_done == set()


def test_what_can_never_be_placed_says_so(grid, caller):
    for request, kind in (
        (Request.of(cpu=3), NeverFits),
        (Request.of(cpu=1, node="x"), UnknownNode),
    ):
        call = caller.submit(FunctionCall(int, request, name="f"))
        with pytest.raises(CallFailed, match="f: ") as caught:
            call.result(30)
        assert (caught.value.reason, caught.value.lost) == ("not_placed", False)
        assert type(caught.value.__cause__) is kind
        assert caught.value.hint == caught.value.__cause__.hint


def test_a_call_whose_node_was_lost_under_it_is_lost(grid, caller):
    gate = Gate()
    call = caller.submit(FunctionCall(gate, ONE, ("value",), name="f"))
    gate.has_begun()
    grid.set_health("n1", "down")
    gate.open.set()
    with pytest.raises(CallFailed, match=r"f: .*lost") as caught:
        call.result(30)
    assert (caught.value.reason, caught.value.lost) == ("node_lost", True)
    free(grid)


def test_what_is_held_for_a_call_already_is_not_held_again(grid, caller):
    held = grid.allocate(cpu=2)
    request = Request.of(cpu=2, node="n1")
    returned = caller.submit(FunctionCall(int, request, held=held.id)).result(30)
    assert (returned.node, returned.allocation) == ("n1", held.id)
    assert [one.id for one in grid.allocations()] == [held.id]  # nor given back
    held.release()
    ran = []
    call = caller.submit(FunctionCall(lambda: ran.append(1), request, held=held.id))
    with pytest.raises(CallFailed) as caught:
        call.result(30)
    assert (caught.value.lost, ran) == (True, [])


# ---- closing


def test_closing_stops_everything_and_gives_everything_back(tmp_path):
    url = str(tmp_path / "grid.db")
    gate = Gate()
    with Grid.at(url, owner="ann") as grid:
        grid.register_node("n1", cpu=2)
        caller = runner_of(grid)
        running = [caller.submit(FunctionCall(gate, ONE)) for _ in range(2)]
        gate.has_begun(2)
        waiting = [caller.submit(FunctionCall(int, ONE)) for _ in range(8 + 5)]
    assert all(call.cancelled() for call in (*running, *waiting))
    with pytest.raises(GridClosed):
        caller.submit(FunctionCall(int, ONE))
    caller.close()
    with Grid.at(url, owner="ann") as grid:
        assert grid.allocations() == []
        assert grid.check() == []
    gate.open.set()


def test_a_program_ends_though_a_call_never_does():
    program = (
        "import threading\n"
        "from gridhand import Grid, Request\n"
        "from gridhand.library.functions.function_runner import runner_of\n"
        "from gridhand.library.functions.function_runner import FunctionCall\n"
        "grid = Grid.in_memory(); grid.register_node('n1', cpu=1)\n"
        "begun = threading.Event()\n"
        "runner_of(grid).submit(FunctionCall(lambda: (begun.set(), threading.Event().wait()),"
        " Request.of(cpu=1)))\n"
        "begun.wait(); print('the end')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout, done.stderr) == ("the end\n", "")


def test_each_grid_has_one_caller(grid):
    assert runner_of(grid) is runner_of(grid)
    other = grid.for_owner("bob")
    call = runner_of(other).submit(FunctionCall(lambda: grid.allocations()[0].owner, ONE))
    assert call.result(30).value.load() == "bob"


def test_threads_go_when_there_is_nothing_to_do(grid, caller):
    before = threading.active_count()
    wait([caller.submit(FunctionCall(int, NOTHING)) for _ in range(20)], 30)
    until(lambda: threading.active_count() <= before)
    assert caller.submit(FunctionCall(int, NOTHING)).result(30)
