"""What people stumble over on their first day, and are told."""

import pytest

from gridhand import Grid, GridError, HolderBusy, InvalidName, Node, Resources, UnknownResource


@pytest.fixture
def grid():
    with Grid.in_memory(owner="ann") as grid:
        grid.register_node("box", cpu=4, memory="8GB")
        yield grid


#    what is written        what was meant
MISSPELT = {
    "cpus": "cpu", "cores": "cpu", "mem": "memory", "ram": "memory", "memory_mb": "memory",
    "vram": "gpu_memory", "gpu_mem": "gpu_memory",
}  # fmt: skip


@pytest.mark.parametrize(("written", "meant"), MISSPELT.items())
def test_a_node_is_not_given_a_misspelt_resource_without_a_word(grid, written, meant):
    with pytest.raises(InvalidName) as caught:
        grid.register_node("other", {"cpu": 1, written: 8})
    assert written in str(caught.value)
    assert meant in caught.value.hint
    assert [node.name for node in grid.nodes()] == ["box"]


def test_the_spellings_of_ray_are_understood():
    assert Resources.of(num_cpus=2, num_gpus=0.5) == Resources.of(cpu=2, gpu=0.5)
    assert Node.of("n", num_cpus=2).total == Resources.of(cpu=2)


def test_what_the_nodes_have_is_what_they_really_have(grid):
    with pytest.raises(UnknownResource) as caught:
        grid.allocate(cpu=1, fpga=1)
    assert caught.value.hint == "The nodes have: cpu, memory."


@pytest.mark.parametrize(("first", "second"), [(60, None), (None, 60), (60, 61)])
def test_the_same_holder_asking_for_another_time_asks_for_something_else(grid, first, second):
    held = grid.allocate(cpu=1, ttl=first, holder="training")
    with pytest.raises(HolderBusy):
        grid.allocate(cpu=1, ttl=second, holder="training")
    assert grid.allocate(cpu=1, ttl=first, holder="training").id == held.id


def test_a_node_and_a_cluster_print_as_a_line_for_each_node(grid):
    grid.register_node("gpu1", cpu=2, gpu=1)
    grid.allocate(cpu=3, node="box")
    grid.drain("gpu1")
    assert str(grid.node("box")) == "box (up): cpu=1 memory=8GB free of cpu=4 memory=8GB"
    assert str(grid.status()).splitlines()[1].startswith("gpu1 (up, draining): cpu=2 gpu=1 free")
    with Grid.in_memory() as empty:
        assert str(empty.status()) == "no nodes"


def test_a_store_that_is_owned_says_how_to_go_on(tmp_path):
    with Grid.at(str(tmp_path / "grid.db")), pytest.raises(GridError) as caught:
        Grid.at(str(tmp_path / "grid.db"))
    assert all(word in caught.value.hint for word in ("Grid()", "wait=", "take_over="))
