"""Graphs run on a grid: the behaviours D1 to D8, and what becomes of what they hold.

Functions speak with the test through files, so that the same tests can be run where they are
called in other processes.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from random import Random

import cloudpickle
import pytest
from notes import Notes

from gridhand import (
    AsyncGrid,
    CallFailed,
    CircularDependency,
    Collocated,
    Function,
    FunctionFailed,
    Graph,
    GraphTimeout,
    Grid,
    GridClosed,
    GridError,
    ImpossibleCollocation,
    InvalidInput,
    NeverFits,
    NotAssigned,
    Resources,
    UnknownNode,
)
from gridhand.library.calling import caller_of
from gridhand.library.threadcaller import ThreadCaller

ADDED = ("n0", "n3", "wide")  # by single tests
TWO_NODES = {"n1": {"cpu": 4, "memory": 2000}, "n2": {"cpu": 4, "memory": 2000}}


@pytest.fixture(scope="module")
def home():
    """A folder for a controller; whatever runs there at the end is ended."""
    folder = tempfile.mkdtemp(prefix="gh")
    yield folder
    program = [sys.executable, "-m", "gridhand.cli.main", "stop", "--kill-jobs"]
    env = {**os.environ, "GRIDHAND_HOME": folder}
    subprocess.run(program, env=env, capture_output=True, timeout=60, check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def processes(home, monkeypatch):
    """The grid of a real controller, with nothing but the two nodes to give."""
    monkeypatch.delenv("GRIDHAND_ADDRESS", raising=False)
    monkeypatch.setenv("GRIDHAND_HOME", home)
    for module in (__name__, "notes"):  # which workers cannot import
        cloudpickle.register_pickle_by_value(sys.modules[module])
    grid = Grid()
    for one in grid.nodes():
        if one.name not in TWO_NODES:
            grid.drain(one.name)
    return grid


def opened(request, tmp_path):
    if request.param == "on processes":
        return request.getfixturevalue("processes")
    if request.param == "in a file":
        return Grid.at(str(tmp_path / "grid.db"))
    return Grid.in_memory(owner="ann")


@pytest.fixture(params=["in memory", "in a file", "on processes"])
def grid(request, tmp_path):
    """A grid with two nodes, which holds nothing at the end."""
    with opened(request, tmp_path) as found:
        for name, has in TWO_NODES.items():
            found.register_node(name, has)
            found.set_health(name, "up")
            found.resume(name)
        yield found
        holds_nothing(found)
        for one in found.nodes():
            if one.name in ADDED:
                found.unregister(one.name)


@pytest.fixture
def inner(grid):
    """The same, where the ledger is kept in this process: tests look into it."""
    if not in_threads(grid):
        pytest.skip("its keeper is elsewhere")
    return grid


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    return Notes(str(folder))


def until(true, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.005)


def in_threads(grid):
    return type(caller_of(grid)) is ThreadCaller


def holds_nothing(grid):
    """Threads that were stopped hold what they have until they end by themselves."""
    until(lambda: not grid.allocations())
    assert grid.check() == []


def nodes_of(result):
    return {id: used.node for id, used in result.allocations.items()}


# ---- what functions do


def add(*numbers):
    return sum(numbers)


def times(number, factor):
    return number * factor


def together(*values):
    return list(values)


def noted(notes, name, *values):
    notes.add(name)
    return [name, *values]


def counted(value, notes, name="counted"):
    notes.add(name)
    return value


def fails(notes, name, most, *values):
    """Raise for the first so many times."""
    if notes.add(name) <= most:
        raise ValueError(f"{name} failed\non purpose")
    return name


def meets(notes, name, other):
    """Return once the other one has begun, too."""
    notes.add(name)
    notes.wait(other)
    return name


def waits(notes, name, *_):
    """Begin, and end when the test lets it."""
    notes.add(name)
    notes.wait("go")
    return name


def busy(notes, name):
    """Note how many run at the same time."""
    running = notes.add("begin") - notes.count("end")
    notes.add(f"at-once-{running}")
    time.sleep(0.01)
    notes.add("end")
    return name


# ---- D1 to D8


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


def noted_after(value, notes):
    notes.add("after")


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


def d8():
    return Graph(
        [
            Function("source", add, extra_args=[42], node="n1", cost={"cpu": 1, "memory": 1950}),
            Function("second", together, args=["source"], extra_args=[1337],
                     cost={"cpu": 1, "memory": 2000}),
            Function("final", together, args=["second"], cost={"cpu": 1, "memory": 50}),
        ]
    )  # fmt: skip


def test_d8_the_whole_graph_is_held_at_once_as_handoff_does(grid):
    result = grid.execute(d8(), claim="whole")
    assert nodes_of(result) == {"source": "n1", "second": "n2", "final": "n1"}
    assert result.results == {"source": 42, "second": [42, 1337], "final": [[42, 1337]]}
    used = result.allocations["source"]
    assert used.resources == Resources.of(cpu=1, memory=1950)
    assert used.id


def test_d8_by_step_the_same_values_come_of_it(grid):
    assert grid.execute(d8()).results["final"] == [[42, 1337]]


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


class running:
    """A graph that runs beside the test; `result()` is what came of it."""

    def __init__(self, grid, graph, **options):
        self.found = []
        self.thread = threading.Thread(target=self._run, args=(grid, graph, options))

    def _run(self, grid, graph, options):
        try:
            self.found.append(grid.execute(graph, **options))
        except BaseException as error:
            self.found.append(error)

    def __enter__(self):
        self.thread.start()
        return self.result

    def __exit__(self, *_):
        self.thread.join(20)
        assert not self.thread.is_alive()

    def result(self):
        self.thread.join(20)
        [found] = self.found
        if isinstance(found, BaseException):
            raise found
        return found


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


def waiting(grid):
    """Whether somebody stands in the keeper's line."""
    return bool(grid._backend._keeper._line)


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


