"""AllocationWaits: allocations that wait for room, as entries of the one queue of all that waits.

Each is a job in the eyes of the queue, one that is never stored or started: it has an owner, a
priority, a request and a number, and so its place among the jobs. A place is kept for a while under
the op id, for a client that comes back after a lost connection or asks again at intervals.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from gridhand.controller.keeper.ledger_commands import Context
from gridhand.controller.keeper.tickets import Ticket
from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.job import Job, JobSpec
from gridhand.core.model.names import JobId
from gridhand.core.operations import Allocate
from gridhand.core.queue.queue import Queue

KEPT_MS = 10_000
_MOST_KEPT = 10_000


class _Place(NamedTuple):
    number: int
    since: int
    until: int  # when it is forgotten


class AllocationWaits:
    """The tickets that wait, by the id of the entry that stands for each in the queue."""

    def __init__(self) -> None:
        self._tickets: dict[JobId, Ticket] = {}
        self._entries: dict[int, Job] = {}  # by the identity of the ticket
        self._kept: dict[tuple[str, str], _Place] = {}
        self._serial = count(1)

    def __contains__(self, id: JobId) -> bool:
        return id in self._tickets

    def __bool__(self) -> bool:
        return bool(self._tickets)

    def ticket(self, id: JobId) -> Ticket:
        return self._tickets[id]

    def join(self, ticket: Ticket, queue: Queue, context: Context) -> None:
        """Add a ticket to the queue; one that waits already keeps its place."""
        if id(ticket) in self._entries:
            return
        command: Allocate = ticket.operation
        place = self._place(command, context)
        entry = _entry(command, f"waits-{next(self._serial)}", place)
        self._tickets[entry.id] = ticket
        self._entries[id(ticket)] = entry
        queue.advance(context.now)
        self._put(entry, queue)

    def _place(self, command: Allocate, context: Context) -> _Place:
        kept = self._kept.get((command.owner, command.op_id or ""))
        if kept is not None and kept.until > context.now:
            return kept
        # It takes no number of its own: it is behind the last job, and before the next.
        return _Place(context.ledger.jobs.next_number - 1, context.now, 0)

    def leave(self, ticket: Ticket, queue: Queue, now: int) -> None:
        """Take a ticket out, and keep its place for a while if it was not granted anything."""
        entry = self._entries.pop(id(ticket), None)
        if entry is None:
            return
        del self._tickets[entry.id]
        queue.put(jobs.cancel(entry, now=now))
        queue.ready.apart.discard(entry.id)
        queue.ready.uncounted.discard(entry.id)
        command: Allocate = ticket.operation
        if command.op_id is not None:
            key = command.owner, command.op_id
            self._kept.pop(key, None)
            if ticket.reply is None:
                self._kept[key] = _Place(entry.number, entry.submitted, now + KEPT_MS)
            self._forget(now)

    def _forget(self, now: int) -> None:
        while self._kept:
            key, oldest = next(iter(self._kept.items()))
            if oldest.until > now and len(self._kept) <= _MOST_KEPT:
                return
            del self._kept[key]

    def rejoin_all(self, queue: Queue) -> None:
        """Add all to a queue that was made anew."""
        for entry in self._entries.values():
            self._put(entry, queue)

    def _put(self, entry: Job, queue: Queue) -> None:
        queue.ready.uncounted.add(entry.id)  # quotas are of jobs
        if len(self._tickets[entry.id].operation.requests) > 1:
            queue.ready.apart.add(entry.id)
        queue.put(entry)


def _entry(command: Allocate, id: str, place: _Place) -> Job:
    ttl_ms = command.terms.ttl_ms
    work = JobSpec(
        command.owner, ("allocate",), "/", command.requests[0],
        priority=command.priority, expect_ms=ttl_ms or None,
    )  # fmt: skip
    return jobs.submit(work, id=JobId(id), number=place.number, now=place.since)
