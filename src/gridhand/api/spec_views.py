"""Amounts with the names and units of the `ResourceSpec` of the original calls.

`/resources/allocate` and `/resources/status` speak in cores and GB; names that are not part of
the specification stand beside them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gridhand.api.json_views import when
from gridhand.core.ledger.allocations import Allocation
from gridhand.core.ledger.status import GpuStatus, NodeStatus, Status
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import UNIT, Resources

_GB = 10**9
_FIELDS = {
    "cpu": ("cpu_cores", UNIT),
    "memory": ("memory_gb", _GB),
    "gpu": ("gpu_count", UNIT),
    "gpu_memory": ("gpu_memory_gb", _GB),
    "disk": ("disk_gb", _GB),
    "bandwidth": ("network_bandwidth_mbps", UNIT),
}
_UTILIZATION = ("cpu", "memory", "gpu")


def spec_json(amounts: Resources, capability: str | None = None) -> dict[str, Any]:
    """Return amounts as a `ResourceSpec`.

    >>> spec_json(Resources.parse("cpu=2 memory=4GB"))["memory_gb"]
    4
    """
    parts = amounts.parts()
    known = {field: _number(parts.pop(name, 0), unit) for name, (field, unit) in _FIELDS.items()}
    others = {name: _number(amount, UNIT) for name, amount in parts.items()}
    return {**known, "gpu_compute_capability": capability, **others}


def _number(amount: int, unit: int) -> int | float:
    return amount // unit if amount % unit == 0 else amount / unit


def grant_json(held: Allocation, asked: Request, *, fresh: bool) -> dict[str, Any]:
    """Return a granted allocation: the fields of the original reply, then ours."""
    granted = _granted(held, asked)
    capability = granted.gpu.capability if granted.gpu is not None else None
    return {
        "success": True,
        **held_json(held),
        "resources": spec_json(granted.resources, _version(capability)),
        "fresh": fresh,
    }


def held_json(held: Allocation) -> dict[str, Any]:
    """Return an allocation after a move."""
    return {
        "allocation_id": held.id,
        "worker_id": held.node,
        "resources": spec_json(held.resources),
        "expires_at": when(held.deadline),
        "task_id": None if held.holder.startswith("#") else held.holder,
        "state": str(held.state),
        "gpus": [hold.device for hold in held.devices],
        "quality": held.quality,
    }


def _granted(held: Allocation, asked: Request) -> Request:
    """Return the alternative of the request that was granted."""
    for choice in asked.choices():
        devices = choice.gpu.devices if choice.gpu is not None else 0
        same = choice.amounts == held.amounts and devices == len(held.devices)
        if same and choice.quality == held.quality:
            return choice
    return asked


def status_json(status: Status) -> dict[str, Any]:
    """Return the utilization of the cluster, node by node and in total."""
    return {
        "workers": [_worker_json(node) for node in status.nodes],
        "summary": {
            "total": spec_json(status.total),
            "allocated": spec_json(status.allocated),
            "available": spec_json(status.available),
            "overall_utilization": _percent(status.allocated, status.total),
        },
    }


def _worker_json(node: NodeStatus) -> dict[str, Any]:
    return {
        "worker_id": node.name,
        "total": spec_json(node.total, _best_capability(node.gpus)),
        "allocated": spec_json(node.allocated),
        "available": spec_json(node.available),
        "utilization": _percent(node.allocated, node.total),
        "health": str(node.health),
        "draining": node.draining,
    }


def _percent(held: Resources, total: Resources) -> dict[str, float]:
    """Return the held part of each resource in percent; 0 of a resource that is not there."""
    return {
        name: round(held[name] / total[name] * 100, 4) if total[name] else 0.0
        for name in _UTILIZATION
    }


def _best_capability(gpus: Iterable[GpuStatus]) -> str | None:
    known = [status.gpu.capability for status in gpus if status.gpu.capability is not None]
    return _version(max(known, default=None))


def _version(capability: tuple[int, ...] | None) -> str | None:
    return None if capability is None else ".".join(map(str, capability))
