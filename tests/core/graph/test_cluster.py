"""The nodes for a graph: what can never run, and the choice for collocated functions."""

from dataclasses import replace

import pytest

from gridhand import (
    Collocated,
    Function,
    ImpossibleCollocation,
    NeverFits,
    Node,
    UnknownNode,
    UnknownResource,
)
from gridhand.core.graph.cluster import GraphCluster
from gridhand.core.graph.function import grouped
from gridhand.core.ledger.allocations import Terms
from gridhand.core.ledger.ledger import Ledger, Placement
from gridhand.core.model.nodes import Health
from gridhand.core.model.requests import Request


def f(id, cost="", node=None):
    if node is not None and node.startswith("@"):
        node = Collocated(node[1:])
    return Function(id, int, cost=cost, node=node)


def cluster(held="", **nodes):
    """Make a cluster from nodes by name and allocations: `"a:cpu=1 b:cpu=2"`."""
    made = [Node.of(name, has) for name, has in nodes.items()]
    ledger = Ledger()
    for node in made:
        ledger.register(node)
    for one in held.split():
        name, _, what = one.partition(":")
        ledger.grant([Placement(Request.of(what, node=name), name, ())], Terms("x"), now=0)
    return GraphCluster(made, ledger.live.values())


#    what it shows                              functions                                                  nodes                                      error                  words
NEVER = {
    "more than any node has":                  ([f("ok", "cpu=1"), f("big", "cpu=9")],                     {"a": "cpu=4", "b": "cpu=8"},              NeverFits,             "function big: no room for cpu=9"),
    "more than its own node has":              ([f("x", "cpu=5", "a")],                                    {"a": "cpu=4", "b": "cpu=8"},              NeverFits,             "function x: "),
    "and one beside a pinned one":             ([f("x", "", "a"), f("y", "cpu=5", "@x")],                  {"a": "cpu=4", "b": "cpu=8"},              NeverFits,             "function y: "),
    "a resource that there is not":            ([f("x", "fgpa=1")],                                        {"a": "fpga=1"},                           UnknownResource,       "function x: no node has a resource named 'fgpa'; did you mean fpga?"),
    "a node that is not there":                ([f("x", "", "c")],                                         {"a": "cpu=4"},                            UnknownNode,           "function x: there is no node named 'c'"),
    "a cost, and no nodes":                    ([f("x", "cpu=1")],                                         {},                                        NeverFits,             "there are no nodes"),
    "no node for each of those that go together": ([f("x", "cpu=5"), f("y", "memory=4GB", "@x")],          {"a": "cpu=8", "b": "cpu=4 memory=8GB"},   ImpossibleCollocation, "function x with y: no node could hold"),
}  # fmt: skip


@pytest.mark.parametrize(("functions", "nodes", "kind", "words"), NEVER.values(), ids=NEVER)
def test_a_graph_that_can_never_run_is_refused(functions, nodes, kind, words):
    with pytest.raises(kind) as caught:
        cluster(**nodes).check(grouped(functions))
    assert words in str(caught.value)


#    what it shows                                 functions                                                  nodes
SOME_DAY = {
    "what is held may go":                        ([f("x", "cpu=4")],                                         {"a": "cpu=4"}),
    "those together need not fit at once":        ([f("x", "cpu=4"), f("y", "cpu=4", "@x")],                  {"a": "cpu=4"}),
    "nothing at all needs no node":               ([f("x"), f("y", "", "@x")],                                {}),
}  # fmt: skip


@pytest.mark.parametrize(("functions", "nodes"), SOME_DAY.values(), ids=SOME_DAY)
def test_a_graph_that_can_run_some_day_is_not_refused(functions, nodes):
    held = "a:cpu=3" if "a" in nodes else ""
    cluster(held, **nodes).check(grouped(functions))


def test_a_node_that_is_down_may_come_back():
    down = replace(Node.of("a", "cpu=4"), health=Health.DOWN)
    GraphCluster([down]).check(grouped([f("x", "cpu=4"), f("y", "cpu=4", "@x")]))


