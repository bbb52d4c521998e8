"""SizeLine: peaks as a straight line over the size of the input."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

WINDOW = 100
_ENOUGH = 8  # runs of different sizes say something about a slope


class FittedLine(NamedTuple):
    """A fitted line, and how far the peaks lie above it."""

    slope: float
    base: float
    largest_residual: float
    spread: float  # from the median residual to the largest

    def at(self, size: int) -> float:
        return self.base + self.slope * size


class SizeLine:
    """The last runs whose input size is known. Sums are whole numbers, so nothing drifts."""

    def __init__(self) -> None:
        self._runs: deque[tuple[int, int]] = deque()
        self._sums = [0, 0, 0, 0]  # of sizes, peaks, squared sizes, products
        self._line: FittedLine | None = None

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, size: int, peak: int) -> None:
        if len(self._runs) == WINDOW:
            self._count(*self._runs.popleft(), -1)
        self._runs.append((size, peak))
        self._count(size, peak, 1)
        self._line = None

    def _count(self, size: int, peak: int, sign: int) -> None:
        for index, value in enumerate((size, peak, size * size, size * peak)):
            self._sums[index] += sign * value

    def fit(self) -> FittedLine | None:
        """Return the least-squares line; None if sizes say nothing, or larger ones need less."""
        if self._line is None and len(self._runs) >= _ENOUGH:
            self._line = self._fit()
        return self._line

    def _fit(self) -> FittedLine | None:
        count = len(self._runs)
        sizes, peaks, squares, products = self._sums
        scatter = count * squares - sizes * sizes
        slope = (count * products - sizes * peaks) / scatter if scatter > 0 else 0.0
        if slope <= 0:
            return None
        base = (peaks - slope * sizes) / count
        residuals = sorted(peak - base - slope * size for size, peak in self._runs)
        middle = residuals[(count - 1) // 2]
        return FittedLine(slope, base, residuals[-1], residuals[-1] - middle)
