"""The line of those who wait for room: calls that would rather be late than refused.

They stand in the order they came. Whenever a batch has freed something, each of them is tried
once more in the same transaction, the first one first, before jobs are started and before anyone
who comes later. One that does not fit lets those behind it try, so nobody who asks for much keeps
the others from what is there; nor is anything kept back for it. When its time is over it is tried
a last time, and refused with the reasons of that moment.

What frees nothing in the ledger, such as strangers who leave a GPU, is noticed by the last try.
"""

from __future__ import annotations

from collections.abc import Iterable

from gridhand.controller.commands import Allocate
from gridhand.controller.tickets import Ticket
from gridhand.core.errors import NeverFits, NoRoom
from gridhand.store.base import Entry

_FREEING = frozenset({"allocation.released", "allocation.expired", "allocation.lost"})


class Line:
    """Tickets that wait. All of it is called from the keeper's thread."""

    def __init__(self) -> None:
        self._waiting: dict[int, Ticket] = {}  # by identity, in the order they came

    def takes(self, ticket: Ticket, error: Exception, now: int) -> bool:
        """Whether a ticket that was refused waits, for the first time or on."""
        command = ticket.command
        if not isinstance(command, Allocate) or not command.wait_ms or ticket.abandoned:
            return False
        if not isinstance(error, NoRoom) or isinstance(error, NeverFits):
            return False
        if command.until is None:
            command.until = now + command.wait_ms
        return now < command.until

    def join(self, ticket: Ticket) -> None:
        """Stand in line; one that stands there already keeps its place."""
        self._waiting.setdefault(id(ticket), ticket)

    def leave(self, ticket: Ticket) -> None:
        self._waiting.pop(id(ticket), None)

    def __contains__(self, ticket: Ticket) -> bool:
        return id(ticket) in self._waiting

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def next_due(self) -> int | None:
        return min((t.command.until for t in self._waiting.values()), default=None)

    def to_try(self, entries: Iterable[Entry], now: int) -> list[Ticket]:
        """All of them if something was freed, else those whose time is over."""
        for ticket in [one for one in self._waiting.values() if one.abandoned]:
            self.leave(ticket)
        freed = any(kind in _FREEING or kind.startswith("node.") for (kind, *_), _, _ in entries)
        return [one for one in self._waiting.values() if freed or one.command.until <= now]

    def dissolve(self) -> list[Ticket]:
        """Those who wait, who now do so no more."""
        waiting, self._waiting = self._waiting, {}
        return list(waiting.values())
