"""The ledger of a new owner, made from what is stored."""

from __future__ import annotations

from gridhand.core.ledger.ledger import Ledger
from gridhand.store.base import Contents


def load_ledger(contents: Contents, *, epoch: int, machine: str, now: int) -> Ledger:
    """Return the ledger that is stored. Every open deadline becomes at least its ttl from now.

    Nobody could renew during a restart, or while the store was away so long that its state
    is read again.
    """
    ledger = Ledger(epoch=epoch, next_number=contents.next_number, next_job=contents.next_job)
    ledger.machine = machine
    ledger.load(
        contents.nodes,
        (
            held
            if held.deadline is None
            else held._replace(deadline=max(held.deadline, now + (held.ttl_ms or 0)))
            for held in contents.allocations
        ),
        contents.jobs,
    )
    ledger.tokens.load(contents.tokens)
    return ledger
