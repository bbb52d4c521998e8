"""OwnerTotals: how much each owner holds, over all nodes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gridhand.core.ledger.allocations import Allocation

_NOTHING: Mapping[str, int] = MappingProxyType({})


class OwnerTotals:
    """The sums over live allocations by owner. `changed` names owners whose sums have changed.

    Whoever keeps something for each owner clears `changed` after looking at it.
    """

    __slots__ = ("_held", "changed")

    def __init__(self) -> None:
        self._held: dict[str, dict[str, int]] = {}
        self.changed: set[str] = set()

    def held(self, owner: str) -> Mapping[str, int]:
        """Return the parts of each resource that an owner holds; `gpu` is in shares of devices."""
        return self._held.get(owner, _NOTHING)

    def owners(self) -> list[str]:
        """Return the owners who hold something."""
        return list(self._held)

    def add(self, allocation: Allocation, sign: int = 1) -> None:
        self.changed.add(allocation.owner)
        held = self._held.setdefault(allocation.owner, {})
        for name, amount in allocation.amounts.pairs:
            _change(held, name, sign * amount)
        for hold in allocation.devices:
            _change(held, "gpu", sign * hold.share)
            _change(held, "gpu_memory", sign * hold.memory_bytes)
        if not held:
            del self._held[allocation.owner]

    def remove(self, allocation: Allocation) -> None:
        self.add(allocation, -1)


def _change(held: dict[str, int], name: str, amount: int) -> None:
    left = held.get(name, 0) + amount
    if left:
        held[name] = left
    else:
        held.pop(name, None)
