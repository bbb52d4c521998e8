"""Calls that hold nothing of their own, and calls that functions make themselves."""

import os
import sys
import time

import cloudpickle
import numpy as np
import pytest

from gridhand import CallFailed, Grid, OutOfMemory, Request, Resources, WorkerLost
from gridhand.library.functions.function_runner import FunctionCall
from gridhand.library.pool.pool import Pool

cloudpickle.register_pickle_by_value(sys.modules[__name__])

NOTHING = Request(Resources({}))


def pid(seconds=0.0):
    time.sleep(seconds)
    return os.getpid()


def double(number):
    return 2 * number


def inner(asked, numbers, code=double):
    """Calls others from inside of a worker, and waits for all of them."""
    with Grid() as grid:
        pool = Pool(grid._backend, grid.owner)
        try:
            futures = [pool.submit(FunctionCall(code, asked, (one,))) for one in numbers]
            return [one.result(60).value.load() for one in futures]
        finally:
            pool.close()


# ---- nothing is held


def test_what_asks_for_nothing_runs_and_holds_nothing(pool, grid, tools):
    futures = [pool.submit(tools.call(pid, 0.3, request=NOTHING)) for _ in range(3)]
    assert not grid.allocations()
    assert len({tools.value(one) for one in futures}) == 3
    assert not grid.jobs(state="open")
    returned = futures[0].result()
    assert (returned.node, returned.allocation) == ("", "")


def test_also_when_all_is_held_by_others(pool, grid, tools):
    with grid.allocate(cpu=grid.nodes()[0].total["cpu"] / 10_000):
        assert tools.value(pool.submit(tools.call(double, 21, request=NOTHING))) == 42


def test_its_worker_may_die_and_be_stopped_as_any(pool, tools):
    error = pool.submit(tools.call(os._exit, 7, request=NOTHING)).exception(20)
    assert isinstance(error, WorkerLost)
    assert "its worker is gone (child-1): it exited with code 7" in str(error)
    runs = pool.submit(tools.call(pid, 30, request=NOTHING))
    tools.until(runs.running)
    pool.stop(runs)
    assert runs.cancelled()
    assert tools.value(pool.submit(tools.call(double, 1, request=NOTHING))) == 2


def test_what_is_held_for_a_call_is_not_held_again(pool, grid, tools):
    whole = grid.nodes()[0].total["cpu"] / 10_000
    with grid.allocate(cpu=whole) as held:
        call = FunctionCall(double, Request.of(cpu=whole, node=held.node), (21,), held=held.id)
        returned = pool.submit(call).result(20)
        assert returned.value.load() == 42
        assert (returned.node, returned.allocation) == (held.node, held.id)
        assert [one.id for one in grid.allocations()] == [held.id]


def cores():
    return sorted(os.sched_getaffinity(0))


def greedy(bytes):
    return len(b"x" * bytes)


def test_a_call_in_what_is_held_has_its_cores_and_no_more_than_its_memory(pool, grid):
    with grid.allocate(cpu=1, memory="300MB") as held:
        wants = {"request": Request.of(cpu=1, node=held.node), "held": held.id}
        assert len(pool.submit(FunctionCall(cores, **wants)).result(20).value.load()) == 1
        error = pool.submit(FunctionCall(greedy, args=(10**9,), **wants)).exception(30)
        assert isinstance(error, OutOfMemory)
        # What it did costs the holder nothing, and the next worker waits until it is gone.
        assert pool.submit(FunctionCall(greedy, args=(10,), **wants)).result(30).value.load() == 10


def test_what_was_held_and_is_no_more_fails_the_call(pool, grid):
    held = grid.allocate(cpu=0.1)
    held.release()
    error = pool.submit(FunctionCall(double, Request.of(cpu=1), (1,), held=held.id)).exception(20)
    assert isinstance(error, CallFailed)
    assert held.id in str(error)


# ---- calls inside of calls


def test_a_function_may_call_others_as_long_as_there_is_room(pool, tools):
    assert tools.value(pool.submit(tools.call(inner, tools.SMALL, [1, 2, 3]))) == [2, 4, 6]


def test_where_there_is_none_they_run_in_the_slot_of_their_caller(pool, grid, tools):
    cores = int(grid.nodes()[0].total["cpu"] // 10_000)
    calls = [tools.call(inner, tools.ONE, range(5), request=tools.ONE) for _ in range(cores)]
    futures = [pool.submit(one) for one in calls]
    assert [tools.value(one, 60) for one in futures] == [[0, 2, 4, 6, 8]] * cores


def test_errors_and_large_values_there_are_as_elsewhere(pool, grid, tools):
    whole = Request.of(cpu=grid.nodes()[0].total["cpu"] / 10_000)
    call = tools.call(inner, whole, [200_000], np.ones, request=whole)
    assert [one.sum() for one in tools.value(pool.submit(call), 60)] == [200_000]
    failing = tools.call(inner, whole, ["x"], int, request=whole)
    assert isinstance(pool.submit(failing).exception(60), ValueError)


def test_what_could_never_run_beside_its_caller_is_refused(pool, grid, tools):
    whole = Request.of(cpu=grid.nodes()[0].total["cpu"] / 10_000)
    error = pool.submit(tools.call(inner, whole, [1], request=tools.ONE)).exception(60)
    assert isinstance(error, CallFailed)
    assert "while the function that called it holds cpu=1" in str(error)


@pytest.mark.parametrize("asked", [NOTHING, Request.of(cpu=1)], ids=["nothing", "cpu=1"])
def test_those_who_hold_nothing_may_call_what_holds_something(pool, tools, asked):
    assert tools.value(pool.submit(tools.call(inner, asked, [4], request=NOTHING))) == [8]
