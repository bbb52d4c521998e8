"""Gang: one process on each of several nodes, as the tasks of one array with the ranks as indices.

1. All members start in one transaction, or none.
2. A member that ends without success has the others stopped, for the reason `gang`. The first of
   them decides for all: either the whole gang is queued again, each member when it has stopped, or
   it is over.
3. Attempts are counted for the gang, not for each member: a failure uses up one retry, whoever
   fails.
4. A gang runs again only while none of its members has ended for good: what has succeeded is not
   run a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gridhand.core.jobs.attempt import Reason
from gridhand.core.jobs.retry_policy import FINAL, Retry, next_retry
from gridhand.core.model.names import JobId

if TYPE_CHECKING:
    from gridhand.core.jobs.job import Job

FIRST_PORT = 20_000  # below the ports that Linux hands out by itself
PORTS = 10_000


def members_of(job: Job, open_jobs: Mapping[JobId, Job]) -> list[Job]:
    """Return the open members of the job's gang by rank; the job alone if it is no gang."""
    if job.work.nodes is None:
        return [job]
    return [open_jobs[id] for id in member_ids(job) if id in open_jobs]


def others_of(job: Job, open_jobs: Mapping[JobId, Job]) -> list[Job | None] | None:
    """Return the other members, None for those that have ended; None if it is no gang."""
    if job.work.nodes is None:
        return None
    return [open_jobs.get(id) for id in member_ids(job) if id != job.id]


def member_ids(job: Job) -> list[JobId]:
    """Return the ids of all members of the job's gang by rank; none if it is no gang."""
    return [JobId(f"{job.array}_{rank}") for rank in range(job.work.nodes or 0)]


def meeting_port(job: Job) -> int:
    """Return the port at which the members of a gang meet.

    It follows from the number of the gang, so that gangs that run together have different ones.
    Nothing reserves it: another program may use it.
    """
    return FIRST_PORT + int(job.array or job.number) % PORTS


def next_gang_retry(
    ended: Job, others: Sequence[Job | None], *, most_bytes: int | None, jitter: float
) -> Retry | None:
    """Return the retry of a member whose attempt has failed, or None if its gang is over.

    `others` are the other members; None stands for one that has ended for good.
    """
    last = ended.attempts[-1]
    if last.reason in FINAL or any(other is None or not other.open for other in others):
        return None
    waiting = _waiting(others)
    if waiting is not None:  # another one has decided
        return Retry(waiting.request, 0)
    if last.reason is Reason.GANG:
        return None
    before = (one for other in others if other is not None for one in other.attempts)
    attempts = [one for one in before if one.reason is not None]
    return next_retry(
        ended.work.retry,
        (*attempts, *ended.attempts),
        ended.request,
        most_bytes=most_bytes,
        jitter=jitter,
    )


def others_wait_until(others: Iterable[Job | None]) -> int | None:
    """Return until when the members wait that are queued again already."""
    waiting = _waiting(others)
    return None if waiting is None else waiting.not_before


def _waiting(others: Iterable[Job | None]) -> Job | None:
    queued = (one for one in others if one is not None and one.open and one.attempt is None)
    return next(queued, None)


def end_text(job: Job) -> str:
    """Return how the latest attempt of a member ended, for those that end with it."""
    last = job.attempts[-1]
    how = f"exit code {last.exit_code}" if last.reason is Reason.EXIT else f"{last.reason}"
    return f"stopped with its gang: rank {job.array_index} ended first ({how})"
