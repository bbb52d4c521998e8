"""What a replay counts, on clusters small enough to count by hand."""

import random

import pytest

from gridhand.core.ledger.allocations import Terms
from gridhand.core.ledger.ledger import Ledger, Placement
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.core.placement.place import place
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import strategy_named
from gridhand.simulate.arrivals import Arrival, Demand
from gridhand.simulate.churn import churn
from gridhand.simulate.compare import chosen, compare
from gridhand.simulate.inputs import SimulatedTask
from gridhand.simulate.replay import SimulatedCluster, fill, mix_of, percent_of
from gridhand.simulate.tally import Tally


def tasks_of(*asked):
    known = {text: Request.of(text) for text in asked}
    return [SimulatedTask(f"t{number}", known[text]) for number, text in enumerate(asked)]


def filled(node, *asked, load=2.0, strategy="best_fit"):
    nodes, tasks = [Node.of("a", node)], tasks_of(*asked)
    demand = Demand(Tally(nodes), tasks)
    return fill(nodes, tasks, demand, strategy, load=load, mix=mix_of(tasks))


def test_a_cluster_fills():
    run = filled(
        "cpu=4 gpu=2",
        "gpu=0.5 cpu=1",  # 25 %: half a device
        "gpu=1 cpu=1",  # 75 %: the other device
        "gpu=1 cpu=1",  # 125 %: no device is whole
        "gpu=0.5 cpu=1",  # 150 %: the other half
        "gpu=0.5 cpu=2",  # 175 %: neither GPU nor CPU, but more of the CPU
    )
    assert len(run.curve["gpu"]) == 201
    percents = [0, 24, 25, 74, 75, 100, 125, 149, 150, 175, 200]
    assert [run.curve["gpu"][percent] for percent in percents] == [
        0, 0, 0.25, 0.25, 0.75, 0.75, 0.75, 0.75, 1.0, 1.0, 1.0,
    ]  # fmt: skip
    assert run.curve["cpu"][150] == 0.75
    assert run.curve["memory"][150] is None
    assert run.end == {"gpu": 1.0, "cpu": 0.75, "memory": None}
    assert (run.arrived, run.failed, dict(run.failed_by)) == (5, 2, {"gpu": 2})
    assert run.decisions == 5
    assert run.seconds > 0
    assert run.fragmentation == 0.0  # nothing is idle
    assert sorted(held.number for held in run.held) == [1, 2, 4]
    assert run.mean == {}


def test_the_mean_is_over_the_arrivals_that_round_to_a_percent():
    run = filled("cpu=1000", *["cpu=4"] * 4, load=0.02)
    assert run.curve["cpu"] == pytest.approx([0.004, (0.008 + 0.012) / 2, 0.016])
    assert filled("cpu=200", "cpu=1", load=0.02).curve["cpu"] == [0.0, 0.005, 0.005]  # half is up
    assert run.end["cpu"] == 0.016


@pytest.mark.parametrize(("load", "percent"), [(1.15, 115), (1.3, 130), (0.29, 29), (0.999, 99)])
def test_the_last_percent_of_a_load(load, percent):
    assert percent_of(load) == percent


def test_every_arrival_is_learned_once_before_it_is_placed(monkeypatch):
    calls = []
    monkeypatch.setattr(Snapshot, "learn", lambda self, asked: calls.append(("learn", asked)))

    def placing(asked, *rest):
        calls.append(("place", asked))
        return place(asked, *rest)

    monkeypatch.setattr("gridhand.simulate.replay.place", placing)
    filled("cpu=4", "cpu=3", "cpu=2")
    three, two = Request.of(cpu=3), Request.of(cpu=2)
    assert calls == [("learn", three), ("place", three), ("learn", two), ("place", two)]


def test_what_is_held_is_kept_where_it_can_be_drawn():
    for count, kept in ((24, 1), (25, 0)):
        cluster = SimulatedCluster(
            [Node.of(f"n{number}", cpu=1) for number in range(count)], "best_fit"
        )
        cluster.arrive(Request.of(cpu=1), 0)
        assert len(cluster.finish().held) == kept


def test_memory_of_a_device_counts_as_a_part_of_it():
    run = filled("gpu=2 gpu_memory=16GB cpu=1", "gpu_memory=4GB", "gpu=2 gpu_memory=8GB")
    assert run.end["gpu"] == pytest.approx((0.25 + 0.5 + 0.5) / 2)


