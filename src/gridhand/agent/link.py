"""Connections that carry lines of JSON, for programs with an event loop.

The agent sends requests to the starter over one, and a controller to the agent. A request has a
number that is repeated in its answer, so many may be open at once. A line without a number is an
event, and is passed on as it arrives.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from typing import Any, Self

from gridhand.agent.link_errors import LinkAbsent, LinkLost, LinkRefused
from gridhand.agent.starter import connection

Message = dict[str, Any]

MOST_LINE_BYTES = 64 << 20
MOST_UNSENT_BYTES = 64 << 20
_TIMEOUT_S = 10.0


class Lines(asyncio.Protocol):
    """One end of a connection: complete lines in, messages out."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._inbox = bytearray()
        self._searched = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def line_received(self, line: bytes) -> None:
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        inbox, begin = self._inbox, 0
        inbox += data
        while (end := inbox.find(b"\n", self._searched)) >= 0:
            self.line_received(bytes(inbox[begin:end]))
            begin = self._searched = end + 1
        del inbox[:begin]
        self._searched = len(inbox)
        if len(inbox) > MOST_LINE_BYTES:
            self.abort()

    def tell(self, message: Mapping[str, object]) -> None:
        self.send(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def send(self, line: bytes) -> None:
        """Send a line; drop a peer that does not read (it may come back)."""
        if self.transport is None or self.transport.is_closing():
            return
        self.transport.write(line)
        if self.transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            self.abort()

    def abort(self) -> None:
        self._inbox.clear()
        if self.transport is not None:
            self.transport.abort()


class Link(Lines):
    """The end that sends requests.

    `on_event` gets each event; `on_lost` is called once when the connection is lost.
    """

    def __init__(
        self,
        who: str,
        on_event: Callable[[Any], None] | None = None,
        on_lost: Callable[[], None] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        super().__init__()
        self.greeting: Message = {}
        self._who = who
        self._on_event, self._on_lost = on_event, on_lost
        self._timeout_s = timeout_s
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._closed = False

    @classmethod
    async def open(
        cls,
        folder: str,
        who: str = "agent",
        *,
        on_event: Callable[[Any], None] | None = None,
        on_lost: Callable[[], None] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> Self:
        """Connect to the daemon of `folder`; raise LinkAbsent if nobody listens there."""
        try:
            connected = _connect(folder, timeout_s)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise LinkAbsent(f"no {who} in {folder} answers: {error}") from error
        except OSError as error:
            raise LinkLost(f"no {who} in {folder} answers: {error}") from error
        loop = asyncio.get_running_loop()
        link = cls(who, on_event, on_lost, timeout_s)
        await loop.create_unix_connection(lambda: link, sock=connected)
        return link

    @property
    def lost(self) -> bool:
        return self._closed or self.transport is None or self.transport.is_closing()

    async def hello(self, epoch: int | None) -> Message:
        """Say which epoch is in charge; the answer stays as `greeting`."""
        self.greeting = await self.ask({"do": "hello", "epoch": epoch})
        return self.greeting

    async def ask(self, message: Message, timeout_s: float | None = None) -> Message:
        """Return the answer; raise LinkRefused for an error, LinkLost if none comes in time."""
        rest = {name: value for name, value in message.items() if name != "do"}
        text = json.dumps(rest, separators=(",", ":"))[1:-1]
        return await self.ask_text(message["do"], text, timeout_s)

    async def ask_text(self, do: str, rest: str, timeout_s: float | None = None) -> Message:
        """Do as `ask`, with the other fields given as JSON, without the braces around them."""
        if self.lost:
            raise LinkLost(f"the {self._who} is gone")
        self._number += 1
        number = self._number
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        # `do` comes first: a starter takes long lines only if they begin as a start.
        body = f'{{"do":{json.dumps(do)},"id":{number}{"," if rest else ""}{rest}}}\n'
        self.send(body.encode())
        try:
            async with asyncio.timeout(timeout_s or self._timeout_s):
                reply = await answer
        except TimeoutError:
            raise LinkLost(f"the {self._who} does not answer") from None
        finally:
            self._waiting.pop(number, None)
        if "error" in reply:
            raise LinkRefused(self._who, str(reply["error"]), str(reply.get("message")))
        return reply

    def line_received(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            self.abort()
            return
        if "event" in message:
            if self._on_event is not None:
                self._on_event(message)
            return
        # Nobody waits any more for the answer to a request that timed out.
        answer = self._waiting.get(message.get("id"))
        if answer is not None and not answer.done():
            answer.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(LinkLost(f"the {self._who} is gone"))
        self._waiting.clear()
        closed, self._closed = self._closed, True
        if not closed and self._on_lost is not None:
            self._on_lost()

    def close(self) -> None:
        """Close the connection without calling `on_lost`."""
        self._on_lost = None
        if self.transport is not None:
            self.transport.close()


def _connect(folder: str, timeout_s: float) -> socket.socket:
    # Connecting to a unix socket waits only if the listener's queue is full.
    connected = connection.connect(folder, timeout_s)
    connected.setblocking(False)
    return connected
