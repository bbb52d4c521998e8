"""How each strategy ranks: the cases of the seeds by name, and what each is for."""

from __future__ import annotations

import importlib.metadata
import random

import pytest

from gridhand import GridError, InvalidInput, Node, Request
from gridhand.core.explain.refusal import Refusal
from gridhand.core.ledger.allocations import AllocationMove, Terms
from gridhand.core.ledger.ledger import Ledger, Placement
from gridhand.core.placement import strategies
from gridhand.core.placement.place import place
from gridhand.core.placement.request_mix import HALF_LIFE, ClusterTotals, Mix
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import NOWHERE, STRATEGIES, strategy_named

ME = Terms("me")


def cluster(*nodes, local=None, **named):
    ledger = Ledger()
    for node in (*nodes, *(Node.of(name, has) for name, has in named.items())):
        ledger.register(node)
    return Snapshot(ledger, local=local)


def take(seen, strategy, **asked):
    """Place and hold, as a caller does; the node's name, or None."""
    request = Request.of(**asked)
    seen.learn(request)
    placed = place(request, seen, strategy and STRATEGIES[strategy])
    if isinstance(placed, Refusal):
        return None
    seen.ledger.grant([placed], ME, now=0)
    return placed.node


def hold(seen, node, **asked):
    assert take(seen, "best_fit", node=node, **asked) == node


def scores(seen, strategy, **asked):
    """The score of every node, by name."""
    found = STRATEGIES[strategy](Request.of(**asked), seen, range(len(seen.ledger.names)))
    return dict(zip(seen.ledger.names, found, strict=True))


def gpu_node(name, count, model="", **has):
    return Node.of(name, has or {"cpu": 32, "memory": "64GB"}, gpus=[{"model": model}] * count)


# ---- first_available


def test_p3_the_node_that_was_chosen_last_is_tried_first():
    seen = cluster(A="cpu=2", B="cpu=4")
    assert take(seen, "first_available", cpu=3) == "B"
    assert take(seen, "first_available", cpu=1) == "B"
    assert take(seen, "first_available", cpu=1) == "A"


def test_p3_a_chosen_node_goes_before_all_others_and_those_keep_their_order():
    seen = cluster(A="cpu=2 a=9", B="cpu=2 b=9", C="cpu=2 c=9")
    assert take(seen, "first_available", c=1) == "C"
    assert take(seen, "first_available", b=1) == "B"
    assert [take(seen, "first_available", cpu=2) for _ in range(3)] == ["B", "C", "A"]


def test_p3_the_local_node_comes_before_the_others_by_name():
    seen = cluster(a="cpu=1", b="cpu=1", c="cpu=1", local="b")
    assert [take(seen, "first_available", cpu=1) for _ in range(4)] == ["b", "a", "c", None]


def test_p3_what_is_pinned_moves_no_node_to_the_front():
    seen = cluster(a="cpu=4", b="cpu=4")
    hold(seen, "b", cpu=1)
    assert take(seen, "first_available", cpu=1) == "a"


def test_what_was_undone_was_not_chosen():
    seen = cluster(a="cpu=4", b="cpu=4 x=1")
    mark = seen.ledger.mark()
    assert take(seen, "first_available", x=1) == "b"
    seen.ledger.rollback(mark)
    assert seen.ledger.last_chosen is None
    assert take(seen, "first_available", cpu=1) == "a"


def test_a_node_with_the_name_of_an_allocation_is_not_taken_for_one():
    seen = cluster(a="cpu=4")
    ledger = seen.ledger
    ledger.settle()
    assert take(seen, "first_available", cpu=1) == "a"
    ledger.settle()
    mark = ledger.mark()
    ledger.register(Node.of("a1-1", cpu=1))
    ledger.rollback(mark)
    assert ledger.last_chosen == "a"


# ---- balanced


def test_p7_the_score_of_the_seed():
    seen = cluster(idle="cpu=8 memory=16GB", half="cpu=8 memory=16GB", exact="cpu=2 memory=4GB")
    hold(seen, "half", cpu=4, memory="8GB")
    found = scores(seen, "balanced", cpu=2, memory="4GB")
    assert found == pytest.approx({"idle": 0.7, "half": 0.5, "exact": 1.0})