def test_an_alternative_counts_as_what_it_is():
    run = filled("cpu=8 gpu=1", "gpu=1 cpu=1", "gpu=1 cpu=1")
    assert run.failed == 1
    nodes = [Node.of("a", "cpu=8 gpu=1")]
    tasks = [SimulatedTask(name, Request.of(gpu=1, cpu=2, fallback="cpu")) for name in "xy"]
    run = fill(nodes, tasks, Demand(Tally(nodes), tasks), "best_fit", load=2, mix=mix_of(tasks))
    assert run.failed == 0
    assert run.end == {"gpu": 1.0, "cpu": 0.5, "memory": None}


NODES = {
    "a": {"cpu": 4, "memory": "4GB", "gpus": [{"model": "T4", "memory": "16GB"}] * 2},
    "b": {"cpu": 8, "memory": "8GB", "labels": {"zone": "x"}},
}
#    what it shows                                 what is held        what is asked                              cause
CAUSES = {
    "the only thing missing":                     ([],                {"cpu": 9},                                "cpu"),
    "the nearest miss, not the largest node":     ([("b", "cpu=8")],  {"cpu": 5},                                "cpu"),
    "memory":                                     ([],                {"cpu": 1, "memory": "9GB"},               "memory"),
    "the nearest has CPU but too little memory":  ([("b", "cpu=8")],  {"cpu": 4, "memory": "5GB"},               "memory"),
    "no device is whole":                         ([("a", "gpu=0.5"), ("a", "gpu=0.6")], {"gpu": 1},             "gpu"),
    "too few devices":                            ([],                {"gpu": 3},                                "gpu"),
    "a share":                                    ([("a", "gpu=0.5"), ("a", "gpu=0.6")], {"gpu": 0.7},           "gpu"),
    "a GPU is there, but its CPUs are gone":      ([("a", "cpu=4")],  {"gpu": 1, "cpu": 2},                      "cpu"),
    "a CPU is missing by a hair, a GPU wholly":   ([("b", "cpu=1"), ("a", "gpu=2")], {"gpu": 1, "cpu": 4.1},     "gpu"),
    "devices with a little memory held on each": ([("a", "gpu=2 gpu_memory=1GB")], {"gpu": 1},                   "gpu"),
    "a share is missing by a hair, more of CPU":  ([("a", "gpu=0.4"), ("a", "gpu=0.7")], {"gpu": 0.7, "cpu": 5}, "cpu"),
    "memory of a device by a hair, more of CPU":  ([("a", "gpu_memory=1GB"), ("a", "gpu_memory=16GB")], {"gpu_memory": "16GB", "cpu": 5}, "cpu"),
    "memory of a device":                         ([],                {"gpu_memory": "20GB"},                    "gpu_memory"),
    "memory of two":                              ([("a", "gpu_memory=9GB")], {"gpu": 2, "gpu_memory": "9GB"},   "gpu_memory"),
    "it would fit on another model":              ([],                {"gpu": 1, "gpu_model": "A100"},           "gpu_model"),
    "there is no such model at all":              ([("a", "gpu=2")],  {"gpu": 1, "gpu_model": "A100"},           "gpu_model"),
    "the right model, but full":                  ([("a", "gpu=2")],  {"gpu": 1, "gpu_model": "T4|A100"},        "gpu"),
    "a capability counts as a model":             ([],                {"gpu": 1, "gpu_capability": "8.0"},       "gpu_model"),
    "it would fit on another node":               ([],                {"cpu": 8, "node": "a"},                   "node"),
    "no node has the label":                      ([],                {"cpu": 1, "labels": {"zone": "y"}},       "node"),
    "excluded":                                   ([],                {"cpu": 8, "exclude": ["b"]},              "node"),
    "pinned, but too much for any":               ([],                {"cpu": 9, "node": "a"},                   "cpu"),
    "what no node has":                           ([],                {"cpu": 1, "disk": "1GB"},                 "disk"),
}  # fmt: skip


@pytest.mark.parametrize(("held", "asked", "cause"), CAUSES.values(), ids=CAUSES)
def test_why_it_failed(held, asked, cause):
    nodes = [Node.of(name, **has) for name, has in NODES.items()]
    ledger, tally = Ledger(), Tally(nodes)
    for node in nodes:
        ledger.register(node)
    for name, text in held:
        hold(ledger, tally, Request.of(text).pinned(name))
    asked = Request.of(**asked)
    assert not tally.fits(asked).any()
    assert not isinstance(place(asked, Snapshot(ledger), strategy_named("best_fit")), Placement)
    assert tally.cause(asked) == cause


