"""Placement through the public surface: strategies, near and apart, several models, repeats."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys

import pytest

from gridhand import AsyncGrid, Grid, HolderBusy, InvalidRequest, NoRoom, Request


@pytest.fixture
def grid():
    with Grid.in_memory(owner="me") as grid:
        for name in ("a", "b", "c"):
            grid.register_node(name, cpu=4, memory="8GB")
        yield grid


def test_p3_first_available_stays_where_it_chose_last():
    with Grid.in_memory(strategy="first_available") as grid:
        grid.register_node("A", cpu=2)
        grid.register_node("B", cpu=4)
        assert [grid.allocate(cpu=3).node, grid.allocate(cpu=1).node] == ["B", "B"]


def test_p6_a_preferred_node_is_a_wish_and_an_excluded_one_is_never_taken(grid):
    assert grid.allocate(cpu=4, prefer="c").node == "c"
    assert grid.allocate(cpu=1, prefer="c").node != "c"
    assert grid.allocate(cpu=1, prefer="b", exclude="b").node != "b"
    with pytest.raises(NoRoom):
        grid.allocate(cpu=1, exclude=["a", "b", "c"], prefer="a")


def test_p8_an_empty_cluster_is_all_zeros_and_refuses_with_a_reason():
    with Grid.in_memory() as grid:
        assert set(grid.status().utilization().values()) == {0.0}
        with pytest.raises(NoRoom, match="there are no nodes"):
            grid.allocate(cpu=1)


def test_near_what_is_held_or_apart_from_it(grid):
    first = grid.allocate(cpu=1, holder="db", node="b")
    assert grid.allocate(cpu=1, together_with="db").node == "b"
    assert grid.allocate(cpu=1, together_with=first.id).node == "b"
    others = {grid.allocate(cpu=1, apart_from="db").node for _ in range(8)}
    assert others == {"a", "c"}
    with pytest.raises(NoRoom):
        grid.allocate(cpu=2, together_with="db")


def test_fits_minds_what_is_to_be_near_or_apart(grid):
    grid.allocate(cpu=1, holder="db", node="b")
    assert grid.fits("b", cpu=1, together_with="db")
    assert not grid.fits("b", cpu=1, apart_from="db")
    assert grid.fits("a", cpu=1, apart_from="db")


def test_apart_from_what_has_ended_is_apart_from_nothing(grid):
    held = grid.allocate(cpu=4, node="a", holder="old")
    grid.release(held)
    assert grid.allocate(cpu=1, node="a", apart_from=["old", "never-was"]).node == "a"


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"together_with": "nobody"}, "nothing is held"),
        ({"together_with": "pair"}, "it is on a, b"),
        ({"together_with": "one", "node": "b"}, "a, where together_with is"),
    ],
    ids=["unknown", "on several nodes", "pinned elsewhere"],
)
def test_what_cannot_be_near_is_an_error_that_says_why(grid, wish, message):
    grid.allocate_group(["cpu=1", "cpu=1"], holder="pair", apart=True)
    grid.allocate(cpu=1, node="a", holder="one")
    before = grid.allocations()
    with pytest.raises(InvalidRequest) as caught:
        grid.allocate(cpu=1, **wish)
    assert message in f"{caught.value} {caught.value.hint}"
    assert [one.id for one in grid.allocations()] == [one.id for one in before]


def test_another_owners_holder_is_not_mine(grid):
    grid.for_owner("eve").allocate(cpu=1, holder="db", node="b")
    with pytest.raises(InvalidRequest):
        grid.allocate(cpu=1, together_with="db")


def test_waiting_may_help_who_is_to_be_apart_from_what_is_there():
    with Grid.in_memory(owner="me") as grid:
        grid.register_node("a", cpu=8)
        web = grid.allocate(cpu=1, holder="web")
        with pytest.raises(NoRoom) as caught:
            grid.allocate(cpu=1, apart_from="web")
        assert caught.value.code == "no_room"
        explained = grid.explain(cpu=1, apart_from="web")
        assert explained.ever
        assert [change.field for change in explained.changes if change.field == "exclude"] == []
        web.release()
        assert grid.allocate(cpu=1, apart_from="web").node == "a"


def test_a_holder_that_asks_for_another_layout_is_told_that_it_is_busy(grid):
    grid.allocate_group(["cpu=1"] * 2, holder="w", apart=True)
    with pytest.raises(HolderBusy):
        grid.allocate_group(["cpu=1"] * 2, holder="w", together=True)


def test_what_strangers_use_is_known_of_a_device_until_it_comes_anew(grid):
    gpus = [{"id": "U1", "memory": "10GB"}, {"id": "U2", "memory": "10GB"}]
    grid.register_node("g", cpu=4, gpus=gpus)
    grid.report_foreign("g", {"U1": "9GB"})
    assert not grid.fits("g", gpu=2)
    grid.register_node("g", cpu=8, gpus=gpus)
    assert not grid.fits("g", gpu=2)
    grid.register_node("g", cpu=8, gpus=gpus[1:])
    grid.register_node("g", cpu=8, gpus=gpus)
    assert grid.fits("g", gpu=2)
    grid.report_foreign("g", {"U1": "9GB"})
    grid.unregister("g")
    grid.register_node("g", cpu=8, gpus=gpus)
    assert grid.fits("g", gpu=2)


def test_a_request_that_was_sent_elsewhere_is_found_among_its_like():
    asked = Request.of(cpu=1, gpu=0.5, gpu_model="A100")
    script = (
        "import pickle, sys; r = pickle.load(sys.stdin.buffer); "
        "from gridhand import Request; "
        "print(r.gpu in {Request.of(cpu=1, gpu=0.5, gpu_model='A100').gpu})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(asked), capture_output=True, check=True
    )
    assert done.stdout == b"True\n"


def test_a_group_apart_and_a_group_together(grid):
    apart = grid.allocate_group(["cpu=1"] * 3, apart=True)
    assert sorted(one.node for one in apart) == ["a", "b", "c"]
    together = grid.allocate_group(["cpu=1", "cpu=2"], together=True)
    assert len({one.node for one in together}) == 1
    with pytest.raises(NoRoom):
        grid.allocate_group(["cpu=1"] * 4, apart=True)
    with pytest.raises(InvalidRequest.__mro__[1]):
        grid.allocate_group(["cpu=1"] * 2, apart=True, together=True)
    assert grid.check() == []


def test_a_holder_that_asks_again_finds_what_it_has_whatever_way_it_was_placed(grid):
    grid.allocate(cpu=1, holder="db", node="b")
    asks = [
        {"cpu": 1, "gpu": 1, "fallback": "cpu"},
        {"cpu": 1, "quality": "auto", "node": "a"},
        {"cpu": 1, "together_with": "db"},
        {"cpu": 1, "apart_from": "db"},
    ]
    for number, asked in enumerate(reversed(asks)):
        first = grid.allocate(**asked, holder=f"h{number}")
        assert grid.allocate(**asked, holder=f"h{number}").id == first.id
    for layout in ("apart", "together"):
        first = grid.allocate_group(["cpu=0.5"] * 2, holder=layout, **{layout: True})
        again = grid.allocate_group(["cpu=0.5"] * 2, holder=layout, **{layout: True})
        assert [one.id for one in first] == [one.id for one in again]


def test_any_of_several_models_will_do():
    with Grid.in_memory() as grid:
        for name, model in {"a": "T4", "b": "V100", "c": "A100"}.items():
            grid.register_node(name, cpu=4, gpus=[{"model": model, "memory": "16GB"}])
        assert grid.allocate(gpu=1, gpu_model="v100|a100").node == "b"
        assert grid.allocate(gpu=1, gpu_model=["A100", "V100"]).node == "c"
        with pytest.raises(NoRoom, match=r"A100 or V100"):
            grid.allocate(gpu=1, gpu_model=["V100", "A100"])


def test_g4_sixteen_halves_on_eight_devices_are_two_on_each():
    for strategy in ("default", "spread", "round_robin"):
        with Grid.in_memory(strategy=strategy) as grid:
            for name in "abcd":
                grid.register_node(name, cpu=16, gpu=2)
            for _ in range(16):
                grid.allocate(cpu=1, gpu=0.5)
            shares = [gpu.share for node in grid.nodes() for gpu in node.gpus]
            assert shares == [1.0] * 8
            with pytest.raises(NoRoom):
                grid.allocate(gpu=0.5)


def test_both_grids_place_groups_by_the_same_words():
    signatures = [inspect.signature(kind.allocate_group) for kind in (Grid, AsyncGrid)]
    assert list(signatures[0].parameters) == list(signatures[1].parameters)
    assert {"apart", "together"} <= set(signatures[0].parameters)