#    what it shows                                   functions that go together                nodes                                  held              chosen
CHOSEN = {
    "what they need adds up":                       ([f("x", "cpu=2"), f("y", "cpu=2", "@x")], {"a": "cpu=3", "b": "cpu=4"},          "",               "b"),
    "on top of what is held":                       ([f("x", "cpu=2"), f("y", "cpu=2", "@x")], {"a": "cpu=4", "b": "cpu=4"},          "a:cpu=1",        "b"),
    "the first by name of those with room":         ([f("x", "cpu=2"), f("y", "cpu=2", "@x")], {"b": "cpu=9", "a": "cpu=4"},          "",               "a"),
    "with no room, where least is held":            ([f("x", "cpu=2"), f("y", "cpu=2", "@x")], {"a": "cpu=2", "b": "cpu=2"},          "a:cpu=1",        "b"),
    "but only where each could be":                 ([f("x", "cpu=1"), f("y", "cpu=4", "@x")], {"a": "cpu=2", "b": "cpu=4"},          "b:cpu=1",        "b"),
    "those that cost nothing go somewhere, too":    ([f("x"), f("y", "", "@x")],               {"a": "cpu=2"},                        "",               "a"),
    "nowhere, if there is nowhere":                 ([f("x"), f("y", "", "@x")],               {},                                    "",               None),
}  # fmt: skip


@pytest.mark.parametrize(("functions", "nodes", "held", "chosen"), CHOSEN.values(), ids=CHOSEN)
def test_the_node_of_collocated_functions(functions, nodes, held, chosen):
    [group] = grouped(functions)
    assert cluster(held, **nodes).choose(group) == chosen


def test_groups_that_are_chosen_for_one_after_another_do_not_pile_up():
    there = cluster(a="cpu=4", b="cpu=4")
    groups = [grouped([f(f"x{n}", "cpu=2"), f(f"y{n}", "cpu=2", f"@x{n}")])[0] for n in range(4)]
    assert [there.choose(one) for one in groups] == ["a", "b", "a", "b"]


def test_a_promised_function_counts_before_it_holds_anything():
    there = cluster(a="cpu=4", b="cpu=4")
    there.promise(f("early", "cpu=4"), "a")
    [group] = grouped([f("x", "cpu=2"), f("y", "cpu=2", "@x")])
    assert there.choose(group) == "b"
    there.promise(f("more", "cpu=1"), "gone")  # its node was removed meanwhile


def test_a_node_that_is_down_is_chosen_last():
    down = replace(Node.of("a", "cpu=4"), health=Health.DOWN)
    there = GraphCluster([down, Node.of("b", "cpu=2")])
    [group] = grouped([f("x", "cpu=2"), f("y", "cpu=2", "@x")])
    assert there.choose(group) == "b"
    assert GraphCluster([down]).choose(group) == "a"  # it may come back
    assert (there.is_down("a"), there.is_down("b"), there.is_down("c")) == (True, False, True)


def test_a_copy_with_inconsistent_parts_is_usable():
    held = cluster("a:cpu=1 b:cpu=1", a="cpu=4", b="cpu=4").ledger.live.values()
    there = GraphCluster([Node.of("a", "cpu=4")], held)
    assert there.ledger.nodes["a"].held == {"cpu": 10_000}


def test_d8_all_at_once_as_handoff_does_or_not_now():
    functions = [
        f("source", "memory=1950", "a"),
        f("second", "memory=2000"),
        f("last", "memory=50"),
    ]
    nodes = {"a": "cpu=4 memory=2000", "b": "cpu=4 memory=2000"}
    where = {"source": "a", "second": "b", "last": "a"}
    assert cluster(**nodes).assign(functions) == where
    busy = cluster("b:memory=1", **nodes)
    assert busy.assign(functions) is None
    assert busy.emptied().assign(functions) == where