# ---- nodes that are lost


@pytest.mark.parametrize("claim", ["step", "whole"])
def test_a_function_whose_node_is_lost_runs_again_elsewhere(grid, notes, claim, monkeypatch):
    monkeypatch.setattr("gridhand.library.graphdriver._LOOK_S", 0.5)
    graph = [
        Function("before", counted, extra_args=[7, notes, "before"], cost="cpu=1"),
        Function("lost", waits_with, args=["before"], extra_args=[notes, "lost"], cost="cpu=1"),
        Function("after", together, args=["lost"], cost="cpu=1", node=Collocated("lost")),
    ]
    with running(grid, graph, claim=claim, max_retries=0) as result:
        notes.wait("lost")
        [first] = {one.node for one in grid.allocations()}
        grid.set_health(first, "down")
        if not in_threads(grid):  # which are not ended with their node
            notes.wait("lost", 2)
        notes.add("go")
    found = result()
    assert found.results == {"before": 7, "lost": 7, "after": [7]}
    assert found.attempts["lost"] == 2
    assert found.allocations["lost"].node == found.allocations["after"].node != first
    assert (notes.count("before"), notes.count("lost")) == (1, 2)  # what has a value stays


def waits_with(value, notes, name):
    waits(notes, name)
    return value


def test_those_that_wait_on_a_node_that_is_lost_are_sent_elsewhere(inner, notes):
    """One of a group runs, another waits for room behind it: both must leave the node."""
    inner.register_node("n3", cpu=4)
    for name in ("n2", "n3"):
        inner.drain(name)
    graph = [
        Function("a", waits, extra_args=[notes, "a"], cost="cpu=3"),
        Function("b", noted, extra_args=[notes, "b"], cost="cpu=3", node=Collocated("a")),
    ]
    with running(inner, graph, max_retries=0) as result:
        notes.wait("a")
        until(lambda: waiting(inner))
        inner.resume("n2")
        inner.set_health("n1", "down")
        notes.add("go")
    assert nodes_of(result()) == {"a": "n2", "b": "n2"}


