"""Check samples where they arrive: what a broken agent says must not become a decision.

A number that is not a number, negative, or larger than any machine makes the whole sample invalid.
Fields that are not known here come from a newer agent and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from gridhand.core.errors import InvalidInput
from gridhand.core.model.resources import MOST
from gridhand.engines.base import UsageEvent

_MOST_ENTRIES = 100_000
_LONGEST_TEXT = 200
_MOST_CORES = 100_000

Check = Callable[[str, object], Any]


def check_usage(raw: object) -> UsageEvent:
    """Return the sample with the fields that are known; raise InvalidInput with the bad one."""
    checked = _fields("usage", raw, _USAGE)
    return cast(UsageEvent, {"event": "usage", "node": {}, "jobs": {}, "foreign": {}, **checked})


def _number(low: float, high: float) -> Check:
    def check(path: str, value: object) -> object:
        # NaN is neither larger nor smaller than anything.
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInput(path, value, f"a number from {low:g} to {high:g}")
        if not low <= value <= high:
            raise InvalidInput(path, value, f"a number from {low:g} to {high:g}")
        return value

    return check


def _whole(high: int) -> Check:
    within = _number(0, high)

    def check(path: str, value: object) -> object:
        if not isinstance(within(path, value), int):
            raise InvalidInput(path, value, f"a whole number from 0 to {high}")
        return value

    return check


def _maybe(check: Check) -> Check:
    return lambda path, value: None if value is None else check(path, value)


def _text(path: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise InvalidInput(path, value, f"a text of at most {_LONGEST_TEXT} characters")
    return "".join(letter if letter.isprintable() else "?" for letter in value)


def _items(check: Check, count: int = _MOST_ENTRIES) -> Check:
    def check_all(path: str, value: object) -> list[Any]:
        if not isinstance(value, list) or len(value) > count:
            raise InvalidInput(path, value, f"a list of at most {count}")
        return [check(f"{path}.{place}", item) for place, item in enumerate(value)]

    return check_all


def _by_name(check: Check) -> Check:
    def check_all(path: str, value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping) or len(value) > _MOST_ENTRIES:
            raise InvalidInput(path, value, f"an object of at most {_MOST_ENTRIES}")
        return {_text(path, name): check(f"{path}.{name}", item) for name, item in value.items()}

    return check_all


def _object(known: Mapping[str, Check], *required: str) -> Check:
    def check(path: str, value: object) -> dict[str, Any]:
        found = _fields(path, value, known)
        for name in required:
            if name not in found:
                raise InvalidInput(f"{path}.{name}", None, "a value")
        return found

    return check


def _fields(path: str, value: object, known: Mapping[str, Check]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(path, value, "an object")
    return {
        name: check(f"{path}.{name}", value[name]) for name, check in known.items() if name in value
    }


_CORES, _BYTES, _COUNT = _number(0, _MOST_CORES), _whole(MOST), _whole(2**31)
_SHARE = {"cpu": _CORES, "memory_bytes": _BYTES}
_RATES = ("disk_read", "disk_written", "network_received", "network_sent")
_NODE = {
    **_SHARE,
    "processes": _COUNT,
    "load": _items(_number(0, 10**7), 3),
    "disk_bytes": _BYTES,
    "disk_total_bytes": _BYTES,
    **{f"{name}_per_s": _whole(10**13) for name in _RATES},
}
_JOB = {
    **_SHARE,
    "attempt": _COUNT,
    "peak_bytes": _BYTES,
    "cpu_seconds": _number(0, 10**13),
    "processes": _COUNT,
}
_PROCESS = {**_SHARE, "pid": _COUNT, "name": _text, "user": _text}
_OTHERS = {
    **_SHARE,
    "machine_cpu": _CORES,
    "machine_bytes": _BYTES,
    "processes": _items(_object(_PROCESS, *_PROCESS), 100),
}
_GPU_PROCESS = {
    "pid": _COUNT,
    "name": _text,
    "user": _text,
    "job": _maybe(_text),
    "memory_bytes": _maybe(_BYTES),
}
_GPU = {
    "utilization": _maybe(_number(0, 100)),
    "memory_bytes": _BYTES,
    "temperature_c": _maybe(_number(-100, 300)),
    "power_w": _maybe(_number(0, 100_000)),
    "processes": _items(_object(_GPU_PROCESS, *_GPU_PROCESS), 10_000),
}
_USAGE = {
    "node": _object(_NODE),
    "jobs": _by_name(_object(_JOB, "attempt", "cpu", "memory_bytes", "peak_bytes")),
    "foreign": _by_name(_BYTES),
    "over_ms": _whole(10**12),
    "own": _object(_SHARE, *_SHARE),
    "others": _object(_OTHERS, *_OTHERS),
    "gpus": _by_name(_object(_GPU, *_GPU)),
}
