"""A job together with what only the queue and the ledger know of it."""

from __future__ import annotations

from typing import NamedTuple

from gridhand.core.jobs.attempt import Waited
from gridhand.core.jobs.job import Job, JobPhase, JobState
from gridhand.core.ledger.allocations import Allocation
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.queue.delays import why_delayed
from gridhand.core.queue.queue import Queue


class JobView(NamedTuple):
    """A job, its phase, why it waits, and what it holds."""

    job: Job
    phase: JobPhase
    why: str | None = None  # it waits
    held: Allocation | None = None
    waited: Waited = ()  # until its latest start, or until now
    next: bool = False  # it has its allocation, and waits for those before it to end

    @property
    def receipt(self) -> Waited:
        """The causes of its wait, before its latest start or until now."""
        job = self.job
        return job.attempts[-1].waited if job.attempts and not self.waited else self.waited

    @property
    def state(self) -> JobState:
        """The state for users: a job that waits for its turn on an allocation is queued."""
        return JobState.QUEUED if self.next else self.job.state


def view_job(job: Job, ledger: Ledger, queue: Queue, now: int) -> JobView:
    """Return the view of a job, open or ended."""
    if not job.open:
        return JobView(job, JobPhase.ENDED)
    if job.attempt is not None:
        held = ledger.live.get(job.attempt.allocation)
        if ledger.jobs.waits_for_turn(job):
            why = f"it is among the next on {job.attempt.node}"
            return JobView(job, JobPhase.QUEUED, why, held, next=True)
        return JobView(job, job.phase(now), held=held)
    phase = job.phase(now, waiting=bool(queue.waits_for(job.id)))
    why = why_delayed(job, phase) or queue.why(job.id, now)
    return JobView(job, phase, why, waited=queue.waited(job.id, now))
