"""Requests that were constructed directly: what `Request.of` could not have made is refused."""

import math

import pytest

from gridhand import GridError, Request, Resources
from gridhand.core.model.gpus import GpuRequest
from gridhand.core.rows.requests import request_from_row, request_row

CPU = Resources({"cpu": 10_000})
GPU = GpuRequest(1, 10_000, None)


def gpu(*fields, **more):
    return {"amounts": CPU, "gpu": GpuRequest(*fields, **more)}


#   what is wrong                  the fields of the request                            the field that is named
WRONG = {
    "amounts in a mapping":        ({"amounts": {"cpu": 1}},                            "amounts"),
    "nothing at all":              ({"amounts": Resources()},                           "resources"),
    "half a part":                 ({"amounts": Resources({"cpu": 0.5})},               "cpu"),
    "NaN parts":                   ({"amounts": Resources({"cpu": math.nan})},          "cpu"),
    "too many parts":              ({"amounts": Resources({"cpu": 2**53})},             "cpu"),
    "True parts":                  ({"amounts": Resources({"cpu": True})},              "cpu"),
    "a name with a space":         ({"amounts": Resources({"a b": 1})},                 "resource name"),
    "devices among the amounts":   ({"amounts": Resources({"gpu": 10_000})},            "amounts"),
    "a number of devices":         ({"amounts": CPU, "gpu": 1},                         "gpu"),
    "no device":                   (gpu(0, 10_000, None),                               "gpu.devices"),
    "half a device too many":      (gpu(1.5, 10_000, None),                             "gpu.devices"),
    "too large a share":           (gpu(1, 10_001, None),                               "gpu.share"),
    "shares of two devices":       (gpu(2, 5_000, None),                                "gpu.share"),
    "neither share nor memory":    (gpu(1, 0, None),                                    "gpu.share"),
    "memory in text":              (gpu(1, 0, "4GB"),                                   "gpu.memory_bytes"),
    "memory below nothing":        (gpu(1, 0, -1),                                      "gpu.memory_bytes"),
    "a model without a name":      (gpu(1, 10_000, None, ""),                           "gpu_model"),
    "a model that is a number":    (gpu(1, 10_000, None, 100),                          "gpu_model"),
    "a capability in text":        (gpu(1, 10_000, None, None, "8.6"),                  "gpu_capability"),
    "a node that is a number":     ({"amounts": CPU, "node": 7},                        "node"),
    "a node with a slash":         ({"amounts": CPU, "node": "a/b"},                    "node"),
    "preferred nodes in a list":   ({"amounts": CPU, "prefer": ["a"]},                  "prefer"),
    "a preferred node of None":    ({"amounts": CPU, "prefer": (None,)},                "prefer"),
    "excluded nodes in a text":    ({"amounts": CPU, "exclude": "a"},                   "exclude"),
    "an excluded node of bytes":   ({"amounts": CPU, "exclude": frozenset({b"a"})},     "exclude"),
    "labels in a list":            ({"amounts": CPU, "labels": [("a", "b")]},           "labels"),
    "a label of a number":         ({"amounts": CPU, "labels": {"a": 1}},               "label a"),
    "an unknown quality":          ({"amounts": CPU, "quality": "best"},                "quality"),
    "a quality that cannot hash":  ({"amounts": CPU, "quality": []},                    "quality"),
    "alternatives in a list":      ({"amounts": CPU, "alternatives": [Request(CPU)]},   "alternatives"),
    "an alternative in a mapping": ({"amounts": CPU, "alternatives": ({"cpu": 1},)},    "alternatives"),
    "an alternative of its own":   ({"amounts": CPU, "alternatives": (Request(CPU, alternatives=(Request(CPU),)),)}, "alternatives"),
    "nonsense in an alternative":  ({"amounts": CPU, "alternatives": (Request(CPU, node=7),)}, "node"),
    "two strategies":              ({"amounts": CPU, "alternatives": (Request(CPU, strategy="pack"),)}, "strategy"),
    "a neighbour with a newline":  ({"amounts": CPU, "together_with": "a\n"},           "together_with"),
    "neighbours in a text":        ({"amounts": CPU, "apart_from": "a"},                "apart_from"),
    "a neighbour of None":         ({"amounts": CPU, "apart_from": (None,)},            "apart_from"),
    "a strategy that is a list":   ({"amounts": CPU, "strategy": ["pack"]},             "strategy"),
    "a function as a strategy":    ({"amounts": CPU, "strategy": min},                  "strategy"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "named"), WRONG.values(), ids=WRONG)
def test_nonsense_is_refused_with_its_field(fields, named):
    with pytest.raises(GridError) as caught:
        Request.of(Request(**fields))
    assert caught.value.field == named
    assert caught.value.hint


RIGHT = (
    Request(CPU),
    Request(Resources(), GPU),
    Request.of(cpu=1, gpu_memory="4GB", gpu_model=["A100", "v100"], gpu_capability="8.0"),
    Request.of(cpu=1, gpu=0.5, fallback="cpu", quality="auto", strategy="spread"),
    Request.of(cpu=1, prefer=["a"], exclude="b", labels={"zone": "east"}, apart_from="mine"),
    Request.of(cpu=1, strategy="pack", alternatives=[{"cpu": 0.5}]).avoiding(["a"]).pinned("b"),
)


@pytest.mark.parametrize("request_", RIGHT, ids=str)
def test_what_of_makes_is_taken_as_it_is_and_survives_a_row(request_):
    assert Request.of(request_) is request_
    assert request_from_row(request_row(request_)) == request_


def test_the_strategy_is_part_of_what_is_asked_for():
    plain, packed = Request.of(cpu=1), Request.of(cpu=1, strategy="pack")
    assert plain != packed
    assert plain.key() != packed.key()
    assert "strategy" not in request_row(plain)  # as earlier versions wrote it
    assert request_from_row({"amounts": {"cpu": 10_000}}) == plain


def test_every_choice_of_a_request_has_its_strategy():
    asked = Request.of(gpu=1, cpu=2, fallback="cpu", quality="auto", strategy="spread")
    assert len(asked.alternatives) == 7
    assert {choice.strategy for choice in asked.choices()} == {"spread"}
