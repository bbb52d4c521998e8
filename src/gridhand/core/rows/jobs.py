"""Jobs as plain data and back: for the store, the checker and bug reports.

Fields that are None or empty are left out of a job spec, a request and an attempt. All others are
spelled out, so that a row means the same after a default has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from gridhand.core.jobs.attempt import Attempt, Reason
from gridhand.core.jobs.job import After, Condition, Job
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.jobs.spec import JobSpec, Priority
from gridhand.core.model.names import JobId
from gridhand.core.rows.requests import request_from_row, request_row

Row = Mapping[str, Any]

_REASONS = {str(reason): reason for reason in Reason}
# Fields that earlier versions stored and never used.
_UNUSED_OF_ATTEMPT = frozenset({"gpu_peak_bytes", "short_of"})
_UNUSED_OF_SPEC = frozenset({"pieces", "layout"})


def job_row(job: Job, works: dict[int, dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the job as plain data. `works` caches the rows of job specs by identity."""
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
        "after": [[dependency.id, str(dependency.condition)] for dependency in job.after],
        "attempts": [attempt_row(attempt) for attempt in job.attempts],
        "work": work,
    }


def asks_as_submitted(job: Job) -> bool:
    """Return whether no retry has changed what the job requests."""
    return job.request is job.work.request or job.request == job.work.request


_ALWAYS = frozenset(Attempt._fields) - Attempt._field_defaults.keys()


def attempt_row(attempt: Attempt) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: str(value) if name in ("stopping", "reason") else value
        for name, value in zip(Attempt._fields, attempt, strict=True)
        if name in _ALWAYS or value != Attempt._field_defaults[name]
    }
    if attempt.waited:
        row["waited"] = list(map(list, attempt.waited))
    if attempt.preempts:
        row["preempts"] = list(attempt.preempts)
    return row


_WORK = tuple(
    field.name
    for field in fields(JobSpec)
    if field.name not in ("command", "priority", "request", "retry")
)


def work_row(work: JobSpec) -> dict[str, Any]:
    row = bare_work_row(work) | {"command": list(work.command)}
    row["request"], row["retry"] = request_row(work.request), retry_row(work.retry)
    return row


def bare_work_row(work: JobSpec) -> dict[str, Any]:
    """Return the row without the request and the retry policy, which many job specs share."""
    row: dict[str, Any] = {}
    for name in _WORK:
        if (value := getattr(work, name)) is not None:
            row[name] = value
    row["command"] = work.command
    row["priority"] = work.priority._value_
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


# ---- and back


def job_spec_from_row(row: Row) -> JobSpec:
    return JobSpec(
        **{
            **{name: value for name, value in row.items() if name not in _UNUSED_OF_SPEC},
            "command": tuple(row["command"]),
            "request": request_from_row(row["request"]),
            "priority": Priority(row["priority"]),
            "retry": _retry_from_row(row["retry"]),
        }
    )


def _retry_from_row(row: Row) -> RetryPolicy:
    on, codes = frozenset(map(Reason, row["on"])), frozenset(row["exit_codes"])
    return RetryPolicy(**{**row, "on": on, "exit_codes": codes})


def attempt_from_row(row: Row) -> Attempt:
    kept = {name: value for name, value in row.items() if name not in _UNUSED_OF_ATTEMPT}
    for name in {"stopping", "reason"} & kept.keys():
        kept[name] = _REASONS[kept[name]]
    if "waited" in kept:
        kept["waited"] = tuple((cause, ms) for cause, ms in kept["waited"])
    if "preempts" in kept:
        kept["preempts"] = tuple(kept["preempts"])
    return Attempt(**kept)


def dependency_from_row(row: Sequence[str]) -> After:
    id, condition = row
    return After(JobId(id), Condition(condition))
