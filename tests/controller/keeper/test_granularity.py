"""Memory in steps, as `memory_granularity` says: every new request is rounded up."""

import pytest

from controller_place import in_place
from gridhand import Grid, HolderBusy, NeverFits, Node, NoRoom, Resources
from gridhand.controller.jobs.dry_run import planned
from gridhand.core.jobs.job import JobSpec
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import read_amount
from gridhand.core.observations import UseGranularity
from gridhand.core.operations import Register

STEP = read_amount("memory", "100MB")


@pytest.fixture
def grid():
    with Grid.in_memory() as grid:
        grid.register_node("n1", cpu=8, memory="450MB")
        grid._run(UseGranularity(STEP))
        yield grid
        assert grid.check() == []


def test_an_allocation_holds_whole_steps(grid):
    assert grid.allocate(memory="120MB").resources == Resources.of(memory="200MB")
    assert grid.allocate(cpu=1).resources == Resources.of(cpu=1)
    assert grid.node("n1").available["memory"] == read_amount("memory", "250MB")


def test_a_group_holds_whole_steps(grid):
    made = grid.allocate_group([{"memory": "120MB"}, {"memory": "1MB"}])
    held = [one.resources for one in made]
    assert held == [Resources.of(memory="200MB"), Resources.of(memory="100MB")]


def test_answers_are_about_whole_steps(grid):
    assert grid.fits("n1", memory="400MB")
    assert not grid.fits("n1", memory="401MB")
    assert grid.explain(memory="400MB").fits
    assert not grid.explain(memory="401MB").ever
    grid.allocate(memory="201MB")
    with pytest.raises(NoRoom, match="200MB") as refused:
        grid.allocate(memory="110MB")
    assert "Ask for memory=100MB instead of 200MB" in refused.value.hint


def test_one_who_asks_again_gets_what_is_held(grid):
    first = grid.allocate(memory="120MB", holder="me")
    assert grid.allocate(memory="120MB", holder="me").id == first.id
    grid._run(UseGranularity(3 * STEP))
    assert grid.allocate(memory="120MB", holder="me").id == first.id
    with pytest.raises(HolderBusy):
        grid.allocate(memory="200MB", holder="me")


def test_it_outlives_a_reading_of_the_ledger(grid):
    grid._backend._keeper._load()
    assert grid.allocate(memory="120MB").resources == Resources.of(memory="200MB")


def memory(desk, id):
    return desk.job(id).request.amounts["memory"]


def test_a_job_asks_for_whole_steps_and_keeps_them_when_the_steps_change(desk):
    desk.ask(Register("ann", nodes=(Node.of("a", cpu=4, memory="1GB"),)))
    desk.ask(UseGranularity(STEP))
    first = desk.submit(1, memory="120MB", op_id="first")
    assert memory(desk, first) == 2 * STEP
    desk.ask(UseGranularity(3 * STEP))
    assert desk.submit(1, memory="120MB", op_id="first") == first  # a repeat is still known
    assert memory(desk, first) == 2 * STEP
    assert memory(desk, desk.submit(1, memory="120MB")) == 3 * STEP
    desk.ask(UseGranularity(0))
    assert memory(desk, desk.submit(1, memory="120MB")) == read_amount("memory", "120MB")


@in_place()
async def test_a_dry_run_is_about_whole_steps(place):
    await place.controller.ask(UseGranularity(60 * STEP))
    work = JobSpec("ann", ("true",), "/", Request.of(memory="7GB"))
    with pytest.raises(NeverFits, match="12GB"):
        await planned(place.controller, work, ())