def test_p7_nothing_there_and_nothing_left_divide_by_nothing():
    seen = cluster(full="cpu=2 memory=4GB", bare="fpga=1", cpu_only="cpu=2")
    hold(seen, "full", cpu=2, memory="4GB")
    assert scores(seen, "balanced", fpga=1)["bare"] > NOWHERE
    assert scores(seen, "balanced", cpu=1)["full"] == NOWHERE
    hold(seen, "cpu_only", cpu=1)
    assert take(seen, "balanced", cpu=1) == "cpu_only"


def test_p7_equal_scores_go_by_name_and_gpu_work_gets_a_bonus():
    seen = cluster(gpu_node("g", 1), gpu_node("h", 1))
    assert take(seen, "balanced", cpu=1, memory="1GB") == "g"
    with_gpu = scores(cluster(gpu_node("g", 1)), "balanced", cpu=1, memory="1GB", gpu=1)["g"]
    without = scores(cluster(g="cpu=32 memory=64GB"), "balanced", cpu=1, memory="1GB")["g"]
    assert with_gpu - without == pytest.approx(0.2)


@pytest.mark.parametrize("strategy", ["balanced", "best_fit", "pack", "spread", "fragmentation"])
def test_p7_work_without_gpus_keeps_off_gpu_nodes_when_another_will_do(strategy):
    # Balance: what the GPU node has of CPU is just what its devices need.
    seen = cluster(gpu_node("a", 4, cpu=32, memory="64GB"), plain="cpu=64 memory=128GB")
    for _ in range(40):
        seen.learn(Request.of(cpu=8, memory="16GB", gpu=1))
    assert take(seen, strategy, cpu=8, memory="16GB") == "plain"
    hold(seen, "plain", cpu=56, memory="100GB")
    assert take(seen, strategy, cpu=8, memory="16GB") == "a"


# ---- the others

#    strategy       what it is for                        nodes, as cpu of and held             chosen
RANKED = {
    "best_fit takes the tightest":      ("best_fit", {"a": (8, 0), "b": (8, 4), "c": (4, 0)}, "b"),
    "pack fills what is fullest":       ("pack", {"a": (8, 0), "b": (16, 13), "c": (4, 0)}, "b"),
    "spread takes the emptiest":        ("spread", {"a": (8, 4), "b": (8, 1), "c": (4, 0)}, "b"),
    "best_fit ties go by name":         ("best_fit", {"b": (8, 4), "a": (8, 4)}, "a"),
}  # fmt: skip


@pytest.mark.parametrize(("strategy", "nodes", "chosen"), RANKED.values(), ids=RANKED)
def test_the_strategy(strategy, nodes, chosen):
    seen = cluster(**{name: f"cpu={has}" for name, (has, _) in nodes.items()})
    for name, (_, held) in nodes.items():
        if held:
            hold(seen, name, cpu=held)
    assert take(seen, strategy, cpu=2) == chosen


def test_round_robin_takes_turns_and_skips_who_has_no_room():
    seen = cluster(a="cpu=3", b="cpu=1", c="cpu=3")
    went = [take(seen, "round_robin", cpu=1) for _ in range(8)]
    assert went == ["a", "b", "c", "a", "c", "a", "c", None]


def test_round_robin_goes_on_after_a_node_that_is_gone():
    seen = cluster(a="cpu=9", b="cpu=9", c="cpu=9")
    assert [take(seen, "round_robin", cpu=1) for _ in range(2)] == ["a", "b"]
    seen.ledger.unregister("b", now=0, force=True)
    assert take(seen, "round_robin", cpu=1) == "c"


def test_cheapest_takes_the_lowest_price_and_of_equal_ones_the_tightest():
    nodes = [
        Node.of(name, cpu=cpu, price=price)
        for name, cpu, price in [("a", 8, 2), ("b", 8, 0.5), ("c", 4, 0.5), ("d", 2, 0.5001)]
    ]
    seen = cluster(*nodes)
    assert take(seen, "cheapest", cpu=2) == "c"
    assert [take(seen, "cheapest", cpu=4) for _ in range(3)] == ["b", "b", "a"]


def test_the_default_is_fragmentation_where_there_are_gpus_else_best_fit():
    assert strategy_named("default") is None
    seen = cluster(a="cpu=8", b="cpu=4")
    asked = Request.of(cpu=1)
    assert not seen.has_gpus
    assert place(asked, seen) == place(asked, seen, STRATEGIES["best_fit"])
    seen.ledger.register(gpu_node("a", 2))  # described anew, and now it has some
    assert seen.has_gpus
    share = Request.of(gpu=0.5)
    kept = [key[0] for key in (place(share, seen), seen._kept)[1]]
    assert kept == [STRATEGIES["fragmentation"]]


