"""Link: one end of a connection that carries lines of JSON, for programs with an event loop.

The agent asks the starter over one, and a controller asks the agent. Each question has a number
that is repeated in its answer, so that many may be asked at once; a line without a number is an
event, and is told as it comes.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any, ClassVar, Self

from gridhand.agent import wire
from gridhand.core.errors import GridError

Facts = dict[str, Any]

MOST_LINE_BYTES = 64 << 20
MOST_UNSENT_BYTES = 64 << 20
_TIMEOUT_S = 10.0


class LinkError(GridError):
    """Something about a connection to an agent or a starter."""

    code: ClassVar[str] = "link_error"


class LinkLost(LinkError):
    """It does not answer any more. What was asked may have been done: ask again, which is safe."""

    code = "link_lost"


class LinkAbsent(LinkLost):
    """Nobody listens there."""

    code = "link_absent"


class LinkRefused(LinkError):
    """It answered that it will not; `because` is its word for why."""

    code = "link_refused"

    def __init__(self, who: str, because: str, message: str) -> None:
        super().__init__(f"the {who} refuses: {message}", hint="See which epoch is in charge.")
        self.because = because


class Lines(asyncio.Protocol):
    """Complete lines as they come in, and messages out. Both ends of a connection are one."""

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

    def tell(self, message: Facts) -> None:
        self.send(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def send(self, line: bytes) -> None:
        """One that does not listen is let go, and may come back."""
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
    """The asking end. `on_event` gets each event, `on_lost` is called once when it is over."""

    def __init__(
        self,
        who: str,
        on_event: Callable[[Facts], None] | None = None,
        on_lost: Callable[[], None] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        super().__init__()
        self.greeting: Facts = {}
        self._who = who
        self._on_event, self._on_lost = on_event, on_lost
        self._timeout_s = timeout_s
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Facts]] = {}
        self._closed = False

    @classmethod
    async def open(
        cls,
        folder: str,
        who: str = "agent",
        *,
        on_event: Callable[[Facts], None] | None = None,
        on_lost: Callable[[], None] | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> Self:
        """Connect to who listens in `folder`; raises `LinkAbsent` when nobody does."""
        try:
            connected = _connect(folder, timeout_s)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise LinkAbsent(f"no {who} in {folder} answers: {error}") from error
        except OSError as error:
            raise LinkLost(f"no {who} in {folder} answers: {error}") from error
        loop = asyncio.get_running_loop()
        made = cls(who, on_event, on_lost, timeout_s)
        await loop.create_unix_connection(lambda: made, sock=connected)
        return made

    @property
    def lost(self) -> bool:
        return self._closed or self.transport is None or self.transport.is_closing()

    async def hello(self, epoch: int | None, **more: Any) -> Facts:
        """Say who is in charge; the answer stays as `greeting`."""
        self.greeting = await self.ask({"do": "hello", "epoch": epoch, **more})
        return self.greeting

    async def ask(self, message: Facts, timeout_s: float | None = None) -> Facts:
        """The answer. Raises `LinkRefused` for one that says no, `LinkLost` for none in time."""
        rest = {name: value for name, value in message.items() if name != "do"}
        text = json.dumps(rest, separators=(",", ":"))[1:-1]
        return await self.ask_text(message["do"], text, timeout_s)

    async def ask_text(self, do: str, rest: str, timeout_s: float | None = None) -> Facts:
        """As `ask`, of what is JSON already: the other fields as they stand between braces."""
        if self.lost:
            raise LinkLost(f"the {self._who} is gone")
        self._number += 1
        number = self._number
        answer: asyncio.Future[Facts] = asyncio.get_running_loop().create_future()
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
        # An answer to a question that was given up is nobody's any more.
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
        """Leave, without `on_lost`."""
        self._on_lost = None
        if self.transport is not None:
            self.transport.close()


def _connect(folder: str, timeout_s: float) -> socket.socket:
    # To connect to a socket of this machine never waits, but for a queue that is full.
    connected = wire.connect(folder, timeout_s)
    connected.setblocking(False)
    return connected
