"""Tickets: a command on its way to the keeper, and its answer on the way back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from gridhand.core.calls import Call, Reply
from gridhand.core.errors import GridError


class Ticket:
    """A command and, later, its answer. `port` is told when it is there."""

    __slots__ = ("abandoned", "command", "done", "error", "port", "reply")

    command: Any

    def __init__(self, command: Call[Any], port: Port) -> None:
        self.command = command
        self.port = port
        self.reply: Any = None
        self.error: BaseException | None = None
        self.done = self.abandoned = False


class Port:
    """Where answers go. One call brings all the answers of a batch that are for this port."""

    __slots__ = ("__weakref__",)

    def deliver(self, tickets: list[Ticket]) -> None:
        raise NotImplementedError


def deliver(tickets: Sequence[Ticket]) -> None:
    """Hand answered tickets to those who wait for them."""
    by_port: dict[Port, list[Ticket]] = {}
    for ticket in tickets:
        ticket.done = True
        by_port.setdefault(ticket.port, []).append(ticket)
    for port, some in by_port.items():
        port.deliver(some)


class _Nowhere(Port):
    def deliver(self, tickets: list[Ticket]) -> None:
        """Nobody asked."""


NOWHERE = _Nowhere()


class Waiter(Port):
    """One thread that waits for one answer: a bare lock, held until the answer is there."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self) -> None:
        self._lock.acquire()

    def deliver(self, tickets: list[Ticket]) -> None:
        self._lock.release()


class _Awaited(Ticket):
    __slots__ = ("future",)

    future: asyncio.Future[Any]


class LoopPort(Port):
    """The tasks of one event loop: what they ask in one turn of it is sent as one."""

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

    def call(self, call: Call[Reply]) -> asyncio.Future[Reply]:
        """The answer to come. If its future is cancelled, what was granted is given back."""
        ticket = _Awaited(call, self)
        future: asyncio.Future[Reply] = self._loop.create_future()
        ticket.future = future
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(ticket)
        return future

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
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
                self._abandon(ticket)
            elif ticket.error is None:
                future.set_result(ticket.reply)
            else:
                future.set_exception(ticket.error)
