"""OwnerLine: the ready jobs of one owner and priority, and which of them comes first.

1. The queues of a line whose jobs may be tried are candidates, by the number of their first job.
2. Queues of request classes that were opened stay parked. A pass reads those of a line once it is
   the turn of the line, and only those whose turn it is leave their parking.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from gridhand.core.queue.request_classes import OwnerQueue, RequestClass

_FEW = 64

Candidate = tuple[int, int, OwnerQueue]  # number of its first job, serial


class OwnerLine:
    """One line. It exists as long as it has a queue, and has a `slot` of its own until then."""

    __slots__ = (
        "_reading", "_reading_of", "candidates", "owner", "queues", "rank", "serial", "since",
        "slot", "tidy_at",
    )  # fmt: skip

    def __init__(self, rank: int, owner: str, serial: int, slot: int, since: int) -> None:
        self.rank, self.owner, self.serial, self.slot = rank, owner, serial, slot
        self.since = since  # when the first of those that wait was submitted
        self.queues = 0
        self.candidates: list[Candidate] = []
        self.tidy_at = _FEW
        self._reading: list[Candidate] = []
        self._reading_of = -1

    def first_parked(self, opened: Iterable[RequestClass], version: int) -> OwnerQueue | None:
        """Return the parked queue of an opened class with the lowest number; None without one.

        It is looked for once for each version of what is opened.
        """
        if self._reading_of != version:
            self._reading_of = version
            self._reading = [
                (first.order, queue.serial, queue)
                for one in opened
                for queue in one.parked.of(self)
                if (first := queue.first()) is not None
            ]
            heapq.heapify(self._reading)
        while self._reading:
            number, serial, queue = self._reading[0]
            first = queue.first()
            if first is None or queue.offered == first.order or queue.waits_for() is not None:
                heapq.heappop(self._reading)  # it is gone, a candidate or not to be tried any more
            elif first.order != number:
                heapq.heapreplace(self._reading, (first.order, serial, queue))
            else:
                return queue
        return None

    def take_parked(self) -> OwnerQueue:
        """Take out the queue that `first_parked` has returned."""
        return heapq.heappop(self._reading)[2]


class OwnerLines:
    """All lines that have a queue, each in a slot that it shares with no other."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, str], OwnerLine] = {}
        self._free_slots: list[int] = []
        self._serial = 0

    def __iter__(self) -> Iterator[OwnerLine]:
        return iter(self._lines.values())

    def get(self, rank: int, owner: str) -> OwnerLine | None:
        return self._lines.get((rank, owner))

    def join(self, rank: int, owner: str, since: int) -> OwnerLine:
        """Return the line that another queue joins."""
        line = self._lines.get((rank, owner))
        if line is None:
            self._serial += 1
            slot = heapq.heappop(self._free_slots) if self._free_slots else len(self._lines)
            line = self._lines[rank, owner] = OwnerLine(rank, owner, self._serial, slot, since)
        line.queues += 1
        line.since = min(line.since, since)
        return line

    def leave(self, line: OwnerLine) -> None:
        """Forget the line if no queue of it is left."""
        line.queues -= 1
        if not line.queues:
            del self._lines[line.rank, line.owner]
            heapq.heappush(self._free_slots, line.slot)
