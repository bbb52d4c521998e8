"""The state machine of a stream: items, joins, failures and what becomes of each item."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand import Function, Graph, InvalidInput, NotAssigned, Request, Resources
from gridhand.core.graph.stream_run import Outcome, StageWorkers, StreamRun, check_room


def joined(**more):
    return StreamRun(
        Graph().add(
            Function("x", type="input"),
            Function("double", lambda x: 2 * x, args=["x"]),
            Function("triple", lambda x: 3 * x, args=["x"]),
            Function("pair", lambda a, b: (a, b), args=["double", "triple"]),
        ),
        **more,
    )


def called(run, ready):
    plan = run.plans[ready.stage]
    return plan.code(*ready.values, *plan.extra_args)


def finish(run, ready, now=0.0):
    """Run these calls and all that follow from them, last first."""
    waiting = list(ready)
    while waiting:
        one = waiting.pop()
        waiting += run.done(one.stage, one.item, called(run, one), now)


def test_an_item_goes_through_all_and_comes_out_once():
    run = joined()
    ready = run.push(7, {"x": 3}, 0.0)
    assert [one.stage for one in ready] == ["double", "triple"]
    assert run.open == 1
    assert run.take() == []
    finish(run, ready)
    assert run.take() == [(7, Outcome((6, 9)))]
    assert run.take() == []
    assert run.open == 0


def test_items_that_overtake_each_other_keep_their_numbers():
    run = joined()
    pushed = {number: run.push(number, {"x": number}, 0.0) for number in (3, 1, 4)}
    finish(run, pushed[4])
    finish(run, pushed[3])
    assert run.take() == [(4, Outcome((8, 12))), (3, Outcome((6, 9)))]
    finish(run, pushed[1])
    assert run.take() == [(1, Outcome((2, 3)))]


def test_a_failed_item_has_its_error_and_nothing_follows_from_it():
    run = joined()
    first, second = run.push(0, {"x": 1}, 0.0), run.push(1, {"x": 2}, 0.0)
    error = ValueError("no")
    run.failed(0, error)
    assert run.done("triple", first[1].item, 3, 0.0) == []
    run.failed(0, RuntimeError("again"))
    finish(run, second)
    assert run.take() == [(0, Outcome(None, error)), (1, Outcome((4, 6)))]


def test_an_item_that_nobody_wants_has_no_outcome():
    run = joined(join_timeout_s=5.0)
    dropped, kept = run.push(0, {"x": 1}, 0.0), run.push(1, {"x": 2}, 0.0)
    run.done("double", 0, 2, 0.0)
    run.drop(0)
    run.drop(0)
    assert not run.is_open(0)
    assert run.late(99.0) == []
    finish(run, [*dropped, *kept])
    assert run.take() == [(1, Outcome((4, 6)))]


def test_none_is_a_value_like_any_other():
    graph = Graph().add(
        Function("x", type="input"),
        Function("none", lambda x: None, args=["x"]),
        Function("told", lambda x, y: (x, y), args=["x", "none"]),
    )
    run = StreamRun(graph)
    finish(run, run.push(0, {"x": None}, 0.0))
    assert run.take() == [(0, Outcome((None, None)))]


def test_of_several_last_functions_each_has_its_result():
    graph = Graph().add(
        Function("x", type="input"),
        Function("up", lambda x: x + 1, args=["x"]),
        Function("down", lambda x: x - 1, args=["x"]),
    )
    run = StreamRun(graph)
    finish(run, run.push(0, {"x": 5}, 0.0))
    assert run.take() == [(0, Outcome({"up": 6, "down": 4}))]


def test_a_function_that_takes_nothing_is_called_for_each():
    counter = itertools.count()
    graph = Graph().add(
        Function("x", type="input"),
        Function("tick", lambda: next(counter)),
        Function("both", lambda x, n: (x, n), args=["x", "tick"]),
    )
    run = StreamRun(graph)
    for number, value in enumerate("ab"):
        finish(run, run.push(number, {"x": value}, 0.0))
    assert run.take() == [(0, Outcome(("a", 0))), (1, Outcome(("b", 1)))]


def test_a_late_join_is_reported_once():
    run = joined(join_timeout_s=5.0)
    double, _ = run.push(0, {"x": 1}, 0.0)
    run.done("double", double.item, 2, 10.0)
    assert run.next_late() == 15.0
    assert run.late(14.9) == []
    assert run.late(15.0) == [(0, "pair")]
    assert run.late(99.0) == []
    assert run.next_late() is None


def test_a_join_in_time_is_not():
    run = joined(join_timeout_s=5.0)
    double, triple = run.push(0, {"x": 1}, 0.0)
    ready = run.done("double", double.item, 2, 10.0)
    ready += run.done("triple", triple.item, 3, 11.0)
    assert [one.stage for one in ready] == ["pair"]
    assert run.late(99.0) == []


def test_pushed_values_are_read_by_input():
    run = joined()
    assert run.read((3,), {}) == {"x": 3}
    assert run.read((), {"x": None}) == {"x": None}
    for values, named in (((), {}), ((1, 2), {}), ((1,), {"x": 1}), ((), {"y": 1})):
        with pytest.raises(InvalidInput, match="push"):
            run.read(values, named)
    two = StreamRun(
        Graph().add(
            Function("a", type="input"),
            Function("b", type="input"),
            Function("sum", lambda a, b: a + b, args=["a", "b"]),
        )
    )
    assert two.read((), {"a": 1, "b": 2}) == {"a": 1, "b": 2}
    with pytest.raises(InvalidInput) as refused:
        two.read((1,), {})
    assert "each of a, b" in refused.value.hint


def test_a_graph_without_inputs_or_functions_is_no_stream():
    for graph in (
        Graph().add(Function("one", lambda: 1)),
        Graph().add(Function("x", type="input")),
    ):
        with pytest.raises(InvalidInput, match="graph"):
            StreamRun(graph)


def noting(number):
    return lambda *values: (number, *values)


@given(st.data())
def test_in_whatever_order_things_happen_each_item_comes_out_once(data):
    """Random graphs, orders and failures give the same as evaluating each item directly."""
    size = data.draw(st.integers(1, 6))
    functions = [Function("x", type="input")]
    for number in range(size):
        names = [one.id for one in functions]
        args = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        functions.append(Function(f"f{number}", noting(number), args=args))
    run = StreamRun(Graph(functions))
    items = data.draw(st.integers(1, 6))
    failing = data.draw(st.sets(st.integers(0, items - 1)))
    waiting, out, pushed = [], [], 0
    while pushed < items or waiting:
        if pushed < items and (not waiting or data.draw(st.booleans())):
            waiting += run.push(pushed, {"x": pushed}, 0.0)
            pushed += 1
            continue
        one = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        if one.item in failing:
            run.failed(one.item, ValueError(one.item))
        else:
            waiting += run.done(one.stage, one.item, called(run, one), 0.0)
        out += run.take()
    assert run.open == 0
    assert len(out) == items
    for item, outcome in sorted(out):
        if item in failing:
            assert outcome.error.args == (item,)
            continue
        values = {"x": item}
        for one in functions[1:]:
            values[one.id] = one.code(*(values[need] for need in one.args))
        expected = {id: values[id] for id in run.last}
        assert outcome.value == (expected if len(run.last) > 1 else expected[run.last[0]])


#    what it shows                                workers of stages        nodes                           refused
ROOM = {
    "all fit":                                   (["cpu=1 x2"],            {"a": "cpu=2"},                 None),
    "too many of one":                           (["cpu=1 x3"],            {"a": "cpu=2"},                 "f0: a: 3 workers need cpu=3, and it has cpu=2"),
    "too many in sum":                           (["cpu=1", "cpu=2"],      {"a": "cpu=2"},                 "f0 with f1: a: 2 workers need cpu=3"),
    "each is on one node":                       (["cpu=2 x2"],            {"a": "cpu=3", "b": "cpu=1"},   "f0: a: 2 workers need cpu=4, and it has cpu=3; b:"),
    "nodes add up":                              (["cpu=2 x2", "cpu=1"],   {"a": "cpu=3", "b": "cpu=2"},   None),
    "those that are to be on one node":          (["cpu=2 @a", "cpu=2 @a"], {"a": "cpu=3", "b": "cpu=9"},  "f0 with f1: a: 2 workers need cpu=4"),
    "what costs nothing does not count":         (["x9", "cpu=2"],         {"a": "cpu=2"},                 None),
    "what a node does not have":                 (["gpu=1"],               {"a": "cpu=2"},                 "f0: a: a worker needs gpu=1, and it has nothing"),
}  # fmt: skip


@pytest.mark.parametrize(("stages", "nodes", "refused"), ROOM.values(), ids=ROOM)
def test_room(stages, nodes, refused):
    def workers(text):
        words = text.split()
        node = next((one[1:] for one in words if one[0] == "@"), None)
        count = next((int(one[1:]) for one in words if one[0] == "x"), 1)
        amounts = " ".join(one for one in words if "=" in one)
        return StageWorkers(Request(Resources.parse(amounts), node=node), count)

    asked = {f"f{number}": workers(one) for number, one in enumerate(stages)}
    there = {name: Resources.parse(has) for name, has in nodes.items()}
    if refused is None:
        check_room(asked, there)
    else:
        with pytest.raises(NotAssigned, match=f"^no room for {refused}"):
            check_room(asked, there)
