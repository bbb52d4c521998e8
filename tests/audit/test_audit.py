"""The checker accepts every valid state and reports every violation."""

import ast
import copy
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand import audit
from gridhand.audit import (
    Violation,
    check_decision,
    check_determinism,
    check_history,
    check_rebuild,
    check_state,
    replay,
    same_state,
)

NOW = 1_700_000_000_000
GB = 10**9


def device(id, memory=40 * GB, health="ok", model="A100", capability=(8, 0), index=0):
    return {
        "id": id,
        "index": index,
        "model": model,
        "memory": memory,
        "capability": None if capability is None else list(capability),
        "health": health,
    }


def node(name, cpu=40_000, devices=(), **more):
    row = {"name": name, "capacity": {"cpu": cpu, "memory": 8 * GB}, "devices": list(devices)}
    return row | {"labels": {}, "health": "up", "draining": False} | more


def held(number, on="n1", amounts=None, devices=(), **more):
    row = {"id": f"a1-{number}", "number": number, "epoch": 1, "owner": "ann"}
    row |= {"holder": f"h{number}", "node": on, "amounts": amounts or {}, "devices": list(devices)}
    row |= {"state": "active", "lifetime": "until_released", "deadline": None, "ttl": None}
    return row | {"group": None} | more


def part(id, share=0, memory=0, exclusive=False):
    return {"device": id, "share": share, "memory": memory, "exclusive": exclusive}


def dumped(nodes=(), allocations=(), **more):
    """Return a dump with the correct sums for each node."""
    live = [a for a in allocations if a["state"] in ("reserved", "active")]
    rows = [row | honest(row, [a for a in live if a["node"] == row["name"]]) for row in nodes]
    return {"now": NOW, "nodes": rows, "allocations": list(allocations), "foreign": {}} | more


def honest(row, live):
    given, total = {}, dict(row["capacity"])
    parts = [p for a in live for p in a["devices"]]
    for name in {name for a in live for name in a["amounts"]}:
        given[name] = sum(a["amounts"].get(name, 0) for a in live)
    over = any(given[name] > total.get(name, 0) for name in given)
    given["gpu"] = sum(p["share"] for p in parts)
    given["gpu_memory"] = sum(p["memory"] for p in parts)
    total["gpu"] = total["gpu_memory"] = 0
    for d in row["devices"]:
        share = sum(p["share"] for p in parts if p["device"] == d["id"])
        memory = sum(p["memory"] for p in parts if p["device"] == d["id"])
        ok = d["health"] == "ok"
        over = over or (ok and (share > 10_000 or memory > d["memory"]))
        total["gpu"] += 10_000 if ok else share
        total["gpu_memory"] += d["memory"] if ok else memory
    left = {name: total[name] - given.get(name, 0) for name in total}
    return {
        "overcommitted": over,
        "held": {name: amount for name, amount in given.items() if amount},
        "available": {name: amount for name, amount in left.items() if amount > 0},
    }


def rich():
    """A state with a bit of everything, and n1 neither full nor overcommitted."""
    devices = [device("n1/0"), device("n1/1", index=1), device("n1/2", health="sick", index=2)]
    return dumped(
        [node("n1", devices=devices), node("n2", labels={"zone": "a"}), node("n3", cpu=10_000)],
        [
            held(1, amounts={"cpu": 20_000}, devices=[part("n1/0", 2500, 10 * GB)]),
            held(2, devices=[part("n1/1", 10_000, 40 * GB, exclusive=True)]),
            held(3, amounts={"cpu": 5}, devices=[part("n1/0", 0, 30 * GB)], lifetime="session"),
            held(4, on="n2", amounts={"cpu": 1}, state="reserved", deadline=NOW + 9, ttl=9),
            held(5, on="n2", lifetime="lease", deadline=NOW + 5, ttl=10, group="g1"),
            held(6, on="n2", lifetime="lease", deadline=NOW + 5, ttl=10, group="g1"),
            held(7, on="gone", amounts={"cpu": 9}, state="released", holder="h1"),
            held(8, on="n3", amounts={"cpu": 20_000}, lifetime="job"),
        ],
    )


GOOD = {
    "an empty cluster": dumped(),
    "a node that nobody uses": dumped([node("n1")]),
    "a bit of everything, with one node overcommitted": rich(),
    "an exclusive device that shrank, on a node that says so": dumped(
        [node("n1", devices=[device("d", memory=10)])],
        [held(1, devices=[part("d", 10_000, 12, exclusive=True)])],
    ),
    "an exclusive device that grew while it was held": dumped(
        [node("n1", devices=[device("d", memory=10)])],
        [held(1, devices=[part("d", 10_000, 8, exclusive=True)])],
    ),
    "more memory than a lost device has": dumped(
        [node("n1", devices=[device("d", memory=10, health="lost")])],
        [held(1, devices=[part("d", 0, 12)])],
    ),
    "a resource that its node no longer has": dumped([node("n1")], [held(1, amounts={"fpga": 1})]),
    "two owners with a holder of the same name": dumped(
        [node("n1")], [held(1, holder="h"), held(2, holder="h", owner="bob")]
    ),
    "a lapsed lease that nobody has swept": dumped(
        [node("n1")], [held(1, lifetime="lease", deadline=NOW - 1)]
    ),
    "a group that ended together": dumped(
        [], [held(1, state="lost", group="g"), held(2, state="released", group="g")]
    ),
    "no measure of strangers": {k: v for k, v in dumped([node("n1")]).items() if k != "foreign"},
}