def test_those_that_only_wait_leave_a_lost_node_too(inner, notes, monkeypatch):
    monkeypatch.setattr("gridhand.library.graphdriver._LOOK_S", 0.05)
    held = [inner.allocate(cpu=4, node=name) for name in TWO_NODES]
    graph = [
        Function("a", add, cost="cpu=1"),
        Function("b", add, cost="cpu=1", node=Collocated("a")),
    ]
    with running(inner, graph) as result:
        until(lambda: waiting(inner))
        inner.set_health("n1", "down")
        held[1].release()
    assert nodes_of(result()) == {"a": "n2", "b": "n2"}


def test_a_node_that_is_removed_is_one_that_is_lost(inner, notes):
    held = [inner.allocate(cpu=4, node=name) for name in TWO_NODES]
    graph = [
        Function("a", add, cost="cpu=1"),
        Function("b", add, cost="cpu=1", node=Collocated("a")),
    ]
    with running(inner, graph) as result:
        until(lambda: waiting(inner))
        inner.unregister("n1", force=True)
        held[1].release()
    assert nodes_of(result()) == {"a": "n2", "b": "n2"}


def test_a_node_that_is_lost_again_and_again_is_enough_at_some_point(grid, notes):
    graph = [Function("f", lose_it, extra_args=[notes], cost="cpu=1", node="n1")]
    with running(grid, graph) as result:
        for again in range(1, 7):
            notes.wait("f", again)
            grid.set_health("n1", "down")
            grid.set_health("n1", "up")
            if in_threads(grid):  # which are not ended with their node
                notes.add(f"go{again}")
    with pytest.raises(FunctionFailed, match=r"after 6 attempts: .*: f: .*node") as caught:
        result()
    assert isinstance(caught.value.__cause__, CallFailed)
    assert caught.value.__cause__.reason == "node_lost"


def lose_it(notes):
    notes.wait(f"go{notes.add('f')}")


def test_a_pinned_function_whose_node_is_removed_fails_with_the_reason(inner, notes):
    held = inner.allocate(cpu=4, node="n1")
    graph = [Function("f", add, cost="cpu=1", node="n1")]
    with running(inner, graph) as result:
        until(lambda: waiting(inner))
        inner.unregister("n1", force=True)
    with pytest.raises(FunctionFailed, match="function f failed: UnknownNode") as caught:
        result()
    assert isinstance(caught.value.__cause__, UnknownNode)
    assert held.release().state == "lost"


# ---- processes that die


@pytest.fixture
def outer(grid):
    """A grid whose functions are called in other processes."""
    if in_threads(grid):
        pytest.skip("functions are called in this process")
    return grid


@pytest.mark.parametrize("claim", ["step", "whole"])
def test_a_worker_that_dies_takes_only_its_own_function_with_it(outer, notes, claim):
    graph = [
        Function("before", counted, extra_args=[7, notes, "before"], cost="cpu=1"),
        Function("beside", meets, extra_args=[notes, "beside", "again"], cost="cpu=1"),
        Function("dies", dies_once, args=["before"], extra_args=[notes, "beside"], cost="cpu=1"),
    ]
    result = outer.execute(graph, max_retries=0, claim=claim, timeout=50)
    assert result.results == {"before": 7, "beside": "beside", "dies": 7}
    assert result.attempts == {"before": 1, "beside": 1, "dies": 2}
    assert (notes.count("before"), notes.count("beside")) == (1, 1)


def dies_once(value, notes, other):
    notes.wait(other)
    if notes.add("dies") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    notes.add("again")
    return value


PROGRAM = """
import sys, time
from gridhand import Function, Grid
def long(path):
    open(path, "w").close()
    time.sleep(600)
functions = [Function(f"f{n}", long, extra_args=[f"{sys.argv[1]}/begun.{n}.x"], cost="cpu=1") for n in range(2)]
Grid().execute([*functions, Function("after", long, args=["f0"], cost="cpu=1")], claim=sys.argv[2])
"""


@pytest.mark.parametrize("claim", ["step", "whole"])
def test_a_program_that_is_killed_gives_everything_back(outer, notes, claim):
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, notes.folder, claim])
    try:
        notes.wait("begun", 2)
        assert len(outer.allocations()) == (2 if claim == "step" else 3)
    finally:
        program.kill()
        program.wait()
    until(lambda: not outer.allocations(), seconds=30)  # a second, on a machine that is not busy
    assert outer.check() == []


