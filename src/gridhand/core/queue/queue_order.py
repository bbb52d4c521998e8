"""The order in which all that waits would be tried now, read without a change.

The order is that of a pass (see `ready`), as if nothing started in it: shares stay as they are.
Only what is read of it costs anything, apart from one step for each owner and kind of request.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from gridhand.core.jobs.job import Job
from gridhand.core.queue.ready import RANKS, ReadyJobs
from gridhand.core.queue.request_classes import JobHeap, OwnerQueue, QueueEntry
from gridhand.core.queue.wait_causes import JobClock

_LineKey = tuple[int, str]  # rank of the priority, owner

MOST_READ = 10_000  # jobs that are looked at for one answer


class QueueLine(NamedTuple):
    """A job in the order, or tasks of an array that follow each other and wait for the same.

    `complete` unless there may be more such tasks: only so many jobs are looked at.
    """

    position: int
    job: Job  # the first of them
    last: Job
    tasks: int
    cause: str
    complete: bool = True


def order_of(ready: ReadyJobs, now: int, newcomer: Job | None = None) -> Iterator[QueueEntry]:
    """Yield ready jobs in their order, with another one as if it had been submitted."""
    lines: dict[_LineKey, list[JobHeap]] = {}
    since: dict[_LineKey, int] = {}
    for queue in ready.queues():
        if queue.first() is not None:
            key = queue.key.rank, queue.key.owner
            lines.setdefault(key, []).append(queue)
            since[key] = queue.line.since
    if newcomer is not None:
        key, alone = (RANKS[newcomer.work.priority], newcomer.work.owner), JobHeap()
        alone.push(QueueEntry(newcomer, JobClock(now, now)))
        lines.setdefault(key, []).append(alone)
        since.setdefault(key, now)
    by_rank: dict[int, dict[_LineKey, float]] = {}
    for key in lines:
        order = ready.owner_order(key[1], since[key], now)
        by_rank.setdefault(ready.rank_now(key[0]), {})[key] = order
    for rank in sorted(by_rank):
        yield from _order_within(by_rank[rank], lines)


def _order_within(
    orders: dict[_LineKey, float], found: dict[_LineKey, list[JobHeap]]
) -> Iterator[QueueEntry]:
    """Yield the jobs of one rank: the line with the lowest order first, which then has another."""

    def turn(entry: QueueEntry) -> tuple[float, int, int]:
        work = entry.job.work
        return orders[RANKS[work.priority], work.owner], entry.job.number, entry.serial

    lines = (_OwnerOrder(found[key]) for key in orders)
    turns = [(*turn(first), line) for line in lines if (first := line.first) is not None]
    heapq.heapify(turns)
    while turns:
        line = turns[0][3]
        assert line.first is not None
        yield line.first
        following = line.advance()
        if following is None:
            heapq.heappop(turns)
        else:
            heapq.heapreplace(turns, (*turn(following), line))


class _OwnerOrder:
    """The jobs of one owner and rank in order. Few objects are made for those never asked for."""

    def __init__(self, queues: list[JobHeap]) -> None:
        self._queues = queues
        self._rest: Iterator[QueueEntry] | None = None
        firsts = [first for queue in queues if (first := queue.first()) is not None]
        self.first: QueueEntry | None = min(firsts, default=None)

    def advance(self) -> QueueEntry | None:
        """Go on to the next job, and return it."""
        if self._rest is None:
            self._rest = _merged(self._queues)
            next(self._rest)
        self.first = next(self._rest, None)
        return self.first


def _merged(queues: list[JobHeap]) -> Iterator[QueueEntry]:
    """Yield the entries of all queues in order; a queue is read once it has the first."""
    found: list[tuple[QueueEntry, int]] = []
    for index, queue in enumerate(queues):
        if (first := queue.first()) is not None:
            found.append((first, index))
    heapq.heapify(found)
    readers: dict[int, Iterator[QueueEntry]] = {}
    while found:
        entry, index = found[0]
        yield entry
        reader = readers.get(index)
        if reader is None:
            reader = readers[index] = queues[index].in_order()
            next(reader)
        following = next(reader, None)
        if following is None:
            heapq.heappop(found)
        else:
            heapq.heapreplace(found, (following, index))


def queue_lines(ready: ReadyJobs, now: int) -> Iterator[QueueLine]:
    """Yield the order with like tasks of an array folded."""
    found: QueueLine | None = None
    for position, entry in enumerate(order_of(ready, now), 1):
        cause, job = cause_of(entry), entry.job
        if found is not None and _alike(found, job, cause):
            found = found._replace(tasks=found.tasks + 1, last=job)
        else:
            if found is not None:
                yield found
            found = QueueLine(position, job, job, 1, cause)
        if position == MOST_READ:
            yield found._replace(complete=job.array is None)
            return
    if found is not None:
        yield found


def cause_of(entry: QueueEntry) -> str:
    """Return what a ready job waits for."""
    queue = entry.heap
    assert isinstance(queue, OwnerQueue)
    return queue.clock.cause


def _alike(line: QueueLine, job: Job, cause: str) -> bool:
    of_same = job.array is not None and job.array == line.job.array
    return of_same and cause == line.cause and job.request == line.job.request
