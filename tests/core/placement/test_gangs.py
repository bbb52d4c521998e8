"""Gangs: places for several requests at once, all of them or none, apart or together."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_budget import examples
from gridhand import InvalidRequest, Node, Request
from gridhand.core.explain.refusal import Refusal
from gridhand.core.ledger.allocations import Terms
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.ledger.status import dump
from gridhand.core.model.requests import GangLayout
from gridhand.core.placement.gangs import place_group
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import STRATEGIES

ME = Terms("me")


def cluster(*nodes, **named):
    ledger = Ledger()
    for node in (*nodes, *(Node.of(name, has) for name, has in named.items())):
        ledger.register(node)
    ledger.settle()
    return Snapshot(ledger)


def group(seen, *asks, layout="any", strategy="best_fit"):
    """The nodes of a gang, or None; and the ledger is as before."""
    before = dump(seen.ledger, {}, now=0)
    requests = [Request.of(one) if isinstance(one, str) else Request.of(**one) for one in asks]
    found = place_group(requests, seen, STRATEGIES[strategy], now=0, layout=GangLayout(layout))
    assert dump(seen.ledger, {}, now=0) == before
    if isinstance(found, Refusal):
        return None
    made = seen.ledger.grant(found, ME, now=0)  # checks each again
    assert [one.node for one in made] == [one.node for one in found]
    seen.ledger.rollback(0)
    return [one.node for one in found]


#    what it shows                     nodes                       asks                                     layout       nodes
CASES = {
    "pieces go to several nodes":    ({"a": "cpu=2", "b": "cpu=2"}, ["cpu=2", "cpu=2"],                    "any",      ["a", "b"]),
    "all or none":                   ({"a": "cpu=2", "b": "cpu=1"}, ["cpu=2", "cpu=2"],                    "any",      None),
    "the order given is no trap":    ({"a": "cpu=4", "b": "cpu=2"}, ["cpu=1", "cpu=1", "cpu=4"],           "any",      ["b", "b", "a"]),
    "a first choice is taken back":  ({"a": "cpu=4 x=1", "b": "cpu=5"}, ["cpu=3", "cpu=2 x=1", "cpu=2"],   "any",      ["b", "a", "a"]),
    "apart: one for each node":      ({"a": "cpu=8", "b": "cpu=8"}, ["cpu=1", "cpu=1"],                    "apart",    ["a", "b"]),
    "apart: not enough nodes":       ({"a": "cpu=8", "b": "cpu=8"}, ["cpu=1"] * 3,                         "apart",    None),
    "apart: the best is left to it": ({"a": "cpu=8", "b": "cpu=1"}, ["cpu=1", "cpu=8"],                    "apart",    ["b", "a"]),
    "together: costs add up":        ({"a": "cpu=3", "b": "cpu=4"}, ["cpu=2", "cpu=2"],                    "together", ["b", "b"]),
    "together: nowhere":             ({"a": "cpu=3", "b": "cpu=3"}, ["cpu=2", "cpu=2"],                    "together", None),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "asks", "layout", "went"), CASES.values(), ids=CASES)
def test_a_gang(nodes, asks, layout, went):
    assert group(cluster(**nodes), *asks, layout=layout) == went


def test_a_gang_on_devices_is_all_or_none():
    seen = cluster(Node.of("a", gpu=2), Node.of("b", gpu=2))
    assert group(seen, *[{"gpu": 1}] * 4) == ["a", "a", "b", "b"]
    assert group(seen, *[{"gpu": 1}] * 5) is None
    assert group(seen, {"gpu": 0.5}, {"gpu": 2}, {"gpu": 1}) is not None


def test_together_picks_devices_for_all_at_once():
    seen = cluster(Node.of("a", gpu=2))
    shares = [0.4, 0.3, 0.4, 0.3, 0.3, 0.3]
    assert group(seen, *({"gpu": share} for share in shares), layout="together") == ["a"] * 6
    assert group(seen, *[{"gpu": 0.6}] * 3, layout="together") is None


def test_together_minds_strangers_on_the_devices():
    seen = cluster(Node.of("a", gpus=[{"memory": "10GB"}] * 2))
    seen.set_foreign("a", {"a/0": 6 * 10**9})
    assert group(seen, {"gpu_memory": "4GB"}, {"gpu_memory": "10GB"}, layout="together")
    assert group(seen, {"gpu_memory": "5GB"}, {"gpu_memory": "6GB"}, layout="together") is None


def test_together_uses_alternatives_where_the_first_wish_does_not_fit():
    seen = cluster(Node.of("a", cpu=4), Node.of("b", cpu=2, gpu=1))
    asks = [{"cpu": 2, "gpu": 1, "fallback": "cpu"}, {"cpu": 2}]
    assert group(seen, *asks, layout="together") == ["a", "a"]


def test_the_first_of_a_gang_do_not_take_the_quality_from_the_last():
    seen = cluster(a="cpu=4")
    assert group(seen, *[{"cpu": 1, "quality": "auto"}] * 3) == ["a"] * 3
    seen = cluster(**{f"n{index}": "cpu=4" for index in range(10)})
    assert len(group(seen, *[{"cpu": 1, "quality": "auto"}] * 80)) == 80
    assert group(seen, *[{"cpu": 1, "quality": "auto"}] * 81) is None


def test_a_piece_with_one_place_gets_it_though_it_comes_last():
    for count in (20, 40):
        seen = cluster(**{f"n{index:02}": "cpu=4" for index in range(count)})
        asks = [{"cpu": 3}] * 10 + [{"cpu": 2, "node": "n00"}]
        assert group(seen, *asks)[-1] == "n00"
    seen = cluster(**{f"n{index:02}": "cpu=4" for index in range(12)})
    asks = [{"cpu": 3}] * 11 + [{"cpu": 1, "node": "n00"}]
    assert sorted(group(seen, *asks, layout="apart")) == seen.ledger.names


def test_a_piece_that_wants_a_kind_of_device_gets_it_though_it_comes_last():
    seen = cluster(Node.of("a", cpu=4, gpus=[{"model": "A"}, {"model": "B"}]))
    assert group(seen, {"gpu": 1}, {"gpu": 1, "gpu_model": "A"}) == ["a", "a"]


def test_together_the_first_do_not_take_the_quality_from_the_last():
    seen = cluster(a="cpu=4")
    assert group(seen, *[{"cpu": 2, "quality": "auto"}] * 2, layout="together") == ["a", "a"]


def test_a_gang_that_cannot_be_together_is_refused_without_packing_every_node(monkeypatch):
    packed = []
    monkeypatch.setattr(
        "gridhand.core.placement.gangs.pick_together", lambda *given: packed.append(given) or None
    )
    seen = cluster(*(Node.of(f"n{index:03}", gpu=8) for index in range(100)))
    assert group(seen, *[{"gpu": 0.5}] * 17, layout="together") is None
    assert packed == []
    assert group(seen, *[{"gpu": 0.6}] * 13, layout="together") is None
    assert 0 < len(packed) <= 10


def test_pieces_pinned_to_different_nodes_cannot_be_together():
    seen = cluster(a="cpu=4", b="cpu=4")
    with pytest.raises(InvalidRequest, match="node"):
        group(seen, {"cpu": 1, "node": "a"}, {"cpu": 1, "node": "b"}, layout="together")
    assert group(seen, {"cpu": 1, "node": "b"}, {"cpu": 1}, layout="together") == ["b", "b"]
    assert group(seen, {"cpu": 1}, {"cpu": 1, "exclude": "a"}, layout="together") == ["b", "b"]


def test_a_search_that_leads_nowhere_ends():
    # Twelve pieces, no two alike, that miss by a hair: to try all their places would take ages.
    seen = cluster(**{f"n{index}": "cpu=10" for index in range(6)})
    asks = [f"cpu={5 + index / 10_000}" for index in range(1, 13)]
    assert group(seen, *asks) is None


AMOUNTS = st.integers(1, 6)


def brute_force(nodes, asks, layout):
    """Whether any way to lay the pieces on the nodes fits."""
    for places in product(nodes, repeat=len(asks)):
        if layout == "apart" and len(set(places)) < len(places):
            continue
        if layout == "together" and len(set(places)) > 1:
            continue
        held = {name: [0, 0] for name in nodes}
        for name, (cpu, fpga) in zip(places, asks, strict=True):
            held[name][0] += cpu
            held[name][1] += fpga
        if all(held[name][0] <= has[0] and held[name][1] <= has[1] for name, has in nodes.items()):
            return True
    return False


@settings(max_examples=examples(80))
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=3),
    st.lists(st.tuples(AMOUNTS, st.integers(0, 2)), min_size=1, max_size=4),
    st.sampled_from(["any", "apart", "together"]),
    st.sampled_from(sorted(STRATEGIES)),
)
def test_a_gang_is_refused_only_where_no_way_to_lay_it_fits(has, asks, layout, strategy):
    nodes = {f"n{index}": one for index, one in enumerate(has)}
    seen = cluster(*(Node.of(name, cpu=cpu, fpga=fpga) for name, (cpu, fpga) in nodes.items()))
    wanted = [{"cpu": cpu, "fpga": fpga} if fpga else {"cpu": cpu} for cpu, fpga in asks]
    went = group(seen, *wanted, layout=layout, strategy=strategy)
    assert (went is not None) == brute_force(nodes, asks, layout)
    if went is not None:
        assert layout != "apart" or len(set(went)) == len(went)
        assert layout != "together" or len(set(went)) == 1
