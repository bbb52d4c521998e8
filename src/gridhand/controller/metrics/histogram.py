"""Histogram: how many values were at most as large as each bound.

It is updated in the keeper's thread, so it is a list of integers and nothing else. One thread
writes, and a reader may see a value that is counted and not yet summed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

MOMENTS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5)
WAITS = (0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 86_400.0, 604_800.0)


class Histogram:
    """Counts of values in seconds, for each of some bounds and beyond them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = MOMENTS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a value, or as many equal ones."""
        self.counts[bisect_left(self.bounds, seconds)] += times
        self.total += seconds * times

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts by upper bound, as Prometheus reads them."""
        found, so_far = [], 0
        for bound, count in zip([*map(str, self.bounds), "+Inf"], list(self.counts), strict=True):
            so_far += count
            found.append((bound, float(so_far)))
        return found
