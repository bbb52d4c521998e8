"""Tasks that call tasks and wait for them, on a machine that is full of those who wait."""

import sys
import time

import cloudpickle
import pytest

from gridhand import CallFailed, Grid, task
from gridhand.library.pool import blocked_threads

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(params=["processes", "in memory"])
def either(request, tools):
    if request.param == "in memory":
        with Grid.in_memory() as grid:
            grid.register_node("here", cpu=2, memory="2GB")
            yield grid
            tools.until(lambda: not grid.allocations())
            assert grid.check() == []
        return
    with Grid() as grid:
        yield grid
    with Grid() as grid:
        tools.until(lambda: not grid.allocations())
        assert grid.check() == []


@task
def deep(left):
    return 0 if not left else 1 + deep.submit(left - 1).result()


@task
def fibonacci(number):
    if number < 2:
        return number
    both = [fibonacci.submit(number - 1), fibonacci.submit(number - 2)]
    return sum(one.result() for one in both)


@task(memory="100MB")
def leaf(value):
    return value


@task
def outer(value):
    return leaf.submit(value).result()


@task
def leaves_one(seconds):
    later.submit(seconds)
    time.sleep(0.5)  # long enough for it to begin here


@task
def later(seconds):
    time.sleep(seconds)


@pytest.mark.parametrize("cpu", [0.5, 1, 2])
def test_they_may_go_as_deep_as_they_like(either, cpu):
    assert deep.options(cpu=cpu).submit(6).result(60) == 6


def test_and_as_wide(either):
    assert [one.result(60) for one in [fibonacci.submit(5), fibonacci.submit(4)]] == [5, 3]


def test_what_the_caller_has_no_limit_of_is_held_besides(tools):
    with Grid() as grid:
        cores = int(grid.nodes()[0].total["cpu"] // 10_000)
        futures = [outer.submit(number) for number in range(cores)]
        assert [one.result(60) for one in futures] == list(range(cores))
        tools.until(lambda: not grid.allocations())


def test_in_threads_what_is_lent_is_given_back_by_the_last_who_uses_it(tools):
    with Grid.in_memory() as grid:
        grid.register_node("here", cpu=1)
        leaves_one.submit(2).result(30)
        assert [str(one.resources) for one in grid.allocations()] == ["cpu=1"]
        tools.until(lambda: not grid.allocations())
        assert grid.check() == []


# ---- those that ask for more than their caller has


@task
def wide(value):
    return value


@task(cpu=0.5)
def narrow(value, folder=None, count=0):
    """Call one that asks for more, once so many of these have begun."""
    if folder is not None:
        (folder / str(value)).touch()
        while len(list(folder.iterdir())) < count:
            time.sleep(0.01)
    return wide.options(cpu=1).submit(value).result()


@task(cpu=0.5)
def busy(value, seconds):
    wide.options(cpu=1).submit(value)
    end = time.monotonic() + seconds
    while time.monotonic() < end:  # it does not wait, and will end
        pass
    return value


@task(cpu=0)
def nothing_held(value):
    return wide.options(cpu=1).submit(value).result()


def outcomes(futures):
    found = []
    for one in futures:
        try:
            found.append(one.result(60))
        except CallFailed as error:
            found.append(error)
    return found


def test_where_all_wait_for_what_they_hold_the_last_are_told_so(either, tmp_path):
    """Four times half a core on two, and each calls one that asks for a whole one."""
    count = 2 * int(either.nodes()[0].total["cpu"] // 10_000)
    found = outcomes([narrow.submit(number, tmp_path, count) for number in range(count)])
    served = [one for one in found if isinstance(one, int)]
    refused = [one for one in found if isinstance(one, CallFailed)]
    assert served
    assert refused
    assert served == [number for number in range(count) if number in served]
    for error in refused:
        assert error.reason == "nested"
        assert "wide: it asks for cpu=1 while the function that called it holds cpu=0.5" in str(
            error
        )
        assert "all who could make room for it wait likewise" in str(error)
        assert "cpu=0" in error.hint


def test_what_holds_nothing_waits_for_whatever_it_likes(either):
    futures = [nothing_held.submit(number) for number in range(6)]
    assert outcomes(futures) == list(range(6))


def test_who_waits_for_one_that_will_end_is_not_refused(either):
    """Though that one has called something too, for which there is no room yet."""
    count = 2 * int(either.nodes()[0].total["cpu"] // 10_000)
    working = [busy.submit(number, blocked_threads.SURE_S + 4) for number in range(count - 1)]
    assert narrow.submit(7).result(60) == 7
    for one in working:
        one.result(60)


@task(cpu=0.6)
def middle(share):
    return wide.options(cpu=share).submit(1).result()


@task(cpu=0.5)
def above(share):
    return middle.submit(share).result()


def test_what_waits_for_one_that_never_ends_is_in_its_way(tools):
    """There is room for the call beside its caller, but not beside the caller's caller."""
    with Grid() as grid:
        share = grid.nodes()[0].total["cpu"] / 10_000 - 0.7
        with pytest.raises(CallFailed, match="all who could make room") as caught:
            above.submit(share).result(60)
        assert caught.value.reason == "nested"
        assert middle.submit(share).result(60) == 1
        tools.until(lambda: not grid.allocations())
