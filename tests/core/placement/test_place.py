"""Where a request goes, and, if nowhere, why not."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_budget import examples
from gridhand import (
    GridError,
    NeverFits,
    Node,
    NoRoom,
    Request,
    Resources,
    UnknownNode,
    UnknownResource,
)
from gridhand.audit import check_decision, check_determinism
from gridhand.core.errors import StrategyFailed
from gridhand.core.explain.refusal import Refusal
from gridhand.core.explain.shortfalls import Shortfall
from gridhand.core.ledger.allocations import AllocationMove, Terms
from gridhand.core.ledger.ledger import Ledger, Placement
from gridhand.core.ledger.status import dump
from gridhand.core.model.amount_text import request_text
from gridhand.core.model.gpus import Gpu, GpuHealth
from gridhand.core.model.nodes import Health
from gridhand.core.model.resources import MOST, UNIT
from gridhand.core.placement.place import place
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import STRATEGIES, best_fit, first_available, strategy_named
from gridhand.core.rows.ledger import device_row

NOW = 1_000_000
GB = 10**9
ANN = Terms("ann")


def snapshot(*nodes, foreign=None, **named):
    """A snapshot of nodes: `Node`s, or `a="cpu=4"`."""
    ledger = Ledger()
    for node in (*nodes, *(Node.of(name, has) for name, has in named.items())):
        ledger.register(node)
    return Snapshot(ledger, foreign)


def hold(seen, node, **asked):
    request = Request.of(node=node, **asked)
    devices = seen.ledger.nodes[node].room(request, {})
    assert devices is not None
    return seen.ledger.grant([Placement(request, node, devices)], ANN, now=NOW)[0]


def where(seen, strategy=best_fit, **asked):
    placed = place(Request.of(**asked), seen, strategy)
    return None if isinstance(placed, Refusal) else placed.node


def refusal(seen, **asked):
    refused = place(Request.of(**asked), seen, best_fit)
    assert isinstance(refused, Refusal)
    return refused


def gpus(*memory, **more):
    return [{"memory": f"{size}GB", **more} for size in memory]


# ---- strategies

#    what it shows                              asked                nodes                                          first   best
CHOICES = {
    "first takes names in order":              ({"cpu": 1},          {"b": "cpu=1", "a": "cpu=8"},                  "a",    "b"),
    "a tie goes to the first name":            ({"cpu": 1},          {"b": "cpu=4", "a": "cpu=4", "c": "cpu=4"},    "a",    "a"),
    "names are text: n10 before n2":           ({"cpu": 1},          {"n2": "cpu=4", "n10": "cpu=4"},               "n10",  "n10"),
    "the tightest fit wins":                   ({"cpu": 2},          {"a": "cpu=8", "b": "cpu=3"},                  "a",    "b"),
    "the least is left as a part of the node": ({"cpu": 2},          {"a": "cpu=4", "b": "cpu=100"},                "a",    "a"),
    "every resource must fit":                 ({"cpu": 1, "fpga": 1}, {"a": "cpu=9", "b": "fpga=9", "c": "cpu=1 fpga=1"}, "c", "c"),
    "every resource counts":                   ({"cpu": 1, "memory": 100}, {"a": "cpu=1 memory=1000", "b": "cpu=2 memory=100", "c": "cpu=2 memory=110"}, "a", "b"),
    "a hair too much is too much":             ({"cpu": 0.5001},     {"a": "cpu=0.5"},                              None,   None),
    "exactly all of it fits":                  ({"cpu": 4, "memory": 8}, {"a": "cpu=4 memory=8"},                   "a",    "a"),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "nodes", "first", "best"), CHOICES.values(), ids=CHOICES)
def test_where_it_goes(asked, nodes, first, best):
    assert where(snapshot(**nodes), first_available, **asked) == first
    assert where(snapshot(**nodes), best_fit, **asked) == best


def test_what_is_held_counts_for_the_fit():
    seen = snapshot(a="cpu=8", b="cpu=8")
    hold(seen, "b", cpu=4)
    assert where(seen, cpu=2) == "b"
    assert where(seen, first_available, cpu=2) == "a"
    assert where(seen, cpu=5) == "a"


@pytest.mark.parametrize(
    "asked", [{"cpu": 1}, {"memory": 1}, {"disk": "1G"}, {"licence": 1}, {"gpu_memory": "1G"}]
)
@pytest.mark.parametrize("count", [3, 40])
def test_a_drained_node_gets_nothing_whatever_is_asked_for(count, asked):
    has = "cpu=1 memory=1G disk=10G licence=2"
    seen = snapshot(*(Node.of(f"n{n:02}", has, gpus=gpus(8)) for n in range(count)))
    assert where(seen, first_available, **asked) == "n00"
    seen.ledger.set_draining("n00", True)
    seen.ledger.set_health("n01", Health.SUSPECT, now=NOW)
    assert where(seen, first_available, **asked) == "n02"
    assert where(Snapshot(seen.ledger), first_available, **asked) == "n02"


def test_p7_work_without_gpu_needs_keeps_off_gpu_nodes_when_another_will_do():
    seen = snapshot(Node.of("a", cpu=2, gpu=1), Node.of("b", cpu=64))
    assert where(seen, cpu=2) == "b"
    hold(seen, "b", cpu=63)
    assert where(seen, cpu=2) == "a"
    assert where(seen, gpu=1) == "a"


def test_p1_first_available_fills_the_first_node_before_the_next():
    seen = snapshot(node1="cpu=4 memory=8000", node2="cpu=2 memory=4000")
    went = {}
    for name, cpu, memory in (("f1", 2, 2000), ("f2", 1, 1000), ("f3", 3, 4000), ("f4", 1, 1000)):
        went[name] = where(seen, first_available, cpu=cpu, memory=memory)
        if went[name]:
            hold(seen, went[name], cpu=cpu, memory=memory)
    assert went == {"f1": "node1", "f2": "node1", "f3": None, "f4": "node1"}


def test_a_strategy_of_ones_own_is_any_function():
    seen = snapshot(a="cpu=4", b="cpu=8", c="cpu=2")
    calls = []

    def biggest(asked, snapshot, rows):
        calls.append([snapshot.use(row).node.name for row in rows])
        return [snapshot.use(row).total["cpu"] for row in rows]

    assert where(seen, strategy_named(biggest), cpu=1) == "b"
    assert where(seen, strategy_named(biggest), cpu=3) == "b"
    assert calls == [["a", "b", "c"], ["a", "b"]]
    assert where(seen, strategy_named(lambda asked, snapshot, rows: [0] * len(rows)), cpu=1) == "a"


def test_a_strategy_ranks_only_what_fits_and_only_what_is_preferred():
    seen = snapshot(a="cpu=4", b="cpu=8", c="cpu=2", d="cpu=1")
    given = []

    def watch(asked, snapshot, rows):
        given.append([snapshot.use(row).node.name for row in rows])
        return [1.0] * len(rows)

    where(seen, watch, cpu=2, prefer=["b", "c", "d"])
    assert given == [["b", "c"]]


def test_a_strategy_with_too_few_scores_is_an_error_and_no_placement():
    seen = snapshot(a="cpu=4", b="cpu=8")
    with pytest.raises(StrategyFailed, match="returned 1 scores for 2 nodes"):
        where(seen, lambda asked, snapshot, rows: [1.0], cpu=1)


def test_the_built_in_strategies_have_names():
    assert {"best_fit", "first_available"} <= set(STRATEGIES)
    for name, strategy in STRATEGIES.items():
        assert strategy_named(name) is strategy


@pytest.mark.parametrize("name", ["worst_fit", "", 5, None, [], b"best_fit"], ids=repr)
def test_an_unknown_strategy_is_an_error_that_lists_them(name):
    with pytest.raises(GridError, match="strategy") as caught:
        strategy_named(name)
    assert ", ".join(sorted({"default", *STRATEGIES})) in caught.value.hint


# ---- constraints


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
class TestConstraints:
    def seen(self):
        return snapshot(
            Node.of("a", cpu=4, labels={"zone": "x", "disk": "ssd"}),
            Node.of("b", cpu=4, labels={"zone": "x"}),
            Node.of("c", cpu=4, labels={"zone": "y"}),
        )

    def test_pinned_is_there_or_nowhere(self, strategy):
        seen = self.seen()
        assert where(seen, strategy, cpu=1, node="c") == "c"
        hold(seen, "c", cpu=4)
        assert where(seen, strategy, cpu=1, node="c") is None

    def test_pinned_to_an_unknown_node_is_an_error(self, strategy):
        with pytest.raises(UnknownNode, match="'zz'"):
            where(self.seen(), strategy, cpu=1, node="zz")

    def test_p6_a_preferred_node_is_a_wish(self, strategy):
        seen = self.seen()
        assert where(seen, strategy, cpu=1, prefer="c") == "c"
        hold(seen, "c", cpu=4)
        assert where(seen, strategy, cpu=1, prefer="c") == "a"
        assert where(seen, strategy, cpu=1, prefer=["zz", "b"]) == "b"
        assert where(seen, strategy, cpu=1, prefer="zz") == "a"

    def test_p6_an_excluded_node_is_never_taken_even_if_preferred(self, strategy):
        seen = self.seen()
        assert where(seen, strategy, cpu=1, exclude="a") == "b"
        assert where(seen, strategy, cpu=1, prefer="a", exclude=["a", "b"]) == "c"
        assert where(seen, strategy, cpu=1, exclude=["a", "b", "c"]) is None

    def test_every_label_must_match(self, strategy):
        seen = self.seen()
        assert where(seen, strategy, cpu=1, labels={"zone": "y"}) == "c"
        assert where(seen, strategy, cpu=1, labels={"zone": "x", "disk": "ssd"}) == "a"
        assert where(seen, strategy, cpu=1, labels={"zone": "x"}, exclude="a") == "b"
        assert where(seen, strategy, cpu=1, labels={"zone": "z"}) is None
        assert where(seen, strategy, cpu=1, labels={"disk": "hdd"}) is None
        assert where(seen, strategy, cpu=1, labels={"zone": "y"}, node="a") is None

    def test_a_node_that_is_not_up_draining_or_overcommitted_is_not_taken(self, strategy):
        seen = self.seen()
        hold(seen, "c", cpu=4)
        seen.ledger.register(Node.of("c", cpu=1, memory=100))
        seen.ledger.set_draining("a", True)
        seen.ledger.set_health("b", Health.SUSPECT, now=NOW)
        assert where(seen, strategy, cpu=1) is None
        assert where(seen, strategy, memory=1) is None
        seen.ledger.set_health("b", Health.UP, now=NOW)
        assert where(seen, strategy, cpu=1) == "b"

    def test_the_first_alternative_that_fits_wins(self, strategy):
        seen = self.seen()
        asked = Request.of(cpu=9, alternatives=[{"cpu": 5}, {"cpu": 3}, {"cpu": 1}])
        placed = place(asked, seen, strategy)
        assert placed.asked.resources == Resources.of(cpu=3)

    def test_g6_without_a_gpu_the_fallback_is_taken_and_without_it_refused(self, strategy):
        seen = self.seen()
        placed = place(Request.of(cpu=1, gpu=1, fallback="cpu"), seen, strategy)
        assert placed.asked.gpu is None
        assert placed.devices == ()
        assert where(seen, strategy, cpu=1, gpu=1) is None

    def test_auto_takes_the_highest_quality_that_fits_now(self, strategy):
        seen = self.seen()
        levels = []
        for _ in range(4):
            placed = place(Request.of(cpu=2, quality="auto", node="a"), seen, strategy)
            if isinstance(placed, Placement):
                levels.append(placed.asked.quality)
                seen.ledger.grant([placed], ANN, now=NOW)
        assert levels == ["ultra"]
        assert seen.ledger.nodes["a"].held == {"cpu": 4 * UNIT}
        hold(seen, "b", cpu=2.5)
        placed = place(Request.of(cpu=2, quality="auto", node="b"), seen, strategy)
        assert placed.asked.quality == "draft"


# ---- devices


def test_a_placement_names_its_devices():
    seen = snapshot(Node.of("a", cpu=4, gpus=gpus(24, 24)), Node.of("b", cpu=4, gpus=gpus(80)))
    placed = place(Request.of(gpu_memory="30GB"), seen, best_fit)
    assert (placed.node, [hold.device for hold in placed.devices]) == ("b", ["b/0"])
    placed = place(Request.of(gpu=2), seen, best_fit)
    assert (placed.node, [hold.device for hold in placed.devices]) == ("a", ["a/0", "a/1"])
    assert where(seen, gpu=3) is None


def test_a_stranger_on_a_device_sends_whole_device_requests_elsewhere():
    nodes = Node.of("a", gpus=gpus(24)), Node.of("b", gpus=gpus(24))
    assert where(snapshot(*nodes), gpu=1) == "a"
    assert where(snapshot(*nodes, foreign={"a/0": 1}), gpu=1) == "b"
    assert where(snapshot(*nodes, foreign={"a/0": 1, "b/0": 1}), gpu=1) is None


# ---- T7: the words of a refusal

#    what it shows                                node                              held                  asked                                     reasons
REASONS = {
    "T7 cpu":                                    ("cpu=4",                          {"cpu": 2},           {"cpu": 3},
        ["Insufficient CPU: worker has 2.00 available, task requires 3.00"]),
    "T7 memory in GB":                           ("memory=8GB",                     {"memory": "6GB"},    {"memory": "4GB"},
        ["Insufficient Memory: worker has 2.00 GB available, task requires 4.00 GB"]),
    "T7 storage in GB":                          ("disk=10GB",                      {"disk": "1GB"},      {"storage": "10GB"},
        ["Insufficient Storage: worker has 9.00 GB available, task requires 10.00 GB"]),
    "T7 GPU":                                    ("gpu=2",                          {"gpu": 1},           {"gpu": 2},
        ["Insufficient GPU: worker has 1.00 available, task requires 2.00"]),
    "a share of a GPU":                          ("gpu=1",                          {"gpu": 0.75},        {"gpu": 0.5},
        ["Insufficient GPU: worker has 0.25 available, task requires 0.50"]),
    "GPU memory is of one device":               ("gpu=2 gpu_memory=24GB",          {},                   {"gpu_memory": "40GB"},
        ["Insufficient GPU Memory: worker has 24.00 GB available on one device, task requires 40.00 GB"]),
    "no GPU at all":                             ("cpu=4",                          {},                   {"gpu": 1},
        ["Insufficient GPU: worker has 0.00 available, task requires 1.00"]),
    "a kind of GPU":                             ("gpu=4",                          {},                   {"gpu": 1, "gpu_model": "A100"},
        ["Insufficient GPU (A100): worker has 0.00 available, task requires 1.00"]),
    "a capability":                              ("gpu=4",                          {},                   {"gpu": 1, "gpu_capability": "8.6"},
        ["Insufficient GPU (capability 8.6): worker has 0.00 available, task requires 1.00"]),
    "another resource by its name":              ("cpu=1",                          {},                   {"fpga": 1},
        ["Insufficient fpga: worker has 0.00 available, task requires 1.00"]),
    "all that is short, in the seed's order":    ("cpu=1 memory=1GB disk=1GB gpu=1 zeta=1 alpha=1 bandwidth=1", {},
        {"alpha": 2, "bandwidth": 2, "cpu": 2, "disk": "2GB", "gpu": 2, "memory": "2GB", "zeta": 2},
        ["Insufficient CPU: worker has 1.00 available, task requires 2.00",
         "Insufficient Memory: worker has 1.00 GB available, task requires 2.00 GB",
         "Insufficient Storage: worker has 1.00 GB available, task requires 2.00 GB",
         "Insufficient GPU: worker has 1.00 available, task requires 2.00",
         "Insufficient alpha: worker has 1.00 available, task requires 2.00",
         "Insufficient Bandwidth: worker has 1.00 available, task requires 2.00",
         "Insufficient zeta: worker has 1.00 available, task requires 2.00"]),
    "only what is short":                        ("cpu=4 memory=1GB disk=1GB",      {},                   {"cpu": 4, "memory": "1GB", "disk": "2GB"},
        ["Insufficient Storage: worker has 1.00 GB available, task requires 2.00 GB"]),
    "three decimals where two do not tell":      ("cpu=2",                          {},                   {"cpu": 2.001},
        ["Insufficient CPU: worker has 2.000 available, task requires 2.001"]),
    "four decimals":                             ("cpu=2",                          {},                   {"cpu": 2.0001},
        ["Insufficient CPU: worker has 2.0000 available, task requires 2.0001"]),
    "as many as it takes, to the byte":          ("memory=1GB",                     {},                   {"memory": "1000000001B"},
        ["Insufficient Memory: worker has 1.000000000 GB available, task requires 1.000000001 GB"]),
    "never the same on both sides":              ("cpu=3.001",                      {},                   {"cpu": 3.004},
        ["Insufficient CPU: worker has 3.001 available, task requires 3.004"]),
    "never more than there is":                  ("cpu=3 memory=25276793984B",      {"cpu": 0.005},       {"cpu": 3, "memory": "1TB"},
        ["Insufficient CPU: worker has 2.99 available, task requires 3.00",
         "Insufficient Memory: worker has 25.27 GB available, task requires 1000.00 GB"]),
}  # fmt: skip


@pytest.mark.parametrize(("has", "held", "asked", "reasons"), REASONS.values(), ids=REASONS)
def test_t7_a_refusal_says_what_is_missing_in_the_seeds_words(has, held, asked, reasons):
    seen = snapshot(n1=has)
    if held:
        hold(seen, "n1", **held)
    refused = refusal(seen, **asked)
    assert refused.reasons() == {"n1": reasons}
    wanted = request_text(Request.of(**asked).resources)
    assert refused.sentence() == f"no room for {wanted}: n1: {reasons[0]}"


def test_two_amounts_that_differ_are_never_told_as_the_same():
    for resource in ("cpu", "memory", "disk", "fpga", "gpu_memory"):
        for required in (1, 2, UNIT, 10**9 + 1, 10**15 + 1, MOST - 1, MOST):
            words = str(Shortfall(resource, required - 1, required)).split()
            numbers = [word for word in words if word[0].isdigit()]
            assert len(set(numbers)) == 2, f"{required} parts of {resource}: {numbers}"


def test_an_explanation_over_several_nodes_puts_the_node_before_each():
    seen = snapshot(a="cpu=1", b="cpu=2")
    assert refusal(seen, cpu=3).sentence() == (
        "no room for cpu=3: "
        "a: Insufficient CPU: worker has 1.00 available, task requires 3.00; "
        "b: Insufficient CPU: worker has 2.00 available, task requires 3.00"
    )


def test_only_permitted_nodes_are_explained():
    seen = snapshot(a="cpu=1", b="cpu=2")
    assert list(refusal(seen, cpu=3, node="b").reasons()) == ["b"]
    assert list(refusal(seen, cpu=3, exclude="b").reasons()) == ["a"]
    refused = refusal(seen, cpu=1, exclude=["a", "b"])
    assert refused.sentence() == "no room for cpu=1: no node is permitted"
    assert isinstance(refused.error(), NeverFits)


def test_a_node_that_takes_no_work_says_so():
    seen = snapshot(a="cpu=9", b="cpu=9", c="cpu=9", d="cpu=9")
    hold(seen, "d", cpu=5)
    seen.ledger.register(Node.of("d", cpu=1))
    seen.ledger.set_draining("a", True)
    seen.ledger.set_health("b", Health.DOWN, now=NOW)
    seen.ledger.set_health("c", Health.SUSPECT, now=NOW)
    assert refusal(seen, cpu=1).reasons() == {
        "a": ["the node is draining"],
        "b": ["the node is down"],
        "c": ["the node is suspect"],
        "d": ["the node is overcommitted: more is allocated than it has"],
    }


def test_strangers_are_named_in_explanations():
    seen = snapshot(Node.of("a", gpus=gpus(24)), foreign={"a/0": 20 * GB})
    hold(seen, "a", gpu_memory="2GB")
    assert refusal(seen, gpu_memory="8GB").reasons()["a"] == [
        "Insufficient GPU Memory: worker has 2.00 GB available on one device, task requires 8.00 GB",
        "processes outside the grid use 20.00 GB of device a/0",
    ]


def test_a_large_cluster_is_not_told_node_by_node():
    seen = snapshot(*(Node.of(f"n{n:04}", cpu=1) for n in range(250)))
    refused = refusal(seen, cpu=2)
    assert len(refused.reasons()) == 100
    assert refused.unnamed == 150
    assert refused.sentence().endswith("; and 245 more nodes")
    assert refused.sentence().count("Insufficient CPU") == 5


NO_DEVICE_HAS_BOTH = {
    "share on one device, memory on the other": (
        Node.of("a", gpus=gpus(24, 24)),
        [{"gpu_memory": "24GB"}, {"gpu": 0.9, "gpu_memory": "1GB"}],
        {"gpu": 0.25, "gpu_memory": "8GB"},
    ),
    "a share of devices of different sizes": (
        Node.of("a", gpus=gpus(24, 80)),
        [{"gpu_memory": "20GB"}, {"gpu_memory": "60GB"}],
        {"gpu": 0.5},
    ),
}


@pytest.mark.parametrize(
    ("node", "held", "asked"), NO_DEVICE_HAS_BOTH.values(), ids=NO_DEVICE_HAS_BOTH
)
def test_a_refusal_never_says_that_more_is_available_than_required(node, held, asked):
    seen = snapshot(node)
    for one in held:
        hold(seen, "a", **one)
    for reason in refusal(seen, **asked).reasons()["a"]:
        numbers = [float(word) for word in reason.split() if word[0].isdigit()]
        assert len(numbers) < 2 or numbers[0] < numbers[1], reason


# ---- now, ever, unknown


def test_no_room_now_is_not_never():
    seen = snapshot(a="cpu=4", b="cpu=2")
    held = hold(seen, "a", cpu=3)
    now = refusal(seen, cpu=4).error()
    assert type(now) is NoRoom
    assert now.code == "no_room"
    assert now.refusal.ever
    never = refusal(seen, cpu=5).error()
    assert type(never) is NeverFits
    assert never.code == "never_fits"
    assert not never.refusal.ever
    assert "Waiting will not help" in never.hint
    seen.ledger.move(held.id, AllocationMove.RELEASE, now=NOW)
    assert where(seen, cpu=4) == "a"


LATER = {
    "draining": lambda ledger: ledger.set_draining("a", True),
    "suspect": lambda ledger: ledger.set_health("a", Health.SUSPECT, now=NOW),
    "down": lambda ledger: ledger.set_health("a", Health.DOWN, now=NOW),
}


@pytest.mark.parametrize("change", LATER.values(), ids=LATER)
def test_a_node_that_may_come_back_is_not_never(change):
    seen = snapshot(a="cpu=4")
    change(seen.ledger)
    assert type(refusal(seen, cpu=4).error()) is NoRoom


def test_a_device_that_may_be_well_again_is_not_never():
    sick = Gpu("a/0", memory_bytes=24 * GB, health=GpuHealth.SICK)
    assert type(refusal(snapshot(Node.of("a", gpus=[sick])), gpu=1).error()) is NoRoom


def test_a_stranger_who_may_leave_is_not_never():
    seen = snapshot(Node.of("a", gpus=gpus(24)), foreign={"a/0": GB})
    assert type(refusal(seen, gpu=1).error()) is NoRoom


def test_g2_40_gb_of_one_device_on_two_of_24_never_fit():
    seen = snapshot(Node.of("a", gpus=gpus(24, 24)))
    assert type(refusal(seen, gpu_memory="40GB").error()) is NeverFits
    assert type(refusal(seen, gpu=3).error()) is NeverFits


def test_an_alternative_that_could_fit_later_is_not_never():
    seen = snapshot(a="cpu=4")
    hold(seen, "a", cpu=3)
    assert type(refusal(seen, cpu=9, alternatives=[{"cpu": 4}]).error()) is NoRoom
    assert type(refusal(seen, cpu=9, alternatives=[{"cpu": 8}]).error()) is NeverFits


def test_p8_an_empty_cluster_refuses_with_a_reason():
    error = refusal(snapshot(), cpu=1).error()
    assert isinstance(error, NoRoom)
    assert str(error) == "no room for cpu=1: there are no nodes"
    assert error.hint == "Register a node first."
    assert error.refusal.reasons() == {}


#    asked, and what was probably meant
UNKNOWN = {
    "gpu_memry": "gpu_memory",
    "GPU_Memory": "gpu_memory",
    "cpus": "cpu",
    "memmory": "memory",
    "fgpa": "fpga",
    "xyzzy": None,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_resource_that_no_node_has_is_refused_with_the_nearest_name(name):
    seen = snapshot(Node.of("a", cpu=4, fpga=1), Node.of("b", cpu=4))
    error = refusal(seen, cpu=1, **{name: 1}).error()
    assert type(error) is UnknownResource
    meant = f"; did you mean {UNKNOWN[name]}?" if UNKNOWN[name] else ""
    assert str(error) == f"no node has a resource named '{name}'{meant}"
    assert error.nearest == UNKNOWN[name]
    assert "fpga" in error.hint


def test_a_resource_that_some_node_has_is_known_even_where_it_is_not_permitted():
    seen = snapshot(Node.of("a", cpu=4, fpga=1), Node.of("b", cpu=4))
    assert type(refusal(seen, fpga=1, node="b").error()) is NeverFits
    assert type(refusal(seen, fpga=2).error()) is NeverFits
    hold(seen, "a", fpga=1)
    assert type(refusal(seen, fpga=1).error()) is NoRoom


def test_the_resources_everyone_knows_are_never_unknown():
    seen = snapshot(a="cpu=4")
    for name in ("memory", "disk", "gpu", "gpu_memory", "bandwidth"):
        assert type(refusal(seen, **{name: 1}).error()) is NeverFits


def test_a_settled_refusal_does_not_change_with_the_ledger():
    seen = snapshot(a="cpu=4")
    held = hold(seen, "a", cpu=3)
    settled, lazy = refusal(seen, cpu=2).settled(), refusal(seen, cpu=2)
    before = settled.sentence()
    assert lazy.sentence() == before
    hold(seen, "a", cpu=1)
    assert settled.sentence() == before
    assert "has 0.00 available" in lazy.sentence()
    seen.ledger.move(held.id, AllocationMove.RELEASE, now=NOW)
    assert settled.sentence() == before


# ---- I8 and I9: an independent judge

AMOUNTS = st.sampled_from([0, 1, 5000, UNIT, 2 * UNIT, 3 * UNIT])
SIZES = st.sampled_from([0, GB, 8 * GB, 24 * GB])
LABELS = st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"), max_size=2)
NAMES = st.sampled_from(["n1", "n2", "n3", "n10"])
MODELS = st.sampled_from(["A100", "T4", ""])
VERSIONS = st.sampled_from([None, (7, 5), (9, 0), (10, 0)])


@st.composite
def asks(draw):
    """What is asked, as plain parts: the judge and the request are both made from it."""
    ask = {
        "amounts": {
            name: amount for name in ("cpu", "memory", "fpga") if (amount := draw(AMOUNTS))
        },
        "gpu": draw(st.sampled_from([0, 0, 2500, 5000, UNIT, 2 * UNIT])),
        "gpu_memory": draw(st.sampled_from([0, 0, GB, 8 * GB, 20 * GB])),
        "gpu_model": None,
        "gpu_capability": None,
        "node": draw(st.none() | st.sampled_from(["n1", "n2"])),
        "exclude": draw(st.lists(NAMES, max_size=2, unique=True)),
        "labels": draw(LABELS),
    }
    if ask["gpu"] or ask["gpu_memory"]:
        ask["gpu_model"] = draw(st.sampled_from([None, None, "A100", "t4"]))
        capability = draw(VERSIONS)
        ask["gpu_capability"] = None if capability is None else list(capability)
    elif not ask["amounts"]:
        ask["amounts"] = {"cpu": UNIT}
    if ask["node"] in ask["exclude"]:
        ask["node"] = None
    return ask


def requested(ask, prefer=()):
    amounts = Resources(ask["amounts"] | {"gpu": ask["gpu"], "gpu_memory": ask["gpu_memory"]})
    capability = ask["gpu_capability"]
    return Request.of(
        amounts,
        gpu_model=ask["gpu_model"],
        gpu_capability=None if capability is None else ".".join(map(str, capability)),
        node=ask["node"],
        prefer=prefer,
        exclude=ask["exclude"],
        labels=ask["labels"],
    )


@st.composite
def clusters(draw):
    nodes = []
    for name in ("n1", "n2", *draw(st.lists(st.sampled_from(["n3", "n10"]), unique=True))):
        devices = tuple(
            Gpu(
                f"{name}/{index}",
                index,
                draw(MODELS),
                draw(SIZES),
                draw(VERSIONS),
                draw(st.sampled_from([GpuHealth.OK] * 3 + [GpuHealth.SICK])),
            )
            for index in range(draw(st.integers(0, 3)))
        )
        capacity = {key: amount for key in ("cpu", "memory", "fpga") if (amount := draw(AMOUNTS))}
        nodes.append(Node(name, Resources(capacity), devices, labels=draw(LABELS)))
    return nodes


def filled(nodes, held, foreign, closed):
    """A snapshot with some things held where they fit, and one node that takes nothing."""
    seen = snapshot(*nodes, foreign={id: n for id, n in foreign.items() if n})
    for ask in held:
        placed = place(requested(ask), seen, best_fit)
        if isinstance(placed, Placement):
            seen.ledger.grant([placed], ANN, now=NOW)
    if closed == "drained":
        seen.ledger.set_draining("n1", True)
    if closed == "shrunk":
        seen.ledger.register(Node("n1", Resources({"cpu": 1}), nodes[0].gpus))
    return seen


def decided(seen, ask, strategy, prefer=()):
    placed = place(requested(ask, prefer), seen, strategy)
    if isinstance(placed, Refusal):
        return None
    return {"node": placed.node, "devices": [device_row(hold) for hold in placed.devices]}


FOREIGN = st.dictionaries(st.sampled_from(["n1/0", "n1/1", "n2/0"]), SIZES, max_size=2)
CLOSED = st.sampled_from([None, None, "drained", "shrunk"])
STRATEGY = st.sampled_from(list(STRATEGIES.values()))
PREFER = st.lists(NAMES, max_size=2)


@settings(max_examples=examples(80))
@given(clusters(), st.lists(asks(), max_size=6), asks(), FOREIGN, CLOSED, STRATEGY, PREFER)
def test_i9_no_decision_breaks_a_constraint_or_refuses_what_fits(
    nodes, held, ask, foreign, closed, strategy, prefer
):
    seen = filled(nodes, held, foreign, closed)
    before = dump(seen.ledger, seen.foreign, now=NOW)
    outcome = decided(seen, ask, strategy, prefer)
    assert check_decision(before, ask, outcome) == []
    assert dump(seen.ledger, seen.foreign, now=NOW) == before  # deciding changes nothing
    if outcome is None:
        refused = place(requested(ask), seen, strategy)
        assert all(refused.reasons().values())  # every permitted node says what it lacks
        assert isinstance(refused.error(), NoRoom | UnknownResource)


@settings(max_examples=examples(40))
@given(
    clusters(),
    st.lists(asks(), min_size=1, max_size=6),
    STRATEGY,
    PREFER,
    st.randoms(use_true_random=False),
)
def test_i8_the_same_input_gives_the_same_placement_whatever_the_order(
    nodes, asked, strategy, prefer, chance
):
    def decide(order):
        seen = snapshot(*order)
        outcomes = []
        for ask in asked:
            outcomes.append(decided(seen, ask, strategy, prefer))
            placed = place(requested(ask, prefer), seen, strategy)
            if isinstance(placed, Placement):
                seen.ledger.grant([placed], ANN, now=NOW)
        return outcomes

    variants = [list(nodes), list(reversed(nodes)), chance.sample(nodes, len(nodes))]
    assert check_determinism(decide, variants) == []


def test_i8_the_order_of_names_in_a_request_does_not_matter():
    seen = snapshot(a="cpu=8 memory=8000 fpga=4", b="cpu=9 memory=7000 fpga=5")
    amounts = {"cpu": 1, "memory": 100, "fpga": 1}
    chance = random.Random(1)
    went = set()
    for _ in range(10):
        items = list(amounts.items())
        chance.shuffle(items)
        went.add(where(seen, **dict(items)))
    assert len(went) == 1
