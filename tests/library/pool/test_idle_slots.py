"""What idle slots of a program hold never refuses that program."""

import os

import pytest

from gridhand import Function, Graph, Grid, GridExecutor, NoRoom, task
from until import until


@pytest.fixture
def lasting(monkeypatch):
    """Idle workers stay for as long as nobody needs what they hold."""
    monkeypatch.setenv("GRIDHAND_LINGER_S", "1000")


def cores(grid):
    (node,) = grid.nodes()
    return node.total["cpu"] // 10_000


def one(code, **more):
    return Graph().add(Function("x", type="input"), Function("f", code, args=["x"], **more))


@pytest.mark.usefixtures("lasting")
class TestIdleSlots:
    def test_an_allocation_takes_what_idle_workers_hold(self, grid):
        assert task(cpu=cores(grid), grid=grid)(os.getpid).submit().result(60)
        assert grid.status().allocated
        grid.allocate(cpu=cores(grid)).release()

    def test_so_does_one_of_another_grid_of_the_program(self, grid):
        assert task(cpu=cores(grid), grid=grid)(os.getpid).submit().result(60)
        with Grid() as other:
            other.allocate(cpu=cores(grid), wait=1000).release()

    def test_after_a_graph_was_executed_all_of_it_can_be_held(self, grid):
        graph = one(lambda x: x, cost={"cpu": cores(grid)})
        assert grid.execute(graph, inputs={"x": 1})["f"] == 1
        grid.allocate(cpu=cores(grid)).release()

    def test_what_runs_is_not_touched(self, grid, tmp_path):
        mark = tmp_path / "go on"

        def wait():
            import time

            while not mark.exists():
                time.sleep(0.01)
            return "well"

        running = task(cpu=cores(grid), grid=grid)(wait).submit()
        until(lambda: grid.status().allocated)
        with pytest.raises(NoRoom):
            grid.allocate(cpu=1)
        mark.touch()
        assert running.result(60) == "well"

    def test_a_stream_that_was_stopped_holds_nothing(self, grid):
        with grid.stream(one(lambda x: x, cost={"cpu": 1})) as stream:
            assert list(stream.map([1])) == [1]
        assert not grid.status().allocated

    def test_an_executor_that_was_left_holds_nothing(self, grid):
        with GridExecutor(grid=grid) as executor:
            assert executor.submit(pow, 2, 3).result(60) == 8
        assert not grid.status().allocated
