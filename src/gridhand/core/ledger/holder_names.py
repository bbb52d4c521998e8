"""The names under which the ledger keeps a holder: one for each allocation of a group."""

from __future__ import annotations


def numbered_holders(holder: str, count: int) -> list[str]:
    """Return a numbered holder for each member of a group, because a holder is unique.

    A holder given by a caller never contains `#`, so these names and generated ones cannot clash.
    """
    return [holder] if count == 1 else [f"{holder}#{index}" for index in range(count)]


def stored_names(holder: str) -> tuple[str, str]:
    """Return the names a holder may be stored under: for one allocation, or for a group."""
    return holder, f"{holder}#0"
