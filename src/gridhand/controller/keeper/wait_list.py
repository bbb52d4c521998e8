"""The list of allocations that wait for room instead of being refused at once.

With a controller, they are entries of the one queue of all that waits (see `allocation_waits`), and
this list knows only when their time is over. Without one, they wait in the order they came: when a
batch has freed something, each is tried once more in the same transaction, before later tickets; a
ticket that does not fit lets those behind it try. When its time is over a ticket is tried a last
time and refused with the reasons of that moment.

Changes that free nothing in the ledger, such as others who leave a GPU, are seen by the last try.
"""

from __future__ import annotations

from collections.abc import Iterable

from gridhand.controller.keeper.dispatcher import Dispatch
from gridhand.controller.keeper.ledger_commands import Context
from gridhand.controller.keeper.tickets import Ticket
from gridhand.core.errors import NeverFits, NoRoom
from gridhand.core.operations import Allocate
from gridhand.store.base import Entry

FREEING = frozenset({"allocation.released", "allocation.expired", "allocation.lost"})


class WaitList:
    """Waiting tickets. All methods are called from the keeper's thread."""

    def __init__(self, retry_ms: int | None = None, dispatch: Dispatch | None = None) -> None:
        """With `retry_ms`, tickets are tried again after that time, though nothing was freed.

        With a `dispatch`, its queue decides about tickets until their time is over.
        """
        self._dispatch = dispatch
        self._waiting: dict[int, Ticket] = {}  # by identity, in the order they came
        self._again = False
        self._retry_ms = retry_ms
        self._tried = 0

    def takes(self, ticket: Ticket, error: Exception, now: int) -> bool:
        """Return whether a refused ticket is to wait, or to wait on."""
        operation = ticket.operation
        if not isinstance(operation, Allocate) or not operation.wait_ms or ticket.abandoned:
            return False
        if not isinstance(error, NoRoom) or isinstance(error, NeverFits):
            return False
        if ticket.wait_until is None:
            ticket.wait_until = now + operation.wait_ms
        return now < ticket.wait_until

    def join(self, ticket: Ticket, context: Context) -> None:
        """Add a ticket at the end; one that waits already keeps its place."""
        self._waiting.setdefault(id(ticket), ticket)
        if self._dispatch is not None:
            self._dispatch.waits.join(ticket, self._dispatch.queue, context)

    def leave(self, ticket: Ticket, now: int) -> None:
        self._waiting.pop(id(ticket), None)
        if self._dispatch is not None:
            self._dispatch.waits.leave(ticket, self._dispatch.queue, now)

    def __contains__(self, ticket: Ticket) -> bool:
        return id(ticket) in self._waiting

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def look_again(self) -> None:
        """Try all at the next opportunity: others use less than before."""
        self._again = bool(self._waiting)

    def next_due(self) -> int | None:
        if self._again:
            return 0
        due = min((ticket.wait_until or 0 for ticket in self._waiting.values()), default=None)
        if due is None or self._retry_ms is None:
            return due
        return min(due, self._tried + self._retry_ms)

    def to_try(self, entries: Iterable[Entry], now: int) -> list[Ticket]:
        """Return all waiting tickets if something was freed, else those whose time is over."""
        freed, self._again = self._again, False
        freed |= any(kind in FREEING or kind.startswith("node.") for (kind, *_), _, _ in entries)
        if self._retry_ms is not None and self._tried + self._retry_ms <= now:
            self._tried, freed = now, True
        freed = freed and self._dispatch is None
        waiting = self._waiting.values()
        return [ticket for ticket in waiting if freed or (ticket.wait_until or 0) <= now]

    def drop_abandoned(self, now: int) -> None:
        """Remove the tickets for whose answer nobody waits any more."""
        for ticket in [ticket for ticket in self._waiting.values() if ticket.abandoned]:
            self.leave(ticket, now)

    def remove_all(self, now: int) -> list[Ticket]:
        """Remove and return all waiting tickets."""
        waiting = list(self._waiting.values())
        for ticket in waiting:
            self.leave(ticket, now)
        return waiting
