"""What a graph holds while it runs, and where its functions go."""

import pytest

from graph_functions import (
    add,
    in_threads,
    meets,
    nodes_of,
    noted,
    noted_after,
    running,
    together,
    waiting,
    waits,
)
from gridhand import Collocated, Function, GraphTimeout, InvalidInput, NotAssigned, Resources
from until import until

# ---- what is held


def test_by_step_a_function_holds_its_own_while_it_runs(grid, notes):
    graph = [
        Function("a", waits, extra_args=[notes, "a"], cost="cpu=3", node="n1"),
        Function("b", together, args=["a"], cost="cpu=4", node="n2"),
    ]
    with running(grid, graph) as result:
        notes.wait("a")
        [held] = grid.allocations()
        assert (held.node, held.resources) == ("n1", Resources.of(cpu=3))
        notes.add("go")
    assert result().allocations["a"].id == held.id


def test_as_a_whole_everything_is_held_from_the_beginning(grid, notes):
    graph = [
        Function("a", waits, extra_args=[notes, "a"], cost="cpu=3"),
        Function("b", together, args=["a"], cost="cpu=4"),
        Function("free", together, args=["a"]),
    ]
    with running(grid, graph, claim="whole") as result:
        notes.wait("a")
        assert sorted(one.node for one in grid.allocations()) == ["n1", "n2"]
        notes.add("go")
    assert nodes_of(result()) == {"a": "n1", "b": "n2", "free": "n2"}
    assert result().allocations["free"].id is None


@pytest.mark.parametrize("together_too", [False, True], ids=["free", "collocated"])
def test_as_a_whole_it_waits_until_there_is_room_for_all(inner, notes, together_too):
    held = inner.allocate(cpu=4, node="n2")
    graph = [
        Function("a", noted, extra_args=[notes, "a"], cost="cpu=4"),
        Function("b", noted, extra_args=[notes, "b"], cost="cpu=3"),
        Function(
            "c", noted, extra_args=[notes, "c"], node=Collocated("b") if together_too else "n1"
        ),
    ]
    with running(inner, graph, claim="whole") as result:
        until(lambda: waiting(inner))
        assert notes.order() == []
        assert [one.id for one in inner.allocations()] == [held.id]
        held.release()
    assert {nodes_of(result())[id] for id in "ab"} == {"n1", "n2"}


def test_by_step_a_function_waits_until_there_is_room(inner, notes):
    held = [inner.allocate(cpu=4) for _ in range(2)]
    graph = [Function("a", noted, extra_args=[notes, "a"], cost="cpu=1")]
    with running(inner, graph) as result:
        until(lambda: waiting(inner))
        assert notes.order() == []
        held[0].release()
    assert result()["a"] == ["a"]
    held[1].release()


@pytest.mark.parametrize("claim", ["step", "whole"])
def test_a_graph_that_is_not_done_in_time_is_stopped(grid, notes, claim):
    graph = [
        Function("done", add, cost="cpu=1"),
        Function("long", waits, extra_args=[notes, "long"], cost="cpu=1"),
    ]
    limit_s = 0.2 if in_threads(grid) else 3  # a worker takes a moment to begin
    with pytest.raises(GraphTimeout, match=f"within {limit_s} s: 1 of 2 functions") as caught:
        grid.execute(graph, timeout=limit_s, claim=claim)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.running == ["long"]
    notes.add("go")


@pytest.mark.parametrize("claim", ["step", "whole"])
def test_waiting_for_room_counts_as_time(inner, claim):
    with inner.allocate(cpu=4, node="n1"), inner.allocate(cpu=4, node="n2"):
        graph = [Function("a", add, cost="cpu=1"), Function("b", add, cost="cpu=1")]
        with pytest.raises(GraphTimeout, match="0 of 2 functions"):
            inner.execute(graph, timeout=0.1, claim=claim)
        until(lambda: not waiting(inner) or inner.release(inner.allocate(memory=1)))
        assert len(inner.allocations()) == 2


def test_so_many_functions_cannot_be_held_as_a_whole(grid):
    graph = [Function(f"f{n}", add, cost="cpu=0.0001") for n in range(1001)]
    with pytest.raises(InvalidInput, match="whole") as caught:
        grid.execute(graph, claim="whole")
    assert "step" in caught.value.hint


# ---- where they go


@pytest.mark.parametrize("claim", ["step", "whole"])
def test_pins_and_collocation_are_kept(grid, claim):
    graph = [
        Function("pinned", add, node="n2", cost="cpu=1"),
        Function("leader", add, cost="cpu=2"),
        Function("follower", add, args=["leader"], cost="cpu=2", node=Collocated("leader")),
        Function("last", add, cost="memory=1GB", node=Collocated("follower")),
        Function("beside", add, cost="cpu=1", node=Collocated("pinned")),
        Function("costs_nothing", add, node=Collocated("leader")),
    ]
    nodes = nodes_of(grid.execute(graph, claim=claim))
    assert nodes["pinned"] == nodes["beside"] == "n2"
    same = {nodes[id] for id in ("leader", "follower", "last", "costs_nothing")}
    assert len(same) == 1
    assert same <= {"n1", "n2"}


def test_by_step_those_that_go_together_need_not_fit_at_once(grid):
    graph = [
        Function("a", add, cost="cpu=4"),
        Function("b", add, args=["a"], cost="cpu=4", node=Collocated("a")),
    ]
    nodes = nodes_of(grid.execute(graph))
    assert nodes["a"] == nodes["b"]
    with pytest.raises(NotAssigned, match="a with b"):
        grid.execute(graph, claim="whole")


@pytest.mark.parametrize("leads", ["early", "late"])
def test_the_first_of_a_group_goes_where_the_others_can_follow(grid, leads):
    nodes = {"early": Collocated("late"), "late": None}
    if leads == "early":
        nodes = {"early": None, "late": Collocated("early")}
    graph = [
        Function("early", add, cost="cpu=1", node=nodes["early"]),
        Function("late", add, args=["early"], cost="cpu=4", node=nodes["late"]),
    ]
    grid.register_node("n0", cpu=2)  # room for the early one, and never for the late one
    found = nodes_of(grid.execute(graph))
    assert found["early"] == found["late"] != "n0"


def test_a_group_leaves_room_for_what_another_is_still_to_run(grid, notes):
    graph = [
        Function("a", waits, extra_args=[notes, "a"], cost="cpu=3"),
        Function("a2", noted_after, args=["a"], extra_args=[notes], cost="cpu=1",
                 node=Collocated("a")),
        Function("later", notes_wait, extra_args=[notes, "a"]),
        Function("b", lets_go, args=["later"], extra_args=[notes], cost="cpu=0.5"),
        Function("b2", add, cost="cpu=0.5", args=["later"], node=Collocated("b")),
    ]  # fmt: skip
    nodes = nodes_of(grid.execute(graph))
    assert (nodes["a"], nodes["a2"]) == ("n1", "n1")
    assert (nodes["b"], nodes["b2"]) == ("n2", "n2")


def notes_wait(notes, name):
    notes.wait(name)
    return 0


def lets_go(_, notes):
    notes.add("go")


def test_groups_that_start_at_the_same_time_do_not_pile_up_on_one_node(grid, notes):
    graph = []
    for n in (0, 1):
        graph += [
            Function(f"a{n}", meets, extra_args=[notes, f"a{n}", f"a{1 - n}"], cost="cpu=3"),
            Function(f"b{n}", add, cost="cpu=1", node=Collocated(f"a{n}")),
        ]
    nodes = nodes_of(grid.execute(graph))
    assert {nodes["a0"], nodes["a1"]} == {"n1", "n2"}