# ---- interrupts


@pytest.mark.parametrize("claim", ["step", "whole"])
def test_an_interrupt_stops_everything_and_gives_everything_back(grid, notes, claim):
    graph = [
        Function("a", waits, extra_args=[notes, "a"], cost="cpu=4"),
        Function("b", waits, extra_args=[notes, "b"], cost="cpu=4"),
        Function("c", noted, args=["a"], extra_args=[notes], cost="cpu=4"),
    ]
    if claim == "whole":
        graph = graph[:2]

    def interrupt():
        notes.wait("a")
        notes.wait("b")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        grid.execute(graph, claim=claim)
    thread.join(10)
    notes.add("go")
    holds_nothing(grid)
    assert sorted(set(notes.order())) == ["a", "b", "go"]


def test_an_interrupt_while_waiting_for_room_leaves_the_line(inner):
    held = [inner.allocate(cpu=4) for _ in range(2)]

    def interrupt():
        until(lambda: waiting(inner))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    for claim in ("step", "whole"):
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            inner.execute([Function(id, add, cost="cpu=1") for id in "ab"], claim=claim)
        thread.join(10)
        until(lambda: not waiting(inner) or inner.release(inner.allocate(memory=1)))
    for one in held:
        one.release()


# What is raised while garbage is collected is lost, an interrupt like anything else. Among the long
# ones because those run without coverage, whose own code an interrupt would hit as well.
@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("claim", ["step", "whole"])
def test_an_interrupt_at_any_moment_leaves_nothing_held(grid, claim):
    """Whatever the thread that runs the graph is doing just then."""
    graph = [Function("f0", add, cost="cpu=0.1")]
    graph += [Function(f"f{n}", add, args=[f"f{n // 3}"], cost="cpu=0.1") for n in range(1, 30)]
    grid.execute(graph, claim=claim)  # an import that is interrupted is nobody's but Python's
    random = Random(1)
    armed = threading.Event()

    def interrupted(*_):
        if armed.is_set():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupted)
    ended = Counter()
    try:
        for _ in range(40):
            main = threading.main_thread().ident
            timer = threading.Timer(
                random.uniform(0, 0.03), signal.pthread_kill, (main, signal.SIGINT)
            )
            timer.start()
            try:
                armed.set()
                grid.execute(graph, claim=claim)
                armed.clear()
                ended["done"] += 1
            except KeyboardInterrupt:
                armed.clear()
                ended["interrupted"] += 1
            timer.join()
            holds_nothing(grid)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended["interrupted"] > 5


def test_a_grid_that_is_closed_ends_the_graphs_on_it(tmp_path, notes):
    grid = Grid.in_memory()
    grid.register_node("n1", cpu=1)
    graph = [Function(id, waits, extra_args=[notes, id], cost="cpu=1") for id in "ab"]
    with running(grid, graph) as result:
        notes.wait("a")
        threading.Thread(target=grid.close).start()
    with pytest.raises(GridClosed):
        result()
    notes.add("go")


# ---- what comes of it


def test_only_what_is_to_be_kept_is_in_the_results(grid):
    graph = Graph(
        [Function("a", add), Function("b", together, args=["a"]), Function("c", add, args=["a"])]
    )
    assert grid.execute(graph, keep=["b"]).results == {"b": [0]}
    assert grid.execute(graph, keep="c").results == {"c": 0}
    assert grid.execute(graph, keep=()).results == {}
    assert grid.execute(graph, keep=()).allocations.keys() == {"a", "b", "c"}
    with pytest.raises(InvalidInput, match="keep"):
        grid.execute(graph, keep=["x"])


def test_a_value_that_is_not_kept_is_given_up_when_nothing_needs_it(inner, monkeypatch):
    dropped = []
    monkeypatch.setattr(
        "gridhand.library.threadcaller.Kept.drop", lambda one: dropped.append(one.load())
    )
    graph = [
        Function("a", add, extra_args=[1]),
        Function("b", lambda a: (a, list(dropped)), args=["a"]),
        Function("c", lambda b: (b, list(dropped)), args=["b"]),
    ]
    assert inner.execute(graph, keep=["c"])["c"] == ((1, []), [1])