# ---- fragmentation


def test_a_share_goes_where_a_device_is_broken_already():
    seen = cluster(gpu_node("a", 2), gpu_node("b", 2))
    hold(seen, "b", cpu=1, memory="1GB", gpu=0.5)
    assert take(seen, "fragmentation", cpu=1, memory="1GB", gpu=0.25) == "b"


def test_several_devices_go_where_no_larger_set_is_broken():
    sizes = {"a": 8, "b": 2, "c": 4}
    seen = cluster(
        *(
            gpu_node(name, size, cpu=4 * size, memory=f"{8 * size}GB")
            for name, size in sizes.items()
        )
    )
    assert take(seen, "fragmentation", cpu=2, memory="2GB", gpu=2) == "b"
    assert take(seen, "fragmentation", cpu=2, memory="2GB", gpu=4) == "c"


def test_a_model_that_others_must_have_is_kept_for_them():
    seen = cluster(gpu_node("a", 4, "rare"), gpu_node("b", 4, "plain"), gpu_node("c", 4, "plain"))
    for _ in range(20):
        seen.learn(Request.of(cpu=4, memory="8GB", gpu=1, gpu_model="rare"))
        seen.learn(Request.of(cpu=4, memory="8GB", gpu=1))
    went = [take(seen, "fragmentation", cpu=4, memory="8GB", gpu=1) for _ in range(9)]
    assert sorted(went[:8]) == ["b"] * 4 + ["c"] * 4
    assert went[8] == "a"


def test_work_that_eats_the_cpu_of_a_gpu_node_goes_where_it_strands_no_device():
    tight = gpu_node("a", 4, cpu=16, memory="64GB")
    roomy = gpu_node("b", 4, cpu=64, memory="64GB")
    seen = cluster(tight, roomy)
    for _ in range(20):
        seen.learn(Request.of(cpu=4, memory="8GB", gpu=1))
    assert take(seen, "fragmentation", cpu=16, memory="1GB") == "b"


def test_a_request_that_fits_is_never_refused_however_scarce_what_it_takes():
    seen = cluster(gpu_node("a", 1, "rare"))
    for _ in range(50):
        seen.learn(Request.of(gpu=1, gpu_model="rare"))
    assert take(seen, "fragmentation", gpu=0.1) == "a"


# ---- the mix


def learned(*asks, models=None, times=300):
    seen = cluster(*(gpu_node(f"n{index}", 4, model) for index, model in enumerate(models or "AB")))
    for index in range(times):
        seen.learn(Request.of(**asks[index % len(asks)]))
    return seen.mix


def test_the_mix_knows_what_goes_with_a_device():
    mix = learned({"gpu": 1, "cpu": 8, "memory": "16GB"}, {"gpu": 2, "cpu": 4, "memory": "16GB"})
    assert mix.learned.cpu == (2 * 10_000, 2 * 10_000)
    assert mix.learned.memory == (8 * 10**9, 8 * 10**9)
    assert mix.learned.levels[:4] == (0.0, 1.0, 2.0, 2.0)


def test_the_mix_knows_what_rest_of_a_device_is_of_use():
    weights = learned({"gpu": 0.5}, {"gpu": 0.3}).learned.weights
    assert (weights[29], weights[30], weights[50], weights[100]) == (0, 1000, 1000, 1000)
    assert learned({"gpu": 1}).learned.weights[99] == 0


def test_the_mix_prices_a_model_by_the_demand_that_is_bound_to_it():
    prices = learned({"gpu": 1, "gpu_model": "a"}, {"gpu": 1}, models="ABBB").learned.prices
    assert prices == pytest.approx({"a": 2.0}, rel=1e-3)  # half of the demand, for a quarter of all
    prices = learned({"gpu": 1, "gpu_model": "a|b"}, {"gpu": 1}, models="ABCC").learned.prices
    assert prices == pytest.approx({"a": 1.0, "b": 1.0}, rel=1e-3)


def test_whole_nodes_are_worth_keeping_though_nobody_has_asked_for_one_yet():
    levels = learned({"gpu": 1}, times=8).learned.levels
    assert levels == (0.0, 1.0, 1.0, 1.0, 2.0)  # its nodes have four each
    mix = Mix()
    mix.describe(ClusterTotals({"a": 2}, sizes=frozenset({2})))
    for _ in range(256):
        mix.learn(Request.of(gpu=0.01))
    assert mix.learned.levels == (0.0, 0.0, 1.0)


