"""Lanes: short tasks of an array are lined up where one of them runs, each to begin as the one
before it ends.

A start that waits for a commit, and that for the end before it, leaves a core idle for longer than
a short task takes. So tasks that are over in no time are granted ahead: they share the allocation
of the one that runs, and their node begins them one at a time, in order. Nothing is promised
twice, because the allocation is one task's at any moment; it is given back with the last of them.

Nobody else waits longer for it than for one long task: a line is no longer than `AHEAD_MS`, nothing
is lined up while somebody waits who comes first, and what has not begun in time comes back.
"""

from __future__ import annotations

import heapq

from gridhand.core.jobs import Job
from gridhand.core.ledger import Ledger
from gridhand.core.requests import Request

MOST_AHEAD = 32
AHEAD_MS = 250  # what a line may be expected to take
_WEIGHT = 0.2  # of the latest end among those before
_MOST_ARRAYS = 1000


class Lanes:
    """How long the tasks of each array take, and where they run."""

    def __init__(self) -> None:
        self._usual_ms: dict[str, float] = {}
        self._lanes: dict[str, dict[str, Request]] = {}
        self._rooms: dict[str, list[tuple[int, str]]] = {}

    def ended(self, job: Job) -> None:
        """Learn from how long a task took."""
        last = job.attempts[-1] if job.attempts else None
        if job.array is None or last is None or last.started is None or last.ended is None:
            return
        took_ms = last.ended - last.started
        usual = self._usual_ms.pop(job.array, None)
        # One that takes long says more than many that did not: the others wait behind it.
        if usual is not None and took_ms < 4 * usual + 10:
            took_ms = round(usual + _WEIGHT * (took_ms - usual))
        self._usual_ms[job.array] = took_ms
        _shorten(self._usual_ms)

    def started(self, job: Job) -> None:
        """One was placed: others of its array may come to stand behind it."""
        if may_share(job) and job.array is not None and job.attempt is not None:
            lanes = self._lanes.setdefault(job.array, {})
            lanes[job.attempt.allocation] = job.request
            _shorten(self._lanes)

    def begin_pass(self) -> None:
        """What was found out about room is of one pass over the queue alone."""
        self._rooms.clear()

    def find(self, job: Job, ledger: Ledger) -> str | None:
        """The allocation behind whose holders this one may be lined up, the shortest line first."""
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
    ) -> list[tuple[int, str]]:
        """The lines that have become short, so that what follows comes in numbers.

        Not where nothing new may come, as on a node that is drained.
        """
        book, lanes = ledger.jobs, self._lanes.get(array, {})
        for allocation in [one for one in lanes if not book.lined_up(one)]:
            del lanes[allocation]
        open_ones = [one for one in lanes if ledger.nodes[ledger.live[one].node].open]
        found = [(book.lined_up(one), one) for one in open_ones if lanes[one] == request]
        found = [one for one in found if one[0] <= depth // 2]
        heapq.heapify(found)
        return found


def may_share(job: Job) -> bool:
    """Whether nothing of what it holds must be looked after between it and the next one."""
    work, asked = job.work, job.request
    near = asked.together_with is not None or bool(asked.apart_from)
    plain = asked.gpu is None and not asked.alternatives and not near
    return plain and work.at_once is None and work.stdin is None and work.pieces == 1


def _shorten(some: dict[str, float] | dict[str, dict[str, Request]]) -> None:
    while len(some) > _MOST_ARRAYS:
        del some[next(iter(some))]