def test_a_result_is_told_in_a_line_and_as_a_table(grid):
    graph = Graph([Function("a", add, cost="cpu=1"), Function("b", together, args=["a"])])
    result = grid.execute(graph, keep=["b"])
    assert repr(result).startswith(f"<run {result.run_id}: 2 functions in ")
    assert repr(result).endswith(": b=[0]>")
    html = result._repr_html_()
    assert "<td>a</td><td>not kept</td><td>n" in html
    assert "<td>cpu=1</td>" in html
    assert str(result.allocations["a"]).startswith("cpu=1 of n")
    large = grid.execute([Function(f"f{n}", Odd) for n in range(120)])
    assert len(repr(large)) < 1000
    assert "and 20 more functions" in large._repr_html_()
    assert "<b>" not in large._repr_html_()


class Odd:
    def __repr__(self):
        return "<b>" + "x" * 1000


def test_functions_of_no_cost_need_no_nodes(tmp_path):
    with Grid.in_memory() as grid:
        graph = [Function("a", add), Function("b", together, args=["a"], node=Collocated("a"))]
        result = grid.execute(graph)
        assert result.results == {"a": 0, "b": [0]}
        assert nodes_of(result) == {"a": None, "b": None}


def test_an_empty_graph_comes_to_nothing(grid):
    for claim in ("step", "whole"):
        result = grid.execute(Graph(), claim=claim)
        assert (result.results, result.allocations) == ({}, {})


#    what is wrong                  options
WRONG = {
    "claim":            {"claim": "all"},
    "max_retries":      {"max_retries": -1},
    "max_concurrency":  {"max_concurrency": 0},
    "timeout":          {"timeout": 0},
    "progress":         {"progress": "yes"},
    "inputs":           {"inputs": {"x": 1}},
}  # fmt: skip


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG)
def test_options_that_make_no_sense_are_refused_by_name(grid, options, notes):
    with pytest.raises(InvalidInput) as caught:
        grid.execute([Function("a", noted, extra_args=[notes, "a"])], **options)
    assert caught.value.field == next(iter(options))
    assert notes.order() == []


# ---- from asyncio


def test_the_same_from_asyncio(grid):
    async def main():
        twin = AsyncGrid.of(grid)
        whole, step = await asyncio.gather(
            twin.execute(d8(), claim="whole"), twin.execute(d8(), progress=False)
        )
        with pytest.raises(FunctionFailed, match="TypeError"):
            await twin.execute([Function("f", times)], max_retries=0)
        with pytest.raises(GraphTimeout):
            await twin.execute([Function("f", time.sleep, extra_args=[0.3])], timeout=0.05)
        return whole, step

    for result in asyncio.run(main()):
        assert result["final"] == [[42, 1337]]


@pytest.mark.parametrize("claim", ["step", "whole"])
def test_a_task_that_is_cancelled_stops_its_graph(grid, notes, claim):
    graph = [
        Function("a", waits, extra_args=[notes, "a"], cost="cpu=1"),
        Function("b", noted_after, args=["a"], extra_args=[notes], cost="cpu=1"),
    ]

    async def main():
        task = asyncio.create_task(AsyncGrid.of(grid).execute(graph, claim=claim))
        await asyncio.to_thread(notes.wait, "a")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    notes.add("go")
    holds_nothing(grid)
    assert notes.count("after") == 0


def test_a_task_that_is_cancelled_while_it_waits_for_room_leaves_nothing(inner):
    held = [inner.allocate(cpu=4) for _ in range(2)]
    graph = [Function(id, add, cost="cpu=1") for id in "ab"]

    async def main(claim):
        task = asyncio.create_task(AsyncGrid.of(inner).execute(graph, claim=claim))
        await asyncio.to_thread(until, lambda: waiting(inner))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for claim in ("step", "whole"):
        asyncio.run(main(claim))
    for one in held:
        one.release()
    holds_nothing(inner)