@pytest.mark.parametrize("dump", GOOD.values(), ids=GOOD)
def test_a_good_state_has_no_violations(dump):
    assert check_state(dump) == []
    assert check_state(json.loads(json.dumps(dump))) == []


def test_a_clean_check_leaves_the_dump_as_it_was():
    dump = rich()
    before = copy.deepcopy(dump)
    check_state(dump, strict_time=True)
    assert dump == before


def changed(path, value):
    """A corruption: set what is at `path`, like "nodes.0.health", or delete it with `...`."""

    def corrupt(dump):
        *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        for key in way:
            dump = dump[key]
        if value is ...:
            del dump[last]
        else:
            dump[last] = value

    return corrupt


def added(*allocations):
    def corrupt(dump):
        rows = {row["name"]: row for row in dump["nodes"]}
        fresh = dumped(rows.values(), [*dump["allocations"], *allocations])
        dump.update(fresh)

    return corrupt


def lied(path, value, flag):
    """Change a row and correct the sums, but not the overcommitted flag."""

    def corrupt(dump):
        changed(path, value)(dump)
        dump.update(dumped(dump["nodes"], dump["allocations"]))
        dump["nodes"][0]["overcommitted"] = flag

    return corrupt


A0, A1 = "allocations.0", "allocations.1"
#   what is broken: (how, invariant, subject)
CORRUPTIONS = {
    "an amount was given that is not counted": (changed("nodes.0.held.cpu", 1), "I2", "n1"),
    "a device share is not counted": (changed("nodes.0.held.gpu", ...), "I2", "n1"),
    "a zero is listed as held": (changed("nodes.0.held.disk", 0), "I2", "n1"),
    "available is one too many": (changed("nodes.0.available.cpu", 19_996), "I1", "n1"),
    "available misses a resource": (changed("nodes.1.available.memory", ...), "I1", "n2"),
    "an overcommitted node does not say so": (changed("nodes.2.overcommitted", False), "I1", "n3"),
    "a node says overcommitted without cause": (changed("nodes.0.overcommitted", True), "I1", "n1"),
    "more is held than there is": (lied(f"{A0}.amounts.cpu", 40_001, False), "I1", "n1"),
    "something is held that was never there": (lied(f"{A0}.amounts.fpga", 1, False), "I1", "n1"),
    "a node has a name twice": (lambda d: d["nodes"].append(node("n2")), "I1", "n2"),
    "a node has gpu as an amount": (changed("nodes.0.capacity.gpu", 1), "I1", "n1"),
    "a capacity is a float": (changed("nodes.0.capacity.cpu", 4e4), "I1", "n1"),
    "a health is unknown": (changed("nodes.1.health", "fine"), "I1", "n2"),
    "a label is a number": (changed("nodes.1.labels.zone", 7), "I1", "n2"),
    "a live allocation is on no node": (added(held(20, on="moon")), "I2", "a1-20"),
    "an amount is zero": (changed(f"{A0}.amounts.cpu", 0), "I2", "a1-1"),
    "an amount is negative": (changed(f"{A0}.amounts.cpu", -1), "I2", "a1-1"),
    "an amount is true": (changed(f"{A0}.amounts.cpu", True), "I2", "a1-1"),
    "an amount is a float": (changed(f"{A0}.amounts.cpu", 2e4), "I2", "a1-1"),
    "an amount is too large to be exact": (changed(f"{A0}.amounts.cpu", 2**53), "I2", "a1-1"),
    "an amount is of gpu": (changed(f"{A0}.amounts.gpu", 1), "I2", "a1-1"),
    "a state is unknown": (changed(f"{A0}.state", "held"), "I2", "a1-1"),
    "an allocation has no owner field": (changed(f"{A0}.owner", ...), "I2", "a1-1"),
    "a row is no table": (changed("allocations.0", 7), "I2", "allocations[0]"),
    "a share is more than one": (changed(f"{A0}.devices.0.share", 10_001), "I3", "a1-1"),
    "a share is negative": (changed(f"{A0}.devices.0.share", -1), "I3", "a1-1"),
    "more memory is held than a device has":
        (lied(f"{A0}.devices.0.memory", 11 * GB, False), "I3", "n1/0"),
    "an exclusive device has a second holder":
        (added(held(20, devices=[part("n1/1", 0, 0)])), "I3", "n1/1"),
    "a device is held twice by one": (added(held(20, devices=[part("n1/0")] * 2)), "I3", "a1-20"),
    "a held device is not on the node": (added(held(20, devices=[part("n2/0", 5)])), "I3", "a1-20"),
    "an exclusive hold has not all the share":
        (changed(f"{A1}.devices.0.share", 9_999), "I3", "a1-2"),
    "a device is on two nodes":
        (lambda d: d["nodes"][1]["devices"].append(device("n1/0")), "I3", "n1/0"),
    "a device's capability is a text": (changed("nodes.0.devices.0.capability", "8"), "I3", "n1/0"),
    "an id is used twice": (changed(f"{A1}.id", "a1-1"), "I5", "a1-1"),
    "an id of a closed one is used again": (changed("allocations.6.id", "a1-8"), "I5", "a1-8"),
    "a number is used twice": (changed(f"{A1}.number", 1), "I5", "a1-2"),
    "one holder has two live allocations": (changed(f"{A1}.holder", "h1"), "I5", "a1-2"),
    "a group is partly live": (changed("allocations.4.state", "expired"), "I5", "g1"),
    "members of a group differ in state": (changed("allocations.4.state", "reserved"), "I5", "g1"),
    "members of a group differ in deadline":
        (changed("allocations.4.deadline", NOW + 6), "I5", "g1"),
    "a reservation has no deadline": (changed("allocations.3.deadline", None), "I5", "a1-4"),
    "a lease has no deadline": (changed("allocations.5.deadline", None), "I5", "a1-6"),
    "what is held until released has a deadline":
        (changed(f"{A0}.deadline", NOW + 1), "I5", "a1-1"),
    "a session has a deadline": (changed("allocations.2.deadline", NOW + 1), "I5", "a1-3"),
    "a job's allocation has a deadline": (changed("allocations.7.deadline", NOW + 1), "I5", "a1-8"),
    "there is no time": (changed("now", ...), "I2", "dump"),
    "strangers use less than nothing": (changed("foreign.d", -1), "I2", "dump"),
    "the allocations are missing": (changed("allocations", ...), "I2", "dump"),
}  # fmt: skip


