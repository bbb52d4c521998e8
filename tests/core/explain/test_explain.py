"""What a request lacks, how near it comes, and what would fit."""

import json
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_budget import examples
from gridhand import NeverFits, Node, NoRoom, Request, Resources, UnknownNode
from gridhand.core.explain.column_survey import ColumnSurvey
from gridhand.core.explain.explain import MOST_CHOICES, explain
from gridhand.core.explain.holders import MOST_HOLDERS
from gridhand.core.explain.refusal import Refusal
from gridhand.core.explain.shortfalls import find_shortfalls
from gridhand.core.explain.survey import MOST_NEAREST, NodeSurvey, could_hold
from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.spec import JobSpec
from gridhand.core.ledger.allocations import Lifetime, Terms
from gridhand.core.ledger.ledger import Ledger, Placement
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.ledger.status import dump
from gridhand.core.model.gpus import Gpu, GpuHealth
from gridhand.core.model.host_use import HostUse, Stranger
from gridhand.core.model.nodes import Health
from gridhand.core.model.requests import read_gpu_request
from gridhand.core.model.resources import UNIT, read_amount
from gridhand.core.placement.place import place
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import STRATEGIES, best_fit

NOW = 1_000_000
GB = 10**9
ANN = Terms("ann")


def snapshot(*nodes, foreign=None, **named):
    ledger = Ledger()
    for node in (*nodes, *(Node.of(name, has) for name, has in named.items())):
        ledger.register(node)
    return Snapshot(ledger, foreign)


def hold(seen, node, **asked):
    placed = place(Request.of(node=node, **asked), seen)
    assert isinstance(placed, Placement), asked
    seen.ledger.grant([placed], ANN, now=NOW)


def gpus(*memory, **more):
    return [{"memory": f"{size}GB", **more} for size in memory]


def told(seen, **asked):
    return explain(Request.of(**asked), seen, best_fit)


# ---- it fits


def test_what_fits_says_where_and_on_which_devices():
    seen = snapshot(Node.of("gpu1", cpu=8, gpu=2), w1="cpu=4")
    found = told(seen, cpu=1, gpu=2)
    assert (found.fits, found.node, found.gpus) == (True, "gpu1", ("gpu1/0", "gpu1/1"))
    assert str(found) == "cpu=1 gpu=2 fits now on gpu1 (devices gpu1/0, gpu1/1)"
    assert repr(found) == f"<Explanation: {found}>"
    assert (found.fitting, found.nodes, found.ever, found.changes) == (1, 2, True, ())
    assert [(group.kind, group.nodes) for group in found.groups] == [("lacks", ("w1",))]
    assert str(told(seen, cpu=4)) == "cpu=4 fits now on w1"


def test_the_choice_that_fits_is_told():
    seen = snapshot(a="cpu=3")
    found = told(seen, cpu=9, alternatives=[{"cpu": 5}, {"cpu": 2}])
    assert (found.fits, found.alternative) == (True, 2)
    assert found.about.resources == Resources.of(cpu=2)
    assert str(found) == "cpu=9 (as cpu=2) fits now on a"
    found = told(seen, cpu=2, quality="auto")
    assert (found.alternative, found.quality) == (1, "high")
    assert str(found) == "cpu=4 (as cpu=3 at quality high) fits now on a"


# ---- groups and near misses


def test_nodes_that_lack_the_same_are_one_group_and_the_nearest_speaks_for_it():
    seen = snapshot(
        a="cpu=1 memory=8GB", b="cpu=2 memory=8GB", c="cpu=1 memory=1GB", d="cpu=2 memory=8GB"
    )
    found = told(seen, cpu=3, memory="4GB")
    assert [(group.lacking, group.count, group.nodes) for group in found.groups] == [
        (("cpu",), 3, ("b", "d", "a")),
        (("cpu", "memory"), 1, ("c",)),
    ]
    assert found.groups[0].reasons == (
        "Insufficient CPU: worker has 2.00 available, task requires 3.00",
    )
    assert found.groups[1].reasons == (
        "Insufficient CPU: worker has 1.00 available, task requires 3.00",
        "Insufficient Memory: worker has 1.00 GB available, task requires 4.00 GB",
    )
    assert [miss.node for miss in found.nearest] == ["b", "d", "a", "c"]


def test_nodes_that_take_no_work_or_may_not_have_it_are_groups_of_their_own():
    seen = snapshot(
        *(Node.of(name, cpu=9, labels={"zone": "x"}) for name in "abcdefg"),
        Node.of("other", cpu=9, labels={"zone": "y"}),
        Node.of("none", cpu=9),
    )
    seen.ledger.set_draining("a", True)
    seen.ledger.set_health("b", Health.DOWN, now=NOW)
    seen.ledger.set_health("c", Health.SUSPECT, now=NOW)
    hold(seen, "d", cpu=5)
    seen.ledger.register(Node.of("d", cpu=1, labels={"zone": "x"}))
    hold(seen, "f", cpu=9)
    found = told(seen, cpu=1, labels={"zone": "x"}, exclude=["e", "g", "unheard-of"])
    assert [(group.kind, group.count, group.nodes, group.reasons[0]) for group in found.groups] == [
        ("lacks", 1, ("f",), "Insufficient CPU: worker has 0.00 available, task requires 1.00"),
        ("draining", 1, ("a",), "the node is draining"),
        ("suspect", 1, ("c",), "the node is suspect"),
        ("overcommitted", 1, ("d",), "the node is overcommitted: more is allocated than it has"),
        ("down", 1, ("b",), "the node is down"),
        ("excluded", 2, ("e", "g"), "the node is excluded"),
        ("labels", 2, ("none", "other"), "its label zone is not x"),
    ]
    assert sum(group.count for group in found.groups) == found.nodes