def test_another_model_would_have_done():
    nodes = [Node.of(name, gpus=[{"model": name}], cpu=1) for name in ("L4", "T4")]
    ledger, tally = Ledger(), Tally(nodes)
    for node in nodes:
        ledger.register(node)
    hold(ledger, tally, Request.of(gpu=1, gpu_model="T4"))
    assert tally.cause(Request.of(gpu=1, gpu_model="T4")) == "gpu_model"
    assert tally.cause(Request.of(gpu=1, gpu_model="T4", cpu=2)) == "gpu"
    hold(ledger, tally, Request.of(gpu=1))
    assert tally.cause(Request.of(gpu=1, gpu_model="T4")) == "gpu"


def hold(ledger, tally, asked):
    placed = place(asked, Snapshot(ledger), strategy_named("best_fit"))
    if not isinstance(placed, Placement):
        return None
    [held] = ledger.grant([placed], Terms("me"), now=0)
    tally.add(held.node, held.amounts, held.devices)
    return held


#    what it shows                                      held                the mix                                     of two GPUs
FRAGMENTS = {
    "all of an empty node is of use":                  ("memory=1GB",       {"gpu=1 cpu=1": 1},                         0.0),
    "a broken device is of no use to whole ones":      ("gpu=0.5",          {"gpu=1 cpu=1": 1},                         0.5),
    "nothing is, if the CPUs are gone":                ("gpu=0.5 cpu=4",    {"gpu=1 cpu=1": 1},                         1.5),
    "two devices need two":                            ("gpu=0.5",          {"gpu=2": 1},                               1.5),
    "a small share uses the rest, too":                ("gpu=0.5",          {"gpu=0.5": 1},                             0.0),
    "a larger one does not":                           ("gpu=0.5",          {"gpu=0.6": 1},                             0.5),
    "the mean is over the tasks":                      ("gpu=0.5",          {"gpu=1": 3, "gpu=0.5": 1},                 0.375),
    "what asks for no GPU does not count":             ("gpu=0.5",          {"gpu=1": 1, "cpu=9": 100},                 0.5),
    "nothing is idle":                                 ("gpu=2",            {"gpu=1": 1},                               0.0),
    "there is nobody to ask":                          ("gpu=0.5",          {"cpu=1": 1},                               None),
}  # fmt: skip


@pytest.mark.parametrize(("held", "mix", "lost"), FRAGMENTS.values(), ids=FRAGMENTS)
def test_fragmentation(held, mix, lost):
    node = Node.of("a", cpu=4, memory="4GB", gpu=2)
    ledger, tally = Ledger(), Tally([node])
    ledger.register(node)
    assert hold(ledger, tally, Request.of(held))
    found = tally.unusable({Request.of(text): count for text, count in mix.items()})
    assert found == (None if lost is None else pytest.approx(lost / 2))


def random_request(chance):
    asked = {"cpu": chance.choice([1, 2, 4])}
    if chance.random() < 0.7:
        asked["gpu"] = chance.choice([0.25, 0.5, 0.7, 1, 2, 3])
        if chance.random() < 0.3:
            asked["gpu_model"] = chance.choice(["T4", "T4|A100", "L4"])
    if chance.random() < 0.3:
        asked["gpu_memory"] = chance.choice(["2GB", "8GB"])
        asked["gpu"] = chance.choice([0.25, 1, 2])
    if chance.random() < 0.2:
        asked["exclude"] = ["n1", "n3"]
    return Request.of(**asked)


@pytest.mark.parametrize("seed", range(6))
def test_the_tally_agrees_with_the_ledger_and_with_placement(seed):
    chance = random.Random(seed)
    nodes = [
        Node.of(f"n{n}", cpu=8 + n, gpus=[{"model": ["T4", "A100"][n % 2], "memory": "16GB"}] * n)
        for n in range(5)
    ]
    ledger, tally = Ledger(), Tally(nodes)
    for node in nodes:
        ledger.register(node)
    live, refused = [], 0
    for _ in range(150):
        asked = random_request(chance)
        fits = tally.fits(asked).any()
        held = hold(ledger, tally, asked)
        assert (held is not None) == fits
        refused += held is None
        live += [held] if held else []
        if live and chance.random() < 0.45:
            gone = live.pop(chance.randrange(len(live)))
            ledger.move(gone.id, "release", now=0)
            tally.add(gone.node, gone.amounts, gone.devices, sign=-1)
    assert 0 < refused < 150
    used = sum(use.held.get("cpu", 0) for use in ledger.nodes.values())
    assert tally.allocation("cpu") == used / tally.capacity["cpu"]


