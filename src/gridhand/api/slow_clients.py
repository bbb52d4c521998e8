"""Limits on what slow or numerous clients can take: time, and connections."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Collection
from heapq import nsmallest

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_S = 20.0  # for the first line and the headers of a request
BODY_S = 60.0  # for its body
MOST_CONNECTIONS = 8000
ACCEPTED_AT_ONCE = 64  # before the oldest of those that are open make room


def most_connections() -> int:
    """Return how many connections may be open: all else needs descriptors, too."""
    return min(MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


class TimedProtocol(H11Protocol):
    """A protocol of uvicorn that closes connections whose request does not arrive in time.

    With too many connections, the one that has been idle longest makes room for a new one.
    """

    _timer: asyncio.TimerHandle | None = None
    _timed = ""

    def connection_made(self, transport: object) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._heard = time.monotonic()
        if len(self.connections) > (most := most_connections()):
            self.make_room(self.connections, most)
        self._watch()

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._time("", 0)
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no request has arrived that is not answered yet."""
        return self.conn.their_state is h11.IDLE

    def _watch(self) -> None:
        """Start the time of what is expected next, unless it runs already."""
        state = self.conn.their_state
        if state is h11.IDLE:
            self._time("header", HEADER_S)
        elif state is h11.SEND_BODY:
            self._time("body", BODY_S)
        else:
            self._time("", 0)

    def _time(self, what: str, seconds: float) -> None:
        if what == self._timed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timed = what
        self._timer = self.loop.call_later(seconds, self._over, what, seconds) if what else None

    def _over(self, what: str, seconds: float) -> None:
        self._timed = ""
        if self.flow.read_paused:  # we are slow, not the client
            self._time(what, seconds)
        elif self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.transport.abort()

    def make_room(self, among: Collection[object], most: int) -> None:
        """Close the longest idle ones, a few more than needed: each look takes its time.

        Those that were closed in the same turn still count, and are among them again.
        """
        idle = [one for one in among if isinstance(one, TimedProtocol) and one.is_idle]
        count = len(among) - most + most // 16
        for oldest in nsmallest(count, idle, key=lambda one: one._heard):
            oldest.transport.abort()