def test_a_pinned_request_is_told_of_its_node_and_the_others_are_one_group():
    seen = snapshot(a="cpu=1", b="cpu=2", c="cpu=9")
    found = told(seen, cpu=3, node="a")
    assert [(group.kind, group.nodes) for group in found.groups] == [
        ("lacks", ("a",)),
        ("not_pinned", ("b", "c")),
    ]
    assert [miss.node for miss in found.nearest] == ["a"]
    found = told(seen, cpu=1, node="a", labels={"zone": "x"})
    assert [(group.kind, group.nodes) for group in found.groups] == [
        ("not_pinned", ("b", "c")),
        ("labels", ("a",)),
    ]
    with pytest.raises(UnknownNode):
        told(seen, cpu=1, node="zz")


def test_strangers_are_named():
    seen = snapshot(Node.of("a", gpus=gpus(24)), foreign={"a/0": 20 * GB})
    stranger = "processes outside the grid use 20.00 GB of device a/0"
    found = told(seen, gpu_memory="8GB")
    assert stranger in found.nearest[0].reasons
    assert stranger in found.groups[0].reasons
    assert stranger in str(found)


def test_more_groups_than_anybody_reads_are_added_up():
    names = [f"r{n}" for n in range(7)]
    nodes = [
        Node(
            f"n{n:03}",
            Resources({name: UNIT for bit, name in enumerate(names) if n >> bit & 1} | {"x": 1}),
        )
        for n in range(127)
    ]
    seen = snapshot(*nodes)
    asked = Request(Resources(dict.fromkeys(names, UNIT)))
    for made in (NodeSurvey(asked, seen), ColumnSurvey(asked, seen)):
        misses = made.misses()
        assert len(misses.groups) == 50
        assert sum(alike.count for alike in misses.groups) + misses.ungrouped == 127
    found = explain(asked, seen)
    assert sum(group.count for group in found.groups) == 127
    assert "more groups" in str(found)


# ---- what would fit


def mixed():
    """gpu1 has 6 of 8 cpu left, half a device and three quarters of another; w1 has no devices."""
    seen = snapshot(
        Node.of(
            "gpu1",
            cpu=8,
            memory="16GB",
            gpus=gpus(40, 40, model="A100", capability="8.0"),
            labels={"zone": "a"},
        ),
        Node.of("w1", cpu=4, memory="32GB", labels={"zone": "b"}),
    )
    hold(seen, "gpu1", gpu=0.5, cpu=2)
    seen.set_foreign("gpu1", {"gpu1/1": 10 * GB})
    return seen


#    what it shows                       asked                                              the changes in words
CHANGES = {
    "less cpu":                         ({"cpu": 7},                                       ["ask for cpu 6 instead of 7 (fits on gpu1)"]),
    "the smallest change comes first":  ({"cpu": 5, "memory": "24GB"},                     ["ask for cpu 4 instead of 5 (fits on w1)", "ask for memory 16GB instead of 24GB (fits on gpu1)"]),
    "a share instead of a device":      ({"gpu": 1},                                       ["ask for gpu 0.75 instead of 1 (fits on gpu1)"]),
    "a smaller share":                  ({"gpu": 0.8},                                     ["ask for gpu 0.75 instead of 0.8 (fits on gpu1)"]),
    "a share and memory":               ({"gpu": 0.9, "gpu_memory": "35GB", "cpu": 1},     ["ask for gpu_memory 30GB instead of 35GB (fits on gpu1)", 'run it without a GPU, with fallback="cpu" (fits on w1)']),
    "less memory of a device":          ({"gpu_memory": "35GB"},                           ["ask for gpu_memory 30GB instead of 35GB (fits on gpu1)"]),
    "less memory of two devices":       ({"gpu": 2, "gpu_memory": "35GB"},                 ["ask for gpu_memory 20GB instead of 35GB (fits on gpu1)"]),
    "fewer shared devices":             ({"gpu": 2, "gpu_memory": "30GB"},                 ["ask for gpu_memory 20GB instead of 30GB (fits on gpu1)", "ask for gpu 1 instead of 2 (fits on gpu1)"]),
    "another model":                    ({"gpu": 0.4, "gpu_model": "H100"},                ["accept A100 (fits on gpu1)"]),
    "a lower capability":               ({"gpu": 0.4, "gpu_capability": "9.0"},            ["ask for gpu_capability 8.0 instead of 9.0 (fits on gpu1)"]),
    "another node":                     ({"cpu": 5, "memory": "12GB", "node": "w1"},       ["ask for cpu 4 instead of 5 (fits on w1)", "do not pin it to w1 (fits on gpu1)"]),
    "without a label":                  ({"cpu": 1, "labels": {"zone": "c"}},              ["do not ask for the label zone=c (fits on w1)"]),
    "one of two labels":                ({"cpu": 1, "labels": {"zone": "a", "disk": "x"}}, ["do not ask for the label disk=x (fits on gpu1)"]),
    "an excluded node":                 ({"cpu": 6, "exclude": ["gpu1", "zz"]},            ["ask for cpu 4 instead of 6 (fits on w1)", "permit gpu1, which is excluded (fits on gpu1)"]),
    "without a GPU":                    ({"cpu": 1, "gpu": 0.8, "gpu_model": "H100"},      ['run it without a GPU, with fallback="cpu" (fits on w1)']),
    "without what nobody has":          ({"cpu": 1, "fpga": 1},                            ["do without fpga (fits on w1)"]),
    "but not without anything":         ({"fpga": 1},                                      []),
    "two are short, no change of one":  ({"cpu": 9, "memory": "64GB"},                     []),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "words"), CHANGES.values(), ids=CHANGES)