def test_the_average_over_time():
    four, eight = Request.of(cpu=4), Request.of(cpu=8)
    coming = [
        Arrival(0.0, SimulatedTask("a", four), 10.0),
        Arrival(3.0, SimulatedTask("b", eight), 99.0),  # no room, and not counted yet
        Arrival(5.0, SimulatedTask("c", eight), 99.0),  # no room
        Arrival(12.0, SimulatedTask("d", eight), 4.0),
    ]
    run = churn([Node.of("a", cpu=10)], coming, "best_fit", warm_up_s=4, end_s=20, mix={four: 1})
    assert run.mean == {
        "gpu": None,
        "cpu": pytest.approx((4 * 6 + 8 * 4) / 16 / 10),
        "memory": None,
    }
    assert (run.arrived, run.failed, dict(run.failed_by)) == (2, 1, {"cpu": 1})
    assert run.decisions == 4
    assert run.end["cpu"] == 0.0
    assert run.held == []
    assert len(run.curve["cpu"]) == 100
    times = [5, 10, 11, 13, 17]  # what was there just before
    assert [run.curve["cpu"][5 * time - 1] for time in times] == [0.4, 0.4, 0.0, 0.8, 0.0]
    assert run.fragmentation is None


def test_what_leaves_as_another_arrives_makes_room_for_it():
    eight = Request.of(cpu=8)
    coming = [
        Arrival(0.0, SimulatedTask("a", eight), 5.0),
        Arrival(5.0, SimulatedTask("b", eight), 50.0),
    ]
    run = churn([Node.of("a", cpu=8)], coming, "best_fit", warm_up_s=0, end_s=10, mix={})
    assert (run.failed, run.mean["cpu"]) == (0, 1.0)
    assert [held.number for held in run.held] == [2]


def test_fragmentation_over_time_is_that_of_the_measured_part():
    half, one = Request.of(gpu=0.5), Request.of(gpu=1)
    coming = [
        Arrival(0.0, SimulatedTask("a", half), 99.0),
        Arrival(8.0, SimulatedTask("b", half), 99.0),
    ]
    run = churn([Node.of("a", gpu=1)], coming, "best_fit", warm_up_s=4, end_s=12, mix={one: 1})
    # Looked at every 1.2 s from 4.8 on: three times half of the device is of no use, then it is full.
    assert run.fragmentation == pytest.approx(0.5 * 3 / 7)


NODES_OF_THREE = [Node.of(name, cpu=8, gpu=2) for name in "abc"]
MIXED = tasks_of("gpu=0.5 cpu=1", "gpu=1 cpu=3", "gpu=2 cpu=2", "cpu=1", "gpu=0.25 cpu=2")


@pytest.mark.parametrize("departures", [False, True])
def test_the_same_seed_gives_the_same(departures, monkeypatch):
    monkeypatch.setattr("gridhand.simulate.arrivals.LEAST_TURNOVER", 50)

    def figures(seeds):
        runs = compare(
            NODES_OF_THREE, MIXED, ["best_fit", "spread"], load=1.3, seeds=seeds,
            departures=departures,
        )  # fmt: skip
        return {
            name: [(run.curve, run.end, run.mean, run.failed_by, run.held) for run in found]
            for name, found in runs.items()
        }

    first = figures([1, 2])
    assert figures([1, 2]) == first
    assert figures([2])["spread"] == first["spread"][1:]
    assert first["best_fit"][0] != first["best_fit"][1]
    assert first["best_fit"] != first["spread"]


def test_a_stream_that_fits_is_placed_whole():
    tasks = [SimulatedTask("t", Request.of(cpu=1), 10.0)]
    [run] = compare(
        [Node.of("a", cpu=200)], tasks, ["best_fit"], load=0.5, seeds=[1], departures=True
    )["best_fit"]
    assert run.failed == 0
    assert run.mean["cpu"] == pytest.approx(0.5, abs=0.03)


def test_progress_is_told():
    told = []
    compare(
        NODES_OF_THREE, tasks_of(*["gpu=0.01"] * 50), ["best_fit", "spread"], load=1.0, seeds=[1, 2],
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert told[0] == (64, 2400)  # 6 GPUs, 600 arrivals, two strategies, two seeds
    assert told[-1] == (2368, 2400)


def test_which_strategies_are_run():
    with_gpus, without = NODES_OF_THREE, [Node.of("a", cpu=1)]
    assert chosen([], without) == ["best_fit"]
    assert chosen([], with_gpus) == ["fragmentation"]
    assert chosen(["spread", "best_fit", "spread"], without) == ["spread", "best_fit"]
    every = chosen(["best_fit", "all"], without)
    assert every[0] == "best_fit"
    assert len(every) == len(set(every))
    assert {"best_fit", "first_available", "spread", "fragmentation"} <= set(every)
