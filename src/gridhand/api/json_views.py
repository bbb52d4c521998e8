"""What jobs look like from outside. Times are ISO 8601 in UTC, durations seconds, sizes bytes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gridhand.controller.looking import Seen
from gridhand.controller.orders import log_path
from gridhand.core.jobs import Attempt, Job
from gridhand.core.requests import Request
from gridhand.core.resources import UNIT, Resources
from gridhand.core.views import GpuStatus, NodeStatus
from gridhand.home import Home

_BYTES = frozenset({"memory", "disk", "gpu_memory"})


def when(ms: int | None) -> str | None:
    """
    >>> when(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    if ms is None:
        return None
    text = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{ms % 1000:03d}Z"


def amounts(resources: Resources) -> dict[str, int | float]:
    """Bytes as whole numbers, all else in units."""
    return {
        name: parts if name in _BYTES else _units(parts)
        for name, parts in resources.parts().items()
    }


def _units(parts: int) -> int | float:
    return parts // UNIT if parts % UNIT == 0 else parts / UNIT


def request_json(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = dict(amounts(request.resources))
    for name in ("node", "quality", "together_with"):
        if (value := getattr(request, name)) is not None:
            found[name] = value
    if request.gpu is not None and request.gpu.model is not None:
        found["gpu_model"] = request.gpu.model
    if request.gpu is not None and request.gpu.capability is not None:
        found["gpu_capability"] = ".".join(map(str, request.gpu.capability))
    for name in ("prefer", "exclude", "apart_from"):
        if value := getattr(request, name):
            found[name] = sorted(value)
    if request.labels:
        found["labels"] = dict(request.labels)
    if request.alternatives:
        found["alternatives"] = [request_json(one) for one in request.alternatives]
    return found


def node_json(status: NodeStatus, usage: Mapping[str, Any] | None) -> dict[str, Any]:
    """A node with what is held there, and what is really used, as far as that is measured."""
    node = status.node
    return {
        "name": node.name,
        "health": str(node.health),
        "draining": node.draining,
        "overcommitted": status.overcommitted,
        "total": amounts(status.total),
        "allocated": amounts(status.allocated),
        "available": amounts(status.available),
        "used": _used(usage),
        "gpus": [_gpu_json(one) for one in status.gpus],
        "labels": dict(node.labels),
        "price": node.price / UNIT,
        "address": node.address,
        "allocations": list(status.allocations),
    }


def _used(usage: Mapping[str, Any] | None) -> dict[str, Any]:
    measured = (usage or {}).get("node") or {}
    return {
        name: measured[key]
        for name, key in (("cpu", "cpu"), ("memory", "memory_bytes"))
        if key in measured
    }


def _gpu_json(one: GpuStatus) -> dict[str, Any]:
    gpu = one.gpu
    return {
        "id": gpu.id,
        "index": gpu.index,
        "model": gpu.model,
        "memory_bytes": gpu.memory_bytes,
        "capability": None if gpu.capability is None else ".".join(map(str, gpu.capability)),
        "health": str(gpu.health),
        "share": one.share,
        "exclusive": one.exclusive,
        "allocated_memory_bytes": one.memory_bytes,
        "foreign_memory_bytes": one.foreign_bytes,
        "free_memory_bytes": one.free_memory_bytes,
    }


def job_json(
    seen: Seen,
    home: Home,
    *,
    usage: Mapping[str, Any] | None = None,
    gpus: list[str] | None = None,
) -> dict[str, Any]:
    job, work = seen.job, seen.job.work
    last = job.attempts[-1] if job.attempts else None
    folder = home.job(job.id)
    over = None if job.open else last
    held = seen.held.devices if seen.held is not None else ()
    return {
        "id": job.id,
        "name": work.name,
        "owner": work.owner,
        "state": str(seen.state),
        "phase": str(seen.phase),
        "reason": None if job.reason is None else str(job.reason),
        "message": _message(job, last),
        "exit_code": None if over is None else over.status,
        "signal": None if over is None else over.signal,
        "node": None if last is None else last.node,
        "command": list(work.command),
        "folder": work.folder,
        "priority": str(work.priority),
        "task_type": work.task_type,
        "request": request_json(job.request),
        "array": job.array,
        "array_index": job.array_index,
        "after": [{"id": one.id, "condition": str(one.condition)} for one in job.after],
        "within": work.within,
        "detached": work.detached,
        "time_limit_s": None if work.time_limit_ms is None else work.time_limit_ms / 1000,
        "submitted_at": when(job.submitted),
        "started_at": None if last is None else when(last.started),
        "ended_at": when(job.ended),
        "not_before": when(job.not_before),
        "why": seen.why,
        "attempts": [_attempt_json(one) for one in job.attempts],
        "peak_memory_bytes": max((one.peak_bytes or 0 for one in job.attempts), default=0) or None,
        "gpus": [hold.device for hold in held] or gpus or [],
        "usage": usage,
        "logs": {name: log_path(job, folder, name) for name in ("stdout", "stderr")},
    }


def _message(job: Job, last: Attempt | None) -> str:
    """A sentence for its user, where there is something to say."""
    if job.open or last is None or last.succeeded:
        return "" if last is None or not job.open else last.message
    return last.message


def _attempt_json(one: Attempt) -> dict[str, Any]:
    return {
        "number": one.number,
        "node": one.node,
        "allocation": one.allocation,
        "placed_at": when(one.placed),
        "started_at": when(one.started),
        "ended_at": when(one.ended),
        "reason": None if one.reason is None else str(one.reason),
        "exit_code": one.status,
        "signal": one.signal,
        "message": one.message,
        "peak_memory_bytes": one.peak_bytes,
    }
