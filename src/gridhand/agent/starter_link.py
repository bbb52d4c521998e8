"""StarterLink: the agent's connection to its starter, which is replaced when it dies.

Nothing can be started without a starter, so a dead one is replaced at once. The new one reads the
journal and tells what the dead one had begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import cast

from gridhand.agent.link import Link, Message
from gridhand.agent.link_errors import LinkAbsent, LinkError, LinkLost, LinkRefused
from gridhand.agent.starter.message_fields import (
    StarterEvent,
    StarterGreeting,
    StarterListing,
    StarterReport,
)
from gridhand.agent.starter.starter_client import ensure_starter
from gridhand.posix.daemon import unprotected

_TIMEOUT_S = 30.0
_PATIENCE_S = 20.0  # for a starter to come back
_LONGEST_PAUSE_S = 5.0
_MOMENT_S = 0.001
_LEAVING_S = 2.0


class StarterLink:
    """Requests to the starter, and its events.

    `on_event` gets each event; `on_list` gets all that is known, after each new connection.
    """

    def __init__(
        self,
        folder: str,
        on_event: Callable[[StarterEvent], None],
        on_list: Callable[[StarterGreeting, StarterListing], None],
    ) -> None:
        self._folder = folder
        self._on_event, self._on_list = on_event, on_list
        self._link: Link | None = None
        self._ready = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None
        self._greeting: StarterGreeting | None = None
        self.trouble = ""
        self.unwritten = ""  # why the starter does not tell what has ended
        self._closed = False

    @property
    def greeting(self) -> StarterGreeting:
        assert self._greeting is not None
        return self._greeting

    async def connect(self) -> None:
        """Connect, and try again until that succeeds."""
        pause_s = 0.1
        while not self._closed:
            try:
                await self._connect()
                self.trouble = ""
                return
            except (LinkError, OSError) as error:
                self.trouble = f"the starter cannot be reached: {error}"
                print(self.trouble, file=sys.stderr)
                await asyncio.sleep(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def _connect(self) -> None:
        try:
            link = await self._open()
        except LinkAbsent:
            await asyncio.to_thread(ensure_starter, self._folder, around=unprotected)
            link = await self._open()
        try:
            self._greeting = cast(StarterGreeting, await link.hello(None))
            await link.ask({"do": "watch"})
            listing = cast(StarterListing, await link.ask({"do": "list"}, _TIMEOUT_S))
        except BaseException:
            link.close()
            raise
        self._link = link
        self._on_list(self._greeting, listing)
        self._ready.set()

    async def _open(self) -> Link:
        return await Link.open(
            self._folder,
            "starter",
            on_event=self._on_event,
            on_lost=self._lost,
            timeout_s=_TIMEOUT_S,
        )

    def _lost(self) -> None:
        if self._ready.is_set() and not self._closed:
            self._ready.clear()
            self._connecting = asyncio.create_task(self.connect())

    async def ask_trouble(self) -> bool:
        """Ask whether the starter can write its journal; return whether that has changed."""
        reply = await self.ask({"do": "hello", "epoch": None})
        trouble = reply.get("trouble")
        text = f"the starter cannot write its journal: {trouble}" if trouble else ""
        before, self.unwritten = self.unwritten, text
        return before != text

    async def probe(self) -> str:
        """Return why the starter can start no command now; "" if it can."""
        try:
            return str((await self.ask({"do": "probe"}))["shortage"])
        except LinkRefused:
            return ""  # a starter of an earlier version, which does not know the request

    async def hello(self, epoch: int) -> None:
        """Have the starter remember the highest epoch."""
        if epoch > self.greeting["epoch"]:
            reply = await self.ask({"do": "hello", "epoch": epoch})
            self._greeting = cast(StarterGreeting, reply)

    async def list_attempts(self) -> StarterListing:
        return cast(StarterListing, await self.ask({"do": "list"}))

    async def ask(self, message: Message, timeout_s: float = _TIMEOUT_S) -> Message:
        """Send a request; after a new epoch say hello again first."""
        link = await self._connected_link()
        try:
            return await link.ask(message, timeout_s)
        except LinkRefused as error:
            if error.because != "stale_epoch":
                raise
        await link.hello(None)  # the agent itself checks the epochs of controllers
        return await link.ask(message, timeout_s)

    async def start(self, orders: list[str]) -> list[StarterReport]:
        """Start encoded orders, and return the report of each.

        If the starter dies meanwhile its successor is asked: it knows what was begun, and does
        not start it twice.
        """
        text = f'"jobs":[{",".join(orders)}]'
        for _ in range(3):
            link = await self._connected_link()
            try:
                reply = await link.ask_text("start", text, _TIMEOUT_S)
            except LinkRefused as error:
                if error.because != "stale_epoch":
                    raise
                await link.hello(None)
            except LinkLost:
                if not link.lost:
                    raise
            else:
                return cast(list[StarterReport], reply["attempts"])
        raise LinkLost("the starter dies again and again")

    async def _connected_link(self) -> Link:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._ready.wait()
                while self._link is None or self._link.lost:
                    await asyncio.sleep(_MOMENT_S)  # it is gone, and `_lost` is about to be called
                    await self._ready.wait()
        except TimeoutError:
            raise LinkLost(self.trouble or "there is no starter") from None
        return self._link

    async def close(self, *, idle: bool) -> None:
        """Disconnect. If nothing runs, end the starter rather than leave it to its grace."""
        self._closed = True
        if self._link is not None and idle:
            with contextlib.suppress(LinkError):  # it is busy after all, or gone already
                await self._link.ask({"do": "quit"}, _LEAVING_S)
        if self._link is not None:
            self._link.close()
        if self._connecting is not None:
            self._connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._connecting
