"""ChangeLog: the nodes that changed, from which placement updates its arrays and scores."""

from __future__ import annotations

from collections.abc import Sequence

from gridhand.core.model.names import NodeName

_KEPT = 20_000


class ChangeLog:
    """The names of nodes in the order they changed.

    A reader remembers `end` and later asks what came `since` then. Old entries are dropped: a
    reader that is too far behind gets None and has to read all nodes again.
    """

    __slots__ = ("_first", "_names", "end", "shape")

    def __init__(self) -> None:
        self._names: list[NodeName] = []
        self._first = 0  # the number of the first name that is still kept
        self.end = 0  # the number of the next name
        self.shape = 0  # counts nodes that were added, removed, or changed in capacity or devices

    def add(self, name: NodeName) -> None:
        self._names.append(name)
        self.end += 1
        if len(self._names) >= 2 * _KEPT:
            del self._names[:_KEPT]
            self._first += _KEPT

    def since(self, number: int) -> Sequence[NodeName] | None:
        return self._names[number - self._first :] if number >= self._first else None
