"""JobIndex: the open jobs of a ledger. Jobs and allocations change together or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gridhand.core.jobs.job import Job
from gridhand.core.ledger.job_tallies import JobTallies
from gridhand.core.model.names import AllocationId, AttemptKey, JobId


class JobIndex:
    """Open jobs by id and by allocation, and the number of the next job."""

    def __init__(self, next_number: int = 1) -> None:
        self.next_number = next_number
        self.open: dict[JobId, Job] = {}
        self.over: dict[JobId, Job] = {}  # ended by changes that are not yet durable
        self.tallies = JobTallies()
        self._holding: dict[AllocationId, dict[JobId, None]] = {}

    def holding(self, allocation: AllocationId) -> list[Job]:
        """Return the jobs that share this allocation and run in it one after the other."""
        return [self.open[id] for id in self._holding.get(allocation, ())]

    def attempts_in(self, allocation: AllocationId) -> list[AttemptKey]:
        """Return the attempts that hold this allocation."""
        return [(job.id, job.attempt.number) for job in self.holding(allocation) if job.attempt]

    def allocations(self) -> Iterable[AllocationId]:
        """Return the allocations that jobs hold."""
        return self._holding.keys()

    def count(self, allocation: AllocationId) -> int:
        """Return how many jobs share this allocation."""
        return len(self._holding.get(allocation, ()))

    def waits_for_turn(self, job: Job) -> bool:
        """Return whether the job has its allocation, but another job in it must end first."""
        attempt = job.attempt
        if attempt is None or attempt.started is not None:
            return False
        return next(iter(self._holding[attempt.allocation])) != job.id

    def running_attempts(self) -> set[AttemptKey]:
        """Return the attempts of all jobs that have an allocation."""
        return {attempt for held in self._holding for attempt in self.attempts_in(held)}

    def placed(self) -> Iterator[Job]:
        """Yield all jobs that have an allocation."""
        return (self.open[id] for ids in self._holding.values() for id in ids)

    def running(self) -> int:
        """Return how many jobs run, without looking at the queued ones."""
        groups = self._holding.values()
        placed = sum(map(len, groups))
        sharing = (self.open[id] for ids in groups if len(ids) > 1 for id in ids)
        return placed - sum(map(self.waits_for_turn, sharing))

    def note(self, job: Job) -> None:
        """Replace a job without recording a change: a restart learns the difference again."""
        assert self.open[job.id].state is job.state
        self.open[job.id] = job

    def apply(self, before: Job | None, after: Job | None) -> None:
        self.tallies.replace(before, after)
        if before is not None:
            (self.open if before.open else self.over).pop(before.id, None)
        if after is not None:
            (self.open if after.open else self.over)[after.id] = after
        held, holds = _allocation(before), _allocation(after)
        if before is not None and held is not None and held != holds:
            ids = self._holding[held]
            del ids[before.id]
            if not ids:
                del self._holding[held]
        if after is not None and holds is not None and held != holds:
            self._holding.setdefault(holds, {})[after.id] = None


def _allocation(job: Job | None) -> AllocationId | None:
    attempt = None if job is None else job.attempt
    return None if attempt is None else attempt.allocation
