"""Which nodes have changed: what placement reads to keep its arrays and scores up to date."""

from __future__ import annotations

from collections.abc import Sequence

_KEPT = 20_000


class Touched:
    """The names of nodes in the order they changed, for those who keep something of each.

    A reader remembers `end` and later asks what came `since`. What is long past is forgotten:
    a reader that far behind has to read everything anew, and is told None.
    """

    __slots__ = ("_first", "_names", "end", "shape")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._first = 0  # the number of the first name that is still known
        self.end = 0  # the number that the next name will have
        self.shape = 0  # counts the nodes that came, went, or have something else than before

    def add(self, name: str) -> None:
        self._names.append(name)
        self.end += 1
        if len(self._names) >= 2 * _KEPT:
            del self._names[:_KEPT]
            self._first += _KEPT

    def since(self, number: int) -> Sequence[str] | None:
        return self._names[number - self._first :] if number >= self._first else None
