"""Prefetch: short tasks of an array line up on the allocation of one that runs.

A start has to wait for a commit, and that for the end of the task before, which leaves a core idle
for longer than a short task takes. So short tasks are granted ahead: they share the allocation of
the running task, and their node starts them one at a time, in order. Nothing is promised twice,
because the allocation belongs to one task at any moment; it is released with the last of them.

Nobody else waits longer for it than for one long task: a line takes at most `AHEAD_MS`, nothing is
lined up while a job waits that comes first, and a task that has not begun in time is requeued.
"""

from __future__ import annotations

import heapq

from gridhand.core.jobs.job import Job
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.model.names import AllocationId
from gridhand.core.model.requests import Request

MOST_AHEAD = 32
AHEAD_MS = 250  # what a line may be expected to take
_WEIGHT = 0.2  # of the latest end among those before
_MOST_ARRAYS = 1000


class Prefetch:
    """How long the tasks of each array take, and on which allocations they run."""

    def __init__(self) -> None:
        self._usual_ms: dict[str, float] = {}
        self._lanes: dict[str, dict[AllocationId, Request]] = {}
        self._rooms: dict[str, list[tuple[int, AllocationId]]] = {}

    def ended(self, job: Job) -> None:
        """Learn how long a task took."""
        last = job.attempts[-1] if job.attempts else None
        if job.array is None or last is None or last.started is None or last.ended is None:
            return
        took_ms = last.ended - last.started
        usual = self._usual_ms.pop(job.array, None)
        # A long task counts in full: the others wait behind it.
        if usual is not None and took_ms < 4 * usual + 10:
            took_ms = round(usual + _WEIGHT * (took_ms - usual))
        self._usual_ms[job.array] = took_ms
        _shorten(self._usual_ms)

    def started(self, job: Job) -> None:
        """Note a placed task: others of its array may line up behind it."""
        if may_share(job) and job.array is not None and job.attempt is not None:
            lanes = self._lanes.setdefault(job.array, {})
            lanes[job.attempt.allocation] = job.request
            _shorten(self._lanes)

    def begin_pass(self) -> None:
        """Reset the per-pass prefetch capacity."""
        self._rooms.clear()

    def find(self, job: Job, ledger: Ledger) -> AllocationId | None:
        """Return the allocation with the shortest line that this task may join, or None."""
        if job.attempts or not may_share(job) or job.array is None:
            return None
        depth = self._depth(job.array)
        if depth < 2:
            return None
        rooms = self._rooms.get(job.array)
        if rooms is None:
            rooms = self._rooms[job.array] = self._room(job.array, job.request, depth, ledger)
        if not rooms or rooms[0][0] >= depth:
            return None
        length, allocation = rooms[0]
        heapq.heapreplace(rooms, (length + 1, allocation))
        return allocation

    def _depth(self, array: str) -> int:
        usual = self._usual_ms.get(array)
        return 0 if usual is None else min(MOST_AHEAD, int(AHEAD_MS / max(usual, 1.0)))

    def _room(
        self, array: str, request: Request, depth: int, ledger: Ledger
    ) -> list[tuple[int, AllocationId]]:
        """Return the lengths of the lines that are at most half full, so that they fill in bulk.

        Nodes that take no new work, such as drained ones, are left out.
        """
        book, lanes = ledger.jobs, self._lanes.get(array, {})
        for allocation in [one for one in lanes if not book.count(one)]:
            del lanes[allocation]
        open_ones = [one for one in lanes if ledger.nodes[ledger.live[one].node].open]
        found = [(book.count(one), one) for one in open_ones if lanes[one] == request]
        found = [one for one in found if one[0] <= depth // 2]
        heapq.heapify(found)
        return found


def may_share(job: Job) -> bool:
    """Return whether a task can hand its allocation to the next one as it is."""
    work, asked = job.work, job.request
    near = asked.together_with is not None or bool(asked.apart_from)
    plain = asked.gpu is None and not asked.alternatives and not near
    return plain and work.at_once is None and work.stdin is None


def _shorten(some: dict[str, float] | dict[str, dict[AllocationId, Request]]) -> None:
    while len(some) > _MOST_ARRAYS:
        del some[next(iter(some))]
