"""The measured load of nodes and devices as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Sample = Mapping[str, Any]  # a `UsageEvent`, or nothing

_TRAFFIC = (
    "load", "processes", "disk_bytes", "disk_total_bytes", "disk_read_per_s", "disk_written_per_s",
    "network_received_per_s", "network_sent_per_s",
)  # fmt: skip


def used_json(sample: Sample) -> dict[str, Any]:
    """Return the measured use of each resource, in the units of the amounts; {} if unknown.

    Disk is left out: a node offers what was free of it, so the files on it are no part of that.
    """
    node, gpus = sample.get("node") or {}, (sample.get("gpus") or {}).values()
    names = (("cpu", "cpu"), ("memory", "memory_bytes"))
    used = {name: node[key] for name, key in names if key in node}
    busy = [gpu["utilization"] for gpu in gpus if gpu["utilization"] is not None]
    if busy:
        used["gpu"] = round(sum(busy) / 100, 4)
    if gpus:
        used["gpu_memory"] = sum(gpu["memory_bytes"] for gpu in gpus)
    return used


def load_json(sample: Sample) -> dict[str, Any] | None:
    """Return how the load divides between our jobs and others, with traffic and averages."""
    if not sample.get("own"):
        return None
    node = sample["node"]
    return {
        "over_s": sample.get("over_ms", 0) / 1000,
        "own": sample["own"],
        "others": sample.get("others"),
        **{name: node[name] for name in _TRAFFIC if name in node},
    }


def gpu_load_json(sample: Sample, id: str) -> dict[str, Any] | None:
    """Return how busy a device is, and with which processes; None if that is not known."""
    load = (sample.get("gpus") or {}).get(id)
    return None if load is None else dict(load)
