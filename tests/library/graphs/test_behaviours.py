"""Graphs run on a grid: the behaviours D1 to D8."""

import threading

import pytest

from graph_functions import (
    add,
    busy,
    counted,
    d8,
    fails,
    holds_nothing,
    meets,
    nodes_of,
    noted,
    noted_after,
    times,
    together,
    waits,
)
from gridhand import (
    CircularDependency,
    Collocated,
    Function,
    FunctionFailed,
    Graph,
    GridError,
    ImpossibleCollocation,
    InvalidInput,
    NeverFits,
    NotAssigned,
    Resources,
    UnknownNode,
)


def test_d1_values_go_from_function_to_function(grid):
    graph = (
        Graph()
        .add(Function("a", add, extra_args=[1]))
        .add(Function("b", add, args=["a"], extra_args=[1]))
        .add(Function("c", times, args=["b"], extra_args=[2]))
    )
    result = grid.execute(graph)
    assert result.results == {"a": 1, "b": 2, "c": 4}
    assert result["c"] == 4
    assert list(result.results) == ["a", "b", "c"]


def test_d1_extra_arguments_come_after_the_results(grid):
    graph = [
        Function("a", add, extra_args=[1]),
        Function("b", add, extra_args=[2]),
        {"id": "c", "code": together, "args": ["b", "a"], "extra_args": [None, "x"]},
    ]
    assert grid.execute(graph)["c"] == [2, 1, None, "x"]


def test_d2_as_a_list_the_results_are_one_argument(grid):
    graph = [
        Function("a", add, extra_args=[1]),
        Function("b", add, extra_args=[2]),
        Function("c", together, args=["a", "b"], extra_args=[3], argument_inclusion="as_list"),
    ]
    assert grid.execute(graph)["c"] == [[1, 2], 3]


def test_none_is_a_value_like_any_other(grid):
    graph = [
        Function("a", dict.get, extra_args=[{}, "nothing"]),
        Function("b", together, args=["a"]),
    ]
    assert grid.execute(graph).results == {"a": None, "b": [None]}


@pytest.mark.parametrize(
    ("broken", "kind", "words"),
    [
        ([("a", ["c"]), ("b", ["a"]), ("c", ["b"])], CircularDependency, "a → b → c → a"),
        ([("a", []), ("b", ["x"])], GridError, "'x'"),
        ([("a", []), ("a", [])], GridError, "'a'"),
    ],
    ids=["a circle", "a function that is not there", "an id twice"],
)
def test_d3_what_cannot_run_is_refused_before_anything_runs(grid, notes, broken, kind, words):
    events = len(grid.events())
    with pytest.raises(kind, match=words):
        grid.execute(
            [
                Function("first", noted, extra_args=[notes, "first"], cost="cpu=1"),
                *(Function(id, noted, args=args, extra_args=[notes, id]) for id, args in broken),
            ]
        )
    assert notes.order() == []
    assert len(grid.events()) == events


@pytest.mark.parametrize("claim", ["step", "whole"])
@pytest.mark.parametrize(
    ("cost", "node", "kinds"),
    [
        ({"cpu": 9}, None, (NeverFits, NotAssigned)),
        ({"cpu": 1}, "n9", (UnknownNode,)),
        ({"cpu": 5}, "n1", (NeverFits, NotAssigned)),
    ],
    ids=["larger than any node", "on a node that is not there", "larger than its node"],
)
def test_what_could_never_be_placed_is_refused_before_anything_runs(
    grid, notes, claim, cost, node, kinds
):
    graph = [
        Function("first", noted, extra_args=[notes, "first"]),
        Function("late", add, args=["first"], cost=cost, node=node),
    ]
    with pytest.raises(kinds, match="late"):
        grid.execute(graph, claim=claim)
    assert notes.order() == []


