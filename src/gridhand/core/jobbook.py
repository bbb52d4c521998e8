"""JobBook: the jobs that are not over. A part of the ledger: both change as one, or not at all."""

from __future__ import annotations

from gridhand.core.jobs import Job


class JobBook:
    """Open jobs by id and by what they hold, and the number that the next one gets."""

    def __init__(self, next_number: int = 1) -> None:
        self.next_number = next_number
        self.open: dict[str, Job] = {}
        self.over: dict[str, Job] = {}  # by changes that are not settled
        self._holding: dict[str, str] = {}

    def holding(self, allocation: str) -> Job | None:
        """The running job that holds this allocation."""
        id = self._holding.get(allocation)
        return None if id is None else self.open[id]

    def note(self, job: Job) -> None:
        """Take on what need not be written: a restart finds it out again."""
        assert self.open[job.id].state is job.state
        self.open[job.id] = job

    def apply(self, before: Job | None, after: Job | None) -> None:
        if before is not None:
            (self.open if before.open else self.over).pop(before.id, None)
            if before.attempt is not None:
                del self._holding[before.attempt.allocation]
        if after is not None:
            (self.open if after.open else self.over)[after.id] = after
            if after.attempt is not None:
                self._holding[after.attempt.allocation] = after.id
