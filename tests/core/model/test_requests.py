"""Requests: amounts, quality levels, constraints and alternatives."""

import dataclasses

import pytest

from gridhand import InvalidAmount, InvalidInput, InvalidName, InvalidRequest, Request, Resources
from gridhand.core.model.gpus import GpuRequest
from gridhand.core.model.quality import AUTO, LEVELS, factors, scaled, scaled_duration
from gridhand.core.model.requests import MOST_ALTERNATIVES, MOST_NODES
from gridhand.core.model.resources import UNIT

GB = 10**9
BASE = {"cpu": 2, "memory": "4GB", "gpu_memory": "8GB", "disk": "50GB", "bandwidth": 100}


# ---- quality


#    level       cpu  memory   GPU memory  time
SCALED = {
    "draft":    (1.0, "2.8GB", "6.4GB",    0.5),
    "standard": (2.0, "4GB",   "8GB",      1),
    "high":     (3.0, "5.2GB", "9.6GB",    2),
    "ultra":    (4.0, "6.0GB", "11.2GB",   4),
}  # fmt: skip


@pytest.mark.parametrize("level", SCALED)
def test_q1_a_level_scales_cpu_memory_and_gpu_memory_and_nothing_else(level):
    cpu, memory, gpu_memory, _ = SCALED[level]
    asked = Request.of(BASE, gpu=2, gpu_capability="8.6", gpu_model="A100", quality=level)
    assert asked.amounts == Resources.of(cpu=cpu, memory=memory, disk="50GB", bandwidth=100)
    assert asked.gpu == GpuRequest(2, 0, Resources.of(memory=gpu_memory)["memory"], "A100", (8, 6))
    assert asked.quality == level


@pytest.mark.parametrize("level", SCALED)
def test_q1_durations_are_halved_kept_doubled_or_quadrupled(level):
    assert scaled_duration(120.0, level) == 120.0 * SCALED[level][3]


@pytest.mark.parametrize("level", SCALED)
def test_a_share_and_a_number_of_devices_do_not_scale(level):
    assert Request.of(gpu=0.25, quality=level).gpu == GpuRequest(1, 2500, None)
    assert Request.of(gpu=3, quality=level).gpu == GpuRequest(3, UNIT, None)


def test_q1_scaling_adds_no_resource():
    assert Request.of(disk="1GB", quality="ultra").amounts == Resources.of(disk="1GB")


def test_without_a_level_nothing_is_scaled():
    assert Request.of(BASE).resources == Resources.of(BASE, gpu=1)
    assert Request.of(BASE).quality is None


def test_q2_an_override_replaces_single_factors():
    asked = Request.of(cpu=2, memory="4GB", quality="standard", scaling={"cpu": 3, "memory": 2})
    assert asked.resources == Resources.of(cpu=6, memory="8GB")
    asked = Request.of(cpu=2, memory="4GB", quality="ultra", scaling={"cpu": 3})
    assert asked.resources == Resources.of(cpu=6, memory="6GB")


def test_q2_an_override_without_a_level_is_on_standard():
    asked = Request.of(cpu=2, memory="4GB", scaling={"cpu": 3, "memory": 2})
    assert asked.resources == Resources.of(cpu=6, memory="8GB")
    assert asked.quality == "standard"


def test_q2_an_override_of_time_changes_durations_alone():
    assert scaled_duration(10, "high", {"time": 3}) == 30
    assert Request.of(cpu=2, quality="high", scaling={"time": 3}).resources == Resources.of(cpu=3)


@pytest.mark.parametrize("key", ["disk", "gpu", "CPU", "", "speed", 5, None], ids=repr)
def test_q2_an_unknown_key_is_an_error_that_lists_the_keys(key):
    with pytest.raises(InvalidInput) as caught:
        factors("standard", {key: 2})
    for known in ("cpu", "memory", "gpu_memory", "time"):
        assert known in caught.value.hint


@pytest.mark.parametrize(
    "factor", [0, -1, 0.0, -0.5, float("nan"), float("inf"), True, "x", None, 1e-9], ids=repr
)
def test_q2_a_factor_that_is_not_positive_is_an_error(factor):
    with pytest.raises(InvalidInput, match="cpu factor"):
        factors("standard", {"cpu": factor})


