"""Jobs as plain data: for the checker, for a bug report, and for the store to write down.

What is None or empty is left out of a work, a request and an attempt: it says nothing. All else is
spelled out, so that a row means the same when a default has changed.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gridhand.core.attempts import Attempt
from gridhand.core.gpus import GpuAsk
from gridhand.core.jobs import Job
from gridhand.core.requests import Request
from gridhand.core.retries import RetryPolicy
from gridhand.core.work import Work


def job_row(job: Job, works: dict[int, dict[str, Any]] | None = None) -> dict[str, Any]:
    """A job as plain data. `works` remembers those that were made, by identity."""
    work = None if works is None else works.get(id(job.work))
    if work is None:
        work = work_row(job.work)
    if works is not None:
        works[id(job.work)] = work
    return {
        "id": job.id,
        "number": job.number,
        "owner": job.work.owner,
        "name": job.work.name,
        "state": str(job.state),
        "array": job.array,
        "array_index": job.array_index,
        "submitted": job.submitted,
        "ended": job.ended,
        "reason": None if job.reason is None else str(job.reason),
        "not_before": job.not_before,
        "request": None if asks_as_submitted(job) else request_row(job.request),
        "after": [[one.id, str(one.condition)] for one in job.after],
        "attempts": [attempt_row(one) for one in job.attempts],
        "work": work,
    }


def asks_as_submitted(job: Job) -> bool:
    return job.request is job.work.request or job.request == job.work.request


def attempt_row(attempt: Attempt) -> dict[str, Any]:
    return {
        name: str(value) if name in ("stopping", "reason") else value
        for name, value in zip(Attempt._fields, attempt, strict=True)
        if value is not None and value != ""
    }


_WORK = tuple(
    one.name
    for one in fields(Work)
    if one.name not in ("command", "priority", "layout", "request", "retry")
)


def work_row(work: Work) -> dict[str, Any]:
    row = bare_work_row(work) | {"command": list(work.command)}
    row["request"], row["retry"] = request_row(work.request), retry_row(work.retry)
    return row


def bare_work_row(work: Work) -> dict[str, Any]:
    """The row of a work without what many works have in common: its request and its retries."""
    row: dict[str, Any] = {}
    for name in _WORK:
        if (value := getattr(work, name)) is not None:
            row[name] = value
    row["command"] = work.command
    row["priority"], row["layout"] = work.priority._value_, work.layout._value_
    return row


def retry_row(retry: RetryPolicy) -> dict[str, Any]:
    return {
        "tries": retry.tries,
        "on": sorted(map(str, retry.on)),
        "exit_codes": sorted(retry.exit_codes),
        "losses": retry.losses,
        "delay_ms": retry.delay_ms,
        "most_delay_ms": retry.most_delay_ms,
    }


def request_row(request: Request) -> dict[str, Any]:
    """A request as plain data, amounts in parts."""
    row = {
        "gpu": None if request.gpu is None else _gpu_ask_row(request.gpu),
        "node": request.node,
        "prefer": list(request.prefer),
        "exclude": sorted(request.exclude),
        "labels": dict(request.labels),
        "quality": request.quality,
        "alternatives": [request_row(one) for one in request.alternatives],
        "together_with": request.together_with,
        "apart_from": list(request.apart_from),
    }
    given = {name: value for name, value in row.items() if value}
    return {"amounts": request.amounts.parts(), **given}


def _gpu_ask_row(asked: GpuAsk) -> dict[str, Any]:
    row = {
        "devices": asked.devices,
        "share": asked.share,
        "memory": asked.memory_bytes,
        "model": asked.model,
        "capability": None if asked.capability is None else list(asked.capability),
    }
    return {name: value for name, value in row.items() if value is not None}