def findings(violations):
    return {(each.invariant, each.subject) for each in violations}


@pytest.mark.parametrize(("corrupt", "invariant", "subject"), CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_a_planted_corruption_is_caught_and_named(corrupt, invariant, subject):
    dump = rich()
    corrupt(dump)
    assert (invariant, subject) in findings(check_state(dump))


@pytest.mark.parametrize("health", ["ok", "sick"])
def test_shares_above_one_have_no_excuse(health):
    sharers = [held(n, devices=[part("d", 6000)]) for n in (1, 2)]
    dump = dumped([node("n1", devices=[device("d", health=health)])], sharers)
    assert ("I3", "d") in findings(check_state(dump))


def test_an_exclusive_device_with_two_holders_is_caught_even_when_overcommitted():
    twice = [held(n, devices=[part("d", 10_000, 12, exclusive=True)]) for n in (1, 2)]
    dump = dumped([node("n1", devices=[device("d", memory=10)])], twice)
    assert dump["nodes"][0]["overcommitted"]
    assert ("I3", "d") in findings(check_state(dump))


def test_a_lapsed_deadline_counts_only_when_time_is_strict():
    dump = dumped([node("n1")], [held(1, lifetime="lease", deadline=NOW)])
    assert check_state(dump) == []
    assert findings(check_state(dump, strict_time=True)) == {("I5", "a1-1")}


def test_a_violation_reads_as_a_sentence():
    assert str(Violation("I1", "n1", "is wrong")) == "I1 n1: is wrong"


ALLOCATION = held(1, amounts={"cpu": 2}, devices=[part("d", 5)], lifetime="lease", deadline=NOW + 5)


def log(*steps, start=1, at=NOW):
    """Events of one allocation, from changes to its row; each may set `at` and `number` too."""
    events = []
    for number, step in enumerate(steps, start):
        change = dict(step)
        event = {"number": change.pop("_number", number), "at": change.pop("_at", at)}
        row = ALLOCATION | change
        events.append(event | {"kind": f"allocation.{row['state']}", "subject": "a1-1", "row": row})
    return events


R, A = {"state": "reserved"}, {"state": "active"}
RELEASED, LOST = {"state": "released"}, {"state": "lost"}
EXPIRED = {"state": "expired", "_at": NOW + 5}

LAWFUL = {
    "reserve, confirm, renew, release": (R, A, A, RELEASED),
    "a grant that is renewed with a later deadline": (A, A | {"deadline": NOW + 50}),
    "a reservation that expires at its deadline": (R, EXPIRED),
    "a reservation that is released": (R, RELEASED),
    "a grant that is lost": (A, LOST),
    "a lease that expires": (A, EXPIRED),
    "gaps in the numbers": (A, RELEASED | {"_number": 90}),
    "devices in another order": (
        {"devices": [part("d"), part("e")]},
        {"devices": [part("e"), part("d")]},
    ),
}


@pytest.mark.parametrize("steps", LAWFUL.values(), ids=LAWFUL)
def test_a_lawful_history_has_no_violations(steps):
    assert check_history(log(*steps)) == []


UNLAWFUL = {
    "released twice":                        ((A, RELEASED, RELEASED),          "I5", "a1-1"),
    "expired after it was released":         ((A, RELEASED, EXPIRED),           "I5", "a1-1"),
    "alive after it was lost":               ((A, LOST, A),                     "I5", "a1-1"),
    "confirmed back to reserved":            ((A, R),                           "I5", "a1-1"),
    "reserved twice":                        ((R, R),                           "I5", "a1-1"),
    "released before it began":              ((RELEASED,),                      "I5", "a1-1"),
    "expired before its deadline":           ((A, EXPIRED | {"_at": NOW + 4}),  "I5", "a1-1"),
    "expired without a deadline":            ((A, EXPIRED | {"deadline": None}), "I5", "a1-1"),
    "released with less than was granted": ((A, RELEASED | {"amounts": {"cpu": 1}}), "I5", "a1-1"),
    "its device changed":                    ((A, A | {"devices": [part("d", 6)]}), "I5", "a1-1"),
    "its node changed":                      ((A, A | {"node": "n2"}),          "I5", "a1-1"),
    "its owner changed":                     ((A, A | {"owner": "bob"}),        "I5", "a1-1"),
    "its holder changed":                    ((A, A | {"holder": "x"}),         "I5", "a1-1"),
    "its number changed":                    ((A, A | {"number": 2}),           "I5", "a1-1"),
    "a number came twice":                   ((A, A | {"_number": 1}),          "I7", "event 1"),
    "a number went back":                    ((R, A | {"_number": 0}),          "I7", "event 0"),
    "time went back":                        ((A, A | {"_at": NOW - 1}),        "I7", "event 2"),
    "the row is another's":                  (({"id": "a1-9"},),                "I7", "a1-1"),
    "the row is malformed":                  (({"state": "odd"},),              "I2", "a1-1"),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "invariant", "subject"), UNLAWFUL.values(), ids=UNLAWFUL)