@pytest.mark.parametrize("scaling", [5, "cpu", [("cpu", 2)], b"cpu"], ids=repr)
def test_overrides_that_are_no_mapping_are_refused(scaling):
    with pytest.raises(InvalidInput):
        Request.of(cpu=1, quality="high", scaling=scaling)


@pytest.mark.parametrize("level", ["best", "", "HIGH", "high ", 1, [], b"high"], ids=repr)
def test_q3_an_unknown_level_is_an_error_that_lists_the_four(level):
    with pytest.raises(InvalidInput, match="quality") as caught:
        Request.of(cpu=1, quality=level)
    assert "draft, standard, high, ultra" in caught.value.hint
    with pytest.raises(InvalidInput):
        scaled_duration(1, level)


def test_auto_is_every_level_from_the_highest_down():
    asked = Request.of(cpu=2, quality=AUTO)
    assert [one.quality for one in asked.choices()] == ["ultra", "high", "standard", "draft"]
    assert [one.amounts["cpu"] / UNIT for one in asked.choices()] == [4, 3, 2, 1]
    assert list(LEVELS) == ["ultra", "high", "standard", "draft"]


def test_auto_with_a_fallback_tries_every_level_with_the_device_first():
    asked = Request.of(cpu=2, gpu=1, quality="auto", fallback="cpu")
    assert [(one.quality, one.gpu is not None) for one in asked.choices()] == [
        (level, gpu) for gpu in (True, False) for level in LEVELS
    ]


def test_scaling_is_to_the_nearest_part_and_never_to_nothing():
    assert scaled(1, 5000) == 1  # half a part up
    assert scaled(3, 5000) == 2
    assert scaled(1, 1) == 1
    assert scaled(0, 20_000) == 0
    assert Request.of(cpu=0.0001, quality="draft").amounts["cpu"] == 1


# ---- the same in every spelling


def test_a_request_reads_every_spelling():
    same = Request.of(cpu=2, memory="4GB", gpu=1, gpu_capability="8.6", gpu_model="A100")
    assert (
        Request.of(
            {
                "cpu_cores": 2.0,
                "memory_gb": 4,
                "gpu_count": 1,
                "gpu_compute_capability": "8.6",
                "gpu_type": "A100",
            }
        )
        == same
    )
    assert Request.of("cpu=2 memory=4GB", gpu=1, gpu_capability=8.6, gpu_model="A100") == same
    assert Request.of(Resources.of(cpu=2, memory=4000, gpu=1), gpu_capability="8.6", gpu_model="A100") == same  # fmt: skip
    assert Request.of(same) is same


def test_resources_are_the_amounts_and_the_devices():
    asked = Request.of(cpu=1, gpu=0.5, gpu_memory="1GB")
    assert asked.amounts == Resources.of(cpu=1)
    assert asked.resources == Resources.of(cpu=1, gpu=0.5, gpu_memory="1GB")
    assert asked.on_cpu().resources == Resources.of(cpu=1)


def test_a_request_that_is_given_with_keywords_heeds_them_or_refuses():
    """Never: the caller says `node=` or more amounts, and is not told that they are ignored."""
    made = Request.of(cpu=1)
    for more in ({"node": "n2"}, {"exclude": "n2"}, {"quality": "ultra"}, {"memory": "1GB"}):
        try:
            asked = Request.of(made, **more)
        except InvalidInput:
            continue
        assert asked != made, f"{more} was ignored"


def test_the_same_request_has_the_same_key_and_another_has_another():
    def keys(**more):
        return Request.of(cpu=1, **more).key()

    assert keys(memory="1GB") == keys(memory=1000)
    assert keys(exclude=["b", "a"]) == keys(exclude=["a", "b"])
    assert keys(labels={"x": "1", "y": "2"}) == keys(labels={"y": "2", "x": "1"})
    different = [
        {},
        {"memory": 1},
        {"node": "a"},
        {"prefer": "a"},
        {"prefer": ["a", "b"]},
        {"exclude": "a"},
        {"labels": {"a": "b"}},
        {"labels": {"a": "c"}},
        {"quality": "standard"},
        {"gpu": 1},
        {"gpu": 1, "gpu_model": "A100"},
        {"gpu": 1, "gpu_capability": "8.0"},
        {"gpu": 1, "fallback": "cpu"},
        {"gpu": 0.5},
        {"gpu_memory": 1},
        {"gpu": 2, "gpu_memory": 1},
        {"alternatives": [{"cpu": 2}]},
    ]
    assert len({keys(**more) for more in different}) == len(different)