def test_those_that_go_together_must_have_a_node_that_can_have_them(grid, notes):
    grid.register_node("wide", cpu=16)
    graph = [
        Function("a", noted, extra_args=[notes, "a"], cost="cpu=8"),
        Function("b", noted, extra_args=[notes, "b"], cost="memory=1GB", node=Collocated("a")),
    ]
    with pytest.raises(ImpossibleCollocation, match="a with b"):
        grid.execute(graph)
    assert notes.order() == []


@pytest.mark.parametrize("cost", ["", "cpu=1"])
def test_d4_fails_once_with_one_retry_is_called_twice(grid, notes, cost):
    graph = [Function("f", fails, extra_args=[notes, "f", 1], cost=cost)]
    result = grid.execute(graph, max_retries=1)
    assert (result["f"], result.attempts, notes.count("f")) == ("f", {"f": 2}, 2)


@pytest.mark.parametrize("claim", ["step", "whole"])
def test_d4_always_fails_with_two_retries_is_called_three_times(grid, notes, claim):
    graph = [Function("ok", add), Function("f", fails, extra_args=[notes, "f", 99], cost="cpu=1")]
    with pytest.raises(FunctionFailed) as caught:
        grid.execute(graph, max_retries=2, claim=claim)
    error = caught.value
    assert notes.count("f") == 3
    assert str(error) == "function f failed after 3 attempts: ValueError: f failed on purpose"
    assert (error.function, error.attempts) == ("f", 3)
    assert type(error.__cause__) is ValueError
    assert str(error.__cause__) == "f failed\non purpose"
    assert isinstance(error, GridError)


def test_d4_a_functions_own_number_beats_that_of_the_graph(grid, notes):
    graph = [Function("f", fails, extra_args=[notes, "f", 99], max_retries=0)]
    with pytest.raises(FunctionFailed, match="function f failed: ValueError"):
        grid.execute(graph, max_retries=5)
    assert notes.count("f") == 1
    graph = [Function("g", fails, extra_args=[notes, "g", 4], max_retries=4)]
    assert grid.execute(graph, max_retries=0)["g"] == "g"


def test_d4_what_has_a_value_does_not_run_again(grid, notes):
    graph = [
        Function("a", counted, extra_args=[1, notes, "a"]),
        Function("b", fails_with, args=["a"], extra_args=[notes, "b", 2]),
        Function("c", add, args=["b", "a"]),
    ]
    assert grid.execute(graph, max_retries=2)["c"] == 2
    assert (notes.count("a"), notes.count("b")) == (1, 3)


def fails_with(value, notes, name, most):
    fails(notes, name, most)
    return value


def test_d5_an_inline_function_is_evaluated_for_each_that_uses_it(grid, notes):
    graph = [
        Function("a", counted, extra_args=[10, notes], type="inline"),
        Function("b", add, args=["a"], extra_args=[5], cost={"cpu": 1, "memory": 100}),
        Function("c", times, args=["a"], extra_args=[3], cost={"cpu": 1, "memory": 100}),
        Function("d", together, args=["b", "c"], cost={"cpu": 1, "memory": 100}),
    ]
    result = grid.execute(graph)
    assert result.results == {"b": 15, "c": 30, "d": [15, 30]}
    assert "a" not in result.allocations
    assert notes.count("counted") == 2


def test_d5_an_inline_function_takes_results_and_may_be_tried_again(grid, notes):
    graph = [
        Function("a", add, extra_args=[1]),
        Function("i", fails_with, args=["a"], extra_args=[notes, "i", 1], type="inline"),
        Function("j", times, args=["i"], extra_args=[10], type="inline"),
        Function("b", together, args=["j", "a"]),
        Function("unused", counted, extra_args=[0, notes], type="inline"),
    ]
    assert grid.execute(graph, max_retries=1).results == {"a": 1, "b": [10, 1]}
    assert (notes.count("i"), notes.count("counted")) == (2, 0)
    graph[1] = Function("i", fails, extra_args=[notes, "i", 99], type="inline")
    with pytest.raises(FunctionFailed, match="function b failed: ValueError: i failed") as caught:
        grid.execute(graph, max_retries=0)
    assert "inline function i" in caught.value.__cause__.__notes__[0]


