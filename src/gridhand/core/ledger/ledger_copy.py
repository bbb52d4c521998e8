"""LedgerCopy: a second ledger of the same state, kept up to date by the changes of the first."""

from __future__ import annotations

from collections.abc import Iterable

from gridhand.core.ledger.ledger import Change, Ledger


class LedgerCopy(Ledger):
    """A ledger that decides nothing."""

    def follow(self, changes: Iterable[Change]) -> None:
        """Apply durable changes of the ledger that this is a copy of, in their order."""
        for change in changes:
            self._apply(change.before, change.after)
        self.settle()