def test_an_unlawful_history_is_caught_and_named(steps, invariant, subject):
    assert (invariant, subject) in findings(check_history(log(*steps)))


NODE_EVENT = {"number": 1, "at": 0, "kind": "node.registered", "subject": "n1", "row": node("n1")}
BAD_EVENTS = {
    "an event of no known kind": (NODE_EVENT | {"kind": "odd"}, "I7", "events[0]"),
    "an event that is no table": ("event", "I7", "events[0]"),
    "an event without a number": ({k: NODE_EVENT[k] for k in ("at", "kind")}, "I7", "events[0]"),
    "a node event of another's row":   (NODE_EVENT | {"subject": "n2"},                 "I7", "n2"),
    "a node event of a malformed row": (NODE_EVENT | {"row": {"name": "n1"}},           "I1", "n1"),
    "an allocation without a row":
        (NODE_EVENT | {"kind": "allocation.lost", "row": None}, "I2", "n1"),
}  # fmt: skip


@pytest.mark.parametrize(("event", "invariant", "subject"), BAD_EVENTS.values(), ids=BAD_EVENTS)
def test_a_malformed_event_is_a_violation(event, invariant, subject):
    assert (invariant, subject) in findings(check_history([event]))


def test_something_that_is_no_log_is_a_violation():
    assert findings(check_history(7)) == {("I7", "events")}
    assert findings(check_history([], initial=7)) == {("I7", "state")}


@pytest.mark.parametrize(
    "initial",
    [{"a1-1": ALLOCATION}, [ALLOCATION], {"nodes": {}, "allocations": {"a1-1": ALLOCATION}}],
    ids=["a table of rows", "a list of rows", "a replay"],
)
def test_a_history_goes_on_from_a_checkpoint(initial):
    assert check_history(log(RELEASED), initial) == []
    assert findings(check_history(log(RELEASED))) == {("I5", "a1-1")}
    assert findings(check_history(log(A | {"node": "n2"}), initial)) == {("I5", "a1-1")}


def test_a_replay_gives_the_nodes_and_the_live_allocations():
    removed = NODE_EVENT | {"number": 2, "kind": "node.removed", "row": None}
    assert replay([NODE_EVENT]) == {"nodes": {"n1": node("n1")}, "allocations": {}, "jobs": {}}
    assert replay([NODE_EVENT, removed])["nodes"] == {}
    assert replay(log(R, A))["allocations"] == {"a1-1": ALLOCATION}
    assert replay(log(R, A, RELEASED))["allocations"] == {}


