"""A log of the rows of the columns that have changed, as an array to index others with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class RowLog:
    """The changed rows in order, for users that keep something for each row."""

    def __init__(self, kept: int = 30_000) -> None:
        self._rows = np.zeros(2 * kept, np.int64)
        self._kept, self._first, self._count = kept, 0, 0
        self.end = 0  # the number of the next row

    def add(self, row: int) -> None:
        if self._count == len(self._rows):
            self._rows[: self._kept] = self._rows[self._kept :]
            self._first, self._count = self._first + self._kept, self._kept
        self._rows[self._count] = row
        self._count += 1
        self.end += 1

    def forget(self) -> None:
        """Void all numbers so far, after rows have moved: `since` returns None for them."""
        self._first, self._count = self.end + 1, 0
        self.end += 1

    def since(self, number: int) -> Ints | None:
        """Return the rows since that number, possibly repeated; None if they are forgotten."""
        return None if number < self._first else self._rows[number - self._first : self._count]
