"""Several threads that use one stream at the same time, against a plain list."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand import Function, FunctionFailed, Graph, Grid

ITEMS = st.lists(st.integers(-3, 3), max_size=8)
ACTIONS = st.one_of(
    st.tuples(st.just("map"), ITEMS),
    st.tuples(st.just("abandon"), ITEMS, st.integers(0, 8)),
    st.tuples(st.just("push and read"), ITEMS),
    st.tuples(st.just("push and give up"), ITEMS),
    st.tuples(st.just("push"), ITEMS),
)
PLANS = st.lists(st.lists(ACTIONS, max_size=5), min_size=1, max_size=4)


def share(item):
    """Fails for some items. The first of the pair says whose item it is."""
    whose, number = item
    return whose, 12 // number


def expected(item):
    try:
        return share(item)
    except ZeroDivisionError:
        return "failed"


def told(result):
    return "failed" if isinstance(result, FunctionFailed) else result


def read(future):
    try:
        return future.result(60)
    except FunctionFailed as error:
        return error


def run_plan(stream, plan, number):
    """Do as the plan says; return the pushed items that nobody has read."""
    counter, left = itertools.count(), []
    for what, numbers, *stop in plan:
        items = [((number, next(counter)), value) for value in numbers]
        wanted = [expected(item) for item in items]
        if what == "map":
            assert [told(one) for one in stream.map(items)] == wanted
        elif what == "abandon":
            found = itertools.islice(stream.map(items), *stop)
            assert [told(one) for one in found] == wanted[: stop[0]]
        elif what == "push":
            left += [stream.push(item) and item for item in items]
        else:
            futures = [stream.push(item) for item in items]
            if what == "push and read":
                assert [told(read(one)) for one in futures] == wanted
            else:
                given_up = zip(futures, items, strict=True)
                left += [item for future, item in given_up if not future.cancel()]
    return left


@pytest.fixture(scope="module")
def grid():
    with Grid.in_memory() as grid:
        grid.register_node("box", cpu=8)
        yield grid


@given(plans=PLANS, capacity=st.integers(1, 5), parallelism=st.integers(1, 3))
def test_every_reader_gets_what_a_plain_list_would_give(grid, plans, capacity, parallelism):
    graph = Graph().add(
        Function("x", type="input"),
        Function("share", share, args=["x"], parallelism=parallelism),
        Function("same", lambda x: x, args=["share"]),
    )
    with (
        grid.stream(graph, capacity=capacity) as stream,
        ThreadPoolExecutor(len(plans)) as threads,
    ):
        runs = [threads.submit(run_plan, stream, plan, n) for n, plan in enumerate(plans)]
        left = [item for run in runs for item in run.result(60)]
        stream.stop()
        found = [told(one) for one in stream]
    assert sorted(found, key=repr) == sorted(map(expected, left), key=repr)
    for number in range(len(plans)):  # in the order in which each thread has pushed
        mine = [one for one in found if one != "failed" and one[0][0] == number]
        assert mine == sorted(mine)
    assert not grid.status().allocated
