"""Limits on what slow or numerous clients can take: time, and connections."""

from __future__ import annotations

import asyncio
import time

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_S = 20.0  # for the first line and the headers of a request
BODY_S = 60.0  # for its body
MOST_CONNECTIONS = 8000


class TimedProtocol(H11Protocol):
    """A protocol of uvicorn that closes connections whose request does not arrive in time.

    With too many connections, the one that has been idle longest makes room for a new one.
    """

    _timer: asyncio.TimerHandle | None = None
    _timed = ""

    def connection_made(self, transport: object) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._heard = time.monotonic()
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()
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

    def _make_room(self) -> None:
        idle = [one for one in self.connections if isinstance(one, TimedProtocol) and one.is_idle]
        oldest = min(idle, key=lambda one: one._heard)
        oldest.transport.abort()