def test_old_requests_fade_and_rare_ones_stay_known():
    mix = learned({"gpu": 1, "cpu": 8})
    for _ in range(4 * HALF_LIFE):
        mix.learn(Request.of(gpu=1, cpu=2))
    assert mix.learned.cpu == (20_000, 20_000)
    mix = learned(*[{"gpu": 1}] * 200, {"gpu": 3, "cpu": 6}, times=256)
    assert mix.learned.levels[3] - mix.learned.levels[2] == 1.0


def test_a_mix_that_does_not_change_is_not_taken_on_again():
    mix = learned({"gpu": 0.5, "cpu": 2}, {"gpu": 1, "cpu": 4}, times=512)
    version = mix.version
    chance = random.Random(5)
    for _ in range(3000):
        mix.learn(Request.of(chance.choice([{"gpu": 0.5, "cpu": 2}, {"gpu": 1, "cpu": 4}])))
    assert mix.version == version
    for _ in range(3000):
        mix.learn(Request.of(gpu=1, cpu=32))
    assert mix.version > version


def test_a_mix_of_endlessly_many_kinds_stays_small():
    mix = Mix()
    for number in range(1, 23_000):
        mix.learn(Request.of(gpu=1, cpu=number / 10_000))
    assert len(mix._classes) <= 10_000 + 256


def test_weights_that_grow_are_scaled_back_before_they_overflow():
    mix = Mix()
    for _ in range(31 * HALF_LIFE):
        mix.learn(REQUEST)
    assert mix._weight <= 1e9 * 2
    assert mix.learned.levels == (0.0, 1.0)


REQUEST = Request.of(gpu=1, cpu=1)


def test_requests_for_memory_count_as_the_share_they_take():
    ledger = Ledger()
    ledger.register(Node.of("a", cpu=8, gpus=[{"memory": "40GB"}] * 2))
    seen = Snapshot(ledger)
    for _ in range(8):
        seen.learn(Request.of(gpu_memory="10GB", cpu=1))
    assert seen.mix.learned.weights[24:26] == (0, 1000)
    assert seen.mix.learned.cpu == (40_000, 40_000)


# ---- names from elsewhere


class Point:
    """An entry point, as a package that offers a strategy has one."""

    value = "elsewhere:strategy"

    def __init__(self, name, found):
        self.name, self.found = name, found

    def load(self):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.fixture
def offered(monkeypatch):
    points = []
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda group: points if group == "gridhand.strategies" else [],
    )
    monkeypatch.setattr(strategies, "_loaded", {})
    strategies._entry_points.cache_clear()
    yield points
    strategies._entry_points.cache_clear()


def test_a_strategy_from_another_package_is_found_by_its_name(offered):
    offered.append(Point("last", lambda asked, snapshot, rows: list(rows)))
    seen = cluster(a="cpu=4", b="cpu=4")
    placed = place(Request.of(cpu=1), seen, strategy_named("last"))
    assert isinstance(placed, Placement)
    assert placed.node == "b"


def test_a_built_in_name_cannot_be_taken_by_another_package(offered):
    offered.append(Point("pack", None))
    assert strategy_named("pack") is STRATEGIES["pack"]


@pytest.mark.parametrize("found", [ImportError("no such thing"), "text"], ids=repr)
def test_one_that_cannot_be_used_is_an_error_that_says_where_it_is(offered, found):
    offered.append(Point("broken", found))
    with pytest.raises(InvalidInput) as caught:
        strategy_named("broken")
    assert "elsewhere:strategy" in caught.value.hint


def test_an_unknown_name_lists_those_from_elsewhere_too(offered):
    offered.append(Point("mine", None))
    with pytest.raises(GridError) as caught:
        strategy_named("none")
    assert "mine" in caught.value.hint
    assert "default" in caught.value.hint


def test_a_misspelt_name_is_told_the_nearest():
    with pytest.raises(GridError) as caught:
        strategy_named("bestfit")
    assert "(did you mean best_fit?)" in caught.value.hint


def test_a_release_is_seen_by_every_strategy():
    for name in STRATEGIES:
        seen = cluster(a="cpu=1")
        assert take(seen, name, cpu=1) == "a"
        assert take(seen, name, cpu=1) is None
        [held] = seen.ledger.live
        seen.ledger.move(held, AllocationMove.RELEASE, now=0)
        assert take(seen, name, cpu=1) == "a"
