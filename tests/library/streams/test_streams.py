"""Streams, in threads of a grid in memory and in processes of a real controller."""

import asyncio
import itertools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gridhand import (
    AsyncGrid,
    Function,
    FunctionFailed,
    Graph,
    GraphTimeout,
    Grid,
    GridClosed,
    NeverFits,
    NotAssigned,
    OutOfMemory,
)
from until import until


@pytest.fixture
def real_grid():
    with Grid() as grid:
        yield grid
        until(lambda: not grid.allocations())
        assert grid.check() == []


@pytest.fixture(params=["memory", "real"])
def grid(request):
    if request.param == "memory":
        with Grid.in_memory() as grid:
            grid.register_node("box", cpu=8, memory="8GB")
            yield grid
            assert grid.check() == []
    else:
        yield request.getfixturevalue("real_grid")


@pytest.fixture
def nothing_left(grid):
    """Nothing is held when a stream has been stopped."""
    yield
    until(lambda: not grid.status().allocated)


def pairing():
    """A function that is sent as it is, and not by the name of this module."""
    return lambda first, second: (first, second)


def joined(**double):
    return Graph().add(
        Function("x", type="input"),
        Function("double", lambda x: 2 * x, args=["x"], **double),
        Function("triple", lambda x: 3 * x, args=["x"], cost={"cpu": 0.25}),
        Function("pair", pairing(), args=["double", "triple"]),
    )


def one(code, **more):
    return Graph().add(Function("x", type="input"), Function("f", code, args=["x"], **more))


