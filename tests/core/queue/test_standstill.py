"""Which slots wait for each other forever, and which of their calls are refused."""

import pytest

from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources
from gridhand.core.queue.standstill import (
    ALL_WAIT,
    NO_NODE_HAS_BOTH,
    WaitingSlot,
    refused_jobs,
    stuck_slots,
)

TWO = {name: Resources.of(cpu=4, memory="2GB").parts() for name in "ab"}
ONE = {"a": TWO["a"]}


def slot(id, node="a", holds="cpu=1", wants=(), calls=(), since=0.0):
    """A slot; `wants` are what its queued calls ask for, `calls` the slots that run others."""
    queued = {f"{id}-{n}": Request.of(one) for n, one in enumerate(wants)}
    return WaitingSlot(id, since, node, Resources.of(holds).parts(), queued, frozenset(calls))


#    what it shows                                 slots                                                                       nodes  stuck
STUCK = {
    "nobody waits":                               ([],                                                                         ONE, ""),
    "there is room beside it":                    ([slot("x", wants=["cpu=3"])],                                               ONE, ""),
    "there is none beside what it holds":         ([slot("x", wants=["cpu=4"])],                                               ONE, "x"),
    "another node has room":                      ([slot("x", wants=["cpu=4"])],                                               TWO, ""),
    "two take the room from each other":          ([slot("x", wants=["cpu=3"]), slot("y", wants=["cpu=3"])],                   ONE, "xy"),
    "one can end and make room for the other":    ([slot("x", wants=["cpu=3"]), slot("y", wants=["cpu=2"])],                   ONE, ""),
    "and so on, one after the other":             ([slot("x", wants=["cpu=3"]), slot("y", holds="cpu=1.5", wants=["cpu=1.5"]), slot("z", wants=["cpu=0.5"])], ONE, ""),
    "but not if the one that ends has too little": ([slot("x", wants=["cpu=4"]), slot("y", wants=["cpu=2"])],                  ONE, "x"),
    "one of several calls can start":             ([slot("x", wants=["cpu=4", "cpu=1"])],                                      ONE, ""),
    "one of several resources is lacking":        ([slot("x", holds="memory=1GB", wants=["cpu=1 memory=2GB"])],                ONE, "x"),
    "other resources are held":                   ([slot("x", holds="memory=1GB", wants=["cpu=4"])],                           ONE, ""),
    "a call runs elsewhere":                      ([slot("x", wants=["cpu=4"], calls=["other"])],                              ONE, ""),
    "a call runs in a slot that can go on":       ([slot("x", calls=["y"]), slot("y", wants=["cpu=2"])],                       ONE, ""),
    "a call runs in a slot that never ends":      ([slot("x", calls=["y"]), slot("y", wants=["cpu=3"])],                       ONE, "xy"),
    "what those hold who wait for it counts":     ([slot("x", holds="cpu=2", calls=["y"]), slot("y", wants=["cpu=2"])],        ONE, "xy"),
    "its call has just started":                  ([slot("x", holds="cpu=4")],                                                 ONE, ""),
    "its node is gone":                           ([slot("x", node="c", holds="cpu=4", wants=["cpu=4"])],                      ONE, ""),
}  # fmt: skip


@pytest.mark.parametrize(("slots", "totals", "stuck"), STUCK.values(), ids=STUCK)
def test_stuck_slots(slots, totals, stuck):
    assert "".join(one.id for one in stuck_slots(slots, totals)) == stuck


def test_alternatives_and_pins():
    either = slot("x")._replace(queued={"j": Request.of(cpu=4, alternatives=[{"cpu": 3}])})
    assert stuck_slots([either], ONE) == []
    pinned = slot("x")._replace(queued={"j": Request.of(cpu=4, node="a")})
    assert stuck_slots([pinned], TWO) == [pinned]


FIRST, LAST = slot("x", wants=["cpu=3"], since=1.0), slot("y", wants=["cpu=3", "cpu=3"], since=2.0)

#    what it shows                                   the slot, and those that wait                           its refused jobs
REFUSED = {
    "the last one is refused":                      (LAST, [FIRST, LAST],                                    {"y-0": ALL_WAIT, "y-1": ALL_WAIT}),
    "the first one is not":                         (FIRST, [FIRST, LAST],                                   {}),
    "nor one that has not waited for long":         (LAST, [FIRST],                                          {}),
    "nor one that waits for a running call alone":  (slot("z", calls=["y"], since=9), [FIRST, LAST, slot("z", calls=["y"], since=9)], {}),
    "then the last before it is refused":           (LAST, [FIRST, LAST, slot("z", calls=["y"], since=9)],   {"y-0": ALL_WAIT, "y-1": ALL_WAIT}),
    "what no node has beside it is refused at once": (slot("x", wants=["cpu=4", "cpu=1"]), [],               {"x-0": NO_NODE_HAS_BOTH}),
}  # fmt: skip


@pytest.mark.parametrize(("own", "waiting", "refused"), REFUSED.values(), ids=REFUSED)
def test_refused_jobs(own, waiting, refused):
    assert refused_jobs(own, waiting, ONE) == refused
