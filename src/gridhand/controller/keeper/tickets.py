"""Tickets: an operation on its way to the keeper, and its reply on the way back."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Generic

from gridhand.core.errors import GridError, NoRoom
from gridhand.core.operations import Allocate, Operation, Reply

# The id of the token with which the client of this task has sent its request. It follows the task
# into everything that it starts, so that no operation can lack it.
acting_token: ContextVar[str | None] = ContextVar("acting_token", default=None)


class Ticket:
    """An operation and, later, its reply or error. `port` is told when that is there."""

    __slots__ = (
        "abandoned", "done", "error", "operation", "port", "refused", "reply", "token",
        "wait_until",
    )  # fmt: skip

    operation: Any

    def __init__(self, operation: Operation[Any], port: TicketPort) -> None:
        self.operation = operation
        self.port = port
        self.reply: Any = None
        self.error: BaseException | None = None
        self.wait_until: int | None = None  # set when it begins to wait for room
        self.refused: NoRoom | None = None  # the latest reason why it waits
        self.done = self.abandoned = False
        self.token = acting_token.get()


class TicketPort:
    """Where answered tickets go. It gets all of its tickets of a batch in one delivery."""

    __slots__ = ("__weakref__",)

    def deliver(self, tickets: list[Ticket]) -> None:
        raise NotImplementedError


def deliver(tickets: Sequence[Ticket]) -> None:
    """Hand answered tickets to their ports."""
    if len(tickets) == 1:
        tickets[0].done = True
        tickets[0].port.deliver(list(tickets))
        return
    by_port: dict[TicketPort, list[Ticket]] = {}
    for ticket in tickets:
        ticket.done = True
        by_port.setdefault(ticket.port, []).append(ticket)
    for port, answered in by_port.items():
        port.deliver(answered)


class _Nowhere(TicketPort):
    def deliver(self, tickets: list[Ticket]) -> None:
        """Drop the answers: nobody waits for them."""


NOWHERE = _Nowhere()


class GivenUp(Exception):
    """The operation was abandoned while a thread waited for its reply."""


class PendingReply(TicketPort, Generic[Reply]):
    """A reply that one thread waits for and that any thread may give up.

    The lock is held until the reply is there or nobody wants it any more.
    """

    __slots__ = ("_abandon", "_given_up", "_lock", "ticket")

    def __init__(self, operation: Operation[Reply], abandon: Callable[[Ticket], None]) -> None:
        self._abandon = abandon
        self._given_up = False
        self._lock = threading.Lock()
        self._lock.acquire()
        self.ticket = Ticket(operation, self)

    def result(self) -> Reply:
        """Return the reply or raise its error; an interrupt abandons the operation."""
        try:
            self._lock.acquire()
        except BaseException:
            self._abandon(self.ticket)
            raise
        if self._given_up:
            raise GivenUp
        if self.ticket.error is not None:
            raise self.ticket.error
        reply: Reply = self.ticket.reply
        return reply

    def abandon(self) -> None:
        """Give up: what the operation is granted is released, and `result` raises `GivenUp`."""
        self._given_up = True
        self._abandon(self.ticket)
        self._wake()

    def deliver(self, tickets: list[Ticket]) -> None:
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was woken already
            self._lock.release()


class _AwaitedTicket(Ticket):
    __slots__ = ("future",)

    future: asyncio.Future[Any]


class LoopPort(TicketPort):
    """The tasks of one event loop: the operations of one turn of it are sent together."""

    __slots__ = ("_abandon", "_loop", "_submit", "_unsent")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        submit: Callable[[Sequence[Ticket]], None],
        abandon: Callable[[Ticket], None],
    ) -> None:
        self._loop = loop
        self._submit = submit
        self._abandon = abandon
        self._unsent: list[Ticket] = []

    def run(self, operation: Operation[Reply]) -> asyncio.Future[Reply]:
        """Return a future of the reply. If it is cancelled, what was granted is released.

        An allocation that waits for room gives up its place in line at once.
        """
        ticket = _AwaitedTicket(operation, self)
        future: asyncio.Future[Reply] = self._loop.create_future()
        ticket.future = future
        if isinstance(operation, Allocate) and operation.wait_ms:
            future.add_done_callback(lambda done: self._leave(ticket))
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(ticket)
        return future

    def _leave(self, ticket: _AwaitedTicket) -> None:
        if ticket.future.cancelled():
            self._abandon(ticket)

    def _send(self) -> None:
        unsent, self._unsent = [one for one in self._unsent if not one.abandoned], []
        try:
            self._submit(unsent)
        except GridError as error:
            for ticket in unsent:
                ticket.error = error
            self._settle(unsent)

    def deliver(self, tickets: list[Ticket]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._settle, tickets)
        except RuntimeError:  # the loop has ended, and its tasks with it
            for ticket in tickets:
                self._abandon(ticket)

    def _settle(self, tickets: list[Any]) -> None:
        for ticket in tickets:
            future = ticket.future
            if future.done():  # cancelled
                if not ticket.abandoned:
                    self._abandon(ticket)
            elif ticket.error is None:
                future.set_result(ticket.reply)
            else:
                future.set_exception(ticket.error)
