"""Parent: the way to the starter, whatever becomes of it.

One that has died is replaced at once, since nothing can be started without, and what it had begun
is told anew by the next one, which reads its journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable

from gridhand.agent.daemon import unprotected
from gridhand.agent.link import Facts, Link, LinkAbsent, LinkError, LinkLost, LinkRefused
from gridhand.agent.starting import StarterError, Starters

_TIMEOUT_S = 30.0
_PATIENCE_S = 20.0  # for a starter to come back
_LONGEST_PAUSE_S = 5.0
_MOMENT_S = 0.001
_LEAVING_S = 2.0


class Parent:
    """`on_event` gets what ends; `on_list` gets all that is known, after each new connection."""

    def __init__(
        self,
        folder: str,
        on_event: Callable[[Facts], None],
        on_list: Callable[[Facts, Facts], None],
    ) -> None:
        self._folder = folder
        self._on_event, self._on_list = on_event, on_list
        self._link: Link | None = None
        self._ready = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None
        self.greeting: Facts = {}
        self.trouble = ""
        self.unwritten = ""  # why the starter keeps what has ended to itself
        self._closed = False

    async def connect(self) -> None:
        """Until it is there, once and again."""
        pause_s = 0.1
        while not self._closed:
            try:
                await self._connect()
                self.trouble = ""
                return
            except (LinkError, StarterError, OSError) as error:
                self.trouble = f"the starter cannot be reached: {error}"
                print(self.trouble, file=sys.stderr)
                await asyncio.sleep(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def _connect(self) -> None:
        try:
            link = await self._open()
        except LinkAbsent:
            await asyncio.to_thread(self._ensure)
            link = await self._open()
        try:
            self.greeting = await link.hello(None)
            await link.ask({"do": "watch"})
            listing = await link.ask({"do": "list"}, _TIMEOUT_S)
        except BaseException:
            link.close()
            raise
        self._link = link
        self._on_list(self.greeting, listing)
        self._ready.set()

    async def _open(self) -> Link:
        return await Link.open(
            self._folder,
            "starter",
            on_event=self._on_event,
            on_lost=self._lost,
            timeout_s=_TIMEOUT_S,
        )

    def _ensure(self) -> None:
        Starters.ensure(self._folder, epoch=None, around=unprotected).close()

    def _lost(self) -> None:
        if self._ready.is_set() and not self._closed:
            self._ready.clear()
            self._connecting = asyncio.create_task(self.connect())

    async def ask_trouble(self) -> bool:
        """Learn whether it can write its journal; whether that has changed."""
        told = (await self.ask({"do": "hello", "epoch": None})).get("trouble")
        words = f"the starter cannot write its journal: {told}" if told else ""
        before, self.unwritten = self.unwritten, words
        return before != words

    async def hello(self, epoch: int) -> None:
        """Have the starter remember who is in charge."""
        if epoch > self.greeting["epoch"]:
            self.greeting |= await self.ask({"do": "hello", "epoch": epoch})

    async def ask(self, message: Facts, timeout_s: float = _TIMEOUT_S) -> Facts:
        link = await self._there()
        try:
            return await link.ask(message, timeout_s)
        except LinkRefused as error:
            if error.because != "stale_epoch":
                raise
        await link.hello(None)  # who is in charge of the agent is checked by the agent
        return await link.ask(message, timeout_s)

    async def start(self, orders: list[str]) -> list[Facts]:
        """Start these, given as JSON. One that has died meanwhile is asked again in its successor:
        what it had begun is known there, and not started twice."""
        text = f'"jobs":[{",".join(orders)}]'
        for _ in range(3):
            link = await self._there()
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
                attempts: list[Facts] = reply["attempts"]
                return attempts
        raise LinkLost("the starter dies again and again")

    async def _there(self) -> Link:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._ready.wait()
                while self._link is None or self._link.lost:
                    await asyncio.sleep(_MOMENT_S)  # it has gone, and we are about to be told
                    await self._ready.wait()
        except TimeoutError:
            raise LinkLost(self.trouble or "there is no starter") from None
        return self._link

    async def close(self, *, idle: bool) -> None:
        """Leave. With nothing running the starter need not wait to see whether somebody comes."""
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
