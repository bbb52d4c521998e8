"""Job: one command to run, with its attempts and its state machine.

`JobSpec` says what to run, and all jobs of an array share it; `Job` adds the state. Both are
values: each move returns a new job, or the same object if nothing changed. What a job holds is in
the ledger; its attempt only names the allocation.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from gridhand.core.errors import JobRefused
from gridhand.core.jobs.attempt import Attempt, AttemptEnd, Reason, Waited
from gridhand.core.jobs.gang import next_gang_retry, others_wait_until
from gridhand.core.jobs.retry_policy import FINAL, next_retry
from gridhand.core.jobs.spec import JobSpec, Priority
from gridhand.core.model.names import AllocationId, JobId, NodeName, check_label
from gridhand.core.model.requests import Request

__all__ = [
    "HELD", "OPEN", "After", "Attempt", "AttemptEnd", "Condition", "Job", "JobMove", "JobPhase",
    "JobSpec", "JobState", "Priority", "Reason", "cancel", "end", "hold", "spawned", "start",
    "stop", "submit", "unhold",
]  # fmt: skip


HELD = 2**53 - 1  # `not_before` of a job that waits until its owner lets it start


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"  # it is unknown how it ended


OPEN = frozenset({JobState.QUEUED, JobState.RUNNING})


class JobPhase(StrEnum):
    """The state of a job in finer steps, as shown to users."""

    QUEUED = "queued"
    WAITING = "waiting"  # for the jobs it depends on
    HELD = "held"  # until its owner lets it start
    SCHEDULED = "scheduled"  # until the time that it is to begin at
    BACKING_OFF = "backing_off"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Condition(StrEnum):
    """How a job must end for its dependents to run."""

    OK = "afterok"
    ANY = "afterany"
    NOT_OK = "afternotok"

    def met_by(self, state: JobState) -> bool:
        """Return whether a job that ended in this state satisfies the condition."""
        return self is Condition.ANY or (state is JobState.SUCCEEDED) is (self is Condition.OK)


class After(NamedTuple):
    """A dependency on another job: its id, and how it must end.

    In a submission the id may be that of an array; the controller replaces it by its tasks.
    """

    id: JobId
    condition: Condition = Condition.OK


class Job(NamedTuple):
    """One job. `request` is the current request: after a retry it may exceed `work.request`.

    `number` is the position in the order of submission, which a retried job keeps.
    """

    id: JobId
    number: int
    work: JobSpec
    request: Request
    submitted: int
    array: str | None = None
    array_index: int | None = None
    after: tuple[After, ...] = ()
    state: JobState = JobState.QUEUED
    attempts: tuple[Attempt, ...] = ()
    not_before: int | None = None
    reason: Reason | None = None
    ended: int | None = None

    @property
    def open(self) -> bool:
        return self.state is JobState.QUEUED or self.state is JobState.RUNNING

    @property
    def attempt(self) -> Attempt | None:
        """The running attempt, if any."""
        return self.attempts[-1] if self.state is JobState.RUNNING else None

    def phase(self, now: int, *, waiting: bool = False) -> JobPhase:
        """Return the phase. `waiting` says whether a job it depends on is open."""
        if (attempt := self.attempt) is not None:
            if attempt.stopping is not None:
                return JobPhase.STOPPING
            return JobPhase.STARTING if attempt.started is None else JobPhase.RUNNING
        if self.state is not JobState.QUEUED:
            return JobPhase.ENDED
        if self.not_before == HELD:
            return JobPhase.HELD
        if waiting:
            return JobPhase.WAITING
        if (self.not_before or 0) <= now:
            return JobPhase.QUEUED
        return JobPhase.BACKING_OFF if self.attempts else JobPhase.SCHEDULED

    @property
    def waits_since(self) -> int:
        """When it came to the queue, for the first time or after its latest attempt."""
        last = self.attempts[-1].ended if self.attempts else None
        return self.submitted if last is None else last

    @property
    def begins(self) -> int | None:
        """When it may start, if it was submitted to begin later."""
        return None if self.work.begin_ms is None else self.submitted + self.work.begin_ms


class JobMove(StrEnum):
    HOLD = "hold"
    START = "start"
    SPAWN = "spawn"
    STOP = "stop"
    CANCEL = "cancel"
    END = "end"


_QUEUED, _RUNNING = frozenset({JobState.QUEUED}), frozenset({JobState.RUNNING})
_ENDED = frozenset(JobState) - OPEN

# The states a move may start from, and those it may lead to. An ended job never moves.
_MOVES: dict[JobMove, tuple[frozenset[JobState], frozenset[JobState]]] = {
    JobMove.HOLD: (_QUEUED, _QUEUED),
    JobMove.START: (_QUEUED, _RUNNING),
    JobMove.SPAWN: (_RUNNING, _RUNNING),
    JobMove.STOP: (_RUNNING, _RUNNING),
    JobMove.CANCEL: (OPEN, _RUNNING | {JobState.CANCELLED}),
    JobMove.END: (_RUNNING, _QUEUED | _ENDED),
}

# The final state for each reason if the job is not retried. Exit code 0 is the only success.
_ENDS: dict[Reason, JobState] = {
    Reason.EXIT: JobState.FAILED,
    Reason.SIGNAL: JobState.FAILED,
    Reason.OOM: JobState.FAILED,
    Reason.TIMEOUT: JobState.FAILED,
    Reason.START_FAILED: JobState.FAILED,
    Reason.PREEMPTED: JobState.FAILED,
    Reason.RETURNED: JobState.FAILED,  # of a gang that cannot run again
    Reason.GANG: JobState.CANCELLED,
    Reason.DEVICE_LOST: JobState.FAILED,
    Reason.NODE_LOST: JobState.LOST,
    Reason.AGENT_LOST: JobState.LOST,
    Reason.CLIENT_GONE: JobState.CANCELLED,
    Reason.DEPENDENCY: JobState.CANCELLED,
    Reason.RELEASED: JobState.CANCELLED,
    Reason.DEADLINE: JobState.CANCELLED,
    Reason.EXPIRED: JobState.CANCELLED,
    Reason.CANCELLED: JobState.CANCELLED,
}


def submit(
    work: JobSpec,
    *,
    id: JobId,
    number: int,
    now: int,
    array: str | None = None,
    array_index: int | None = None,
    after: tuple[After, ...] = (),
) -> Job:
    """Return a new queued job. The caller chooses the id, so that a repeated request finds it."""
    check_label(id, "job id")
    not_before = None if work.begin_ms is None else now + work.begin_ms
    return Job(
        id, number, work, work.request, now, array, array_index, after, not_before=not_before
    )


def hold(job: Job) -> Job:
    """Keep a queued job from starting until `unhold`. Repeating it changes nothing."""
    if job.state is not JobState.QUEUED:
        raise JobRefused(JobMove.HOLD, job.id, f"it is {job.state}")
    return _moved(job._replace(not_before=HELD), JobMove.HOLD, JobState.QUEUED)


def unhold(job: Job, *, now: int) -> Job:
    """Let a held job start, though no earlier than it was to begin. Others stay as they are."""
    if job.not_before != HELD:
        return job
    begins = None if job.attempts or job.begins is None or job.begins <= now else job.begins
    return _moved(job._replace(not_before=begins), JobMove.HOLD, JobState.QUEUED)


def start(
    job: Job,
    *,
    node: NodeName,
    allocation: AllocationId,
    now: int,
    choice: int = 0,
    waited: Waited = (),
    master: str = "",
) -> Job:
    """Start an attempt. Repeating it with the same allocation changes nothing.

    Raise JobRefused unless the job is queued and its back-off is over.
    """
    if job.attempt is not None and job.attempt.allocation == allocation:
        return job
    if job.state is not JobState.QUEUED:
        raise JobRefused(JobMove.START, job.id, f"it is {job.state}")
    if job.not_before is not None and job.not_before > now:
        raise JobRefused(JobMove.START, job.id, f"it must wait until {job.not_before}")
    if any(attempt.allocation == allocation for attempt in job.attempts):
        raise JobRefused(JobMove.START, job.id, f"an ended attempt held {allocation}")
    attempt = Attempt(
        len(job.attempts) + 1, node, allocation, choice, now, waited=waited, master=master
    )
    job = job._replace(attempts=(*job.attempts, attempt), not_before=None)
    return _moved(job, JobMove.START, JobState.RUNNING)


def spawned(job: Job, attempt: int, *, now: int) -> Job:
    """Record that the process has started. A repeat or another attempt changes nothing."""
    current = job.attempt
    if current is None or current.number != attempt or current.started is not None:
        return job
    return _moved(_with(job, current._replace(started=now)), JobMove.SPAWN, job.state)


def stop(job: Job, attempt: int, reason: Reason, message: str = "") -> Job:
    """Tell the attempt to stop, because of a time-out, preemption, a lost device or its gang.

    The job keeps its allocation until the attempt has ended. If the attempt is over, nothing
    changes; if it is already stopping, the first reason stays.
    """
    if reason in FINAL:
        raise ValueError(f"{reason} is a reason to cancel: the job must not be retried")
    current = job.attempt
    if current is None or current.number != attempt or current.stopping is not None:
        return job
    stopping = current._replace(stopping=reason, message=message)
    return _moved(_with(job, stopping), JobMove.STOP, job.state)


def cancel(job: Job, *, now: int, reason: Reason = Reason.CANCELLED) -> Job:
    """Cancel the job: end it if it is queued, tell it to stop if it runs.

    A cancelled job is not retried, even if it is preempted or its node is lost while it stops.
    Cancelling an ended job, or cancelling twice, changes nothing.
    """
    if reason not in FINAL and not (reason is Reason.GANG and job.state is JobState.QUEUED):
        raise ValueError(f"{reason} is a reason to stop: the job may be retried")
    if job.state is JobState.QUEUED:
        return _moved(job, JobMove.CANCEL, _ENDS[reason], reason=reason, now=now)
    current = job.attempt
    if current is None or current.stopping in FINAL:
        return job
    return _moved(_with(job, current._replace(stopping=reason)), JobMove.CANCEL, job.state)


def end(
    job: Job,
    how: AttemptEnd,
    *,
    now: int,
    most_bytes: int | None = None,
    jitter: float = 0.0,
    others: Sequence[Job | None] | None = None,
) -> Job:
    """End the attempt: the job ends, or is queued again if its retry policy says so.

    A repeated report, or one of an attempt that is not running, changes nothing. `most_bytes` is
    the memory of the largest node, `jitter` a number from 0 to 1. `others` are the other members
    if it is a gang: see `gang`.
    """
    current = job.attempt
    if current is None or (current.number, current.allocation) != (how.attempt, how.allocation):
        return job
    ended = _with(job, current.ended_by(how, now=now))
    last = ended.attempts[-1]
    assert last.reason is not None
    if last.succeeded:
        return _moved(ended, JobMove.END, JobState.SUCCEEDED, reason=last.reason, now=last.ended)
    if others is None:
        retry = next_retry(
            job.work.retry, ended.attempts, job.request, most_bytes=most_bytes, jitter=jitter
        )
    else:
        retry = next_gang_retry(ended, others, most_bytes=most_bytes, jitter=jitter)
    if retry is None:
        return _moved(ended, JobMove.END, _ENDS[last.reason], reason=last.reason, now=last.ended)
    not_before = now + retry.wait_ms if retry.wait_ms else None
    if not_before is None and others is not None:
        not_before = others_wait_until(others)
    waiting = ended._replace(request=retry.request, not_before=not_before)
    return _moved(waiting, JobMove.END, JobState.QUEUED)


def _with(job: Job, attempt: Attempt) -> Job:
    return job._replace(attempts=(*job.attempts[:-1], attempt))


def _moved(
    job: Job,
    move: JobMove,
    state: JobState,
    *,
    reason: Reason | None = None,
    now: int | None = None,
) -> Job:
    """Return the job in that state, as the table allows; `reason` and `now` are for an end."""
    sources, targets = _MOVES[move]
    assert job.state in sources, f"{move} from {job.state}"
    assert state in targets, f"{move} to {state}"
    if state in OPEN:
        return job if state is job.state else job._replace(state=state)
    return job._replace(state=state, reason=reason, not_before=None, ended=now)
