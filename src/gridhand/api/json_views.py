"""Jobs and nodes as JSON. Times are ISO 8601 in UTC, durations in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gridhand.api.load_views import gpu_load_json, load_json, used_json
from gridhand.controller.jobs.start_orders import log_path
from gridhand.core.jobs.attempt import Waited
from gridhand.core.jobs.job import HELD, Attempt, Job
from gridhand.core.ledger.status import GpuStatus, NodeStatus
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import UNIT, Resources
from gridhand.core.queue.job_view import JobView
from gridhand.core.queue.wait_causes import cause_text
from gridhand.home import Home

_BYTES = frozenset({"memory", "disk", "gpu_memory"})


def when(ms: int | None) -> str | None:
    """Return a time in ISO 8601.

    >>> when(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    if ms is None:
        return None
    text = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{ms % 1000:03d}Z"


def amounts(resources: Resources) -> dict[str, int | float]:
    """Return amounts as numbers: bytes for memory and disk, units for everything else."""
    return {
        name: parts if name in _BYTES else _units(parts)
        for name, parts in resources.parts().items()
    }


def _units(parts: int) -> int | float:
    return parts // UNIT if parts % UNIT == 0 else parts / UNIT


def request_json(request: Request) -> dict[str, Any]:
    """Return a request as it can be written in a submission."""
    shown: dict[str, Any] = dict(amounts(request.resources))
    for name in ("node", "quality", "together_with", "strategy"):
        if (value := getattr(request, name)) is not None:
            shown[name] = value
    if request.gpu is not None and request.gpu.model is not None:
        shown["gpu_model"] = request.gpu.model
    if request.gpu is not None and request.gpu.capability is not None:
        shown["gpu_capability"] = ".".join(map(str, request.gpu.capability))
    for name in ("prefer", "exclude", "apart_from"):
        if value := getattr(request, name):
            shown[name] = sorted(value)
    if request.labels:
        shown["labels"] = dict(request.labels)
    if request.alternatives:
        shown["alternatives"] = [request_json(other) for other in request.alternatives]
    return shown


def node_json(status: NodeStatus, sample: Mapping[str, Any], jobs: int) -> dict[str, Any]:
    """Return a node with what is allocated there, and what is used as far as it is measured."""
    node = status.node
    return {
        "name": node.name,
        "health": str(node.health),
        "draining": node.draining,
        "overcommitted": status.overcommitted,
        "total": amounts(status.total),
        "allocated": amounts(status.allocated),
        "available": amounts(status.available),
        "foreign": amounts(status.foreign),
        "used": used_json(sample),
        "load": load_json(sample),
        "gpus": [
            {**_gpu_json(gpu), "load": gpu_load_json(sample, gpu.gpu.id)} for gpu in status.gpus
        ],
        "labels": dict(node.labels),
        "price": node.price / UNIT,
        "address": node.address,
        "allocations": list(status.allocations),
        "jobs": jobs,
        "last_seen_at": when(sample.get("seen_ms")),
        "ignored_samples": sample.get("ignored", 0),
    }


def _gpu_json(status: GpuStatus) -> dict[str, Any]:
    gpu = status.gpu
    return {
        "id": gpu.id,
        "index": gpu.index,
        "model": gpu.model,
        "memory_bytes": gpu.memory_bytes,
        "capability": None if gpu.capability is None else ".".join(map(str, gpu.capability)),
        "health": str(gpu.health),
        "share": status.share,
        "exclusive": status.exclusive,
        "allocated_memory_bytes": status.memory_bytes,
        "foreign_memory_bytes": status.foreign_bytes,
        "free_memory_bytes": status.free_memory_bytes,
    }


def job_json(
    view: JobView,
    home: Home,
    *,
    usage: Mapping[str, Any] | None = None,
    gpus: list[str] | None = None,
) -> dict[str, Any]:
    job, work = view.job, view.job.work
    last = job.attempts[-1] if job.attempts else None
    folder = home.job(job.id)
    ended = None if job.open else last
    held = view.held.devices if view.held is not None else ()
    return {
        "id": job.id,
        "name": work.name,
        "owner": work.owner,
        "state": str(view.state),
        "phase": str(view.phase),
        "reason": None if job.reason is None else str(job.reason),
        "message": _message(job, last),
        "exit_code": None if ended is None else ended.status,
        "signal": None if ended is None else ended.signal,
        "node": None if last is None else last.node,
        "command": list(work.command),
        "folder": work.folder,
        "priority": str(work.priority),
        "task_type": work.task_type,
        "request": request_json(job.request),
        "array": job.array,
        "array_index": job.array_index,
        "nodes": work.nodes,
        "after": [{"id": after.id, "condition": str(after.condition)} for after in job.after],
        "within": work.within,
        "detached": work.detached,
        "time_limit_s": _seconds(work.time_limit_ms),
        "queue": work.queue,
        "expect_s": _seconds(work.expect_ms),
        "deadline_at": when(_add(job.submitted, work.deadline_ms)),
        "fallback_after_s": _seconds(work.fallback_after_ms),
        "warn_signal": work.warn_signal,
        "warn_s": _seconds(work.warn_ms),
        "submitted_at": when(job.submitted),
        "started_at": None if last is None else when(last.started),
        "ended_at": when(job.ended),
        "not_before": None if job.not_before == HELD else when(job.not_before),
        "why": view.why,
        "waited": waited_json(view.receipt),
        "attempts": [_attempt_json(attempt) for attempt in job.attempts],
        "peak_memory_bytes": max((run.peak_bytes or 0 for run in job.attempts), default=0) or None,
        "gpus": [hold.device for hold in held] or gpus or [],
        "usage": usage,
        "logs": {name: log_path(job, folder, name) for name in ("stdout", "stderr")},
    }


def waited_json(waited: Waited) -> dict[str, Any]:
    """Return how long a job has waited, and for what, the longest first."""
    longest = sorted(waited, key=lambda one: -one[1])
    causes = [
        {"cause": cause, "text": cause_text(cause), "seconds": ms / 1000} for cause, ms in longest
    ]
    return {"seconds": sum(ms for _, ms in waited) / 1000, "causes": causes}


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _add(time: int, ms: int | None) -> int | None:
    return None if ms is None else time + ms


def _message(job: Job, last: Attempt | None) -> str:
    """Return a sentence for the job's user, or "" if there is nothing to say."""
    if job.open or last is None or last.succeeded:
        return "" if last is None or not job.open else last.message
    return last.message


def _attempt_json(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "node": attempt.node,
        "allocation": attempt.allocation,
        "placed_at": when(attempt.placed),
        "started_at": when(attempt.started),
        "ended_at": when(attempt.ended),
        "reason": None if attempt.reason is None else str(attempt.reason),
        "exit_code": attempt.status,
        "signal": attempt.signal,
        "message": attempt.message,
        "master": attempt.master or None,
        "waited": waited_json(attempt.waited),
        "peak_memory_bytes": attempt.peak_bytes,
    }


def hide_private(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job as other users see it: its name, owner, state, times and amounts.

    Messages are hidden, too: they may quote paths and output.
    """
    attempts = [{**attempt, "message": ""} for attempt in job["attempts"]]
    return {**job, **_HIDDEN, "attempts": attempts}


_HIDDEN: Mapping[str, Any] = {
    "command": [],
    "folder": "",
    "message": "",
    "logs": {"stdout": "", "stderr": ""},
}