def test_the_smallest_change_of_one_thing_is_told(asked, words):
    found = told(mixed(), **asked)
    assert not found.fits
    if words:
        assert list(map(str, found.changes)) == words
    else:
        assert not [change for change in found.changes if change.field in asked]


def test_a_change_carries_the_request_that_fits():
    seen = mixed()
    change = told(seen, cpu=7, memory="1GB").changes[0]
    assert (change.field, change.before, change.after, change.node) == ("cpu", "7", "6", "gpu1")
    assert change.request == Request.of(cpu=6, memory="1GB")
    assert change.to_dict() == {
        "field": "cpu", "from": "7", "to": "6", "node": "gpu1", "size": round(1 / 7, 6),
        "text": "ask for cpu 6 instead of 7 (fits on gpu1)",
    }  # fmt: skip


def test_bytes_are_exact_as_data_and_readable_as_text():
    seen = snapshot(a="memory=16537556672B")
    asked = Request.of(memory="20123456789B")
    change = explain(asked, seen, best_fit).changes[0]
    assert change.text == "ask for memory 16.53GB instead of 20.13GB"
    assert read_amount("memory", change.after) == 16537556672
    refused = place(asked, seen)
    assert "no node has more than 16.53GB of memory" in refused.hint()
    assert isinstance(place(Request.of("memory=16.53GB"), seen), Placement)
    found = str(explain(asked, seen, best_fit))
    assert found.startswith("memory=20.13GB can never fit: no node has more than 16.53GB of memory")
    assert "kB" not in found + refused.sentence() + refused.hint()


@pytest.mark.parametrize("free", range(5))
def test_the_highest_capability_that_fits_is_offered(free):
    versions = ["7.0", "7.5", "8.0", "8.6", "8.9"]
    seen = snapshot(
        *(Node.of(f"n{n}", gpus=gpus(40, capability=one)) for n, one in enumerate(versions)),
        Node.of("n9", gpus=gpus(40, capability="10.0")),
    )
    for taken in (9, *range(free + 1, 5)):
        hold(seen, f"n{taken}", gpu=1)
    [change] = told(seen, gpu=1, gpu_capability="9.0").changes
    assert (change.field, change.before, change.after) == ("gpu_capability", "9.0", versions[free])
    assert change.node == f"n{free}"


def test_a_device_of_unknown_capability_can_only_be_accepted_as_any():
    seen = snapshot(Node.of("a", gpu=1), Node.of("b", gpus=gpus(40, capability="7.0")))
    hold(seen, "b", gpu=1)
    [change] = told(seen, gpu=1, gpu_capability="9.0").changes
    assert str(change) == "accept any device (fits on a)"


def test_other_excluded_nodes_stay_excluded():
    seen = snapshot(a="cpu=8", b="cpu=8", c="cpu=1")
    change = told(seen, cpu=4, exclude=["a", "b"]).changes[0]
    assert (change.field, change.node) == ("exclude", "a")
    assert change.request.exclude == {"b"}


def test_a_share_may_be_given_up_where_memory_is_left():
    seen = snapshot(Node.of("a", gpus=gpus(24)))
    hold(seen, "a", gpu=0.7, gpu_memory="4GB")
    found = told(seen, gpu=0.5, gpu_memory="8GB")
    assert str(found.changes[0]) == "ask for gpu 0.3 instead of 0.5 (fits on a)"
    hold(seen, "a", gpu=0.3, gpu_memory="4GB")
    found = told(seen, gpu=0.5, gpu_memory="8GB")
    assert str(found.changes[0]) == "do without gpu (fits on a)"
    assert found.changes[0].request == Request.of(gpu_memory="8GB")


def test_a_model_without_a_name_can_only_be_accepted_as_any():
    seen = snapshot(Node.of("a", gpu=1))
    [change] = told(seen, gpu=1, gpu_model="A100").changes
    assert str(change) == "accept any model (fits on a)"
    assert change.request.gpu.model is None


def test_a_lower_quality_is_offered_if_it_fits():
    seen = snapshot(a="cpu=2")
    asked = Request.of(cpu=3)
    lower = [Request.of(cpu=3, quality="draft")]
    found = explain(asked, seen, best_fit, lower=lower)
    assert [str(change) for change in found.changes] == [
        "ask for cpu 2 instead of 3 (fits on a)",
        "ask for quality draft instead of standard (fits on a)",
    ]
    assert found.changes[1].request == lower[0]
    assert (
        len(explain(Request.of(cpu=5), seen, lower=[Request.of(cpu=5, quality="draft")]).changes)
        == 1
    )