def test_a_replay_goes_on_from_a_checkpoint():
    early = replay([NODE_EVENT, *log(R, start=2)])
    assert replay(log(A, start=3), early) == replay([NODE_EVENT, *log(R, A, start=2)])


def test_a_checkpoint_may_be_a_list_of_rows_or_lack_its_nodes():
    both = {"nodes": {"n1": node("n1")}, "allocations": {"a1-1": ALLOCATION}, "jobs": {}}
    assert replay([], [node("n1"), ALLOCATION]) == both
    assert replay([], {"allocations": [ALLOCATION]}) == both | {"nodes": {}}


def test_a_state_equals_what_its_events_lead_to():
    events = [NODE_EVENT | {"row": node("n1", devices=[device("d")])}, *log(R, A, start=2)]
    dump = dumped([node("n1", devices=[device("d")])], [ALLOCATION])
    assert check_rebuild(events, dump) == []
    assert findings(check_rebuild(events[:1], dump)) == {("I7", "a1-1")}


def test_order_and_closed_rows_and_more_fields_make_no_difference():
    one, other = rich(), rich()
    other["nodes"].reverse()
    other["nodes"][-1]["devices"].reverse()
    other["nodes"][0]["price"] = 3
    other["allocations"] = [row for row in other["allocations"] if row["state"] != "released"]
    other["allocations"].reverse()
    assert same_state(one, other) == []


DIFFERENCES = {
    "an allocation is missing": (changed("allocations.0", ...), "a1-1"),
    "an allocation was closed": (changed("allocations.0.state", "released"), "a1-1"),
    "an amount differs": (changed("allocations.0.amounts.cpu", 7), "a1-1"),
    "an amount has another type": (changed("allocations.0.amounts.cpu", 2e4), "a1-1"),
    "a deadline differs": (changed("allocations.3.deadline", NOW), "a1-4"),
    "a group differs": (changed("allocations.3.group", "g9"), "a1-4"),
    "a node is missing": (changed("nodes.1", ...), "n2"),
    "a label differs": (changed("nodes.1.labels.zone", "b"), "n2"),
    "a flag differs": (changed("nodes.1.draining", 0), "n2"),
    "a device's health differs": (changed("nodes.0.devices.0.health", "lost"), "n1"),
    "a capacity differs": (changed("nodes.0.capacity.cpu", 1), "n1"),
    "a row is unreadable": (lambda dump: dump["nodes"].append(7), "[3]"),
    "the nodes are unreadable": (changed("nodes", 7), "state"),
}


