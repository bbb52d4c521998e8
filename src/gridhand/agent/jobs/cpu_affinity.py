"""Which cores each attempt runs on: whole ones are its own, and all others share the rest.

Two jobs that were promised a core each must not take turns on one. A job that asked for a part of
a core, or for one and a half, runs wherever nobody has a core to himself.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

from gridhand.core.resources import UNIT


class Cores:
    """The cores of a node, and who has which. Whoever has none of his own shares the rest."""

    def __init__(self, cpus: Iterable[int]) -> None:
        self._all = sorted(set(cpus))
        self._own: dict[Hashable, list[int]] = {}
        self._sharing: set[Hashable] = set()

    def take(self, who: Hashable, parts: int, *, pin: bool) -> list[int] | None:
        """The cores that `who` is to run on; None for wherever it likes.

        If there are too few to be had alone, which a node that was promised too often may be, it
        shares as well.
        """
        self.give_back(who)
        if not pin or parts <= 0 or not self._all:
            return None
        free = self._free()
        count, fraction = divmod(parts, UNIT)
        if fraction or count > len(free) - bool(self._sharing):
            self._sharing.add(who)
            return self.rest()
        self._own[who] = free[:count]
        return list(self._own[who])

    def keep(self, who: Hashable, own: Collection[int] | None, *, shares: bool) -> None:
        """Take over what somebody has since before: these cores, a share in the rest, or none."""
        self.give_back(who)
        if own:
            self._own[who] = sorted(own)
        elif shares:
            self._sharing.add(who)

    def give_back(self, who: Hashable) -> None:
        self._own.pop(who, None)
        self._sharing.discard(who)

    def own(self, who: Hashable) -> list[int] | None:
        """The cores that it has to itself."""
        return self._own.get(who)

    def shares(self, who: Hashable) -> bool:
        return who in self._sharing

    def rest(self) -> list[int]:
        """Where those run that share; if others have all, they are all in each other's way."""
        return self._free() or list(self._all)

    def _free(self) -> list[int]:
        taken = {core for own in self._own.values() for core in own}
        return [core for core in self._all if core not in taken]
