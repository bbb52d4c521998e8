"""What others use of a node, in the keeper: planned around, never stored, and forgotten."""

import threading

import pytest

from gridhand import Grid, NoRoom, Resources
from gridhand.core.model.host_use import NO_HOST_USE, HostUse, Stranger
from gridhand.core.model.resources import UNIT
from gridhand.core.observations import SetHostUse
from until import until

GB = 10**9
MACHINE = {"cpu": 8 * UNIT, "memory": 32 * GB}


@pytest.fixture
def grid():
    with Grid.in_memory() as grid:
        grid.register_node("n1", cpu=8, memory="32GB")
        yield grid
        assert grid.check() == []


def report(grid, cpu=0, memory=0, machine=MACHINE):
    stranger = Stranger(4711, "blender", cpu, memory)
    used = HostUse(cpu, memory, (stranger,)) if cpu or memory else NO_HOST_USE
    grid._run(SetHostUse("n1", used, machine))


def test_what_others_use_is_not_promised_and_shown(grid):
    report(grid, cpu=3 * UNIT, memory=28 * GB)
    node = grid.node("n1")
    assert node.available == Resources.of(cpu=5, memory="4GB")
    assert node.total == Resources.of(cpu=8, memory="32GB")
    assert node.foreign == Resources.of(cpu=3, memory="28GB")
    with pytest.raises(NoRoom, match=r"28 GB used by pid 4711 \(blender\)"):
        grid.allocate(memory="5GB")
    grid.allocate(memory="4GB", cpu=5)
    events = len(grid.events())
    report(grid)
    assert grid.node("n1").available == Resources.of(cpu=3, memory="28GB")
    assert len(grid.events()) == events  # it is observed, not recorded


def test_a_node_that_is_a_part_of_its_machine_keeps_what_others_leave(grid):
    """An administrator has kept half of the machine for others: their use of it takes nothing."""
    report(grid, memory=28 * GB, machine={"cpu": 8 * UNIT, "memory": 64 * GB})
    assert grid.node("n1").available["memory"] == 32 * GB
    report(grid, memory=48 * GB, machine={"cpu": 8 * UNIT, "memory": 64 * GB})
    assert grid.node("n1").available["memory"] == 16 * GB


def test_one_who_waits_is_served_when_others_leave(grid):
    report(grid, memory=28 * GB)
    made = []
    ask = threading.Thread(target=lambda: made.append(grid.allocate(memory="8GB", wait=120)))
    ask.start()
    try:
        until(lambda: grid._backend._keeper._waiting)
        report(grid, memory=27 * GB)
        assert not made
        report(grid, memory=20 * GB)
    finally:
        ask.join(60)
    assert [one.node for one in made] == ["n1"]


def test_a_node_that_comes_back_is_measured_anew(grid):
    report(grid, memory=28 * GB)
    grid.unregister("n1")
    grid.register_node("n1", cpu=8, memory="32GB")
    assert grid.node("n1").available["memory"] == 32 * GB
