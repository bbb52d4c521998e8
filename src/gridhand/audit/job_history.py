"""The lawful steps of a job: which event may follow which, and what of a job may change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gridhand.core.check.jobs import OPEN, OVER, Attempt, Job, check_job, read_job
from gridhand.core.check.rows import Violation

#   kind: (from which states, to which, and how many attempts are new)
STEPS: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {
    "job.started": (("queued",), ("running",), 1),
    "job.stopping": (("running",), ("running",), 0),
    "job.requeued": (("running",), ("queued",), 0),
    "job.ended": (OPEN, OVER, 0),
}
FOR_LIFE = ("number", "owner", "submitted", "array", "array_index")


class JobSteps:
    """What was last said of each open job."""

    def __init__(self) -> None:
        self._last: dict[str, Job] = {}
        self._highest = 0  # of the numbers that were given

    def begin(self, id: str, row: object, found: list[Violation]) -> None:
        """Take on a job of the checkpoint."""
        if job := read_job(row, id, found):
            self._keep(job)

    def step(self, number: int, kind: str, subject: str, row: object) -> list[Violation]:
        """What is unlawful about one event."""
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

    def _wrong_beginning(self, before: Job | None, job: Job) -> list[str]:
        wrong = []
        if before is not None:
            wrong.append("is submitted a second time")
        elif job.number <= self._highest:
            wrong.append(f"has the number {job.number}, after {self._highest} was given")
        if job.state != "queued" or job.attempts:
            wrong.append(f"begins as {job.state}, with {len(job.attempts)} attempts")
        return wrong

    def _keep(self, job: Job) -> None:
        self._highest = max(self._highest, job.number)
        if job.state in OVER:
            self._last.pop(job.id, None)  # whatever comes after its end is unlawful
        else:
            self._last[job.id] = job


def _wrong_step(kind: str, before: Job | None, job: Job) -> list[str]:
    if kind not in STEPS:
        return [f"{kind} is no kind of event"]
    if before is None:
        return [f"{kind}, but it is not open"]
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
        wrong.append("job.stopping, for no reason")
    return wrong


def _differs(name: str, before: Job, job: Job) -> bool:
    was: Any = getattr(before, name)
    return bool(was != getattr(job, name))


def _wrong_attempt(was: Attempt, now: Attempt) -> list[str]:
    """An attempt that is over stays as it was, and one under way stays where it is."""
    if was.ended is not None:
        return [] if was == now else [f"its attempt {was.number} changed after its end"]
    place = (was.node, was.allocation, was.choice, was.placed)
    if place != (now.node, now.allocation, now.choice, now.placed):
        return [f"its attempt {was.number} moved"]
    if now.reason is not None and was.stopping is not None and now.reason != now.stopping:
        return [f"its attempt {was.number} was stopped for {was.stopping}, ended for {now.reason}"]
    return []