@pytest.mark.parametrize(("change", "subject"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_difference_of_two_states_is_named(change, subject):
    other = rich()
    change(other)
    assert ("I7", subject) in findings(same_state(rich(), other))
    assert ("I4", subject) in findings(same_state(other, rich(), invariant="I4"))


def test_nothing_is_not_an_empty_state():
    assert same_state(dumped(), None) != []


def gpus(**more):
    """Two nodes: `big` with two devices of 40, `small` with one of 24 and another model."""
    small = device("small/0", memory=24, model="T4", capability=(7, 5))
    big = [device("big/0", memory=40, capability=(10, 0)), device("big/1", memory=40, index=1)]
    return [node("big", devices=big) | more, node("small", devices=[small], labels={"zone": "a"})]


def on(name, *parts):
    return {"node": name, "devices": list(parts)}


def every(health):
    return [row | {"health": health} for row in gpus()]


IDLE, FULL = dumped(gpus()), held(1, "big", {"cpu": 40_000})
FOREIGN = dumped(gpus(), foreign={"big/0": 10})
SHARED = dumped(gpus(), [held(1, "big", devices=[part("big/0", 6000, 8)])])
TAKEN = dumped(gpus(), [held(1, "big", devices=[part("big/0", 10_000, 40, True)])])
G1 = dumped(gpus(), [held(1, "big", devices=[part("big/0", 0, 24)])], foreign={"big/0": 10})
W40 = part("big/0", 10_000, 40, True), part("big/1", 10_000, 40, True)

RIGHT = {
    "plain amounts go anywhere they fit": (IDLE, {"amounts": {"cpu": 40_000}}, on("small")),
    "a hair too much is refused": (IDLE, {"amounts": {"cpu": 40_001}}, None),
    "a resource that no node has is refused": (IDLE, {"amounts": {"fpga": 1}}, None),
    "nothing fits on no nodes": (dumped(), {}, None),
    "two whole devices": (IDLE, {"gpu": 20_000}, on("big", *W40)),
    "three whole devices on one node are not there": (IDLE, {"gpu": 30_000}, None),
    "one and a half device is refused": (IDLE, {"gpu": 15_000}, None),
    "a quarter takes a quarter of the memory":
        (IDLE, {"gpu": 2500}, on("small", part("small/0", 2500, 6))),
    "a part of the memory is rounded down":
        (IDLE, {"gpu": 999}, on("small", part("small/0", 999, 2))),
    "a share with a memory of its own":
        (IDLE, {"gpu": 2500, "gpu_memory": 9}, on("big", part("big/0", 2500, 9))),
    "memory alone shares by memory": (IDLE, {"gpu_memory": 40}, on("big", part("big/1", 0, 40))),
    "memory must be on one device": (IDLE, {"gpu_memory": 41}, None),
    "two devices with memory on each":
        (IDLE, {"gpu": 20_000, "gpu_memory": 20},
         on("big", part("big/0", 0, 20), part("big/1", 0, 20))),
    "one device with memory is shared":
        (IDLE, {"gpu": 10_000, "gpu_memory": 9}, on("big", part("big/0", 0, 9))),
    "capability 7.5 satisfies 7.5":
        (IDLE, {"gpu": 1, "gpu_capability": [7, 5]}, on("small", part("small/0", 1, 0))),
    "a stranger keeps whole requests away": (FOREIGN, {"gpu": 20_000}, None),
    "a stranger's memory is not free": (FOREIGN, {"gpu": 20_000, "gpu_memory": 31}, None),
    "what a stranger leaves is free": (G1, {"gpu_memory": 6}, on("big", part("big/0", 0, 6))),
    "a share too many is refused":
        (SHARED, {"gpu": 4001, "node": "big", "gpu_capability": [9, 0]}, None),
    "the rest of a share fits": (SHARED, {"gpu": 4000}, on("big", part("big/0", 4000, 16))),
    "an exclusive device takes no byte": (TAKEN, {"gpu_memory": 1, "gpu_capability": [9, 0]}, None),
    "capability 10.0 satisfies 9.0":
        (IDLE, {"gpu": 10_000, "gpu_capability": [9, 0]}, on("big", W40[0])),
    "capability 7.5 does not satisfy 8.6":
        (IDLE, {"gpu": 1, "gpu_capability": [8, 6], "node": "small"}, None),
    "a model is read in any case":
        (IDLE, {"gpu": 10_000, "gpu_model": "t4"}, on("small", part("small/0", 10_000, 24, True))),
    "an unknown model is refused": (IDLE, {"gpu": 1, "gpu_model": "H100"}, None),
    "a full pinned node is refused":
        (dumped(gpus(), [FULL]), {"amounts": {"cpu": 1}, "node": "big"}, None),
    "excluding all is refused": (IDLE, {"exclude": ["big", "small"]}, None),
    "a label that no node has is refused": (IDLE, {"labels": {"zone": "b"}}, None),
    "nodes that are suspect take nothing": (dumped(every("suspect")), {}, None),
    "a draining node takes nothing": (dumped(gpus(draining=True)), {"node": "big"}, None),
    "an overcommitted node takes nothing":
        (dumped(gpus(capacity={}), [FULL]), {"node": "big"}, None),
    "a sick device takes nothing":
        (dumped([node("n", devices=[device("d", health="sick")])]), {"gpu": 1}, None),
}  # fmt: skip


@pytest.mark.parametrize(("dump", "asked", "outcome"), RIGHT.values(), ids=RIGHT)
def test_a_right_decision_has_no_violations(dump, asked, outcome):
    assert check_decision(dump, asked, outcome) == []


WRONG = {
    "refused what fits": (IDLE, {"amounts": {"cpu": 40_000}}, None, "I9", "big"),
    "refused a device that fits": (TAKEN, {"gpu": 10_000, "gpu_model": "a100"}, None, "I9", "big"),
    "refused what a stranger leaves":
        (FOREIGN, {"gpu_memory": 30, "exclude": ["small"]}, None, "I9", "big"),
    "chose a node that is not there": (IDLE, {}, on("moon"), "I9", "moon"),
    "chose a full node": (dumped(gpus(), [FULL]), {"amounts": {"cpu": 1}}, on("big"), "I9", "big"),
    "chose a node that is down": (dumped(every("down")), {}, on("big"), "I9", "big"),
    "chose a draining node": (dumped(gpus(draining=True)), {}, on("big"), "I9", "big"),
    "chose an overcommitted node": (dumped(gpus(capacity={}), [FULL]), {}, on("big"), "I9", "big"),
    "chose an excluded node": (IDLE, {"exclude": ["big"]}, on("big"), "I9", "big"),
    "chose another than the pinned node": (IDLE, {"node": "big"}, on("small"), "I9", "small"),
    "chose a node without the label": (IDLE, {"labels": {"zone": "a"}}, on("big"), "I9", "big"),
    "placed one and a half device": (IDLE, {"gpu": 15_000}, on("big", W40[0]), "I9", "big"),
    "chose another model":
        (IDLE, {"gpu": 10_000, "gpu_model": "T4"}, on("big", W40[0]), "I9", "big/0"),
    "chose a lesser device":
        (IDLE, {"gpu": 10_000, "gpu_capability": [9, 0]}, on("big", W40[1]), "I9", "big/1"),
    "chose a sick device":
        (dumped([node("n", devices=[device("d", memory=0, health="sick")])]), {"gpu": 1},
         on("n", part("d", 1)), "I9", "d"),
    "gave one device for two": (IDLE, {"gpu": 20_000}, on("big", W40[0]), "I3", "big"),
    "gave one device twice": (IDLE, {"gpu": 20_000}, on("big", W40[0], W40[0]), "I3", "big/0"),
    "gave a device unasked": (IDLE, {}, on("big", W40[0]), "I3", "big"),
    "gave another node's device": (IDLE, {"gpu": 10_000}, on("small", W40[0]), "I3", "big/0"),
    "gave a held device as a whole": (SHARED, {"gpu": 10_000}, on("big", W40[0]), "I3", "big/0"),
    "gave a stranger's device as a whole":
        (FOREIGN, {"gpu": 10_000}, on("big", W40[0]), "I3", "big/0"),
    "shared an exclusive device":
        (TAKEN, {"gpu_memory": 1}, on("big", part("big/0", 0, 1)), "I3", "big/0"),
    "gave a share too many":
        (SHARED, {"gpu": 4001}, on("big", part("big/0", 4001, 16)), "I3", "big/0"),
    "gave memory that strangers use":
        (G1, {"gpu_memory": 7}, on("big", part("big/0", 0, 7)), "I3", "big/0"),
    "gave another share than asked":
        (IDLE, {"gpu": 2500}, on("big", part("big/0", 2400, 10)), "I3", "big/0"),
    "gave a whole device shared":
        (IDLE, {"gpu": 10_000}, on("big", part("big/0", 10_000, 40)), "I3", "big/0"),
    "an outcome that is no table": (IDLE, {}, "big", "I9", "outcome"),
    "a request that is no table": (IDLE, 7, None, "I9", "request"),
    "a request for half a part": (IDLE, {"gpu": 0.5}, None, "I9", "request"),
    "a dump that is no table": (None, {}, None, "I2", "dump"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("dump", "asked", "outcome", "invariant", "subject"), WRONG.values(), ids=WRONG
)
def test_a_wrong_decision_is_caught_and_named(dump, asked, outcome, invariant, subject):
    assert (invariant, subject) in findings(check_decision(dump, asked, outcome))


def test_a_decision_that_follows_the_order_of_its_input_is_caught():
    variants = [{"a": 1, "b": 2}, {"b": 2, "a": 1}]
    assert check_determinism(min, variants) == []
    assert check_determinism(min, []) == []
    caught = check_determinism(lambda nodes: next(iter(nodes)), variants)
    assert findings(caught) == {("I8", "variant 1")}


@st.composite
def states(draw):
    """A valid state: nodes with devices, then grants that each fit what is left."""
    nodes, grants = [], []
    for place in range(draw(st.integers(1, 3))):
        name, count = f"n{place}", draw(st.integers(0, 3))
        devices = [device(f"{name}/{i}", draw(st.integers(0, 99)), index=i) for i in range(count)]
        nodes.append(node(name, cpu=draw(st.integers(1, 50)), devices=devices))
    room = {row["name"]: row["capacity"]["cpu"] for row in nodes}
    left = {d["id"]: [10_000, d["memory"]] for row in nodes for d in row["devices"]}
    for number in range(1, draw(st.integers(1, 8)) + 1):
        row = draw(st.sampled_from(nodes))
        cpu = draw(st.integers(0, room[row["name"]]))
        room[row["name"]] -= cpu
        parts = [draw_part(draw, d, left) for d in row["devices"] if draw(st.booleans())]
        devices = [each for each in parts if each]
        amounts = {"cpu": cpu} if cpu else {}
        grants.append(held(number, row["name"], amounts, devices, **draw(lives())))
        if grants[-1]["state"] not in ("reserved", "active"):
            room[row["name"]] += cpu
            for each in devices:
                left[each["device"]][0] += each["share"]
                left[each["device"]][1] += each["memory"]
    for row in draw(st.lists(st.sampled_from(nodes), max_size=2)):
        for each in row["devices"]:
            each["health"] = draw(st.sampled_from(["ok", "sick", "lost"]))
        row["capacity"] = {"cpu": draw(st.integers(0, 50))}
    return dumped(nodes, grants)


def draw_part(draw, row, left):
    share, memory = left[row["id"]]
    if share <= 0:
        return None
    whole = [share, memory] == [10_000, row["memory"]] and draw(st.booleans())
    taken = part(row["id"], draw(st.integers(1, share)), draw(st.integers(0, memory)))
    if whole:
        taken = part(row["id"], 10_000, row["memory"], exclusive=True)
    left[row["id"]] = [share - taken["share"], memory - taken["memory"]]
    return taken


def lives():
    later = st.integers(NOW + 1, NOW + 100)
    return st.one_of(
        st.just({}),
        st.just({"lifetime": "job"}),
        st.builds(lambda at: {"state": "reserved", "deadline": at, "ttl": 100}, later),
        st.builds(lambda at: {"lifetime": "lease", "deadline": at, "ttl": 100}, later),
        st.sampled_from([{"state": state} for state in ("released", "expired", "lost")]),
    )


@given(states())
def test_any_valid_state_has_no_violations(dump):
    assert check_state(dump, strict_time=True) == []
    assert same_state(dump, json.loads(json.dumps(dump))) == []


def live_one(dump, random):
    live = [row for row in dump["allocations"] if row["state"] in ("reserved", "active")]
    return random.choice(live) if live else None


def copy_one(dump, random):
    dump["allocations"].append(copy.deepcopy(random.choice(dump["allocations"])))


def lose_one(dump, random):
    row = live_one(dump, random)
    if row and (row["amounts"] or row["devices"]):
        row["state"] = "released"
        return
    copy_one(dump, random)


def take_one_more(dump, random):
    row = live_one(dump, random) or random.choice(dump["allocations"])
    row["state"], row["deadline"] = "reserved", NOW + 1
    row["amounts"]["cpu"] = row["amounts"].get("cpu", 0) + 1
    row["owner"] = "eve"


def move_one(dump, random):
    row = live_one(dump, random) or random.choice(dump["allocations"])
    row["state"], row["deadline"], row["node"] = "reserved", NOW + 1, "moon"


def drop_node_field(dump, random):
    row = random.choice(dump["nodes"])
    del row[random.choice(sorted(row))]


def drop_allocation_field(dump, random):
    row = random.choice(dump["allocations"])
    del row[random.choice(sorted(row))]


def shift_available(dump, random):
    row = random.choice(dump["nodes"])
    name = random.choice(sorted(row["capacity"]))
    row["available"][name] = row["available"].get(name, 0) + 1


def flip_the_flag(dump, random):
    row = random.choice(dump["nodes"])
    row["overcommitted"] = not row["overcommitted"]


def share_the_number(dump, random):
    row = random.choice(dump["allocations"])
    dump["allocations"].append(held(row["number"], state="lost") | {"id": "a9-9"})


def hold_a_ghost(dump, random):
    row = live_one(dump, random) or random.choice(dump["allocations"])
    row["state"], row["deadline"] = "reserved", NOW + 1
    row["devices"].append(part("ghost", 0, 0))


def forget_the_deadline(dump, random):
    row = random.choice(dump["allocations"])
    row["state"], row["deadline"] = "reserved", None


BREAKS = [
    copy_one, lose_one, take_one_more, move_one, drop_node_field, drop_allocation_field,
    shift_available, flip_the_flag, share_the_number, hold_a_ghost, forget_the_deadline,
]  # fmt: skip


@given(states(), st.sampled_from(BREAKS), st.randoms(use_true_random=False))
def test_any_single_corruption_of_a_valid_state_is_caught(dump, corrupt, random):
    corrupt(dump, random)
    assert check_state(dump) != []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def spots(value):
    """Yield every container in `value` with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from spots(inner)


@given(JSON, st.randoms(use_true_random=False))
def test_no_input_makes_the_checker_raise(junk, random):
    dump, events = rich(), [NODE_EVENT, *log(R, A, RELEASED, start=2)]
    asked, outcome = {"gpu": 10_000, "labels": {"a": "b"}, "exclude": []}, on("n1", W40[0])
    state = copy.deepcopy([dump, events, asked, outcome])
    container, key = random.choice(list(spots(state)))
    container[key] = junk
    for each in (*state, junk):
        assert all(isinstance(found, Violation) for found in check_state(each))
        check_history(each, each)
        check_decision(dump, each, each)
        same_state(each, dump)
        replay(each, each)
    check_decision(*(state[i] for i in (0, 2, 3)))


@pytest.mark.parametrize("odd", [10**5000, {1: 2}, {(): 1}, object()], ids=lambda v: str(type(v)))
def test_a_value_that_json_cannot_hold_is_only_a_violation(odd):
    for container, key in spots(rich()):
        dump = rich()
        for place, (again, same) in enumerate(list(spots(dump))):
            if same == key and type(again) is type(container) and place % 3 == 0:
                again[same] = odd
        check_state(dump)
        same_state(dump, rich())


def test_the_checker_shares_no_code_with_the_ledger():
    for path in Path(audit.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        imports = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        imports |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        ours = {each for each in imports if each.split(".")[0] not in sys.stdlib_module_names}
        assert all(each.startswith("gridhand.audit.") for each in ours)