def test_of_several_choices_the_nearest_is_explained():
    seen = snapshot(a="cpu=4 memory=8GB")
    found = told(seen, cpu=9, memory="9GB", alternatives=[{"cpu": 8}, {"cpu": 5}, {"cpu": 6}])
    assert (found.fits, found.alternative) == (False, 2)
    assert found.about.resources == Resources.of(cpu=5)
    assert str(found.changes[0]) == "ask for cpu 4 instead of 5 (fits on a)"
    assert "the closest alternative is cpu=5" in found.verdict()
    many = told(seen, cpu=20, alternatives=[{"cpu": cpu} for cpu in range(19, 4, -1)])
    assert (many.alternative, many.about.resources) == (15, Resources.of(cpu=5))
    assert len(many.asked.alternatives) > MOST_CHOICES


def test_the_amounts_of_a_quality_level_are_told_as_such():
    [change] = told(snapshot(a="cpu=4"), cpu=4, quality="high").changes
    assert change.text == "ask for cpu 4 instead of 6, as scaled for quality high"


# ---- ever


#    what it shows                      asked                                        because
NEVER = {
    "too many gpus":                   ({"gpu": 9},                                 ["no node has more than 2 gpus"]),
    "too much cpu":                    ({"cpu": 65},                                ["no node has more than 8 cpu"]),
    "too much memory":                 ({"memory": "1TB"},                          ["no node has more than 32GB of memory"]),
    "a resource nobody has":           ({"bandwidth": 1},                           ["no node has any bandwidth"]),
    "an unknown resource":             ({"cpu": 1, "fpga": 1},                      ["no node has a resource named 'fpga'"]),
    "a typing error":                  ({"gpu_memry": 1, "cpu": 1},                 ["no node has a resource named 'gpu_memry'; did you mean gpu_memory?"]),
    "a device that large":             ({"gpu_memory": "41GB"},                     ["no device has more than 40GB of gpu_memory"]),
    "two devices that large":          ({"gpu": 2, "gpu_memory": "30GB"},           ["no node has more than 1 gpu with 30GB of gpu_memory"]),
    "another model":                   ({"gpu": 1, "gpu_model": "H100"},            ["no device is an H100 (there are A100, T4)"]),
    "of two models":                   ({"gpu": 1, "gpu_model": "H100|V100"},       ["no device is an H100 or V100 (there are A100, T4)"]),
    "too many of a model":             ({"gpu": 2, "gpu_model": "T4"},              ["no node has more than 1 gpu (T4)"]),
    "a model that large":              ({"gpu_memory": "20GB", "gpu_model": "T4"},  ["no device (T4) has more than 16GB of gpu_memory"]),
    "a higher capability":             ({"gpu": 1, "gpu_capability": "9.0"},        ["no device has capability 9.0 (the highest is 8.0)"]),
    "a model with a capability":       ({"gpu": 1, "gpu_capability": "8.0", "gpu_model": "T4"}, ["no device is T4, capability 8.0"]),
    "several at once":                 ({"cpu": 9, "gpu": 3},                       ["no node has more than 8 cpu", "no node has more than 2 gpus"]),
    "each alone, but not together":    ({"cpu": 8, "memory": "32GB"},               ["no single node has cpu=8 and memory=32GB together"]),
    "on the nodes permitted":          ({"cpu": 5, "exclude": "gpu1"},              ["no permitted node has more than 4 cpu"]),
    "gpus on the nodes permitted":     ({"gpu": 1, "node": "w1"},                   ["no permitted node has gpus"]),
    "a label nobody has":              ({"cpu": 1, "labels": {"zone": "z"}},        ["no node has the label zone=z"]),
    "labels nobody has together":      ({"cpu": 1, "labels": {"zone": "a", "rack": "1"}}, ["no node is permitted"]),
    "no node is left":                 ({"cpu": 1, "exclude": ["gpu1", "w1"]},      ["no node is permitted"]),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "because"), NEVER.values(), ids=NEVER)
def test_why_it_can_never_fit(asked, because):
    devices = [
        {"model": "A100", "memory": "40GB", "capability": "8.0"},
        {"model": "T4", "memory": "16GB", "capability": "7.5"},
    ]
    seen = snapshot(
        Node.of("gpu1", cpu=8, memory="16GB", gpus=devices, labels={"zone": "a"}),
        Node.of("w1", cpu=4, memory="32GB", labels={"rack": "1"}),
    )
    hold(seen, "gpu1", cpu=7, gpu=1)  # what is held does not matter
    found = told(seen, **asked)
    assert not found.ever
    assert list(found.never_because) == because
    assert "can never fit: " + "; ".join(because) in str(found).splitlines()[0]


def test_an_empty_cluster_says_so():
    found = told(snapshot(), cpu=1)
    assert str(found) == "cpu=1 fits nowhere: there are no nodes"
    assert (found.ever, found.never_because) == (False, ("there are no nodes",))


def test_what_may_fit_later_is_not_never():
    seen = snapshot(Node.of("a", cpu=4, gpus=[Gpu("a/0", health=GpuHealth.SICK)]))
    seen.ledger.set_draining("a", True)
    found = told(seen, cpu=4, gpu=1)
    assert (found.ever, found.never_because) == (True, ())
    assert "may fit when" in str(found)


# ---- a refusal


