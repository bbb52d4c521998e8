"""Graphs on two nodes, each with an agent of its own on this machine."""

import os
import subprocess
import sys
import threading
import time

import pytest

from gridhand import Collocated, Function, Graph, Grid


@pytest.fixture
def two_nodes(home, tools):
    """A controller for two nodes of 4 cores and 2000 MB; it ends with the module's home."""
    nodes = [f"--virtual-node={name}:cpu=4,memory=2000MB" for name in ("first", "second")]
    command = [sys.executable, "-m", "gridhand.cli.main", "serve", *nodes]
    with open(os.devnull, "w") as nowhere:
        serving = subprocess.Popen(command, stdout=nowhere, stderr=nowhere)
    try:
        tools.until(lambda: os.path.exists(home.socket), 30)
        with Grid() as grid:
            yield grid
            tools.until(lambda: not grid.allocations())
            assert grid.check() == []
    finally:
        serving.terminate()
        serving.wait(30)


def here():
    return lambda *values: (os.environ["GRIDHAND_NODE"], values)


def test_a_graph_that_is_claimed_as_a_whole_goes_where_handoff_sends_it(two_nodes):
    """D8"""
    graph = Graph().add(
        Function("source", here(), cost={"cpu": 1, "memory": 1950}, node="first"),
        Function("large", here(), args=["source"], cost={"cpu": 1, "memory": 2000}),
        Function("small", here(), args=["large"], cost={"cpu": 1, "memory": 50}),
    )
    result = two_nodes.execute(graph, claim="whole")
    nodes = {id: used.node for id, used in result.allocations.items()}
    assert nodes == {"source": "first", "large": "second", "small": "first"}
    assert result["small"] == ("first", (("second", (("first", ()),)),))
    # Not told alone: the agent of each node ran it, in what was held for it.
    ran = {job.facts["name"]: job.facts for job in two_nodes.jobs(limit=10)}
    assert {id: ran[id]["node"] for id in nodes} == nodes
    held = {id: used.id for id, used in result.allocations.items()}
    assert {id: ran[id]["within"] for id in nodes} == held


def test_by_step_each_goes_where_it_is_pinned_or_to_the_one_it_follows(two_nodes):
    graph = Graph().add(
        Function("a", here(), cost={"cpu": 1}, node="second"),
        Function("b", here(), cost={"cpu": 1}, node=Collocated("a")),
        Function("c", here(), args=["a", "b"], cost={"cpu": 1}, node="first"),
    )
    result = two_nodes.execute(graph)
    assert result["c"] == ("first", (("second", ()), ("second", ())))


def test_a_node_that_is_lost_gives_its_functions_to_the_other(two_nodes, tmp_path, tools):
    mark = tmp_path / "mark"

    def slow():
        node = os.environ["GRIDHAND_NODE"]
        with open(mark, "a") as file:
            file.write(f"{node}\n")
        time.sleep(600 if len(mark.read_text().split()) == 1 else 0)
        return node

    def lose():
        tools.until(mark.exists, 30)
        two_nodes.unregister(mark.read_text().split()[0], force=True)

    losing = threading.Thread(target=lose)
    losing.start()
    result = two_nodes.execute([Function("slow", slow, cost={"cpu": 3})], timeout=60)
    losing.join()
    tried = mark.read_text().split()
    assert sorted(tried) == ["first", "second"]
    assert result["slow"] == tried[1]
