"""Idle slots of this process: what they hold is given back before a caller is refused room."""

from __future__ import annotations

import weakref
from typing import Protocol


class SlotHolder(Protocol):
    """Holds resources at a controller for calls that may come, such as a pool."""

    def give_back_idle(self, address: str) -> None:
        """Return when all idle slots at that controller are given back."""


_holders: weakref.WeakSet[SlotHolder] = weakref.WeakSet()


def add_holder(holder: SlotHolder) -> None:
    """Count on this one to give back what it does not need."""
    _holders.add(holder)


def are_slots_held() -> bool:
    """Return whether anything in this process may hold slots."""
    return bool(_holders)


def give_back_idle(address: str) -> None:
    """Return when all idle slots of this process at that controller are given back."""
    for holder in list(_holders):
        holder.give_back_idle(address)
