"""EventFeed: the newest events in memory, for everybody who follows them.

One task reads what was committed since, however many follow; it runs only while somebody does, and
waits a moment after each reading, so that a busy ledger is read a few times a second and not at
each commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from gridhand.core.errors import GridError
from gridhand.core.rows.ledger import Event

KEPT = 10_000
PAGE = 1000
_PAUSE_S = 0.05
_MOST_SHARED = 100  # texts that are kept until there are new events
_AWAY_S = 1.0  # before the store is asked again if it cannot be read

ReadEvents = Callable[[int, int], Coroutine[Any, Any, list[Event]]]  # after a number, how many

_log = logging.getLogger(__name__)


class FeedEvent:
    """An event, and what is made of it for readers, once for all of them."""

    __slots__ = ("event", "texts")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.texts: dict[object, bytes] = {}

    @property
    def number(self) -> int:
        return self.event.number


class EventFeed:
    """Used in the event loop, but for `committed`."""

    def __init__(
        self,
        read: ReadEvents,
        newest: Callable[[], Coroutine[Any, Any, int]],
        stopping: asyncio.Event,
    ) -> None:
        """`newest` returns the number of the last event; when `stopping` is set, nobody waits."""
        self._read = read
        self._newest = newest
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._events: list[FeedEvent] = []  # contiguous, ending with the newest that was read
        self._end = 0  # the number of the newest event that was read
        self.followers = 0
        self._committed = asyncio.Event()
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._texts: dict[object, bytes] = {}

    def committed(self) -> None:
        """Note that there are new events; called from the keeper's thread."""
        if self.followers:
            self._loop.call_soon_threadsafe(self._committed.set)

    @contextlib.contextmanager
    def follow(self) -> Iterator[None]:
        """Read events while the block runs."""
        self.followers += 1
        if self.followers == 1:
            self._events, self._end = [], 0
            self._committed.set()
            self._tasks = [self._loop.create_task(work) for work in (self._run(), self._end_all())]
        try:
            yield
        finally:
            self.followers -= 1
            if not self.followers:
                for task in self._tasks:
                    task.cancel()

    async def after(self, number: int, patience_s: float) -> list[FeedEvent]:
        """Return the next events after a number; wait for one, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self._end <= number and not self._stopping.is_set():
                    await self._news.wait()
        if self._end <= number:
            return []
        if self._events and self._events[0].number <= number + 1:
            first = bisect_right(self._events, number, key=lambda known: known.number)
            return self._events[first : first + PAGE]
        return [FeedEvent(event) for event in await self._read(number, PAGE)]

    def shared(self, key: object, make: Callable[[], bytes]) -> bytes:
        """Return a text that all who read the same now share; it is made by the first of them."""
        text = self._texts.get(key)
        if text is None:
            text = make()
            if len(self._texts) < _MOST_SHARED:
                self._texts[key] = text
        return text

    async def now(self) -> int:
        """Return the number of the newest event."""
        return await self._newest()

    async def _run(self) -> None:
        """Read new events as long as somebody follows them."""
        while True:
            await self._committed.wait()
            self._committed.clear()
            try:
                await self._read_new()
            except GridError as error:
                _log.warning("events cannot be read now: %s", error)
                self._committed.set()
                await asyncio.sleep(_AWAY_S)
            await asyncio.sleep(_PAUSE_S)

    async def _end_all(self) -> None:
        await self._stopping.wait()
        self._tell()

    async def _read_new(self) -> None:
        if not self._end:  # earlier ones are read from the store, by whoever wants them
            self._end = await self._newest()
            self._tell()
        while found := await self._read(self._end, PAGE):
            self._events += map(FeedEvent, found)
            if len(self._events) > 2 * KEPT:
                del self._events[:-KEPT]
            self._end = found[-1].number
            self._tell()

    def _tell(self) -> None:
        """Wake everybody who waits."""
        self._texts.clear()
        self._news.set()
        self._news = asyncio.Event()
