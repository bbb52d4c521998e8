"""DurationModel: how long the next run will take, as quantiles that follow experience.

1. A quantile is taken from the recent runs and stretched by a factor.
2. Each run that took longer than predicted raises the factor, each other one lowers it a little,
   by as much as keeps the stated part of the runs within. It is never below 1.
3. How often the predictions held is counted, so that nobody has to take them on trust: runs that
   have ended tell too little about long ones that have not.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp

from gridhand.core.prediction.sample_window import SampleWindow

QUANTILES = (0.5, 0.9, 0.95)
ENOUGH = 3
_STEP = 0.1


class DurationModel:
    """The recent run times of one kind of task, in milliseconds."""

    def __init__(self, quantiles: Sequence[float] = QUANTILES) -> None:
        self.runs = SampleWindow()
        self._stretch = dict.fromkeys(quantiles, 1.0)
        self._held = dict.fromkeys(quantiles, 0)
        self._predicted = 0

    def __len__(self) -> int:
        return len(self.runs)

    def add(self, ran_ms: int) -> None:
        if len(self.runs) >= ENOUGH:
            self._predicted += 1
            for quantile in self._stretch:
                self._judge(quantile, ran_ms <= self._at(quantile))
        self.runs.add(ran_ms)

    def _judge(self, quantile: float, held: bool) -> None:
        moved = self._stretch[quantile] * exp(_STEP * (quantile - held))
        self._stretch[quantile] = max(1.0, moved)
        self._held[quantile] += held

    def predict(self, quantile: float) -> int | None:
        """Return the time within which this part of the runs ends; None with too few of them."""
        return self._at(quantile) if len(self.runs) >= ENOUGH else None

    def _at(self, quantile: float) -> int:
        return ceil(self.runs.at_level(quantile) * self._stretch[quantile])

    def held(self, quantile: float) -> float | None:
        """Return which part of the runs stayed within what was predicted before they ended."""
        return self._held[quantile] / self._predicted if self._predicted else None
