"""PeakModel: how much memory to ask for, so that runs rarely fail and little is left unused.

1. The estimate is the largest recent peak and a margin above it.
2. The margin is three times the distance between the largest and the median peak, divided by the
   square root of the number of runs since the largest. It is at least 3 and at most 10 % of the
   largest. So it is small for tasks that always need the same, and large while peaks still grow.
3. If input sizes are known, a straight line through peak over size is tried beside it. It is used
   once it would have wasted less over the past runs.
"""

from __future__ import annotations

from math import ceil, sqrt

from gridhand.core.prediction.sample_window import SampleWindow
from gridhand.core.prediction.size_line import SizeLine

SPREADS = 3.0
LEAST_MARGIN = 0.03
MOST_MARGIN = 0.10
ENOUGH = 3  # runs, below which nothing is predicted
_COMPARED = 5  # predictions by size, before they may be used
_BETTER = 0.9  # of the waste without sizes


class PeakModel:
    """The recent peaks of one kind of task, in bytes."""

    def __init__(self) -> None:
        self.peaks = SampleWindow()
        self._line = SizeLine()
        self._compared = 0
        self._waste_plain = 0.0
        self._waste_by_size = 0.0

    def __len__(self) -> int:
        return len(self.peaks)

    def add(self, peak: int, size: int | None = None) -> None:
        """Learn from a run: its measured peak, and the size of its input if that is known."""
        if size is not None:
            self._compare(peak, size)
            self._line.add(size, peak)
        self.peaks.add(peak)

    def predict(self, size: int | None = None) -> int | None:
        """Return what the next run should ask for; None with fewer than three runs."""
        if len(self.peaks) < ENOUGH:
            return None
        return self._by_size(size) or self._plain() if self._uses(size) else self._plain()

    def _uses(self, size: int | None) -> bool:
        if size is None or self._compared < _COMPARED:
            return False
        return self._waste_by_size < _BETTER * self._waste_plain

    @property
    def confidence(self) -> float:
        """The probability that the next run needs no more than the largest so far."""
        return len(self.peaks) / (len(self.peaks) + 1)

    def _plain(self) -> int:
        largest = self.peaks.largest
        spread = largest - self.peaks.median()
        return largest + _margin(spread, self.peaks.since_record, largest)

    def _by_size(self, size: int | None) -> int | None:
        """Return the estimate of the line: above all residuals, and a margin."""
        line = self._line.fit() if size is not None else None
        if line is None or size is None:
            return None
        base = line.at(size) + line.largest_residual
        if base <= 0:
            return None
        return ceil(base) + _margin(line.spread, len(self._line), base)

    def _compare(self, peak: int, size: int) -> None:
        """Count what both estimates would have wasted on this run."""
        if len(self.peaks) < ENOUGH or (by_size := self._by_size(size)) is None:
            return
        self._compared += 1
        self._waste_plain += waste(self._plain(), peak)
        self._waste_by_size += waste(by_size, peak)


def _margin(spread: float, runs: int, largest: float) -> int:
    margin = SPREADS * spread / sqrt(runs)
    return ceil(min(max(margin, LEAST_MARGIN * largest), MOST_MARGIN * largest))


def waste(asked: int, peak: int) -> int:
    """Return the bytes held in vain, if a failed run is repeated with twice as much."""
    wasted = 0
    while 0 < asked < peak:
        wasted += 2 * asked  # the failed run, and as much again for the trouble
        asked *= 2
    return wasted + asked - peak
