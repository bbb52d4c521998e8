"""The checker finds faults in the row of a call, and none in a valid one."""

import pytest

from gridhand.audit import check_call

ROW = {
    "run": "r1", "number": 7, "owner": "ann", "name": "f", "state": "succeeded", "open": None,
    "node": "n", "job": "3", "allocation": "a1-2", "submitted": 10, "started": 11, "ended": 12,
    "error": None,
}  # fmt: skip
STILL = {"open": 1, "ended": None}

SOUND = {
    "a success": {},
    "one that waits": {"state": "queued", "started": None, "node": None, "job": None, **STILL},
    "one that runs": {"state": "running", **STILL},
    "a failure": {"state": "failed", "error": "no"},
    "a failure that never began": {"state": "failed", "error": "no", "started": None},
    "one that was cancelled while it waited": {"state": "cancelled", "started": None},
    "one that was lost": {"state": "lost", "error": "gone"},
}


@pytest.mark.parametrize("changes", SOUND.values(), ids=SOUND)
def test_nothing_is_wrong(changes):
    assert check_call({**ROW, **changes}) == []


#    what it shows                     what is changed                            what is said
BROKEN = {
    "no row":                         (None,                                      "must be a table"),
    "no name":                        ({"name": ""},                              "name must be"),
    "a run that is a number":         ({"run": 5},                                "run must be"),
    "number 0":                       ({"number": 0},                             "has no number"),
    "a state that is none":           ({"state": "asleep"},                       "state must be"),
    "over, but open":                 ({"open": 1},                               "open is 1"),
    "running, but not open":          ({"state": "running", "ended": None},       "open is None"),
    "over without an end":            ({"ended": None},                           "ended at None"),
    "open with an end":               ({"state": "running", "open": 1},           "ended at 12"),
    "a success that never began":     ({"started": None},                         "has not started"),
    "a failure without an error":     ({"state": "failed"},                       "error is None"),
    "a success with an error":        ({"error": "no"},                           "error is 'no'"),
    "times that are not in order":    ({"ended": 9},                              "out of order"),
    "a negative time":                ({"submitted": -1},                         "submitted must be"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), BROKEN.values(), ids=BROKEN)
def test_each_fault_is_named(changes, said):
    found = check_call(None if changes is None else {**ROW, **changes})
    assert said in " ".join(map(str, found))
    assert {one.invariant for one in found} == {"I7"}
