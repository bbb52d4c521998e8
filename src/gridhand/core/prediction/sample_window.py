"""SampleWindow: the most recent measurements of one kind, in order of time and of size."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil

WINDOW = 1000


class SampleWindow:
    """The last measurements. Old ones are dropped, so memory is bounded and old habits fade."""

    __slots__ = ("_limit", "_recent", "_since_record", "_sorted")

    def __init__(self, limit: int = WINDOW) -> None:
        self._limit = limit
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        self._since_record = 0

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: int) -> None:
        self._since_record = 1 if value > self.largest else self._since_record + 1
        if len(self._recent) == self._limit:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(value)
        insort(self._sorted, value)

    @property
    def largest(self) -> int:
        return self._sorted[-1] if self._sorted else 0

    @property
    def since_record(self) -> int:
        """How many measurements there were since the largest of its time, itself included."""
        return self._since_record

    def median(self) -> int:
        return self._sorted[(len(self._sorted) - 1) // 2]

    def at_level(self, level: float) -> int:
        """Return the value that the next measurement stays below with this probability.

        This holds for measurements in random order, whatever their distribution. With too few of
        them for a high level it is the largest.
        """
        rank = ceil((len(self._sorted) + 1) * level)
        return self._sorted[min(max(rank, 1), len(self._sorted)) - 1]

    def share_within(self, value: int) -> float:
        """Return which part of the measurements was not above a value."""
        return sum(one <= value for one in self._sorted) / len(self._sorted)
