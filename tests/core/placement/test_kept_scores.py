"""Scores that are kept, and the arrays behind them, against the plain way to work them out.

Two snapshots see the same ledger through the same changes. One loops over nodes as small clusters
do; the other uses arrays and rescored rows as large ones do. They must agree to the last bit, and
with a third that has kept nothing.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_budget import examples
from gridhand.audit import check_decision
from gridhand.core.explain.refusal import Refusal
from gridhand.core.ledger.allocations import AllocationMove, Terms
from gridhand.core.ledger.change_log import ChangeLog
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.ledger.status import dump
from gridhand.core.model.host_use import HostUse
from gridhand.core.model.nodes import ENGINE_LABEL, Node
from gridhand.core.model.requests import Request, Tie
from gridhand.core.placement import snapshot as placement
from gridhand.core.placement.place import place
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import STRATEGIES
from gridhand.core.rows.ledger import device_row

GB = 10**9


def some_node(draw, index):
    gpus = [
        {
            "model": draw.choice("AB"),
            "memory": draw.choice([0, "16GB", 17, "24GB"]),
            "capability": draw.choice([None, "7.5", "8.0"]),
            "health": draw.choice(["ok"] * 6 + ["sick"]),
        }
        for _ in range(draw.choice([0, 0, 1, 2, 4, 9]))
    ]
    return Node.of(
        f"n{index:03}",
        cpu=draw.choice([2, 4, 8]),
        memory=draw.choice([4000, 8000]),
        gpus=gpus,
        price=draw.choice([0, 1, 2.5]),
        labels=draw.choice([{}, {"zone": "a"}, {"zone": "b"}, {ENGINE_LABEL: "external"}]),
    )


GPU_ASKS = [
    {"gpu": 1}, {"gpu": 2}, {"gpu": 4}, {"gpu": 0.1}, {"gpu": 0.3333}, {"gpu": 0.5},
    {"gpu_memory": "4GB"}, {"gpu_memory": 5}, {"gpu": 2, "gpu_memory": "4GB"},
    {"gpu": 3, "gpu_memory": 3}, {"gpu": 0.25, "gpu_memory": "6GB"},
]  # fmt: skip


def some_ask(draw):
    asked = {"cpu": draw.choice([0.5, 1, 2])} if draw.random() < 0.8 else {"memory": 500}
    if draw.random() < 0.5:
        asked["memory"] = draw.choice([500, 1000])
    if draw.random() < 0.7:
        asked |= draw.choice(GPU_ASKS)
        if draw.random() < 0.3:
            asked["gpu_model"] = draw.choice(["A", "b", "a|B"])
        if draw.random() < 0.2:
            asked["gpu_capability"] = "7.5"
    if draw.random() < 0.2:
        asked["labels"] = {"zone": draw.choice("ab")}
    if draw.random() < 0.2:
        asked["exclude"] = [f"n{draw.randrange(8):03}"]
    if draw.random() < 0.2:
        asked["prefer"] = [f"n{draw.randrange(8):03}", "n999"]
    if draw.random() < 0.2:
        asked["tied_to"] = draw.choice(list(Tie))
    return asked


def request_of(asked):
    given = dict(asked)
    tie = given.pop("tied_to", None)
    return Request.of(**given) if tie is None else Request.of(**given).tied(tie)


def plain(asked):
    """The request as `check_decision` reads it."""
    request = request_of(asked)
    gpu = request.gpu
    return {
        "amounts": request.amounts.parts(),
        "gpu": gpu.resources()["gpu"]
        if gpu and gpu.share
        else (gpu.devices * 10_000 if gpu else 0),
        "gpu_memory": (gpu.memory_bytes or 0) if gpu else 0,
        "gpu_model": gpu.model if gpu else None,
        "gpu_capability": list(gpu.capability) if gpu and gpu.capability else None,
        "node": request.node,
        "exclude": sorted(request.exclude),
        "labels": dict(request.labels),
        "tied_to": request.tied_to,
    }


class Both:
    """One ledger, seen by a snapshot that loops and by one that uses arrays."""

    def __init__(self, draw, monkeypatch):
        self.draw, self.patch = draw, monkeypatch
        self.ledger = Ledger()
        for index in range(draw.randint(1, 10)):
            self.ledger.register(some_node(draw, index))
        self.looping = Snapshot(self.ledger)
        self.arrays = Snapshot(self.ledger, mix=self.looping.mix)
        self.arrays.foreign = self.looping.foreign
        self.arrays.host_use = self.looping.host_use
        self.live = []

    def through(self, snapshot, call):
        few = 0 if snapshot is self.arrays else 10**6
        self.patch.setattr(placement, "SMALL_CLUSTER", few)
        few = self.draw.choice([0, 0, 2]) if few == 0 else few
        self.patch.setattr(placement, "_FEW_ROWS", few)
        self.patch.setattr(placement, "_FEW_PLAIN_ROWS", few)
        return call(snapshot)

    def decide(self, asked, strategy):
        request = request_of(asked)
        self.looping.learn(request)
        one, other = (
            self.through(snapshot, lambda seen: place(request, seen, strategy))
            for snapshot in (self.looping, self.arrays)
        )
        kept, vectors = (
            [
                float(score)
                for score in self.through(snapshot, lambda seen: seen.scores(request, strategy))
            ]
            for snapshot in (self.looping, self.arrays)
        )
        assert kept == vectors
        fresh = Snapshot(
            self.ledger,
            self.looping.foreign,
            mix=self.looping.mix,
            host_use=self.looping.host_use,
        )
        assert kept == self.through(fresh, lambda seen: list(seen.scores(request, strategy)))
        others = self.looping.host_use
        state = dump(self.ledger, self.looping.foreign, now=0, host_use=others)
        if isinstance(one, Refusal):
            assert isinstance(other, Refusal)
            assert check_decision(state, plain(asked), None) == []
            return
        assert one == other
        devices = [device_row(hold) for hold in one.devices]
        outcome = {"node": one.node, "devices": devices}
        assert check_decision(state, plain(asked), outcome) == []
        self.live += self.ledger.grant([one], Terms("me"), now=0)

    def disturb(self):
        draw, ledger = self.draw, self.ledger
        while self.live and draw.random() < 0.45:
            ledger.move(
                self.live.pop(draw.randrange(len(self.live))).id, AllocationMove.RELEASE, now=0
            )
        name = draw.choice(ledger.names)
        match draw.randrange(20):
            case 0:
                ledger.set_draining(name, draw.random() < 0.5)
            case 1:
                used = {id: draw.choice([0, GB]) for id in ledger.nodes[name].devices}
                self.looping.set_foreign(name, used)
            case 2:
                ledger.register(some_node(draw, draw.randrange(15)))
            case 3 if len(ledger.names) > 1 and not ledger.nodes[name].allocations:
                ledger.unregister(name, now=0)
            case 4 | 5:
                used = HostUse(draw.choice([0, 10_000, 50_000]), draw.choice([0, 2 * GB, 6 * GB]))
                self.looping.set_host_use(name, used)
            case 6:
                mark = ledger.mark()
                self.decide({"cpu": 0.5}, STRATEGIES["pack"])
                del self.live[-(ledger.mark() > mark) or len(self.live) :]
                ledger.rollback(mark)


@settings(max_examples=examples(15))
@given(st.randoms(use_true_random=False))
def test_kept_scores_are_those_worked_out_anew(draw):
    with pytest.MonkeyPatch.context() as patch:
        both = Both(draw, patch)
        asks = [some_ask(draw) for _ in range(5)]
        for _ in range(40):
            both.decide(draw.choice(asks), STRATEGIES[draw.choice(sorted(STRATEGIES))])
            both.disturb()


@settings(max_examples=examples(15))
@given(st.randoms(use_true_random=False))
def test_the_order_in_which_nodes_came_changes_nothing(draw):
    nodes = [some_node(draw, index) for index in range(8)]
    asks = [request_of(some_ask(draw)) for _ in range(20)]
    strategy = STRATEGIES[draw.choice(sorted(STRATEGIES))]
    outcomes = []
    for shuffled in (nodes, random.Random(1).sample(nodes, 8)):
        ledger = Ledger()
        for node in shuffled:
            ledger.register(node)
        snapshot, found = Snapshot(ledger), []
        for asked in asks:
            snapshot.learn(asked)
            placed = place(asked, snapshot, strategy)
            if not isinstance(placed, Refusal):
                ledger.grant([placed], Terms("me"), now=0)
                found.append((placed.node, placed.devices))
            else:
                found.append(None)
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]


def test_a_reader_that_is_far_behind_is_told_to_read_everything():
    touched = ChangeLog()
    start = touched.end
    touched.add("a")
    assert list(touched.since(start)) == ["a"]
    for _ in range(100_000):
        touched.add("b")
    assert touched.since(start) is None
    assert touched.end == 100_001
    assert list(touched.since(touched.end)) == []


def large(count=40, **has):
    ledger = Ledger()
    for index in range(count):
        ledger.register(Node.of(f"n{index:04}", **(has or {"cpu": 4})))
    return ledger, Snapshot(ledger)


def test_a_snapshot_far_behind_its_ledger_reads_everything():
    ledger, snapshot = large()
    asked = Request.of(cpu=4)
    assert place(asked, snapshot).node == "n0000"
    held = ledger.grant([place(asked, snapshot)], Terms("me"), now=0)[0]
    for _ in range(50_000):
        ledger.touched.add("n0039")
    assert place(asked, snapshot).node == "n0001"
    ledger.move(held.id, AllocationMove.RELEASE, now=0)
    assert place(asked, snapshot).node == "n0000"


def test_many_nodes_that_come_at_once_are_all_seen():
    ledger, snapshot = large()
    assert isinstance(place(Request.of(cpu=8), snapshot), Refusal)
    for index in range(100, 140):
        ledger.register(Node.of(f"n{index:04}", cpu=8))
    assert place(Request.of(cpu=8), snapshot).node == "n0100"
    ledger.unregister("n0100", now=0)
    assert place(Request.of(cpu=8), snapshot).node == "n0101"


def test_scores_are_kept_for_so_many_classes_and_no_more(monkeypatch):
    monkeypatch.setattr(placement, "_MOST_SCORES", 400)
    ledger, snapshot = large()
    for parts in range(1, 60):
        assert place(Request.of(cpu=parts / 100), snapshot).node == "n0000"
        assert len(snapshot._kept) <= 10
    ledger.set_draining("n0000", True)
    assert place(Request.of(cpu=0.01), snapshot).node == "n0001"


def test_few_nodes_keep_no_endless_number_of_classes(monkeypatch):
    monkeypatch.setattr(placement, "_MOST_CLASSES", 20)
    _, snapshot = large(2)
    for parts in range(1, 60):
        place(Request.of(cpu=parts / 100), snapshot)
        assert len(snapshot._kept) <= 20


@pytest.mark.parametrize("others", [3, 40])
def test_a_node_that_was_closed_when_the_mix_changed_is_scored_right_when_open(others):
    ledger = Ledger()
    ledger.register(Node.of("c1", cpu=4))
    ledger.register(Node.of("c2", cpu=8))
    for index in range(others):
        ledger.register(Node.of(f"g{index}", cpu=4, gpu=1))
    snapshot = Snapshot(ledger)
    [held] = ledger.grant([place(Request.of(cpu=8, node="c2"), snapshot)], Terms("me"), now=0)
    ledger.register(Node.of("c2", cpu=6))
    place(Request.of(cpu=1, gpu=1), snapshot)
    ledger.move(held.id, AllocationMove.RELEASE, now=0)
    assert place(Request.of(cpu=1), snapshot).node == "c1"


def test_columns_for_resources_and_labels_are_made_when_asked_for(monkeypatch):
    monkeypatch.setattr("gridhand.core.placement.columns.MOST_COLUMNS", 3)
    ledger, snapshot = large(40, cpu=4, a=1, b=1, c=1, d=1, e=1)
    ledger.register(Node.of("n0007", cpu=4, a=2, b=2, c=2, d=2, e=2, labels={"zone": "x"}))
    for name in "abcdeabcde":
        assert place(Request.of({name: 2}), snapshot).node == "n0007"
    assert place(Request.of(cpu=1, labels={"zone": "x"}), snapshot).node == "n0007"
    ledger.register(Node.of("n0003", cpu=4, labels={"zone": "x"}))
    assert place(Request.of(cpu=1, labels={"zone": "x"}), snapshot).node == "n0003"
    assert len(snapshot.columns()._free) <= 3


def test_a_node_with_more_devices_than_any_before_is_seen_whole():
    ledger, snapshot = large(40, cpu=8, gpu=2)
    assert isinstance(place(Request.of(gpu=3), snapshot), Refusal)
    ledger.register(Node.of("n0020", cpu=8, gpu=16))
    assert place(Request.of(gpu=16), snapshot).node == "n0020"
    ledger.register(Node.of("n0020", cpu=8, gpu=1))
    assert isinstance(place(Request.of(gpu=3), snapshot), Refusal)
