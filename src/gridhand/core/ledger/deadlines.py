"""Deadlines: the deadlines of live allocations, the next one first."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from gridhand.core.ledger.allocations import Allocation
from gridhand.core.model.names import AllocationId

_SPARE = 1000


class Deadlines:
    """A heap of deadlines. Renewals and ends leave old entries in it, which are skipped."""

    __slots__ = ("_heap", "_live")

    def __init__(self, live: Mapping[AllocationId, Allocation]) -> None:
        self._live = live
        self._heap: list[tuple[int, int, AllocationId]] = []

    def __len__(self) -> int:
        """Return the number of entries, old ones included."""
        return len(self._heap)

    def add(self, held: Allocation) -> None:
        """Add the deadline of a live allocation, if it has one."""
        if held.deadline is None:
            return
        heapq.heappush(self._heap, (held.deadline, held.number, held.id))
        if len(self._heap) > _SPARE + 2 * len(self._live):
            self._compact()

    def first(self) -> tuple[int, AllocationId] | None:
        """Return the next deadline and the allocation that has it."""
        while self._heap:
            deadline, _, id = self._heap[0]
            held = self._live.get(id)
            if held is not None and held.deadline == deadline:
                return deadline, id
            heapq.heappop(self._heap)
        return None

    def _compact(self) -> None:
        self._heap = [
            (held.deadline, held.number, held.id)
            for held in self._live.values()
            if held.deadline is not None
        ]
        heapq.heapify(self._heap)
