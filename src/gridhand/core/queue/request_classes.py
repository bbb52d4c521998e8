"""Groups of waiting jobs: by request, by owner, queue and priority, and by array."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from gridhand.core.jobs.scopes import most_charged
from gridhand.core.queue import wait_causes
from gridhand.core.queue.wait_causes import JobClock, QueueClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridhand.core.explain.refusal import Refusal
    from gridhand.core.jobs.job import Job
    from gridhand.core.model.names import JobId
    from gridhand.core.model.requests import Request
    from gridhand.core.queue.owner_lines import OwnerLine

_FEW = 32
_LAST = (1 << 60, 0)
_JUDGED_MS = 5000
_MANY_TESTS = 16


class QueueEntry:
    """A job in the queue. A job that comes back to the queue gets a new entry.

    `heap` is the heap that contains it, if any. `request_class` is the class it counts in. `clock`
    counts its wait; it goes over to the next entry of the job while it waits.
    """

    __slots__ = ("clock", "heap", "job", "order", "request_class", "serial")
    _serials = count()

    def __init__(self, job: Job, clock: JobClock) -> None:
        self.job = job
        self.clock = clock
        self.order = job.number
        self.serial = next(self._serials)  # decides between equal numbers
        self.heap: JobHeap | None = None
        self.request_class: RequestClass | None = None

    def __lt__(self, other: QueueEntry) -> bool:
        return (self.order, self.serial) < (other.order, other.serial)


class JobHeap:
    """Entries with the lowest `order` first, from which any entry can be removed at any time.

    A removed entry is dropped when it comes to the front, or when more than half are removed: so
    the heap is never much longer than twice the number of its entries.
    """

    __slots__ = ("_entries", "_removed")

    def __init__(self) -> None:
        self._entries: list[QueueEntry] = []
        self._removed = 0

    def __len__(self) -> int:
        return len(self._entries) - self._removed

    def push(self, entry: QueueEntry) -> None:
        entry.heap = self
        heapq.heappush(self._entries, entry)

    def first(self) -> QueueEntry | None:
        while self._entries and self._entries[0].heap is not self:
            heapq.heappop(self._entries)
            self._removed -= 1
        return self._entries[0] if self._entries else None

    def in_order(self) -> Iterator[QueueEntry]:
        """Yield the entries, the lowest `order` first; the first few cost no more than they are."""
        found = [(self._entries[0], 0)] if self._entries else []
        while found:
            entry, index = heapq.heappop(found)
            if entry.heap is self:
                yield entry
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(self._entries):
                    heapq.heappush(found, (self._entries[child], child))

    def pop(self) -> QueueEntry | None:
        """Remove and return the first entry."""
        entry = self.first()
        if entry is not None:
            heapq.heappop(self._entries)
            entry.heap = None
        return entry

    def remove(self, entry: QueueEntry) -> None:
        """Remove an entry. It must not be pushed again: its job needs a new entry."""
        entry.heap = None
        self._removed += 1
        if self._removed > _FEW and self._removed * 2 > len(self._entries):
            self._entries = [entry for entry in self._entries if entry.heap is self]
            heapq.heapify(self._entries)
            self._removed = 0


class OwnerQueue(JobHeap):
    """Jobs of one owner, named queue, priority, request class and expected time.

    They are of one array if that has a limit. Only the first job is a candidate.
    """

    __slots__ = ("clock", "key", "limit", "line", "offered", "request_class", "serial")

    def __init__(
        self,
        request_class: RequestClass,
        limit: ArrayLimit | None,
        key: OwnerKey,
        line: OwnerLine,
        serial: int,
        now: int,
    ) -> None:
        super().__init__()
        self.clock = QueueClock(now)
        self.request_class, self.limit, self.key, self.serial = request_class, limit, key, serial
        self.line = line
        self.offered: int | None = None  # the job number with which it is in the heap of candidates

    @property
    def charge(self) -> Mapping[str, int]:
        """The amounts that a quota must have left for one of its jobs."""
        return self.request_class.charge

    def waits_for(self) -> str | None:
        """Return the cause for which its jobs must not be tried now, quotas aside."""
        if self.request_class.refused:
            return self.request_class.cause
        if self.key.span in self.request_class.blocked:
            return wait_causes.KEPT
        if self.limit is not None and len(self.limit.running) >= self.limit.at_once:
            return wait_causes.ARRAY_LIMIT
        return None

    def park(self, cause: str) -> None:
        """Keep the queue where it is found once there is no such cause any more."""
        if cause == wait_causes.ARRAY_LIMIT and self.limit is not None:
            self.limit.parked[self.serial] = self
            self.request_class.parked.remove(self)
        else:
            self.request_class.parked.add(self)


CouldFit = Callable[["Request"], bool]
Span = tuple[int, int | None]  # rank of the priority, expected time in ms


class OwnerKey(NamedTuple):
    """The jobs of an owner that are alike in all that decides about them but their number."""

    owner: str
    array: str | None  # if it has a limit
    span: Span
    queue: str | None = None  # the named one
    counted: bool = True  # by quotas

    @property
    def rank(self) -> int:
        return self.span[0]


class ClassKey(NamedTuple):
    """A request, and the owner or the job for which alone an answer holds, if it is for one.

    `nodes` is the size of a gang: room for one member is not room for all.
    """

    request: Request
    whose: str | None
    nodes: int | None = None


class RequestClass:
    """The jobs with equal requests: a refusal of one of them holds for all.

    Room that is kept free for others is refused to those with the same priority and expected time:
    `blocked` has the reason for each of these.

    `open` lets its jobs be tried again, `close` takes that back. Its queues stay parked meanwhile:
    a pass takes out those whose turn it is, so that it costs nothing how many there are.
    """

    __slots__ = (
        "_before", "_charge", "_kept", "_tests", "blocked", "cause", "first", "judged", "key",
        "parked", "queues", "refused", "size", "why",
    )  # fmt: skip

    def __init__(self, key: ClassKey) -> None:
        self.key = key
        self._charge: Mapping[str, int] | None = None
        self.queues: dict[OwnerKey, OwnerQueue] = {}
        self.parked = ParkedQueues()  # until something is freed
        self.size = 0
        self.refused = False
        self._before: tuple[bool, tuple[int, int], dict[Span, str]] = False, _LAST, {}
        self._tests: list[CouldFit | None] = []  # how it was opened since it was refused
        self._kept: set[Span] = set()  # whose parked queues wait for kept room
        self.blocked: dict[Span, str] = {}
        self.first = _LAST  # rank and number of the first job that was refused
        self.why: str | Refusal | None = None
        self.cause = wait_causes.ROOM  # of the latest refusal
        self.judged: int | None = None  # when the cause was found out

    def judge(self, why: str | Refusal, now: int) -> None:
        """Note what is lacking. That is looked into only now and then, as it takes time."""
        if isinstance(why, str):
            self.cause, self.judged = wait_causes.OTHER, None
        elif self.judged is None or now - self.judged >= _JUDGED_MS:
            self.cause, self.judged = wait_causes.room_cause(why.lacking()), now

    @property
    def charge(self) -> Mapping[str, int]:
        """The largest amounts that one of its jobs, or a gang, may take."""
        if self._charge is None:
            self._charge = most_charged(self.key.request, self.key.nodes)
        return self._charge

    def refuse(self, why: str | Refusal, now: int) -> None:
        """Refuse all its jobs, and have those that are parked wait for what is lacking."""
        before, self.refused, self.why = self.cause, True, why
        self._tests.clear()
        self.judge(why, now)
        if self.cause != before or self._kept:
            self._kept.clear()
            for queue in self.parked:
                queue.clock.switch(self.cause, now)

    def block(self, span: Span, why: str, now: int) -> None:
        """Refuse the jobs of this priority and expected time, as room is kept for others."""
        self.blocked[span] = why
        self._tests.clear()
        if span not in self._kept:
            self._kept.add(span)
            for queue in self.parked:
                if queue.key.span == span:
                    queue.clock.switch(wait_causes.KEPT, now)

    def open(self, could_fit: CouldFit | None) -> None:
        """Forget refusals, but keep the latest reason until there is another."""
        if not self._tests:
            self._before = self.refused, self.first, self.blocked
            self.refused, self.first, self.blocked = False, _LAST, {}
        self._tests.append(could_fit if len(self._tests) < _MANY_TESTS else None)
        del self._tests[:-_MANY_TESTS]

    def close(self) -> bool:
        """Refuse again what was refused before, if nothing of what was freed could fit any more."""
        if self.refused or self.blocked or not self._tests:
            return False
        if any(test is None or test(self.key.request) for test in self._tests):
            return False
        self.refused, self.first, self.blocked = self._before
        self._tests.clear()
        return True


class ParkedQueues:
    """Queues by the line of their owner and priority; `lines` has a bit for each of these."""

    __slots__ = ("_queues", "lines")

    def __init__(self) -> None:
        self.lines = 0
        self._queues: dict[int, dict[int, OwnerQueue]] = {}

    def __iter__(self) -> Iterator[OwnerQueue]:
        return (queue for queues in self._queues.values() for queue in queues.values())

    def add(self, queue: OwnerQueue) -> None:
        slot = queue.line.slot
        self._queues.setdefault(slot, {})[queue.serial] = queue
        self.lines |= 1 << slot

    def remove(self, queue: OwnerQueue) -> None:
        slot = queue.line.slot
        queues = self._queues.get(slot)
        if queues is not None and queues.pop(queue.serial, None) is not None and not queues:
            del self._queues[slot]
            self.lines ^= 1 << slot

    def of(self, line: OwnerLine) -> Iterable[OwnerQueue]:
        queues = self._queues.get(line.slot)
        return () if queues is None else queues.values()


class ArrayLimit:
    """The limit of how many jobs of an array run at once."""

    __slots__ = ("at_once", "parked", "running", "size")

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.running: set[JobId] = set()
        self.parked: dict[int, OwnerQueue] = {}  # by serial, until a job of the array has ended
        self.size = 0  # number of its jobs that are ready
