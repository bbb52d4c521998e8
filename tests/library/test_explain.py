"""`explain` as a program sees it: the inputs of `allocate`, and nothing changed."""

import asyncio

import pytest

import gridhand
from gridhand import AsyncGrid, Explanation, Grid, GridError, InvalidRequest, Node, NoRoom, Request


@pytest.fixture
def grid(grid):
    grid.register_node(
        "gpu1",
        cpu=8,
        memory="16GB",
        gpus=[{"model": "A100", "memory": "40GB", "capability": "8.0"}] * 2,
    )
    grid.register_node("w1", cpu=4, memory="32GB", labels={"zone": "b"})
    return grid


def state(grid):
    return {key: value for key, value in grid.dump().items() if key != "now"}


#    what is given, in every way that `allocate` takes it
ASKED = {
    "keywords":         ((), {"cpu": 9}),
    "a mapping":        (({"cpu": 9},), {}),
    "a text":           (("cpu=9",), {}),
    "a request":        ((Request.of(cpu=9),), {}),
    "with wishes":      ((), {"cpu": 9, "prefer": "w1", "exclude": ["w9"]}),
    "with a fallback":  ((), {"cpu": 9, "gpu": 5, "fallback": "cpu"}),
    "with a quality":   (({"cpu": 9},), {"quality": "ultra"}),
}  # fmt: skip


@pytest.mark.parametrize(("given", "named"), ASKED.values(), ids=ASKED)
def test_it_takes_what_allocate_takes_and_says_what_allocate_would(grid, given, named):
    before = state(grid)
    found = grid.explain(*given, **named)
    assert isinstance(found, Explanation)
    assert not found.fits
    assert not found.ever
    with pytest.raises(NoRoom):
        grid.allocate(*given, **named)
    assert state(grid) == before


def test_where_it_says_is_where_it_goes(grid):
    for asked in ({"cpu": 1}, {"gpu": 1}, {"gpu_memory": "8GB"}, {"cpu": 5, "quality": "auto"}):
        found = grid.explain(**asked)
        held = grid.allocate(**asked)
        assert (found.node, list(found.gpus)) == (held.node, list(held.gpus))


def test_a_change_that_is_offered_is_granted(grid):
    grid.allocate(cpu=2, gpu=0.5)
    for asked in (
        {"cpu": 7},
        {"gpu": 3},
        {"gpu_memory": "50GB"},
        {"gpu": 0.4, "gpu_model": "H100"},
        {"gpu": 1, "cpu": 1, "gpu_capability": "9.0"},
        {"cpu": 6, "node": "w1"},
        {"cpu": 6, "labels": {"zone": "b"}},
        {"cpu": 6, "exclude": "gpu1"},
        {"cpu": 8, "quality": "high"},
    ):
        found = grid.explain(**asked)
        assert found.changes, asked
        for change in found.changes:
            with grid.allocate(change.request) as held:
                assert held.node == change.node, str(change)


def test_the_hint_of_an_error_says_what_explain_says(grid):
    grid.allocate(cpu=2, node="gpu1")
    with pytest.raises(NoRoom) as caught:
        grid.allocate(cpu=7)
    assert "Ask for cpu=6 instead of 7" in caught.value.hint
    assert grid.explain(cpu=7).changes[0].text == "ask for cpu 6 instead of 7"


def offered(grid, *given, **named):
    return [one.after for one in grid.explain(*given, **named).changes if one.field == "quality"]


def test_a_lower_quality_is_offered_as_it_would_be_read(grid):
    assert offered(grid, cpu=10) == ["draft"]
    assert offered(grid, cpu=6, quality="ultra") == ["standard"]
    assert offered(grid, cpu=6, quality="high", alternatives=[{"cpu": 12}]) == ["standard"]
    assert offered(grid, cpu=20) == []
    assert offered(grid, cpu=20, quality="auto") == []
    # The factor that was given for cpu holds at every level, so none of them helps.
    assert offered(grid, cpu=6, quality="ultra", scaling={"cpu": 2}) == []
    # How a request that was read before was scaled is not known.
    assert offered(grid, Request.of(cpu=6, quality="ultra")) == []


def test_what_is_held_may_be_named(grid):
    grid.allocate(cpu=3, node="w1", holder="train")
    found = grid.explain(cpu=2, together_with="train")
    assert not found.fits
    assert [(change.field, change.node) for change in found.changes] == [
        ("cpu", "w1"),
        ("together_with", "gpu1"),
        ("quality", "w1"),
    ]
    assert "the request is pinned to w1, where train runs" in str(found)
    found = grid.explain(cpu=1, apart_from="train", exclude="gpu1")
    assert {group.kind for group in found.groups} == {"excluded"}
    with pytest.raises(InvalidRequest, match="together_with"):
        grid.explain(cpu=1, together_with="nobody")


@pytest.mark.parametrize(
    "named", [{}, {"cpu": -1}, {"cpu": 1, "node": "zz"}, {"cpu": 1, "quality": "best"}], ids=repr
)
def test_what_allocate_would_not_read_is_the_same_error(grid, named):
    with pytest.raises(GridError) as explained:
        grid.explain(**named)
    with pytest.raises(GridError) as allocated:
        grid.allocate(**named)
    assert (type(explained.value), str(explained.value)) == (
        type(allocated.value),
        str(allocated.value),
    )


def test_an_unknown_resource_is_explained_with_the_name_that_was_meant(grid):
    found = grid.explain(cpu=1, gpu_memry=1)
    assert "did you mean gpu_memory?" in found.never_because[0]
    assert found.changes[0].text == "do without gpu_memry"


def test_asking_why_does_not_change_what_is_usual():
    with Grid.in_memory(owner="ann") as grid:
        grid.register_nodes([Node.of("a", cpu=8, gpu=2), Node.of("b", cpu=8, gpu=2)])
        desk = grid._backend._keeper._context
        for _ in range(200):
            grid.explain(cpu=8, gpu=1)
        assert desk.snapshot.mix._seen == 0
        assert desk.snapshot._kept == {}


def test_the_same_from_asyncio(grid):
    async def work():
        return await AsyncGrid.of(grid).explain(cpu=9)

    assert asyncio.run(work()) == grid.explain(cpu=9)


def test_a_gang_that_fits_one_by_one_but_not_together_is_told_why(grid):
    grid.register_node("gpu2", cpu=8, gpu=1)
    with pytest.raises(NoRoom, match="not for all of them together") as caught:
        grid.allocate_group([{"cpu": 1, "gpu": 0.6}] * 3, together=True)
    assert all(caught.value.refusal.reasons().values())


def test_it_is_public():
    assert gridhand.Explanation is Explanation
