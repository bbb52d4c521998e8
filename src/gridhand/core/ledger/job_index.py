"""JobBook: the jobs that are not over. A part of the ledger: both change as one, or not at all."""

from __future__ import annotations

from gridhand.core.jobs import Job


class JobBook:
    """Open jobs by id and by what they hold, and the number that the next one gets."""

    def __init__(self, next_number: int = 1) -> None:
        self.next_number = next_number
        self.open: dict[str, Job] = {}
        self.over: dict[str, Job] = {}  # by changes that are not settled
        self._holding: dict[str, dict[str, None]] = {}

    def holding(self, allocation: str) -> list[Job]:
        """The jobs that this allocation is for, which run one after the other."""
        return [self.open[id] for id in self._holding.get(allocation, ())]

    def lined_up(self, allocation: str) -> int:
        """How many jobs this allocation is for."""
        return len(self._holding.get(allocation, ()))

    def waits_in_line(self, job: Job) -> bool:
        """Whether it has its place, and another that has it too is to end first."""
        attempt = job.attempt
        if attempt is None or attempt.started is not None:
            return False
        return next(iter(self._holding[attempt.allocation])) != job.id

    def running(self) -> int:
        """How many run, without a look at all that wait."""
        lines = self._holding.values()
        placed = sum(map(len, lines))
        behind = (self.open[id] for line in lines if len(line) > 1 for id in line)
        return placed - sum(map(self.waits_in_line, behind))

    def note(self, job: Job) -> None:
        """Take on what need not be written: a restart finds it out again."""
        assert self.open[job.id].state is job.state
        self.open[job.id] = job

    def apply(self, before: Job | None, after: Job | None) -> None:
        if before is not None:
            (self.open if before.open else self.over).pop(before.id, None)
        if after is not None:
            (self.open if after.open else self.over)[after.id] = after
        held, holds = _allocation(before), _allocation(after)
        if before is not None and held is not None and held != holds:
            line = self._holding[held]
            del line[before.id]
            if not line:
                del self._holding[held]
        if after is not None and holds is not None and held != holds:
            self._holding.setdefault(holds, {})[after.id] = None


def _allocation(job: Job | None) -> str | None:
    attempt = None if job is None else job.attempt
    return None if attempt is None else attempt.allocation
