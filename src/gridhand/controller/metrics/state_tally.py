"""StateTally: counts jobs and allocations as the read model follows the ledger.

The counts of what is there are kept up to date with each change, so a page of metrics costs the
same however many jobs wait. The counters begin at zero when the controller does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from gridhand.controller.metrics.histogram import WAITS, Histogram
from gridhand.core.jobs.job import Attempt, Job, JobState, Reason
from gridhand.core.jobs.spec import Priority
from gridhand.core.ledger.allocations import Allocation, AllocationState
from gridhand.core.ledger.ledger import Change

_RECLAIMED = {"allocation.expired": "expired", "allocation.lost": "node_lost"}


class StateTally:
    """Counts of what there is, and of what has happened since the controller started."""

    def __init__(self) -> None:
        self.queued: Counter[Priority] = Counter()
        self.leases: Counter[AllocationState] = Counter()  # live ones with a deadline
        self.waits = {priority: Histogram(WAITS) for priority in Priority}
        self.submitted = 0
        self.finished: Counter[JobState] = Counter()
        self.retries: Counter[Reason | None] = Counter()  # by why the attempt before ended
        self.preemptions = 0
        self.out_of_memory: Counter[str] = Counter()  # by whose memory it was
        self.reclaimed: Counter[str] = Counter()  # by cause

    def replace(self, jobs: Iterable[Job], allocations: Iterable[Allocation]) -> None:
        """Count anew what there is: it was read from the store."""
        self.queued.clear()
        self.leases.clear()
        for one in (*jobs, *allocations):
            self._count(one, 1)

    def follow(self, changes: Sequence[Change]) -> None:
        """Count durable changes."""
        for kind, _, before, after, _ in changes:
            self._count(before, -1)
            self._count(after, 1)
            if type(after) is Job:
                self._note_job(kind, before, after)
            elif kind in _RECLAIMED:
                self.reclaimed[_RECLAIMED[kind]] += 1

    def _count(self, row: Any, by: int) -> None:
        if type(row) is Job:
            if row.state is JobState.QUEUED:
                self.queued[row.work.priority] += by
        elif type(row) is Allocation and row.live and row.deadline is not None:
            self.leases[row.state] += by

    def _note_job(self, kind: str, before: Job | None, after: Job) -> None:
        if kind == "job.submitted":
            self.submitted += 1
        elif kind == "job.started":
            self._note_start(after)
        elif kind in ("job.ended", "job.requeued"):
            if before is not None and before.attempt is not None:
                self._note_attempt(after.attempts[-1])
            if kind == "job.requeued":
                self.retries[after.attempts[-1].reason] += 1
            else:
                self.finished[after.state] += 1

    def _note_start(self, job: Job) -> None:
        """Count how long a job has waited for its first start, from when it was to begin."""
        [*earlier, attempt] = job.attempts
        if not earlier:
            since = job.submitted if job.begins is None else job.begins
            waited_ms = max(0, attempt.placed - since)
            self.waits[job.work.priority].add(waited_ms / 1000)

    def _note_attempt(self, ended: Attempt) -> None:
        if ended.reason is Reason.PREEMPTED:
            self.preemptions += 1
        elif ended.reason is Reason.OOM:
            self.out_of_memory["host"] += 1