def test_the_hint_of_a_refusal_has_the_smallest_change():
    seen = mixed()

    def error(**asked):
        refused = place(Request.of(**asked), seen)
        assert isinstance(refused, Refusal)
        return refused.error()

    found = error(cpu=7)
    assert type(found) is NoRoom
    assert found.hint.startswith("Ask for cpu=6 instead of 7, or try again when a node has room")
    found = error(cpu=9, memory="1GB")
    assert type(found) is NeverFits
    # Of what there is in all, and not of what happens to be free.
    assert found.hint == (
        "Waiting will not help: no node has more than 8 cpu. Ask for less, or register a larger"
        " node."
    )
    assert "8 cpu; no node has more than" in error(cpu=9, memory="640GB").hint
    assert error(cpu=7, quality="standard").hint.startswith("Ask for less,")  # not as written


#    what it shows                               asked                                  whether other nodes are spoken of
LEFT_OUT = {
    "none is left out":                         ({"cpu": 9},                            False),
    "nor by preferring one":                    ({"cpu": 9, "prefer": "w1"},            False),
    "nor by the kind of device":                ({"gpu": 9, "gpu_model": "A100"},       False),
    "by a pin":                                 ({"cpu": 9, "node": "w1"},              True),
    "by excluding one":                         ({"cpu": 9, "exclude": "w1"},           True),
    "not by excluding what is not there":       ({"cpu": 9, "exclude": "w9"},           False),
    "by a label":                               ({"cpu": 9, "labels": {"zone": "a"}},   True),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "spoken"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_other_nodes_are_to_be_permitted_only_if_the_request_left_them_out(asked, spoken):
    refused = place(Request.of(**asked), mixed())
    assert isinstance(refused, Refusal)
    assert ("permit other nodes" in refused.hint()) == spoken
    again = Refusal.told(refused.asked, refused.facts())
    assert again.hint() == refused.hint()
    assert ("permit other nodes" in refused.error().hint) == spoken


def test_a_pin_to_the_only_node_leaves_none_out():
    refused = place(Request.of(cpu=2, node="a"), snapshot(a="cpu=1"))
    assert "permit" not in refused.hint()


# ---- who holds it


def by_hand(seen, holder, node, owner="ann", **asked):
    placed = place(Request.of(node=node, **asked), seen)
    [held] = seen.ledger.grant([placed], Terms(owner, holder), now=NOW)
    return held.id


def start_job(seen, id, number, node, *, array=None, index=None, name=None, **asked):
    request = Request.of(node=node, **asked)
    work = JobSpec("bob", ("true",), "/", request, name=name)
    job = jobs.submit(work, id=id, number=number, now=NOW, array=array, array_index=index)
    seen.ledger.put_job("job.submitted", job)
    [held] = seen.ledger.grant([place(request, seen)], Terms("bob", lifetime=Lifetime.JOB), now=NOW)
    started = jobs.start(job, node=node, allocation=held.id, now=NOW)
    seen.ledger.put_job("job.started", started)


def test_who_holds_what_is_short_is_named_those_with_most_first():
    seen = snapshot(a="cpu=8 license=1", tiny="cpu=1")
    by_hand(seen, "upkeep", "a", owner="eve", cpu=2)
    unnamed = by_hand(seen, None, "a", cpu=1, license=1)
    start_job(seen, "7", 7, "a", name="train", cpu=3)
    for task in (1, 2):
        start_job(seen, f"8_{task}", 7 + task, "a", array="8", index=task, cpu=0.5)
    found = told(seen, cpu=4)
    assert [str(one) for one in found.holders] == [
        "a: job 7 (train) of bob: cpu=3",
        "a: upkeep of eve: cpu=2",
        f"a: {unnamed} of ann: cpu=1",
        "a: job 8_[1-2] of bob: cpu=1",
    ]
    assert found.more_holders == 0
    assert str(found).splitlines()[-5:] == [
        "held by:", *(f"  {one}" for one in found.holders)
    ]  # fmt: skip
    assert [one.holder for one in told(seen, license=1).holders] == [unnamed]
    assert [one.count for one in found.holders] == [1, 1, 1, 2]


def test_of_very_many_holders_a_few_are_named():
    seen = snapshot(a="cpu=8", b="cpu=8")
    for n in range(8):
        by_hand(seen, f"h{n}", "a", cpu=1)
        by_hand(seen, f"k{n}", "b", cpu=1)
    found = told(seen, cpu=8)
    assert len(found.holders) == MOST_HOLDERS
    assert str(found).splitlines()[-1] == f"  and {16 - MOST_HOLDERS} more"


def test_nobody_is_named_where_it_would_not_help_if_they_went():
    seen = snapshot(Node.of("g", cpu=4, gpus=gpus(24, model="T4")), a="cpu=2")
    by_hand(seen, "cores", "a", cpu=2)
    assert told(seen, cpu=9).holders == ()  # it can never fit
    assert told(seen, cpu=4).fits
    by_hand(seen, "device", "g", gpu=0.5)
    by_hand(seen, "few", "g", cpu=1)
    assert [one.holder for one in told(seen, cpu=4).holders] == ["few"]  # not on a, which is small
    assert [one.holder for one in told(seen, gpu=1).holders] == ["device"]
    assert told(seen, gpu=1, gpu_model="A100").holders == ()


# ---- as data


def test_an_explanation_is_plain_data_that_can_be_kept():
    seen = mixed()
    for asked in (
        {"cpu": 1, "gpu": 0.5},
        {"cpu": 7},
        {"gpu": 9},
        {"gpu": 0.4, "gpu_model": "H100"},
    ):
        found = told(seen, **asked)
        assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
        assert pickle.loads(pickle.dumps(found)) == found
        assert found.to_dict().keys() == {
            "asked", "about", "alternative", "quality", "fits", "node", "gpus", "nodes", "fitting",
            "groups", "nearest", "changes", "ever", "never_because", "holders", "more_holders",
            "starts_in_s", "starts_on",
        }  # fmt: skip
        assert "\n" not in repr(found)
    html = told(seen, gpu=0.4, gpu_model="<b>")._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;" in html
    assert "<table>" in html


def test_the_text_reads_well():
    seen = snapshot(a="cpu=1", b="cpu=2", c="cpu=9")
    seen.ledger.set_draining("c", True)
    assert str(told(seen, cpu=3)).splitlines() == [
        "cpu=3 does not fit now; it may fit when nodes have room or are up again",
        "what would fit now:",
        "  ask for cpu 2 instead of 3 (fits on b)",
        "nearest:",
        "  b: Insufficient CPU: worker has 2.00 available, task requires 3.00",
        "  a: Insufficient CPU: worker has 1.00 available, task requires 3.00",
        "why not on the 3 nodes:",
        "  2 nodes (b, a): short of cpu",
        "  c: the node is draining",
    ]
    alone = snapshot(a="cpu=1")
    assert str(told(alone, cpu=3)).splitlines() == [
        "cpu=3 can never fit: no node has more than 1 cpu",
        "what would fit now:",
        "  ask for cpu 1 instead of 3 (fits on a)",
        "why not on the only node:",
        "  a: Insufficient CPU: worker has 1.00 available, task requires 3.00",
    ]


# ---- many nodes


def test_ten_thousand_nodes_are_counted_right():
    def node(n):
        gpu_node = n % 4 == 0
        return Node.of(
            f"n{n:05}",
            cpu=16 if n % 2 else 8,
            memory="64GB",
            gpus=gpus(*[24] * 8, model="A100") if gpu_node else None,
            labels={"zone": "x" if n % 10 else "y"},
        )

    seen = snapshot(*map(node, range(10_000)))
    for n in range(0, 10_000, 100):
        seen.ledger.set_draining(f"n{n:05}", True)  # all of these have devices and zone y
    seen.ledger.set_health("n00001", Health.DOWN, now=NOW)
    found = told(seen, cpu=12, gpu=9, labels={"zone": "x"}, exclude=["n00002", "n00003"])
    kinds = {}
    for group in found.groups:
        kinds[group.kind, group.lacking] = kinds.get((group.kind, group.lacking), 0) + group.count
    assert kinds == {
        ("lacks", ("gpu",)): 5000 - 2,  # odd numbers: enough cpu, no devices
        ("lacks", ("cpu", "gpu")): 4000 - 1,  # even ones in zone x
        ("down", ()): 1,
        ("excluded", ()): 2,
        ("labels", ()): 1000,
    }
    assert found.nodes == 10_000
    assert [miss.node for miss in found.nearest] == [
        "n00005",
        "n00007",
        "n00009",
        "n00011",
        "n00013",
    ]
    assert found.never_because == ("no permitted node has more than 8 gpus",)
    seen.ledger.set_draining("n00004", True)
    assert ("draining", 1) in [
        (group.kind, group.count)
        for group in told(seen, cpu=99, exclude="n00100", labels={"zone": "x"}).groups
    ]


def test_a_small_cluster_is_explained_without_numpy():
    code = (
        "import sys\n"
        "from gridhand import Grid, NoRoom\n"
        "grid = Grid.in_memory(owner='ann')\n"
        "grid.register_node('a', cpu=4, gpu=2)\n"
        "print(grid.explain(cpu=5, gpu=3))\n"
        "try:\n    grid.allocate(cpu=5)\nexcept NoRoom:\n    pass\n"
        "assert 'numpy' not in sys.modules\n"
        "grid.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- any cluster: loops, arrays and brute force say the same

AMOUNTS = st.sampled_from([0, 1, 4999, UNIT, 2 * UNIT, 3 * UNIT])
SIZES = st.sampled_from([0, 7, GB, 8 * GB, 24 * GB])
LABELS = st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"), max_size=2)
MODELS = st.sampled_from(["A100", "T4", ""])
VERSIONS = st.sampled_from([None, (7, 5), (9, 0), (10, 0)])
NAMES = ("n1", "n10", "n2", "n3")
HEALTH = st.sampled_from([GpuHealth.OK] * 4 + [GpuHealth.SICK])


@st.composite
def requests(draw, where=True):
    amounts = {name: amount for name in ("cpu", "memory", "fpga") if (amount := draw(AMOUNTS))}
    gpu = draw(st.sampled_from([0, 0, 1, 2500, 5000, 9999, UNIT, 2 * UNIT, 3 * UNIT]))
    memory = draw(st.sampled_from([0, 0, 1, GB, 8 * GB, 20 * GB]))
    model = capability = None
    if gpu or memory:
        model = draw(st.sampled_from([None, None, "A100", "t4", "A100|V100"]))
        capability = draw(st.sampled_from([None, None, "7.5", "9.5"]))
    elif not amounts:
        amounts = {"cpu": UNIT}
    ask = Request(Resources(amounts), read_gpu_request(gpu, memory, model, capability))
    if not where:
        return ask
    node = draw(st.none() | st.none() | st.sampled_from(NAMES[:2]))
    exclude = frozenset(draw(st.lists(st.sampled_from(NAMES), max_size=2))) - {node}
    return replace(ask, node=node, exclude=exclude, labels=draw(LABELS))


@st.composite
def clusters(draw):
    """A snapshot with devices, labels, things held, strangers, and nodes that take nothing."""
    nodes, foreign = [], {}
    for name in (*NAMES[:2], *draw(st.lists(st.sampled_from(NAMES[2:]), unique=True))):
        devices = []
        for index in range(draw(st.integers(0, 3))):
            id, size = f"{name}/{index}", draw(SIZES)
            devices.append(Gpu(id, index, draw(MODELS), size, draw(VERSIONS), draw(HEALTH)))
            used = draw(st.sampled_from([0, 0, 0, 7, GB, 9 * GB]))
            if used:
                foreign[id] = used
        capacity = {key: amount for key in ("cpu", "memory", "fpga") if (amount := draw(AMOUNTS))}
        nodes.append(Node(name, Resources(capacity), tuple(devices), labels=draw(LABELS)))
    seen = snapshot(*nodes)
    for ask in draw(st.lists(requests(where=False), max_size=6)):
        placed = place(ask, seen, best_fit)
        if isinstance(placed, Placement):
            seen.ledger.grant([placed], ANN, now=NOW)
    for node in nodes:
        ids = [gpu.id for gpu in node.gpus if gpu.id in foreign]
        seen.set_foreign(node.name, {id: foreign[id] for id in ids})
    match draw(st.sampled_from([None, None, "drained", "shrunk", "down"])):
        case "drained":
            seen.ledger.set_draining("n1", True)
        case "shrunk":
            seen.ledger.register(Node("n1", Resources({"cpu": 1}), nodes[0].gpus))
        case "down":
            seen.ledger.set_health("n10", Health.DOWN, now=NOW)
    return seen


def told_most(most, least=1):
    return None if most is None or most.amount < least else most


@settings(max_examples=examples(40))
@given(clusters(), requests())
def test_arrays_and_loops_say_the_same(seen, asked):
    compare(replace(asked, node=None), seen)


def compare(asked, seen):
    one, other = NodeSurvey(asked, seen), ColumnSurvey(asked, seen)
    assert list(one.permitted()) == list(other.permitted())
    assert one.misses() == other.misses()
    assert one.could_hold() == other.could_hold()
    for name in asked.amounts:
        assert one.most(name) == other.most(name)
    if asked.gpu is not None:
        assert one.most_devices() == other.most_devices()
        least = 1 if asked.gpu.memory_bytes is None else 0
        assert told_most(one.most_share(), least) == told_most(other.most_share(), least)
        if asked.gpu.memory_bytes is not None:
            assert told_most(one.most_memory()) == told_most(other.most_memory())


@st.composite
def device_clusters(draw):
    """Nodes of three devices each, on which memory and shares are held: what is asked is scarce."""
    seen = snapshot(*(Node.of(name, gpus=gpus(8, 16, 24, model="A100")) for name in ("a", "b")))
    for _ in range(draw(st.integers(0, 8))):
        gpu = read_gpu_request(draw(SHARES), draw(MEMORY), None, None)
        placed = place(Request(Resources(), gpu), seen, best_fit)
        if isinstance(placed, Placement):
            seen.ledger.grant([placed], ANN, now=NOW)
    return seen


SHARES = st.sampled_from([1000, 2500, 5000, UNIT, 2 * UNIT, 3 * UNIT])
MEMORY = st.sampled_from([0, GB, 4 * GB, 8 * GB, 12 * GB])


@settings(max_examples=examples(60))
@given(device_clusters(), SHARES, MEMORY)
def test_devices_are_surveyed_alike_by_arrays_loops_and_brute_force(seen, share, memory):
    asked = Request(Resources(), read_gpu_request(share, memory, None, None))
    compare(asked, seen)
    judge(asked, seen)


@settings(max_examples=examples(40))
@given(clusters(), requests())
def test_the_nearest_are_those_that_brute_force_finds(seen, asked):
    permitted = seen.rows(asked)
    short = {}
    for row in permitted:
        use = seen.use(row)
        if use.open and (found := find_shortfalls(asked, use, seen)):
            short[row] = [lack.resource for lack in found]
            assert use.room(asked, seen.foreign) is None
    misses = NodeSurvey(asked, seen).misses()
    assert misses.fitting == sum(
        seen.use(row).room(asked, seen.foreign) is not None for row in permitted
    )
    assert len(misses.nearest) == min(len(short), MOST_NEAREST)
    counts = [len(short[miss.row]) for miss in misses.nearest]
    assert counts == sorted(map(len, short.values()))[: len(counts)]
    assert all(0 < miss.shortfall <= miss.lacking for miss in misses.nearest)
    grouped = {alike.lacking: alike.count for alike in misses.groups}
    assert grouped == {tuple(one): list(short.values()).count(one) for one in short.values()}


@settings(max_examples=examples(40))
@given(clusters(), requests())
def test_ever_is_what_empty_copies_of_the_nodes_say(seen, asked):
    def empty(node):
        well = tuple(replace(gpu, health=GpuHealth.OK) for gpu in node.gpus)
        return NodeUsage(replace(node, gpus=well, draining=False, health=Health.UP))

    nodes = {row: seen.use(row).node for row in seen.rows(asked)}
    for node in nodes.values():
        assert could_hold(asked, node) == (empty(node).room(asked, {}) is not None)
    found = explain(asked, seen)
    assert found.ever == any(could_hold(asked, node) for node in nodes.values())
    assert bool(found.never_because) == (not found.ever)


def fits(asked, seen):
    return isinstance(place(asked, seen, best_fit), Placement)


def with_amount(asked, field, parts):
    """The same request with so much of one thing, as it would be read; None if it cannot be."""
    if field not in ("gpu", "gpu_memory"):
        return replace(asked, amounts=asked.amounts.without(field) + Resources({field: parts}))
    has = asked.gpu.resources()
    gpu, memory = {"gpu": has["gpu"], "gpu_memory": has["gpu_memory"], field: parts}.values()
    if gpu > UNIT and gpu % UNIT:
        return None
    kind = ".".join(map(str, asked.gpu.capability)) if asked.gpu.capability else None
    return replace(asked, gpu=read_gpu_request(gpu, memory, asked.gpu.model, kind))


def more_than(field, after, before):
    """Some amounts between: one part more, one less than was asked, and whole devices."""
    between = {after + 1, before - 1, (after + before) // 2}
    if field == "gpu":
        between |= {*range(UNIT, before, UNIT)}
    return {parts for parts in between if after < parts < before}


@settings(max_examples=examples(60))
@given(clusters(), requests())
def test_every_change_fits_and_one_part_more_does_not(seen, asked):
    judge(asked, seen)


def judge(asked, seen):
    before = dump(seen.ledger, seen.foreign, now=NOW)
    found = explain(asked, seen, best_fit)
    assert dump(seen.ledger, seen.foreign, now=NOW) == before
    assert found.fits == fits(asked, seen)
    if found.fits:
        assert found.changes == ()
        return
    assert [one.size for one in found.changes] == sorted(one.size for one in found.changes)
    fields = [one.field for one in found.changes]
    assert len(set(fields)) == len(fields)
    for change in found.changes:
        placed = place(change.request, seen, best_fit)
        assert placed.node == change.node
    asks = asked.resources
    known = {
        one.field: read_amount(one.field, one.after) for one in found.changes if one.field in asks
    }
    for field in asks:
        least = known.get(field, 0)
        if field in known:
            changed = next(one.request for one in found.changes if one.field == field)
            assert changed == with_amount(asked, field, known[field])
        for parts in more_than(field, least, asks[field]):
            other = with_amount(asked, field, parts)
            # Memory of a whole device and a share of it are other things than what was asked.
            if other is not None and (
                other.gpu is None or asked.gpu.memory_bytes is None or other.gpu.memory_bytes
            ):
                assert not fits(other, seen), f"{field}={parts} fits, and {known} was told"


@settings(max_examples=examples(40))
@given(clusters(), requests())
def test_a_wish_is_given_up_exactly_where_that_helps(seen, asked):
    found = explain(asked, seen, best_fit)
    if found.fits:
        return
    fields = {one.field for one in found.changes}
    gpu = asked.gpu
    freed = {
        f"labels.{key}": replace(asked, labels={k: v for k, v in asked.labels.items() if k != key})
        for key in asked.labels
    }
    freed["node"] = replace(asked, node=None)
    freed["exclude"] = replace(asked, exclude=frozenset())
    if gpu is not None:
        freed["gpu_model"] = replace(asked, gpu=replace(gpu, model=None))
        freed["gpu_capability"] = replace(asked, gpu=replace(gpu, capability=None))
        if asked.amounts:
            freed["fallback"] = asked.on_cpu()
    helps = {field for field, request in freed.items() if fits(request, seen)}
    assert fields - set(asked.resources) == helps


@settings(max_examples=examples(30))
@given(clusters(), requests(), st.sampled_from(list(STRATEGIES.values())))
def test_explaining_leaves_no_trace_and_agrees_with_placing(seen, asked, strategy):
    place(Request.of(cpu=1), seen, strategy)
    kept, version = dict(seen._kept), seen.mix.version
    found = explain(asked, seen, strategy)
    assert seen._kept == kept
    assert (seen.mix.version, seen.mix._seen) == (version, 0)
    placed = place(asked, seen, strategy)
    assert found.node == (placed.node if isinstance(placed, Placement) else None)
    if isinstance(placed, Placement):
        assert found.gpus == tuple(hold.device for hold in placed.devices)
    for change in found.changes:
        assert place(change.request, seen, strategy).node == change.node


def test_processes_outside_the_grid_are_named_with_what_they_use():
    seen = snapshot(Node.of("n1", cpu=8, memory="32GB"))
    blender = Stranger(4711, "blender", 3 * UNIT, 28 * GB)
    seen.set_host_use("n1", HostUse(3 * UNIT, 28 * GB, (blender,)))
    reason = (
        "Insufficient Memory: worker has 4.00 GB available, task requires 8.00 GB;"
        " 28 GB used by pid 4711 (blender)"
    )
    found = told(seen, cpu=1, memory="8GB")
    assert found.nearest[0].reasons == (reason,)
    assert found.ever
    assert reason in str(found)
    assert found.changes[0].text == "ask for memory 4GB instead of 8GB"
    refusal = place(Request.of(memory="8GB"), seen)
    assert refusal.reasons() == {"n1": [reason]}
    assert reason in refusal.sentence()
    cores = told(seen, cpu=6).nearest[0].reasons[0]
    assert cores.endswith("worker has 5.00 available, task requires 6.00; 3 cores used by pid 4711 (blender)")  # fmt: skip
    assert told(seen, cpu=5, memory="4GB").fits
