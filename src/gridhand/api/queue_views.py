"""The queue as JSON: its entries and the place of a job in it."""

from __future__ import annotations

from typing import Any

from gridhand.api.json_views import request_json, when
from gridhand.controller.keeper.queue_questions import QueueReading, QueueRow
from gridhand.core.queue.forecast import ExpectedStart
from gridhand.core.queue.queue_place import JobsAhead, QueuePlace


def reading_json(reading: QueueReading) -> dict[str, Any]:
    """Return the first entries, and how many jobs are ready or wait for something else."""
    entries = [_row_json(row) for row in reading.rows]
    return {"entries": entries, "ready": reading.ready, "later": reading.later}


def _row_json(row: QueueRow) -> dict[str, Any]:
    line, job = row.line, row.line.job
    kind = "allocation" if not row.is_job else "job" if job.array is None else "array"
    kind = "gang" if job.work.nodes is not None else kind
    return {
        "position": line.position,
        "kind": kind,
        "id": job.id if row.is_job else None,
        "array": job.array,
        "tasks": line.tasks,
        "first_task": job.array_index,
        "last_task": line.last.array_index,
        "complete": line.complete,
        "name": job.work.name if row.is_job else row.holder,
        "owner": job.work.owner,
        "share": round(row.share, 6),
        "past_share": round(row.past_share, 6),
        "priority": str(job.work.priority),
        "request": request_json(job.request),
        "waiting_since": when(job.waits_since),
        "cause": line.cause,
        "why": row.why,
        **start_json(row.start),
    }


def start_json(start: ExpectedStart | None) -> dict[str, Any]:
    """Return when and where a job should start; None where that is not known."""
    return {
        "expected_start_at": None if start is None else when(start.at),
        "expected_node": None if start is None else start.node,
    }


def place_json(place: QueuePlace, now: int, only: str | None) -> dict[str, Any]:
    """Return the place of a job; the names of owners that the caller may not know are left out."""
    shown = place._replace(ahead=_without_others(place.ahead, only))
    return {
        "position": place.position,
        "ready": place.ready,
        "ahead": [one._asdict() for one in shown.ahead],
        "share": round(place.share, 6),
        "past_share": round(place.past_share, 6),
        **start_json(place.start),
        "text": "\n".join(shown.lines(now)),
    }


def _without_others(ahead: tuple[JobsAhead, ...], only: str | None) -> tuple[JobsAhead, ...]:
    if only is None:
        return ahead
    return tuple(
        one if one.owner == only else one._replace(owner="others", share=0.0, past_share=0.0)
        for one in ahead
    )
