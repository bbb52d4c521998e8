"""What comes of a graph, what may be asked of its run, and the same from asyncio."""

import asyncio
import time

import pytest

from graph_functions import (
    add,
    d8,
    holds_nothing,
    nodes_of,
    noted,
    noted_after,
    times,
    together,
    waiting,
    waits,
)
from gridhand import (
    AsyncGrid,
    Collocated,
    Function,
    FunctionFailed,
    Graph,
    GraphTimeout,
    Grid,
    InvalidInput,
)
from until import until

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
        "gridhand.library.thread_runner.thread_runner.Kept.drop",
        lambda one: dropped.append(one.load()),
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


def test_retries_go_by_either_name():
    def fails(log):
        log.append(1)
        raise ValueError("no")

    for name in ("retries", "max_retries"):
        log = []
        with Grid.in_memory() as grid, pytest.raises(FunctionFailed):
            grid.execute([Function("f", fails, extra_args=[log])], **{name: 1})
        assert len(log) == 2
