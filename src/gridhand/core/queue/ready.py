"""ReadyJobs: the waiting jobs that may be tried, and which of them comes first.

The order of one pass, in two levels:

1. Lines, one for each priority and owner: the higher priority first. A priority of which nothing
   has started for `class_patience_ms` comes before all others until one of its jobs has started.
2. Within a priority, the line whose owner has the smallest share (see `shares`). Lines are sorted
   once for a pass; after a start that of its owner goes back to where it belongs by then.
3. Within a line, the job with the lowest number, so the one that was submitted first.

What a pass costs:

1. What is freed opens the request classes that could fit there; their queues stay parked. A line
   reads those of opened classes when it is its turn, and takes out one (see `owner_lines`).
2. A start closes the classes again that could no longer fit on what was freed. So each start costs
   a try and a look at the opened classes; how many jobs and queues wait does not matter.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gridhand.core.jobs.job import Job, Priority
from gridhand.core.jobs.scopes import most_charged
from gridhand.core.queue import wait_causes
from gridhand.core.queue.delays import current_request
from gridhand.core.queue.named_queues import NamedQueues
from gridhand.core.queue.owner_lines import OwnerLine, OwnerLines
from gridhand.core.queue.request_classes import (
    ArrayLimit,
    ClassKey,
    CouldFit,
    OwnerKey,
    OwnerQueue,
    QueueEntry,
    RequestClass,
)
from gridhand.core.queue.running_quotas import RunningQuota, RunningQuotas
from gridhand.core.queue.scheduling_times import CLASS_PATIENCE_MS

if TYPE_CHECKING:
    from gridhand.core.explain.refusal import Refusal
    from gridhand.core.model.names import JobId

RANKS = {priority: rank for rank, priority in enumerate(Priority)}
FIRST_RANK = -1  # of a priority that has waited too long
_FEW = 64
_NOT_READ = -1

OwnerOrder = Callable[[str, int, int], float]  # owner, since when it waits, now
_Turn = tuple[int, float, int, int, OwnerLine]


class ReadyJobs:
    """Ready jobs in one queue per request class and owner; the first of each is a candidate.

    A queue whose jobs must not be tried is parked: with its request class, or with its array or a
    quota until a job of that has ended. Heaps may contain outdated entries, but never one that
    comes after the first job of its queue; they are corrected at the front.
    """

    def __init__(self) -> None:
        self.owner_order: OwnerOrder = lambda owner, waits_since, now: 0.0
        self.class_patience_ms = CLASS_PATIENCE_MS
        self.now = 0  # of the latest pass
        self.time = 0  # up to which waits are counted
        self.apart: set[JobId] = set()  # those whose answer holds for them alone
        self._classes: dict[ClassKey, RequestClass] = {}
        self._refused: dict[ClassKey, RequestClass] = {}
        self._limits: dict[str, ArrayLimit] = {}
        self.quotas = RunningQuotas()
        self.uncounted: set[JobId] = set()  # what no quota counts: allocations that wait
        self._opened: dict[ClassKey, RequestClass] = {}  # those with parked queues to be tried
        self._version = 0  # of what is opened
        self.lines = OwnerLines()
        self._turns: list[_Turn] = []
        self._in_pass = False
        self._waits_since: dict[int, int] = {}  # ranks, and since when nothing of them started
        self._sizes: dict[int, int] = {}  # ready jobs of each rank
        self._serial = 0

    # ---- entries

    def add(self, entry: QueueEntry) -> None:
        key = self._class_key(entry.job)
        request_class = self._classes.get(key)
        if request_class is None:
            request_class = self._classes[key] = RequestClass(key)
        entry.request_class = request_class
        request_class.size += 1
        rank = RANKS[entry.job.work.priority]
        if key in self._refused:
            if rank < request_class.first[0]:  # it may stop others, or have room kept for it
                self.freed(lambda asked: asked == key.request)
            request_class.first = min(request_class.first, (rank, entry.job.number))
        self._sizes[rank] = self._sizes.get(rank, 0) + 1
        self._waits_since.setdefault(rank, self.now)
        limit = self.limit(entry.job)
        if limit is not None:
            limit.size += 1
        self._enqueue(entry, request_class, limit)

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry that was added, whether it is in a queue or put aside."""
        request_class, limit = entry.request_class, self.limit(entry.job)
        assert request_class is not None
        self._dequeue(entry)
        entry.request_class = None
        request_class.size -= 1
        if not request_class.size:
            del self._classes[request_class.key]
            self._refused.pop(request_class.key, None)
            self._opened.pop(request_class.key, None)
        self._leave_rank(RANKS[entry.job.work.priority])
        if limit is not None:
            limit.size -= 1
            self._drop_limit(entry.job, limit)

    def _leave_rank(self, rank: int) -> None:
        self._sizes[rank] -= 1
        if not self._sizes[rank]:
            del self._sizes[rank], self._waits_since[rank]

    def put_aside(self, entry: QueueEntry) -> QueueEntry:
        """Take the job out of its queue for now, and return the entry to put back."""
        self._dequeue(entry)
        aside = QueueEntry(entry.job, entry.clock)
        aside.request_class, entry.request_class = entry.request_class, None
        return aside

    def put_back(self, entry: QueueEntry) -> None:
        assert entry.request_class is not None
        self._enqueue(entry, entry.request_class, self.limit(entry.job))

    def _enqueue(
        self, entry: QueueEntry, request_class: RequestClass, limit: ArrayLimit | None
    ) -> None:
        key = self._owner_key(entry.job)
        queue = request_class.queues.get(key)
        if queue is None:
            self._serial += 1
            line = self.lines.join(key.rank, key.owner, entry.job.submitted)
            queue = OwnerQueue(request_class, limit, key, line, self._serial, self.time)
            request_class.queues[key] = queue
        queue.push(entry)
        self._offer(queue)
        entry.clock.join(queue.clock, self.time)

    def _dequeue(self, entry: QueueEntry) -> None:
        queue = entry.heap
        if not isinstance(queue, OwnerQueue):
            return
        entry.clock.wait_for(queue.clock.cause, self.time)
        queue.remove(entry)
        if not queue:  # `first` skips it if it is still offered
            del queue.request_class.queues[queue.key]
            queue.request_class.parked.remove(queue)
            self.lines.leave(queue.line)

    def _owner_key(self, job: Job) -> OwnerKey:
        work = job.work
        array = job.array if work.at_once is not None else None
        span = RANKS[work.priority], work.expect_ms or work.time_limit_ms
        return OwnerKey(work.owner, array, span, work.queue, job.id not in self.uncounted)

    def _class_key(self, job: Job) -> ClassKey:
        """Return a key that is equal for jobs that get the same answer."""
        asked = current_request(job, self.now)
        if job.id in self.apart:
            return ClassKey(asked, job.id)
        # Such a request names allocations of its owner.
        whose = job.work.owner if asked.names_allocations else None
        return ClassKey(asked, whose, job.work.nodes)

    # ---- refusals and limits

    def refuse(self, entry: QueueEntry, why: str | Refusal) -> None:
        """Refuse those with the same request as this job."""
        request_class = self._note_refused(entry)
        request_class.refuse(why, self.time)
        self._opened.pop(request_class.key, None)

    def block(self, entry: QueueEntry, why: str) -> None:
        """Refuse those with the same request, priority and expected time as this job."""
        self._note_refused(entry).block(self._owner_key(entry.job).span, why, self.time)

    def _note_refused(self, entry: QueueEntry) -> RequestClass:
        request_class = entry.request_class
        if request_class is None:
            raise ValueError(f"job {entry.job.id} was not offered")
        self._refused[request_class.key] = request_class
        rank = RANKS[entry.job.work.priority]
        request_class.first = min(request_class.first, (rank, entry.job.number))
        return request_class

    def has_refused_before(self, job: Job) -> bool:
        """Return whether a job that comes before this one, and asks for something else, waits."""
        place = RANKS[job.work.priority], job.number
        own = self._class_key(job)
        return any(refused.first < place for key, refused in self._refused.items() if key != own)

    def why(self, entry: QueueEntry) -> str | Refusal | None:
        """Return the latest answer to a job like this; None if there was none."""
        request_class = entry.request_class
        if request_class is None:
            return None
        return request_class.blocked.get(self._owner_key(entry.job).span) or request_class.why

    def freed(self, could_fit: CouldFit | None = None) -> None:
        """Let refused jobs be tried again: all of them, or those whose request could fit."""
        refused, self._refused = self._refused, {}
        for key, request_class in {**self._opened, **refused}.items():
            if could_fit is None or could_fit(key.request):
                request_class.open(could_fit)
                self._opened[key] = request_class
            elif key in refused:
                self._refused[key] = request_class
        self._version += 1
        if self._in_pass:
            self._turns += self._first_turns()
            heapq.heapify(self._turns)

    def close_filled(self) -> None:
        """Refuse again what was to be tried because of room that others have taken since."""
        closed = {key: one for key, one in self._opened.items() if one.close()}
        for key in closed:
            del self._opened[key]
        self._refused |= closed

    def limit(self, job: Job) -> ArrayLimit | None:
        """Return the limit of the job's array, if it has one."""
        if job.array is None or job.work.at_once is None:
            return None
        limit = self._limits.get(job.array)
        if limit is None:
            limit = self._limits[job.array] = ArrayLimit(job.work.at_once)
        return limit

    def begin(self, job: Job) -> None:
        """Count a job that runs against the limit of its array and against quotas."""
        rank = RANKS[job.work.priority]
        if rank in self._waits_since:
            self._waits_since[rank] = self.now
        self.quotas.begin(job)
        limit = self.limit(job)
        if limit is not None:
            limit.running.add(job.id)

    def use_quotas(self, queues: NamedQueues, running: Iterable[Job]) -> None:
        """Apply other quotas, also to the jobs that run."""
        for queue in self.quotas.use(queues, running):
            self._offer(queue)

    def leave(self, job: Job) -> None:
        """Stop counting a job that does not run, so that others of its array and quotas may."""
        for queue in self.quotas.leave(job):
            self._offer(queue)
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

    def queues(self) -> Iterator[OwnerQueue]:
        """Yield all queues with ready jobs, in no particular order."""
        for request_class in self._classes.values():
            yield from request_class.queues.values()

    def count(self) -> int:
        """Return how many jobs are ready."""
        return sum(self._sizes.values())

    def rank(self, priority: Priority) -> int:
        """Return the rank of a priority now, the lowest first."""
        return self.rank_now(RANKS[priority])

    def rank_now(self, rank: int) -> int:
        waits_since = self._waits_since.get(rank, self.now)
        return FIRST_RANK if self.now - waits_since >= self.class_patience_ms else rank

    def next_patience(self) -> int | None:
        """Return when the next priority will have waited too long."""
        dues = (since + self.class_patience_ms for since in self._waits_since.values())
        return min((due for due in dues if due > self.now), default=None)

    def begin_pass(self, now: int) -> None:
        waited = self._ranks_that_waited(self.now)
        self.now, self.time = now, max(now, self.time)
        if self._ranks_that_waited(now) - waited:
            self.freed()  # so that they are offered, and room is kept for the first of them
        self._in_pass = True
        self._turns = self._first_turns()
        heapq.heapify(self._turns)

    def _first_turns(self) -> list[_Turn]:
        """Return the turns of all lines with jobs to try; which jobs these are is read later."""
        opened = 0
        for request_class in self._opened.values():
            opened |= request_class.parked.lines
        return [
            (*self._order_of(line), _NOT_READ, line.serial, line)
            for line in self.lines
            if line.candidates or opened >> line.slot & 1
        ]

    def _ranks_that_waited(self, now: int) -> set[int]:
        return {
            rank
            for rank, since in self._waits_since.items()
            if now - since >= self.class_patience_ms
        }

    def end_pass(self, *, complete: bool) -> None:
        """End a pass. Once it has offered everything, nothing is left of what was opened."""
        self._in_pass, self._turns = False, []
        if complete:
            self._opened.clear()

    def first(self) -> QueueEntry | None:
        """Return the entry to try next in this pass."""
        while self._turns:
            planned = self._turns[0]
            line = planned[-1]
            order = self._order_of(line)
            if order > planned[:2]:  # its owner has more by now
                heapq.heapreplace(self._turns, (*order, *planned[2:]))
            elif not line.queues or (first := self._first_of(line)) is None:
                heapq.heappop(self._turns)
            elif first.order > planned[2]:  # another job is its first
                heapq.heapreplace(self._turns, (*order, first.order, line.serial, line))
            elif self._has_turn(line, first):
                return first
        return None

    def _order_of(self, line: OwnerLine) -> tuple[int, float]:
        rank = self.rank_now(line.rank)
        return rank, self.owner_order(line.owner, line.since, self.now)

    def _first_of(self, line: OwnerLine) -> QueueEntry | None:
        """Return the first job of the line that may be tried."""
        first = self._first_candidate(line)
        parked = line.first_parked(self._opened.values(), self._version)
        waiting = None if parked is None else parked.first()
        return min((one for one in (first, waiting) if one is not None), default=None)

    def _has_turn(self, line: OwnerLine, first: QueueEntry) -> bool:
        """Return whether the first job may be tried: a quota may forbid it once it is its turn."""
        queue = first.heap
        assert isinstance(queue, OwnerQueue)
        if queue.offered != first.order:
            self._offer(line.take_parked(), announce=False)
        return queue.offered == first.order

    def _first_candidate(self, line: OwnerLine) -> QueueEntry | None:
        candidates = line.candidates
        while candidates:
            number, _, queue = candidates[0]
            first = queue.first()
            if first is not None and first.job.number == number and not self._is_full(queue, first):
                return first
            heapq.heappop(candidates)
            if queue.offered == number:
                queue.offered = None
                self._offer(queue, announce=False)
        return None

    def _offer(self, queue: OwnerQueue, *, announce: bool = True) -> None:
        """Make the first job of the queue a candidate, or park the queue.

        A pass that is under way is told, unless it is the pass that looks for the next one.
        """
        first = queue.first()
        if first is None:
            return
        if self._park(queue, first):
            return
        if queue.offered != first.job.number:
            queue.offered = first.job.number
            line = queue.line
            heapq.heappush(line.candidates, (first.job.number, queue.serial, queue))
            if len(line.candidates) > line.tidy_at:
                self._tidy(line)
            if announce and self._in_pass:
                turn = (*self._order_of(line), _NOT_READ, line.serial, line)
                heapq.heappush(self._turns, turn)

    def _is_full(self, queue: OwnerQueue, first: QueueEntry) -> bool:
        return (
            queue.waits_for() is not None or self._full_quota(first.job, queue.charge) is not None
        )

    def _park(self, queue: OwnerQueue, first: QueueEntry) -> bool:
        """Park the queue if its jobs must not be tried now; return whether it is parked."""
        cause = queue.waits_for()
        if cause is not None:
            queue.park(cause)
            queue.clock.switch(cause, self.time)
            return True
        queue.request_class.parked.remove(queue)
        full = self._full_quota(first.job, queue.charge)
        if full is not None:
            full.park(queue)
        queue.clock.switch(wait_causes.TURN if full is None else wait_causes.QUOTA, self.time)
        return full is not None

    def is_limited(self, entry: QueueEntry) -> bool:
        """Return whether the job may not start now, even if there were room for it."""
        limit = self.limit(entry.job)
        if limit is not None and len(limit.running) >= limit.at_once:
            return True
        return self.why_limited(entry) is not None

    def why_limited(self, entry: QueueEntry) -> str | None:
        """Return which quota has no room for the job."""
        job, request_class = entry.job, entry.request_class
        if request_class is None:
            charge: Mapping[str, int] = most_charged(job.request, job.work.nodes)
        else:
            charge = request_class.charge
        full = self._full_quota(job, charge)
        return None if full is None else full.why_full(charge, job.work.nodes)

    def _full_quota(self, job: Job, charge: Mapping[str, int]) -> RunningQuota | None:
        if not self.quotas or job.id in self.uncounted:
            return None
        return self.quotas.full_for(job.work, charge)

    def _tidy(self, line: OwnerLine) -> None:
        """Rebuild the heap with each queue once: passes that end early leave outdated entries."""
        queues = {queue.serial: queue for _, _, queue in line.candidates}
        line.candidates, line.tidy_at = [], _FEW + 2 * len(queues)
        for queue in queues.values():
            queue.offered = None
            self._offer(queue, announce=False)
