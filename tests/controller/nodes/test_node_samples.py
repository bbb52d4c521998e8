"""Samples where they arrive: bad ones are ignored and counted, good ones are the latest."""

import copy
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand.controller.nodes.node_samples import NodeSamples
from gridhand.controller.nodes.sample_check import check_usage
from gridhand.core.errors import InvalidInput

GOOD = {
    "event": "usage", "over_ms": 10_000,
    "node": {"cpu": 1.5, "memory_bytes": 10, "processes": 3, "load": [0.1, 0.2, 0.3],
             "disk_bytes": 1, "disk_total_bytes": 2, "network_sent_per_s": 7},
    "own": {"cpu": 0.5, "memory_bytes": 4},
    "others": {"cpu": 1.0, "memory_bytes": 6, "machine_cpu": 8, "machine_bytes": 100,
               "processes": [{"pid": 7, "name": "x", "user": "u", "cpu": 1.0, "memory_bytes": 6}]},
    "jobs": {"1": {"attempt": 1, "cpu": 0.5, "memory_bytes": 4, "peak_bytes": 5,
                   "cpu_seconds": 9.5, "processes": 2}},
    "foreign": {"G": 5},
    "gpus": {"G": {"utilization": 45.0, "memory_bytes": 5, "temperature_c": 61.0, "power_w": None,
                   "processes": [{"pid": 7, "name": "x", "user": "u", "job": None,
                                  "memory_bytes": None}]}},
}  # fmt: skip

#    what it shows                     where                                bad value             what is allowed
BAD = {
    "not a number":                   ("node.cpu",                          math.nan,             "a number from 0 to 100000"),
    "infinite":                       ("node.cpu",                          math.inf,             "a number from 0"),
    "negative":                       ("node.memory_bytes",                 -1,                   "a number from 0"),
    "absurd memory":                  ("node.memory_bytes",                 2**60,                "a number from 0"),
    "absurd cores":                   ("own.cpu",                           10**9,                "a number from 0 to 100000"),
    "a fraction of a byte":           ("others.memory_bytes",               0.5,                  "a whole number"),
    "text":                           ("node.cpu",                          "1",                  "a number"),
    "a truth":                        ("node.cpu",                          True,                 "a number"),
    "nothing":                        ("jobs.1.cpu",                        None,                 "a number"),
    "busier than busy":               ("gpus.G.utilization",                101,                  "a number from 0 to 100"),
    "molten":                         ("gpus.G.temperature_c",              5000,                 "a number from -100 to 300"),
    "a load that is not a list":      ("node.load",                         0.5,                  "a list"),
    "a list where an object is due":  ("gpus",                              [],                   "an object"),
    "a long name":                    ("others.processes.0.name",           "x" * 1000,           "a text"),
    "negative use of a device":       ("foreign.G",                         -5,                   "a number from 0"),
    "no time at all":                 ("over_ms",                           -10,                  "a number from 0"),
}  # fmt: skip


def changed(path, value):
    sample = copy.deepcopy(GOOD)
    *above, last = path.split(".")
    inside = sample
    for name in above:
        inside = inside[int(name) if isinstance(inside, list) else name]
    inside[last] = value
    return sample


def test_a_good_one_is_kept_as_it_is():
    assert check_usage(GOOD) == GOOD
    assert check_usage({"foreign": {}}) == {"event": "usage", "node": {}, "jobs": {}, "foreign": {}}
    assert check_usage({**GOOD, "of_tomorrow": 5}) == GOOD


@pytest.mark.parametrize(("path", "value", "allowed"), BAD.values(), ids=BAD)
def test_a_bad_one_is_refused_by_its_field(path, value, allowed):
    with pytest.raises(InvalidInput) as caught:
        check_usage(changed(path, value))
    assert caught.value.field == f"usage.{path}"
    assert caught.value.allowed.startswith(allowed)


def test_a_field_that_others_depend_on_must_be_there():
    sample = copy.deepcopy(GOOD)
    del sample["others"]["machine_bytes"]
    with pytest.raises(InvalidInput, match="machine_bytes"):
        check_usage(sample)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, "cpu", "G"]), inner)
    ),
    max_leaves=20,
)


@given(JSON | st.dictionaries(st.sampled_from(list(GOOD)), JSON))
def test_whatever_comes_is_plain_and_finite_afterwards_or_refused(raw):
    try:
        checked = check_usage(raw)
    except InvalidInput:
        return
    json.dumps(checked, allow_nan=False)


def test_control_characters_in_names_do_not_get_through():
    checked = check_usage(changed("others.processes.0.name", "a\x1b[31m\nb"))
    assert checked["others"]["processes"][0]["name"] == "a?[31m?b"


def test_bad_ones_are_counted_and_the_last_good_one_stays():
    samples = NodeSamples()
    assert samples.take("n1", GOOD) == GOOD
    assert samples.take("n1", changed("node.cpu", math.nan)) is None
    assert samples.take("n1", "nonsense") is None
    assert samples.latest["n1"] == GOOD
    facts = samples.facts("n1")
    assert (facts["ignored"], facts["node"]) == (2, GOOD["node"])
    [problem] = samples.with_problems({})["n1"]
    assert problem["message"].startswith(
        "ignored samples: 2; the last because of usage: 'nonsense'"
    )
    assert samples.facts("n2") == {"seen_ms": None, "ignored": 0}