def test_a_request_cannot_be_changed():
    asked = Request.of(cpu=1, labels={"a": "b"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        asked.node = "n1"
    labels = {"a": "b"}
    asked = Request.of(cpu=1, labels=labels)
    labels["a"] = "c"
    assert asked.labels == {"a": "b"}


# ---- alternatives


def test_alternatives_come_in_order_and_go_where_the_request_may_go():
    asked = Request.of(
        cpu=8,
        node="n1",
        prefer="n2",
        exclude="n3",
        labels={"zone": "a"},
        alternatives=[{"cpu": 4, "gpu": 1}, Request.of(cpu=2)],
    )
    assert [one.resources for one in asked.choices()] == [
        Resources.of(cpu=8),
        Resources.of(cpu=4, gpu=1),
        Resources.of(cpu=2),
    ]
    for one in asked.choices():
        assert (one.node, one.prefer, one.exclude) == ("n1", ("n2",), frozenset({"n3"}))
        assert one.labels == {"zone": "a"}


def test_alternatives_are_scaled_like_the_request():
    asked = Request.of(cpu=8, quality="draft", alternatives=[{"cpu": 4}])
    assert [one.amounts["cpu"] for one in asked.choices()] == [4 * UNIT, 2 * UNIT]


def test_the_fallback_is_the_last_alternative_without_devices():
    asked = Request.of(cpu=1, gpu=1, alternatives=[{"cpu": 1, "gpu": 0.5}], fallback="cpu")
    assert [one.resources for one in asked.choices()] == [
        Resources.of(cpu=1, gpu=1),
        Resources.of(cpu=1, gpu=0.5),
        Resources.of(cpu=1),
    ]


# ---- what does not go together

#    what is wrong                              how it is asked                                         refused as
CONFLICTS = {
    "nothing":                                 ({},                                                     InvalidRequest, "resources"),
    "nothing but zeros":                       ({"cpu": 0, "memory": 0},                                InvalidRequest, "resources"),
    "a device and a half":                     ({"gpu": 1.5},                                           InvalidRequest, "gpu"),
    "a model without a device":                ({"cpu": 1, "gpu_model": "A100"},                        InvalidRequest, "gpu_model"),
    "a capability without a device":           ({"cpu": 1, "gpu_capability": "8.0"},                    InvalidRequest, "gpu_capability"),
    "pinned to what is excluded":              ({"cpu": 1, "node": "a", "exclude": ["b", "a"]},         InvalidRequest, "exclude"),
    "a fallback without a device":             ({"cpu": 1, "fallback": "cpu"},                          InvalidRequest, "fallback"),
    "a fallback to nothing":                   ({"gpu": 1, "fallback": "cpu"},                          InvalidRequest, "fallback"),
    "a fallback there is not":                 ({"cpu": 1, "gpu": 1, "fallback": "tpu"},                InvalidInput, "fallback"),
    "a fallback that is no text":              ({"cpu": 1, "gpu": 1, "fallback": 5},                    InvalidInput, "fallback"),
    "the same amount twice":                   ({"cpu": 1, "cpu_cores": 1},                             InvalidRequest, "cpu"),
    "a negative amount":                       ({"cpu": -1},                                            InvalidAmount, "cpu"),
    "a name that is none":                     ({"my cpu": 1},                                          InvalidName, "resource name"),
    "a node with a slash":                     ({"cpu": 1, "node": "a/b"},                              InvalidName, "node"),
    "a node that is a number":                 ({"cpu": 1, "node": 5},                                  InvalidName, "node"),
    "a preferred node with a newline":         ({"cpu": 1, "prefer": "a\n"},                            InvalidName, "prefer"),
    "a preferred node among others":           ({"cpu": 1, "prefer": ["a", None]},                      InvalidName, "prefer"),
    "preferred nodes as a number":             ({"cpu": 1, "prefer": 5},                                InvalidInput, "prefer"),
    "excluded nodes as a mapping":             ({"cpu": 1, "exclude": {"a": 1}},                        InvalidInput, "exclude"),
    "excluded nodes of None":                  ({"cpu": 1, "exclude": None},                            InvalidInput, "exclude"),
    "too many preferred":                      ({"cpu": 1, "prefer": ["a"] * (MOST_NODES + 1)},         InvalidInput, "prefer"),
    "labels as a list":                        ({"cpu": 1, "labels": [("a", "b")]},                     InvalidInput, "labels"),
    "a label that is a number":                ({"cpu": 1, "labels": {"a": 1}},                         InvalidName, "label a"),
    "a label with a newline":                  ({"cpu": 1, "labels": {"a\n": "b"}},                     InvalidName, "label"),
    "too many labels":                         ({"cpu": 1, "labels": {f"l{n}": "x" for n in range(65)}}, InvalidInput, "labels"),
    "alternatives as a mapping":               ({"cpu": 1, "alternatives": {"cpu": 2}},                 InvalidInput, "alternatives"),
    "alternatives as text":                    ({"cpu": 1, "alternatives": "cpu=2"},                    InvalidInput, "alternatives"),
    "alternatives as a number":                ({"cpu": 1, "alternatives": 5},                          InvalidInput, "alternatives"),
    "alternatives of None":                    ({"cpu": 1, "alternatives": None},                       InvalidInput, "alternatives"),
    "an alternative of nothing":               ({"cpu": 1, "alternatives": [{}]},                       InvalidInput, "resources"),
    "an alternative that is a number":         ({"cpu": 1, "alternatives": [5]},                        InvalidInput, "resources"),
    "an alternative with its own":             ({"cpu": 1, "alternatives": [Request.of(cpu=1, alternatives=[{"cpu": 2}])]}, InvalidRequest, "alternatives"),
    "too many alternatives":                   ({"cpu": 1, "alternatives": [{"cpu": 1}] * (MOST_ALTERNATIVES + 1)}, InvalidInput, "alternatives"),
    "a model that is a number":                ({"gpu": 1, "gpu_model": 5},                             InvalidInput, "gpu_model"),
    "a capability that is a word":             ({"gpu": 1, "gpu_capability": "new"},                    InvalidInput, "gpu_capability"),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "kind", "field"), CONFLICTS.values(), ids=CONFLICTS)
def test_contradictions_are_refused_by_name(asked, kind, field):
    with pytest.raises(kind) as caught:
        Request.of(**asked)
    assert field in str(caught.value)
    assert caught.value.hint
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["cls", "given", "self", "text", "parts"])
def test_a_resource_may_have_any_name_that_is_allowed(name):
    assert Resources.of({name: 1})[name] == UNIT
    assert Resources.of(**{name: 1})[name] == UNIT
    assert Request.of(**{name: 1}).amounts[name] == UNIT


