"""Job: one piece of work with its attempts, and the moves it can make.

What is to be run is `Work`, which all jobs of an array share; a `Job` adds where it stands. Both
are values: each move answers a new job, or the very same one if it changed nothing, and the store
writes what it gets. What a job holds is in the ledger; a job names its allocation, no more.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from gridhand.core.attempts import Attempt, End, Reason, outcome
from gridhand.core.errors import JobRefused
from gridhand.core.names import check_label
from gridhand.core.requests import Request
from gridhand.core.resources import Resources
from gridhand.core.retries import FINAL, again
from gridhand.core.work import Priority, Work

__all__ = [
    "OPEN", "After", "Attempt", "Condition", "End", "Job", "JobState", "Move", "Phase", "Priority",
    "Reason", "Work", "cancel", "end", "outcome", "spawned", "start", "stop", "submit",
]  # fmt: skip


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"  # nobody knows how it ended


OPEN = frozenset({JobState.QUEUED, JobState.RUNNING})


class Phase(StrEnum):
    """Where a job stands, more finely than its state."""

    QUEUED = "queued"
    WAITING = "waiting"  # for the jobs it is to run after
    BACKING_OFF = "backing_off"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Condition(StrEnum):
    """How a job must have ended for those after it to run."""

    OK = "afterok"
    ANY = "afterany"
    NOT_OK = "afternotok"

    def met_by(self, state: JobState) -> bool:
        """Whether a job that ended so lets the next one run."""
        return self is Condition.ANY or (state is JobState.SUCCEEDED) is (self is Condition.OK)


class After(NamedTuple):
    """A job is to run after this one has ended so."""

    id: str
    condition: Condition = Condition.OK


class Job(NamedTuple):
    """One row of jobs. `request` is what it asks for now: more than its work, after a retry.

    `number` is its place in the order of submission, and stays when it comes back to the queue.
    """

    id: str
    number: int
    work: Work
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
        """The attempt that is under way."""
        return self.attempts[-1] if self.state is JobState.RUNNING else None

    def phase(self, now: int, *, waiting: bool = False) -> Phase:
        """`waiting` is whether a job it is to run after is open: the queue knows."""
        if (attempt := self.attempt) is not None:
            if attempt.stopping is not None:
                return Phase.STOPPING
            return Phase.STARTING if attempt.started is None else Phase.RUNNING
        if self.state is not JobState.QUEUED:
            return Phase.ENDED
        if waiting:
            return Phase.WAITING
        return Phase.QUEUED if (self.not_before or 0) <= now else Phase.BACKING_OFF


class Move(StrEnum):
    START = "start"
    SPAWN = "spawn"
    STOP = "stop"
    CANCEL = "cancel"
    END = "end"


_QUEUED, _RUNNING = frozenset({JobState.QUEUED}), frozenset({JobState.RUNNING})
_ENDED = frozenset(JobState) - OPEN

# From which states, and to which. Nothing leads out of a state in which a job has ended.
_MOVES: dict[Move, tuple[frozenset[JobState], frozenset[JobState]]] = {
    Move.START: (_QUEUED, _RUNNING),
    Move.SPAWN: (_RUNNING, _RUNNING),
    Move.STOP: (_RUNNING, _RUNNING),
    Move.CANCEL: (OPEN, _RUNNING | {JobState.CANCELLED}),
    Move.END: (_RUNNING, _QUEUED | _ENDED),
}

# Where a job ends that is not tried again; an exit with 0 is the one success.
_ENDS: dict[Reason, JobState] = {
    Reason.EXIT: JobState.FAILED,
    Reason.SIGNAL: JobState.FAILED,
    Reason.OOM: JobState.FAILED,
    Reason.TIMEOUT: JobState.FAILED,
    Reason.START_FAILED: JobState.FAILED,
    Reason.PREEMPTED: JobState.FAILED,
    Reason.DEVICE_LOST: JobState.FAILED,
    Reason.NODE_LOST: JobState.LOST,
    Reason.AGENT_LOST: JobState.LOST,
    Reason.CLIENT_GONE: JobState.CANCELLED,
    Reason.DEPENDENCY: JobState.CANCELLED,
    Reason.RELEASED: JobState.CANCELLED,
    Reason.CANCELLED: JobState.CANCELLED,
}


def submit(
    work: Work,
    *,
    id: str,
    number: int,
    now: int,
    array: str | None = None,
    array_index: int | None = None,
    after: tuple[After, ...] = (),
) -> Job:
    """A new job, queued. The caller chose its id, so that a repeat finds it."""
    check_label(id, "job id")
    return Job(id, number, work, work.request, now, array, array_index, after)


def start(job: Job, *, node: str, allocation: str, now: int, choice: int = 0) -> Job:
    """The job with an attempt under way on that node. A repeat with its allocation changes nothing.

    Refused with `JobRefused` unless it is queued and its time has come.
    """
    if job.attempt is not None and job.attempt.allocation == allocation:
        return job
    if job.state is not JobState.QUEUED:
        raise JobRefused(Move.START, job.id, f"it is {job.state}")
    if job.not_before is not None and job.not_before > now:
        raise JobRefused(Move.START, job.id, f"it is to wait until {job.not_before}")
    if any(one.allocation == allocation for one in job.attempts):
        raise JobRefused(Move.START, job.id, f"an attempt that is over held {allocation}")
    attempt = Attempt(len(job.attempts) + 1, node, allocation, choice, now)
    job = job._replace(attempts=(*job.attempts, attempt), not_before=None)
    return _moved(job, Move.START, JobState.RUNNING)


def spawned(job: Job, attempt: int, *, now: int) -> Job:
    """The job once its process is there. Of another attempt, or told again, it changes nothing."""
    current = job.attempt
    if current is None or current.number != attempt or current.started is not None:
        return job
    return _moved(_with(job, current._replace(started=now)), Move.SPAWN, job.state)


def stop(job: Job, attempt: int, reason: Reason) -> Job:
    """The job while its attempt is made to stop: for a time-out, preemption, or a lost device.

    It holds what it holds until it has ended. What comes too late for its attempt changes
    nothing, and the first reason stands.
    """
    if reason in FINAL:
        raise ValueError(f"{reason} is for cancel: the job is not wanted any more")
    current = job.attempt
    if current is None or current.number != attempt or current.stopping is not None:
        return job
    return _moved(_with(job, current._replace(stopping=reason)), Move.STOP, job.state)


def cancel(job: Job, *, now: int, reason: Reason = Reason.CANCELLED) -> Job:
    """The job once nobody wants it: ended if it was queued, stopping if it runs.

    It comes back from nothing then, be it preempted or its node lost. On what has ended, or is
    being cancelled, it changes nothing.
    """
    if reason not in FINAL:
        raise ValueError(f"{reason} is for stop: the job may come back")
    if job.state is JobState.QUEUED:
        return _moved(job, Move.CANCEL, _ENDS[reason], reason=reason, now=now)
    current = job.attempt
    if current is None or current.stopping in FINAL:
        return job
    return _moved(_with(job, current._replace(stopping=reason)), Move.CANCEL, job.state)


def end(job: Job, how: End, *, now: int, most: Resources | None = None, jitter: float = 0.0) -> Job:
    """The job after its attempt: ended, or queued again where its policy says so.

    The same end told twice, or of an attempt that is not under way, changes nothing. `most` is
    what the largest permitted node and device have, `jitter` a number from 0 to 1.
    """
    current = job.attempt
    if current is None or (current.number, current.allocation) != (how.attempt, how.allocation):
        return job
    ended = _with(job, current.over(how, now=now))
    last = ended.attempts[-1]
    assert last.reason is not None
    if last.succeeded:
        return _moved(ended, Move.END, JobState.SUCCEEDED, reason=last.reason, now=now)
    more = again(job.work.retry, ended.attempts, job.request, most=most, jitter=jitter)
    if more is None:
        return _moved(ended, Move.END, _ENDS[last.reason], reason=last.reason, now=now)
    not_before = now + more.wait_ms if more.wait_ms else None
    waiting = ended._replace(request=more.request, not_before=not_before)
    return _moved(waiting, Move.END, JobState.QUEUED)


def _with(job: Job, attempt: Attempt) -> Job:
    return job._replace(attempts=(*job.attempts[:-1], attempt))


def _moved(
    job: Job, move: Move, state: JobState, *, reason: Reason | None = None, now: int | None = None
) -> Job:
    """The job in that state, as the table allows; `reason` and `now` are of a job that ends."""
    sources, targets = _MOVES[move]
    assert job.state in sources, f"{move} from {job.state}"
    assert state in targets, f"{move} to {state}"
    if state in OPEN:
        return job if state is job.state else job._replace(state=state)
    return job._replace(state=state, reason=reason, not_before=None, ended=now)