def test_inputs_are_given_when_the_graph_is_run(grid):
    graph = Graph([Function("x", type="input"), Function("y", times, args=["x"], extra_args=[2])])
    assert grid.execute(graph, inputs={"x": 3}).results == {"y": 6}
    assert grid.execute(graph, inputs={"x": "ab"}).results == {"y": "abab"}
    for wrong, words in ((None, "x"), ({}, "x"), ({"x": 1, "z": 2}, "z"), ([1], "inputs")):
        with pytest.raises(InvalidInput, match="inputs") as caught:
            grid.execute(graph, inputs=wrong)
        assert words in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("cost", ["", "cpu=1"])
def test_d6_independent_functions_overlap(grid, notes, cost):
    graph = [
        Function("a", meets, extra_args=[notes, "a", "b"], cost=cost),
        Function("b", meets, extra_args=[notes, "b", "a"], cost=cost),
    ]
    assert grid.execute(graph).results == {"a": "a", "b": "b"}


@pytest.mark.parametrize("most", [1, 3])
def test_d6_no_more_run_at_a_time_than_allowed(grid, notes, most):
    graph = [Function(f"f{n}", busy, extra_args=[notes, n]) for n in range(12)]
    grid.execute(graph, max_concurrency=most)
    seen = [name for name in notes.order() if name.startswith("at-once")]
    assert len(seen) == 12
    assert max(int(name.rpartition("-")[2]) for name in seen) <= most


def test_d6_after_a_failure_nothing_more_starts_and_siblings_are_cancelled(grid, notes):
    graph = [
        Function("sibling", waits, extra_args=[notes, "sibling"], cost="cpu=1"),
        Function("bad", bad_once, extra_args=[notes, "sibling"], cost="cpu=1"),
        Function("after", noted_after, args=["bad"], extra_args=[notes], cost="cpu=1"),
        Function("later", noted_after, args=["sibling"], extra_args=[notes], cost="cpu=1"),
        *(
            Function(f"queued{n}", waits, extra_args=[notes, "queued"], cost="cpu=4")
            for n in (1, 2)
        ),
    ]
    with pytest.raises(FunctionFailed, match="function bad failed: RuntimeError: bad"):
        grid.execute(graph, max_retries=0)
    notes.add("go")
    holds_nothing(grid)
    assert notes.count("after") == 0
    assert notes.count("queued") <= 1  # one of them may have had the other node to itself


def bad_once(notes, other):
    notes.wait(other)
    raise RuntimeError("bad")


def test_d7_two_graphs_with_the_same_ids_do_not_mix(grid, notes):
    def graph(number):
        return Graph(
            [
                Function("a", meets, extra_args=[notes, f"a{number}", f"a{1 - number}"]),
                Function("b", together, args=["a"], extra_args=[number], cost="cpu=1"),
            ]
        )

    found = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: grid.execute(graph(n))}))
        for n in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found[0].results == {"a": "a0", "b": ["a0", 0]}
    assert found[1].results == {"a": "a1", "b": ["a1", 1]}
    assert found[0].run_id != found[1].run_id


def test_d8_the_whole_graph_is_held_at_once_as_handoff_does(grid):
    result = grid.execute(d8(), claim="whole")
    assert nodes_of(result) == {"source": "n1", "second": "n2", "final": "n1"}
    assert result.results == {"source": 42, "second": [42, 1337], "final": [[42, 1337]]}
    used = result.allocations["source"]
    assert used.resources == Resources.of(cpu=1, memory=1950)
    assert used.id


def test_d8_by_step_the_same_values_come_of_it(grid):
    assert grid.execute(d8()).results["final"] == [[42, 1337]]
