"""Requests that need something of the controller's own machine stay on its nodes."""

import pickle

import pytest

from gridhand import Node, Request
from gridhand.core.errors import InvalidRequest
from gridhand.core.explain.explain import explain
from gridhand.core.explain.refusal import Refusal
from gridhand.core.ledger.ledger import Ledger, Placement
from gridhand.core.model.nodes import ENGINE_LABEL
from gridhand.core.model.requests import Tie
from gridhand.core.placement import snapshot as snapshots
from gridhand.core.placement.place import place
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import best_fit
from gridhand.core.rows.requests import request_from_row, request_row

HERE, LAB = Node.of("here", cpu=2), Node.of("lab", cpu=64, labels={ENGINE_LABEL: "external"})


@pytest.fixture(params=["one by one", "with arrays"])
def seen(request, monkeypatch):
    if request.param == "with arrays":
        monkeypatch.setattr(snapshots, "SMALL_CLUSTER", 0)
    return cluster(HERE, LAB)


def cluster(*nodes):
    ledger = Ledger()
    for node in nodes:
        ledger.register(node)
    return Snapshot(ledger)


def asks(tie=Tie.FOLDER, **asked):
    return Request.of(**asked).tied(tie)


def test_only_what_is_not_tied_goes_to_another_machine(seen):
    assert place(Request.of(cpu=8), seen).node == "lab"
    assert isinstance(place(asks(cpu=8), seen), Refusal)
    assert place(asks(cpu=1, prefer="lab"), seen).node == "here"
    assert isinstance(place(asks(cpu=1, node="lab"), seen), Refusal)


def test_no_alternative_goes_there_either(seen):
    asked = asks(cpu=8, alternatives=[{"cpu": 4}])
    assert isinstance(place(asked, seen), Refusal)
    placed = place(asks(cpu=8, alternatives=[{"cpu": 4}, {"cpu": 2}]), seen)
    assert isinstance(placed, Placement)
    assert placed.node == "here"


def test_a_refusal_says_why_and_what_would_help(seen):
    refusal = place(asks(cpu=8), seen)
    assert not refusal.ever
    assert "no permitted node has more than 2 cpu" in refusal.hint()
    assert "let it run on another machine, in a new folder there (--anywhere)" in refusal.hint()
    told = explain(asks(cpu=8), seen, best_fit)
    [group] = [one for one in told.groups if one.kind == "tied"]
    assert str(group) == (
        "lab: a worker on another machine serves it, and the job's folder is not there"
    )
    [change] = [one for one in told.changes if one.field == "anywhere"]
    assert (change.node, change.request.tied_to) == ("lab", None)


def test_nobody_is_told_to_call_a_function_elsewhere(seen):
    refusal = place(asks(Tie.CALLER, cpu=8), seen)
    assert "--anywhere" not in refusal.hint()
    assert "permit" not in refusal.hint().replace("permitted", "")
    told = explain(asks(Tie.CALLER, cpu=8), seen, best_fit)
    assert "anywhere" not in [one.field for one in told.changes]
    assert "the process that calls the function is not there" in str(told)


def test_a_cluster_of_other_machines_alone_says_so():
    why = "a worker on another machine serves it, and the job's folder is not there"
    assert f"every node is not permitted: {why}" in place(asks(cpu=1), cluster(LAB)).hint()
    pinned = place(asks(cpu=1, node="lab"), cluster(HERE, LAB))
    assert f"lab is not permitted: {why}" in pinned.hint()


def test_the_tie_is_kept_in_rows_keys_and_pickles():
    free = Request.of(cpu=1, alternatives=[{"cpu": 2}])
    tied = free.tied(Tie.CALLER)
    assert request_from_row(request_row(tied)) == tied == pickle.loads(pickle.dumps(tied))
    assert request_from_row(request_row(free)) == free
    assert tied.key() != free.key()
    assert {choice.tied_to for choice in tied.choices()} == {Tie.CALLER}


def test_a_request_is_tied_as_a_whole_or_not_at_all():
    free = Request.of(cpu=1, alternatives=[{"cpu": 2}])
    mixed = request_from_row({**request_row(free), "tied_to": "folder"})
    with pytest.raises(InvalidRequest, match="tied_to"):
        Request.of(mixed)
