"""ReadyJobs: the waiting jobs that may be tried, and which of them comes first."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from gridhand.core.jobs.job import Job, Priority
from gridhand.core.queue.request_classes import (
    ArrayLimit,
    OwnerKey,
    OwnerQueue,
    QueueEntry,
    RequestClass,
)

if TYPE_CHECKING:
    from gridhand.core.explain.refusal import Refusal

_RANK = {priority: rank for rank, priority in enumerate(Priority)}
_FEW = 64


class ReadyJobs:
    """Ready jobs in one queue per request class and owner; the first of each is a candidate.

    A queue whose jobs must not be tried is parked: with its request class until something is
    freed, or with its array until a job of that has ended. The heap of candidates may contain
    outdated entries, but never one that comes after its queue's first job; they are corrected
    when they come to the front.
    """

    def __init__(self) -> None:
        self._classes: dict[object, RequestClass] = {}
        self._refused: dict[object, RequestClass] = {}
        self._limits: dict[str, ArrayLimit] = {}
        self._candidates: list[tuple[int, int, int, OwnerQueue]] = []
        self._tidy_at = _FEW
        self._serial = 0

    # ---- entries

    def add(self, entry: QueueEntry) -> None:
        key = _class_key(entry.job)
        request_class = self._classes.get(key)
        if request_class is None:
            request_class = self._classes[key] = RequestClass(key)
        entry.request_class = request_class
        request_class.size += 1
        limit = self.limit(entry.job)
        if limit is not None:
            limit.size += 1
        self._enqueue(entry, request_class, limit)

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry that was added, whether it is in a queue or put aside."""
        request_class, limit = entry.request_class, self.limit(entry.job)
        assert request_class is not None
        _dequeue(entry)
        entry.request_class = None
        request_class.size -= 1
        if not request_class.size:
            del self._classes[request_class.key]
            self._refused.pop(request_class.key, None)
        if limit is not None:
            limit.size -= 1
            self._drop_limit(entry.job, limit)

    def put_aside(self, entry: QueueEntry) -> QueueEntry:
        """Take the job out of its queue for now, and return the entry to put back."""
        _dequeue(entry)
        aside = QueueEntry(entry.job)
        aside.request_class, entry.request_class = entry.request_class, None
        return aside

    def put_back(self, entry: QueueEntry) -> None:
        assert entry.request_class is not None
        self._enqueue(entry, entry.request_class, self.limit(entry.job))

    def _enqueue(
        self, entry: QueueEntry, request_class: RequestClass, limit: ArrayLimit | None
    ) -> None:
        key = _owner_key(entry.job)
        queue = request_class.queues.get(key)
        if queue is None:
            self._serial += 1
            queue = request_class.queues[key] = OwnerQueue(request_class, limit, key, self._serial)
        queue.push(entry)
        self._offer(queue)

    # ---- refusals and limits

    def refuse(self, request_class: RequestClass, why: str | Refusal) -> None:
        request_class.refused, request_class.why = True, why
        self._refused[request_class.key] = request_class

    def freed(self) -> None:
        refused, self._refused = self._refused, {}
        for request_class in refused.values():
            request_class.refused = False
            parked, request_class.parked = request_class.parked, {}
            for queue in parked.values():
                self._offer(queue)

    def limit(self, job: Job) -> ArrayLimit | None:
        """Return the limit of the job's array, if it has one."""
        if job.array is None or job.work.at_once is None:
            return None
        limit = self._limits.get(job.array)
        if limit is None:
            limit = self._limits[job.array] = ArrayLimit(job.work.at_once)
        return limit

    def begin(self, job: Job) -> None:
        """Count a job that runs against the limit of its array."""
        limit = self.limit(job)
        if limit is not None:
            limit.running.add(job.id)

    def leave(self, job: Job) -> None:
        """Stop counting a job that does not run, so that others of its array may."""
        limit = self.limit(job)
        if limit is None:
            return
        limit.running.discard(job.id)
        parked, limit.parked = limit.parked, {}
        for queue in parked.values():
            self._offer(queue)
        self._drop_limit(job, limit)

    def running_in_array(self, job: Job) -> int:
        """Return how many jobs of its array run, if the array has a limit; else 0."""
        limit = self._limits.get(job.array) if job.array is not None else None
        return 0 if limit is None else len(limit.running)

    def _drop_limit(self, job: Job, limit: ArrayLimit) -> None:
        if job.array is not None and not limit.size and not limit.running:
            del self._limits[job.array]

    # ---- order

    def _rank(self, queue: OwnerQueue, first: QueueEntry) -> tuple[int, int]:
        return queue.rank, first.job.number

    def first(self) -> QueueEntry | None:
        """Return the entry to try next."""
        while self._candidates:
            _, number, _, queue = self._candidates[0]
            first = queue.first()
            if first is not None and first.job.number == number and queue.parking() is None:
                return first
            heapq.heappop(self._candidates)
            if queue.offered == number:
                queue.offered = None
                self._offer(queue)
        return None

    def _offer(self, queue: OwnerQueue) -> None:
        """Make the first job of the queue a candidate, or park the queue."""
        first = queue.first()
        if first is None:
            return
        parking = queue.parking()
        if parking is not None:
            parking[queue.serial] = queue
        elif queue.offered != first.job.number:
            queue.offered = first.job.number
            heapq.heappush(self._candidates, (*self._rank(queue, first), queue.serial, queue))
            if len(self._candidates) > self._tidy_at:
                self._tidy()

    def _tidy(self) -> None:
        """Rebuild the heap with each queue once: passes that end early leave outdated entries."""
        queues = {queue.serial: queue for _, _, _, queue in self._candidates}
        self._candidates, self._tidy_at = [], _FEW + 2 * len(queues)
        for queue in queues.values():
            queue.offered = None
            self._offer(queue)


def _dequeue(entry: QueueEntry) -> None:
    queue = entry.heap
    if isinstance(queue, OwnerQueue):
        queue.remove(entry)
        if not queue:
            del queue.request_class.queues[queue.key]  # `first` skips it if it is still offered


def _owner_key(job: Job) -> OwnerKey:
    work = job.work
    return _RANK[work.priority], work.owner, job.array if work.at_once is not None else None


def _class_key(job: Job) -> object:
    """Return a key that is equal for jobs that get the same answer."""
    asked = job.request
    # Such a request names allocations of its owner.
    return asked, job.work.owner if asked.names_allocations else None
