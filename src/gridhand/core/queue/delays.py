"""Delays and deadlines of waiting jobs: pure rules about times that their owners have set."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from gridhand.core.jobs.job import Job, JobPhase, JobState
from gridhand.core.model.requests import Request
from gridhand.core.queue.named_queues import NO_QUEUES, NamedQueues

USUAL_MS = 3_600_000  # of a job of which nobody says how long it takes


def why_delayed(job: Job, phase: JobPhase) -> str | None:
    """Return why a job waits if its owner wants it to; None if it waits for something else."""
    if phase is JobPhase.HELD:
        return f"held; `grid unhold {job.array or job.id}` lets it start"
    if phase is JobPhase.SCHEDULED and job.not_before is not None:
        return f"begins at {time_text(job.not_before)}"
    return None


def time_text(ms: int) -> str:
    """Return a time for people.

    >>> time_text(1_700_000_000_123)
    '2023-11-14 22:13:20 UTC'
    """
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def latest_start(job: Job) -> int | None:
    """Return when the job must have started to end before its deadline; None without one.

    A time limit says how long it may run, else what is expected; else it must only have started.
    """
    if job.work.deadline_ms is None:
        return None
    return job.submitted + job.work.deadline_ms - job.work.longest_ms


def must_start_by(job: Job) -> int | None:
    """Return the first moment at which it is too late for a waiting job to start; None if never."""
    latest = latest_start(job)
    return None if latest is None or job.state is not JobState.QUEUED else latest + 1


def current_request(job: Job, now: int) -> Request:
    """Return what the job asks for now: its alternatives count only once it has waited."""
    changes = fallback_at(job)
    return (
        job.request if changes is None or changes <= now else replace(job.request, alternatives=())
    )


def fallback_at(job: Job) -> int | None:
    """Return when the alternatives of a job begin to count; None if they count at once.

    The wait is that since the submission, or since the job was to begin.
    """
    wait_ms = job.work.fallback_after_ms
    if wait_ms is None or not job.request.alternatives:
        return None
    return max(job.submitted, job.begins or 0) + wait_ms


def declared_ms(job: Job) -> int | None:
    """Return how long a job takes as its owner expects, else at most; None if nobody says so."""
    return job.work.expect_ms or job.work.time_limit_ms


def expires_at(job: Job, queues: NamedQueues) -> int | None:
    """Return when a queued job has waited so long that its queue gives it up; None for never.

    Whatever it waits for, the wait is that since the submission, or since the job was to begin.
    A job that has run once, and waits again, does not expire.
    """
    rules = queues.rules_of(job.work.queue)
    if rules is None or rules.expiry_ms is None or job.attempts or not job.open:
        return None
    return max(job.submitted, job.begins or 0) + rules.expiry_ms


def expected_ms(job: Job, queues: NamedQueues = NO_QUEUES) -> int:
    """Return how long a job should run, for planning around it: as its queue says, if it does not.

    Without any of these it is an hour.
    """
    rules = queues.rules_of(job.work.queue)
    usual_ms = None if rules is None else rules.default_duration_ms
    return declared_ms(job) or usual_ms or USUAL_MS
