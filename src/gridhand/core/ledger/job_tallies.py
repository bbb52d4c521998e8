"""JobTallies: how many jobs each owner and each named queue has open, and what waits there."""

from __future__ import annotations

from collections.abc import Mapping

from gridhand.core.jobs.job import Job, JobState
from gridhand.core.jobs.scopes import Scope, most_charged, scopes_of


class JobTally:
    """The open jobs of one scope, and what those of them that are queued ask for."""

    __slots__ = ("asked", "open", "queued")

    def __init__(self) -> None:
        self.open = 0
        self.queued = 0
        self.asked: dict[str, int] = {}


_EMPTY = JobTally()


class JobTallies:
    """A tally for each scope with open jobs, kept up to date so that a submission counts nothing.

    A request with alternatives counts with the largest amounts among them.
    """

    def __init__(self) -> None:
        self._by_scope: dict[Scope, JobTally] = {}

    def __getitem__(self, scope: Scope) -> JobTally:
        return self._by_scope.get(scope, _EMPTY)

    def replace(self, before: Job | None, after: Job | None) -> None:
        """Count a job as it is now instead of as it was."""
        if before is not None and after is not None and _counts_alike(before, after):
            return
        if after is not None and after.open:
            self._count(after, 1)
        if before is not None and before.open:
            self._count(before, -1)

    def _count(self, job: Job, sign: int) -> None:
        asked = most_charged(job.request) if job.state is JobState.QUEUED else None
        for scope in scopes_of(job.work):
            tally = self._by_scope.get(scope)
            if tally is None:
                tally = self._by_scope[scope] = JobTally()
            tally.open += sign
            if asked is not None:
                tally.queued += sign
                _add(tally.asked, asked, sign)
            if not tally.open:
                del self._by_scope[scope]


def _counts_alike(job: Job, other: Job) -> bool:
    return job.state is other.state and job.request is other.request


def _add(total: dict[str, int], amounts: Mapping[str, int], sign: int) -> None:
    for name, parts in amounts.items():
        left = total.get(name, 0) + sign * parts
        if left:
            total[name] = left
        else:
            del total[name]