@pytest.mark.usefixtures("nothing_left")
class TestReaders:
    """Every item has a future of its own, so no result reaches anybody but its reader."""

    def test_an_abandoned_map_leaves_nothing_to_the_next_one(self, grid):
        with grid.stream(one(lambda x: 2 * x)) as stream:
            for first in stream.map(range(10)):
                assert first == 0
                break
            assert list(stream.map([100, 200])) == [200, 400]
            stream.stop()
            assert list(stream) == []

    def test_the_items_of_an_abandoned_map_are_not_run(self, grid):
        graph = one(lambda xs: [list(xs)] * len(xs), batch_size=4)
        with grid.stream(graph, capacity=5) as stream:
            abandoned = stream.map(range(9))
            assert next(abandoned) == [0, 1, 2, 3]  # the fifth waits for a batch
            abandoned.close()
            assert list(stream.map([10, 20, 30, 40])) == [[10, 20, 30, 40]] * 4

    def test_a_map_does_not_get_what_was_pushed_before(self, grid):
        with grid.stream(one(lambda x: 2 * x)) as stream:
            pushed = stream.push(1)
            stream.push(2)
            assert list(stream.map([100])) == [200]
            assert pushed.result(60) == 2
            assert next(stream) == 4  # the first was read by its future

    def test_threads_that_map_at_the_same_time_get_their_own_results(self, grid):
        inputs = [range(n, n + 50) for n in (0, 1_000, 2_000, 3_000)]
        graph = one(lambda x: 2 * x, parallelism=2)
        with grid.stream(graph, capacity=7) as stream, ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda items: list(stream.map(items)), inputs))
        assert found == [[2 * item for item in items] for items in inputs]

    def test_every_pushed_item_has_a_future_of_its_own(self, grid):
        with grid.stream(one(lambda x: 12 // x)) as stream:
            well, wrong = stream.push(3), stream.push(0)
            assert well.result(60) == 4
            with pytest.raises(FunctionFailed) as failed:
                wrong.result(60)
            assert isinstance(failed.value.__cause__, ZeroDivisionError)

    def test_several_threads_that_iterate_share_the_results(self, grid):
        with grid.stream(one(lambda x: x)) as stream, ThreadPoolExecutor(3) as threads:
            readers = [threads.submit(list, stream) for _ in range(3)]
            for value in range(100):
                stream.push(value)
            stream.stop()
            found = [reader.result(60) for reader in readers]
        assert all(part == sorted(part) for part in found)
        assert sorted(itertools.chain(*found)) == list(range(100))

    def test_an_item_that_was_given_up_makes_room_and_is_not_read(self, grid):
        with grid.stream(one(lambda xs: xs, batch_size=3), capacity=2) as stream:
            kept, given_up = stream.push(1), stream.push(2)  # a batch would need three
            assert given_up.cancel()
            assert given_up.cancelled()
            stream.push(3, timeout=60)
            with pytest.raises(TimeoutError):
                stream.push(4, timeout=0)
            stream.stop()
            assert list(stream) == [1, 3]
            assert not kept.cancel()

    def test_stopping_at_once_ends_the_futures_and_maps_that_are_left(self, grid):
        stream = grid.stream(one(lambda xs: xs, batch_size=3))
        left, pulled = stream.push(1), threading.Event()
        with ThreadPoolExecutor(1) as threads:
            mapped = threads.submit(list, stream.map(pulled.set() or n for n in (2,)))
            pulled.wait(60)
            stream.stop(at_once=True)
            for future in (left, mapped):
                with pytest.raises(GridClosed):
                    future.result(60)


@pytest.mark.usefixtures("nothing_left")
class TestStreams:
    def test_what_is_pushed_comes_out_in_order(self, grid):
        """D9"""
        with grid.stream(joined(cost={"cpu": 0.5})) as stream:
            assert grid.status().allocated["cpu"] == 7_500
            for value in (3, 1, 4):
                stream.push(value)
            stream.stop()
            assert list(stream) == [(6, 9), (2, 3), (8, 12)]
        assert list(stream) == []

    def test_a_failing_item_is_an_error_in_its_place_and_later_ones_flow(self, grid):
        with grid.stream(one(lambda x: 12 // x)) as stream:
            first, second, third = stream.map([3, 0, 4])
        assert (first, third) == (4, 3)
        assert isinstance(second, FunctionFailed)
        assert second.function == "f"
        assert isinstance(second.__cause__, ZeroDivisionError)

    def test_a_failing_item_is_tried_again_as_often_as_its_function_says(self, grid, tmp_path):
        def fails_twice(path):
            with open(path, "a") as file:
                file.write("x")
            if os.path.getsize(path) < 3:
                raise ValueError("not yet")
            return "well"

        with grid.stream(one(fails_twice, max_retries=2)) as stream:
            assert list(stream.map([str(tmp_path / "a")])) == ["well"]
        with grid.stream(one(fails_twice, max_retries=1)) as stream:
            (failed,) = stream.map([str(tmp_path / "b")])
        assert failed.attempts == 2

    def test_none_is_a_value(self, grid):
        with grid.stream(one(lambda x: x)) as stream:
            assert list(stream.map([None, 1, None])) == [None, 1, None]

    def test_a_stages_set_up_runs_once_in_each_of_its_workers(self, grid, tmp_path):
        def prepare():
            with open(tmp_path / f"{os.getpid()}-{threading.get_ident()}", "a") as file:
                file.write("x")
            return 100

        graph = one(lambda base, x: base + x, init=prepare, parallelism=2, cost={"cpu": 0.1})
        with grid.stream(graph) as stream:
            assert list(stream.map(range(50))) == list(range(100, 150))
        marks = list(tmp_path.iterdir())
        assert len(marks) == 2
        assert {mark.read_text() for mark in marks} == {"x"}

    def test_a_set_up_that_fails_ends_the_stream_and_holds_nothing(self, grid):
        def prepare():
            raise OSError("no model here")

        with pytest.raises(FunctionFailed, match="no model here"):
            grid.stream(one(pairing(), init=prepare, cost={"cpu": 1}))

    def test_batches_are_sent_by_size(self, grid):
        graph = one(lambda xs: [(x, len(xs)) for x in xs], batch_size=4)
        with grid.stream(graph) as stream:
            for value in range(8):
                stream.push(value)
            assert [next(stream) for _ in range(8)] == [(value, 4) for value in range(8)]

    def test_batches_are_sent_after_a_time(self, grid):
        graph = one(lambda xs: [(x, len(xs)) for x in xs], batch_size=100, batch_timeout=0.1)
        with grid.stream(graph) as stream:
            stream.push("a")
            stream.push("b")
            found = [next(stream), next(stream)]
            assert [value for value, _ in found] == ["a", "b"]

    def test_a_partial_batch_is_flushed_at_the_end(self, grid):
        graph = one(lambda xs: [(x, len(xs)) for x in xs], batch_size=100)
        with grid.stream(graph) as stream:
            for value in range(3):
                stream.push(value)
            stream.stop()
            assert list(stream) == [(0, 3), (1, 3), (2, 3)]

    def test_a_batch_that_comes_back_wrong_fails_all_of_it(self, grid):
        with grid.stream(one(lambda xs: xs[:-1], batch_size=2)) as stream:
            found = list(stream.map([1, 2]))
        assert [type(error.__cause__) for error in found] == [ValueError] * 2
        assert "2 items were given, and 1 results returned" in str(found[0])

    def test_a_join_may_take_only_so_long(self, grid):
        graph = Graph().add(
            Function("x", type="input"),
            Function("slow", lambda x: time.sleep(x) or x, args=["x"], parallelism=2),
            Function("both", pairing(), args=["x", "slow"]),
        )
        with grid.stream(graph, join_timeout=0.3) as stream:
            first, second = stream.map([1.0, 0.0])
        assert isinstance(first, FunctionFailed)
        assert "did not come in time" in str(first)
        assert second == (0.0, 0.0)

    def test_pushing_waits_while_too_many_are_on_their_way(self, grid):
        with grid.stream(one(lambda x: time.sleep(0.3) or x), capacity=2) as stream:
            stream.push(1)
            stream.push(2)
            with pytest.raises(TimeoutError, match="2 items"):
                stream.push(3, timeout=0.01)
            stream.push(3, timeout=10)
            stream.stop()
            assert list(stream) == [1, 2, 3]

    def test_those_that_are_quicker_do_not_come_out_before_their_turn(self, grid):
        graph = one(lambda x: time.sleep(x) or x, parallelism=3)
        with grid.stream(graph) as stream:
            assert list(stream.map([0.3, 0.0, 0.1])) == [0.3, 0.0, 0.1]

    def test_it_may_be_pushed_and_read_from_two_threads(self, grid):
        with grid.stream(one(lambda x: x + 1), capacity=10) as stream:
            pusher = threading.Thread(
                target=lambda: ([stream.push(n) for n in range(500)], stream.stop())
            )
            pusher.start()
            assert list(stream) == list(range(1, 501))
            pusher.join()

    def test_a_stream_that_was_stopped_takes_no_more(self, grid):
        stream = grid.stream(one(lambda x: x))
        stream.stop()
        with pytest.raises(GridClosed):
            stream.push(1)
        assert list(stream) == []
        stream.stop()

    def test_stopping_at_once_gives_up_what_is_on_its_way(self, grid):
        stream = grid.stream(one(lambda x: time.sleep(0.5), cost={"cpu": 1}))
        for value in range(100):
            stream.push(value)
        begin = time.monotonic()
        stream.stop(at_once=True)
        assert time.monotonic() - begin < 20
        with pytest.raises(GridClosed):
            list(stream)

    def test_what_can_never_be_placed_is_refused_at_once(self, grid):
        with pytest.raises((FunctionFailed, NeverFits, GraphTimeout)):
            grid.stream(one(lambda x: x, cost={"cpu": 1000}), timeout=20)

    def test_workers_that_can_never_be_there_at_once_are_refused_at_once(self, grid):
        (node,) = grid.nodes()
        cores = node.total["cpu"] // 10_000
        begin = time.monotonic()
        with pytest.raises(NotAssigned, match=rf"for f: .*: {cores + 1} workers need cpu="):
            grid.stream(one(lambda x: x, cost={"cpu": 1}, parallelism=cores + 1))
        graph = joined(cost={"cpu": cores})
        with pytest.raises(NotAssigned, match=r"for double with triple.*need cpu=\d+\.25, and it"):
            grid.stream(graph)
        assert time.monotonic() - begin < 20

    def test_without_room_for_a_stage_it_gives_up_in_time_and_holds_nothing(self, grid):
        (status,) = grid.status().nodes
        cores = status.available["cpu"] // 10_000
        with grid.allocate(cpu=cores), pytest.raises(GraphTimeout, match="f"):
            grid.stream(one(lambda x: x, cost={"cpu": 1}), timeout=0.5)

    def test_several_inputs_and_several_results(self, grid):
        graph = Graph().add(
            Function("a", type="input"),
            Function("b", type="input"),
            Function("sum", lambda a, b: a + b, args=["a", "b"]),
            Function("less", lambda a, b: a - b, args=["a", "b"]),
        )
        with grid.stream(graph) as stream:
            stream.push(a=5, b=2)
            stream.stop()
            assert list(stream) == [{"sum": 7, "less": 3}]

    def test_a_long_chain_of_stages(self, grid):
        functions = [Function("x", type="input")]
        for number in range(12):
            before = functions[-1].id
            functions.append(Function(f"f{number}", lambda x: x + 1, args=[before]))
        with grid.stream(Graph(functions)) as stream:
            assert list(stream.map(range(20))) == [n + 12 for n in range(20)]

    def test_it_shows_itself(self, grid):
        with grid.stream(one(lambda x: x)) as stream:
            assert "running: f" in repr(stream)
            assert "<td>f</td>" in stream._repr_html_()
        assert "stopped" in repr(stream)


def test_a_worker_that_is_killed_is_replaced_and_its_item_tried_again(real_grid, tmp_path):
    def dies_once(n):
        mark = tmp_path / str(n)
        if n == 5 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    with real_grid.stream(one(dies_once, cost={"cpu": 0.5})) as stream:
        assert list(stream.map(range(20))) == list(range(20))


def test_an_item_that_kills_every_worker_is_an_error_in_its_place(real_grid):
    def dies(n):
        if n == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    with real_grid.stream(one(dies, cost={"cpu": 0.5})) as stream:
        found = list(stream.map(range(3)))
    assert [found[0], found[2]] == [0, 2]
    assert "lost repeatedly" in str(found[1])


def test_items_that_run_out_of_memory_are_errors_in_their_places(real_grid):
    def hungry(n):
        return len(bytearray(10**9)) if n in (2, 3) else n

    cost = {"cpu": 0.25, "memory": "120MB"}
    with real_grid.stream(one(hungry, cost=cost)) as stream:
        found = list(stream.map(range(6)))
    assert [found[n] for n in (0, 1, 4, 5)] == [0, 1, 4, 5]
    assert [type(error.__cause__) for error in found[2:4]] == [OutOfMemory] * 2


def test_workers_that_die_before_they_are_ready_are_not_replaced_for_ever(real_grid):
    begin = time.monotonic()
    with pytest.raises(FunctionFailed, match="code 3"):
        real_grid.stream(one(pairing(), init=lambda: os._exit(3), cost={"cpu": 0.25}), timeout=100)
    assert time.monotonic() - begin < 60


def test_large_values_go_from_stage_to_stage_and_leave_no_file(real_grid):
    graph = Graph().add(
        Function("x", type="input"),
        Function("make", lambda n: bytes(n), args=["x"]),
        Function("count", len, args=["make"]),
    )
    sizes = [5_000_000, 10, 3_000_000]
    with real_grid.stream(graph) as stream:
        folders = stream._wiring._folders
        assert list(stream.map(sizes)) == sizes
        standing = {"lock", "secret", "socket"}
        until(lambda: set(itertools.chain(*map(os.listdir, folders))) <= standing)
    assert not any(map(os.path.exists, folders))


def test_large_results_are_there_after_the_stream_has_ended(real_grid):
    with real_grid.stream(one(lambda n: bytes(n))) as stream:
        stream.push(5_000_000)
        stream.stop()
    assert len(next(stream)) == 5_000_000


@pytest.mark.parametrize("kind", ["memory", "real"])
def test_it_can_be_awaited(kind):
    async def run():
        grid = AsyncGrid.in_memory() if kind == "memory" else AsyncGrid()
        async with grid:
            if kind == "memory":
                await grid.register_node("box", cpu=4)
            async with await grid.stream(joined(cost={"cpu": 0.5}), capacity=2) as stream:
                assert [one async for one in stream.map([3, 1, 4])] == [(6, 9), (2, 3), (8, 12)]
                await stream.push(5)
                await stream.stop()
                assert [one async for one in stream] == [(10, 15)]

    asyncio.run(run())


def test_an_async_reader_that_gives_up_takes_no_result():
    async def run():
        async with AsyncGrid.in_memory() as grid:
            await grid.register_node("box", cpu=4)
            async with await grid.stream(one(lambda xs: xs, batch_size=2), capacity=2) as stream:
                first = await stream.push(1)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(stream), 0.01)
                async for found in stream.map([2]):
                    assert found == 2
                assert await first == 1
                given_up = asyncio.ensure_future(anext(stream.map([3])))
                await asyncio.sleep(0)  # it has begun
                given_up.cancel()
                await asyncio.wait([given_up])
                waiting = [await stream.push(value) for value in (4, 5)]
                assert [await one for one in waiting] == [4, 5]

    asyncio.run(run())
