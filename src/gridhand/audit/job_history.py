"""Checks the events of jobs: which may follow which, and which fields may change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gridhand.audit.jobs import OPEN, OVER, AuditedAttempt, AuditedJob, check_job, read_job
from gridhand.audit.rows import Violation

#   kind: (allowed states before, allowed states after, number of new attempts)
STEPS: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {
    "job.started": (("queued",), ("running",), 1),
    "job.stopping": (("running",), ("running",), 0),
    "job.signalled": (("running",), ("running",), 0),
    "job.requeued": (("running",), ("queued",), 0),
    "job.held": (("queued",), ("queued",), 0),
    "job.unheld": (("queued",), ("queued",), 0),
    "job.ended": (OPEN, OVER, 0),
}
FOR_LIFE = ("number", "owner", "submitted", "array", "array_index")


class JobSteps:
    """The last row of each open job while the events are read."""

    def __init__(self) -> None:
        self._last: dict[str, AuditedJob] = {}
        self._highest = 0  # job number so far

    def begin(self, id: str, row: object, found: list[Violation]) -> None:
        """Add a job of the checkpoint."""
        if job := read_job(row, id, found):
            self._keep(job)

    def step(self, number: int, kind: str, subject: str, row: object) -> list[Violation]:
        """Return the violations in one event."""
        found: list[Violation] = []
        new = kind == "job.submitted"
        has_work = isinstance(row, Mapping) and "work" in row
        job = read_job(row, subject, found, with_work=new or has_work)
        if job is None:
            return found
        if job.id != subject:
            return [Violation("I7", subject, f"{kind} has the row of {job.id}")]
        before = self._last.get(subject)
        wrong = self._wrong_beginning(before, job) if new else _wrong_step(kind, before, job)
        self._keep(job)
        found = check_job(job)
        return found + [Violation("I6", subject, f"event {number}: {text}") for text in wrong]

    def _wrong_beginning(self, before: AuditedJob | None, job: AuditedJob) -> list[str]:
        wrong = []
        if before is not None:
            wrong.append("is submitted a second time")
        elif job.number <= self._highest:
            wrong.append(f"has the number {job.number}, but {self._highest} was already given")
        if job.state != "queued" or job.attempts:
            wrong.append(f"begins as {job.state}, with {len(job.attempts)} attempts")
        return wrong

    def _keep(self, job: AuditedJob) -> None:
        self._highest = max(self._highest, job.number)
        if job.state in OVER:
            self._last.pop(job.id, None)  # no event may follow its end
        else:
            self._last[job.id] = job


def _wrong_step(kind: str, before: AuditedJob | None, job: AuditedJob) -> list[str]:
    if kind not in STEPS:
        return [f"{kind} is not a kind of event"]
    if before is None:
        return [f"{kind}, but the job is not open"]
    sources, targets, more = STEPS[kind]
    wrong = []
    if before.state not in sources or job.state not in targets:
        wrong.append(f"{kind}, from {before.state} to {job.state}")
    if len(job.attempts) != len(before.attempts) + more:
        wrong.append(f"{kind}, with {len(job.attempts)} attempts after {len(before.attempts)}")
    for was, now in zip(before.attempts, job.attempts, strict=False):
        wrong += _wrong_attempt(was, now)
    wrong += [f"its {name} changed" for name in FOR_LIFE if _differs(name, before, job)]
    if kind == "job.stopping" and job.attempts and job.attempts[-1].stopping is None:
        wrong.append("job.stopping, without a reason")
    return wrong


def _differs(name: str, before: AuditedJob, job: AuditedJob) -> bool:
    was: Any = getattr(before, name)
    return bool(was != getattr(job, name))


def _wrong_attempt(was: AuditedAttempt, now: AuditedAttempt) -> list[str]:
    """Check that an ended attempt did not change and a running one did not move."""
    if was.ended is not None:
        return [] if was == now else [f"its attempt {was.number} changed after its end"]
    place = (was.node, was.allocation, was.choice, was.placed)
    if place != (now.node, now.allocation, now.choice, now.placed):
        return [f"its attempt {was.number} moved"]
    if now.reason is not None and was.stopping is not None and now.reason != now.stopping:
        return [f"its attempt {was.number} was stopped for {was.stopping}, ended for {now.reason}"]
    return []
