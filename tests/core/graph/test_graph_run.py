"""The state machine of a graph run: starts, retries, losses and the end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_budget import examples
from gridhand import CircularDependency, Function, Graph, InvalidInput
from gridhand.core.graph.graph_run import GraphRun

OOPS = ValueError("oops")


def f(id, *args, **fields):
    code = None if fields.get("type") == "input" else int
    return Function(id, code, args=args, **fields)


DIAMOND = Graph([f("a"), f("b", "a"), f("c", "a"), f("d", "b", "c")])


def ran(run, *steps):
    """Apply events (`+a` succeeded, `-a` failed, `~a` was lost); return what then starts."""
    for step in steps:
        {"+": run.succeeded, "-": fail(run), "~": lose(run)}[step[0]](step[1:])
    return run.start()


def fail(run):
    return lambda id: run.failed(id, OOPS)


def lose(run):
    return lambda id: run.lost(id, OOPS)


def test_a_function_starts_when_its_arguments_have_values():
    run = GraphRun(DIAMOND)
    assert ran(run) == ["a"]
    assert ran(run) == []  # it runs already
    assert ran(run, "+a") == ["b", "c"]
    assert ran(run, "+c") == []
    assert ran(run, "+b") == ["d"]
    assert not run.over
    assert ran(run, "+d") == []
    assert (run.over, run.failure, list(run.done)) == (True, None, ["a", "c", "b", "d"])


def test_a_graph_of_nothing_is_over_at_once():
    run = GraphRun(Graph())
    assert run.over
    assert run.start() == []


def test_a_graph_that_cannot_run_never_begins():
    with pytest.raises(CircularDependency):
        GraphRun(Graph([f("a", "a")]))


def test_d4_a_function_is_tried_again_as_often_as_it_may():
    run = GraphRun(DIAMOND, max_retries=2)
    assert ran(run) == ["a"]
    assert ran(run, "-a") == ["a"]
    assert ran(run, "-a") == ["a"]
    assert ran(run, "-a") == []
    assert run.over
    assert run.failure == ("a", OOPS, 3)


def test_d4_its_own_number_beats_that_of_the_run():
    graph = Graph([f("never", max_retries=0), f("often", max_retries=7), f("usual")])
    run = GraphRun(graph, max_retries=5)
    run.start()
    for _ in range(7):
        assert ran(run, "-often") == ["often"]
    for _ in range(5):
        assert ran(run, "-usual") == ["usual"]
    assert ran(run, "-never") == []
    assert run.failure.function == "never"


def test_losses_are_counted_apart_from_failures():
    run = GraphRun(DIAMOND, max_retries=1, max_losses=2)
    assert ran(run) == ["a"]
    assert ran(run, "~a") == ["a"]
    assert ran(run, "-a") == ["a"]
    assert ran(run, "~a") == ["a"]
    assert not run.over
    assert run.attempts["a"] == 4
    assert ran(run, "~a") == []
    assert run.failure == ("a", OOPS, 4)


def test_a_function_that_is_put_back_costs_no_attempt():
    run = GraphRun(DIAMOND, max_retries=0)
    assert ran(run) == ["a"]
    for _ in range(20):
        run.put_back("a")
        assert run.start() == ["a"]
    assert run.attempts["a"] == 1
    assert run.retried == 0


def test_a_function_that_can_never_run_is_not_retried():
    run = GraphRun(DIAMOND, max_retries=5)
    run.start()
    run.refused("a", OOPS)
    assert run.failure == ("a", OOPS, 1)


def test_d6_the_first_failure_stops_the_rest_and_nothing_more_starts():
    graph = Graph([f("a"), f("b"), f("c", "a"), f("d", "c")])
    run = GraphRun(graph, max_retries=0)
    assert ran(run) == ["a", "b"]
    assert ran(run, "-a") == []
    assert run.stop() == ["b"]
    assert run.stop() == []
    assert run.start() == []
    assert run.attempts == {"a": 1, "b": 1, "c": 0, "d": 0}


def test_d6_no_more_at_a_time_than_allowed_in_the_order_of_the_graph():
    run = GraphRun(Graph([f(id) for id in "abcd"]), max_concurrency=2)
    assert ran(run) == ["a", "b"]
    assert ran(run, "+b") == ["c"]
    assert ran(run, "-a") == ["a"]  # before d, which comes after it
    assert ran(run, "+c", "+a") == ["d"]


def test_d5_inline_functions_are_no_part_of_it_and_inputs_are_there():
    graph = Graph([f("x", type="input"), f("i", "x", "a", type="inline"), f("a"), f("b", "i")])
    run = GraphRun(graph)
    assert run.total == 2
    assert ran(run) == ["a"]
    assert ran(run, "+a") == ["b"]
    run.succeeded("b")
    assert (run.over, run.kept) == (True, {"a", "b"})


def test_values_are_given_up_when_nothing_is_left_that_takes_them():
    run = GraphRun(DIAMOND, keep=["d"])
    run.start()
    assert run.succeeded("a") == []
    run.start()
    assert run.succeeded("b") == []
    run.failed("c", OOPS)
    run.start()
    assert run.succeeded("c") == ["a"]
    run.start()
    assert run.succeeded("d") == ["b", "c"]


def test_a_value_that_is_neither_taken_nor_kept_is_dropped_at_once():
    run = GraphRun(DIAMOND, keep=[])
    given_up = []
    while not run.over:
        for id in run.start():
            given_up += run.succeeded(id)
    assert given_up == ["a", "b", "c", "d"]


def test_without_a_word_everything_is_kept():
    run = GraphRun(DIAMOND)
    while not run.over:
        assert [one for id in run.start() for one in run.succeeded(id)] == []


#    what is wrong                     how it is begun
FAULTS = {
    "retries below none":             {"max_retries": -1},
    "True for a number":              {"max_retries": True},
    "none at a time":                 {"max_concurrency": 0},
    "half at a time":                 {"max_concurrency": 1.5},
    "keeping what is not there":      {"keep": ["x"]},
    "keeping what is no id":          {"keep": [5]},
    "keeping a number":               {"keep": 5},
}  # fmt: skip


@pytest.mark.parametrize("options", FAULTS.values(), ids=FAULTS)
def test_options_that_make_no_sense_are_refused_by_name(options):
    with pytest.raises(InvalidInput) as caught:
        GraphRun(DIAMOND, **options)
    assert next(iter(options)) in str(caught.value)


def test_a_function_without_a_value_cannot_be_kept():
    graph = Graph([f("x", type="input"), f("i", "x", type="inline"), f("a", "i")])
    for id in ("x", "i"):
        with pytest.raises(InvalidInput, match=f"keep: '{id}'"):
            GraphRun(graph, keep=[id])
    assert GraphRun(graph, keep="a").kept == {"a"}


def test_our_own_mistakes_are_noticed():
    run = GraphRun(DIAMOND)
    with pytest.raises(ValueError, match="is not running"):
        run.succeeded("a")
    run.start()
    run.succeeded("a")
    with pytest.raises(ValueError, match="is not running"):
        run.failed("a", OOPS)


# ---- what holds for every graph and every course of events


@st.composite
def cases(draw):
    """A graph of regular, inline and input functions, and how it is run."""
    functions, ids = [], []
    for number in range(draw(st.integers(1, 10))):
        kind = draw(st.sampled_from(["regular"] * 4 + ["inline", "input"]))
        takes = draw(st.lists(st.sampled_from(ids), max_size=3)) if ids and kind != "input" else []
        own = draw(st.sampled_from([None, None, 0, 1, 3])) if kind == "regular" else None
        functions.append(f(f"f{number}", *takes, type=kind, max_retries=own))
        ids.append(f"f{number}")
    graph = Graph(draw(st.permutations(functions)))
    regular = [one.id for one in graph if one.type == "regular"]
    options = {
        "max_retries": draw(st.integers(0, 2)),
        "max_losses": draw(st.integers(0, 2)),
        "max_concurrency": draw(st.sampled_from([None, None, 1, 2])),
        "keep": draw(st.none() | st.sets(st.sampled_from(regular))) if regular else None,
    }
    return graph, options


def takes(graph, id):
    """Return the regular functions a function needs, directly or through inline ones."""
    found = set()
    for arg in graph[id].args:
        found |= {"regular": {arg}, "inline": takes(graph, arg), "input": set()}[graph[arg].type]
    return found


@settings(max_examples=examples(80))
@given(cases(), st.data())
def test_whatever_happens_it_keeps_its_promises(case, data):
    graph, options = case
    run = GraphRun(graph, **options)
    regular = {one.id for one in graph if one.type == "regular"}
    kept = regular if options["keep"] is None else options["keep"]
    tries = {id: [0, 0] for id in regular}  # failed, lost
    running, values, gone, started = [], set(), set(), dict.fromkeys(regular, 0)
    failed = None
    while not run.over:
        new = run.start()
        for id in new:
            assert id in regular
            assert id not in running
            assert id not in values  # what has a value never runs again
            needs = takes(graph, id)
            assert needs <= values
            assert not needs & gone  # and it can still be had
            started[id] += 1
            running.append(id)
        limit = options["max_concurrency"]
        assert limit is None or len(running) <= limit
        ready = {id for id in regular - values - set(running) if takes(graph, id) <= values}
        assert not ready or (limit is not None and len(running) == limit)  # nothing idles
        assert running, "it is not over, and nothing runs"
        assert sorted(run.running) == sorted(running)
        id = data.draw(st.sampled_from(sorted(running)))
        running.remove(id)
        how = data.draw(st.sampled_from(["succeeded"] * 4 + ["failed", "lost"]))
        if how == "succeeded":
            values.add(id)
            given_up = run.succeeded(id)
            assert len(set(given_up)) == len(given_up)
            assert not gone & set(given_up)
            gone |= set(given_up)
            wanted = {one for other in regular - values for one in takes(graph, other)}
            assert gone == values - kept - wanted
            continue
        tries[id][how == "lost"] += 1
        own = graph[id].max_retries
        most = [options["max_retries"] if own is None else own, options["max_losses"]]
        again = getattr(run, how)(id, OOPS)
        assert again is (tries[id][how == "lost"] <= most[how == "lost"])
        if not again:
            failed = id
    assert run.attempts == started
    assert run.retried == sum(map(sum, tries.values()))
    assert run.start() == []
    if failed is None:
        assert set(run.done) == regular
        assert run.failure is None
    else:
        assert run.failure == (failed, OOPS, started[failed])
        assert sorted(run.stop()) == sorted(running)
        after = {id for id in regular if failed in takes(graph, id)}
        assert not any(started[id] for id in after)