def test_one_name_may_be_given_where_several_may():
    asked = Request.of(cpu=1, prefer="a", exclude="b")
    assert asked.prefer == ("a",)
    assert asked.exclude == frozenset({"b"})
    assert Request.of(cpu=1, prefer=["a", "b", "a"]).prefer == ("a", "b")
    assert Request.of(cpu=1, exclude={"a"}).exclude == frozenset({"a"})


def test_gigabytes_of_device_memory_are_on_each_device():
    assert Request.of(gpu=2, gpu_memory_gb=20).gpu == GpuRequest(2, 0, 20 * GB)


# ---- memory in steps


#    what it shows                      memory       step        rounded up
STEPS = {
    "a part of a step is a whole one":  ("120MB",     "100MB",    "200MB"),
    "whole steps stay":                 ("200MB",     "100MB",    "200MB"),
    "a byte more is a step more":       ("200000001B", "100MB",   "300MB"),
    "nothing stays nothing":            (0,           "100MB",    0),
    "the largest amount stays":         ("9007199254740991B", "1GB", "9007199254740991B"),
}  # fmt: skip


@pytest.mark.parametrize(("memory", "step", "rounded"), STEPS.values(), ids=STEPS)
def test_memory_is_rounded_up_to_whole_steps(memory, step, rounded):
    request = Request.of(cpu=1.5, memory=memory, disk="1MB", alternatives=[{"memory": "1MB"}])
    after = request.rounded_up(Resources.of(memory=step)["memory"])
    assert after.amounts == Resources.of(cpu=1.5, memory=rounded, disk="1MB")
    [other] = after.alternatives
    assert other.amounts == Resources.of(memory=step)
