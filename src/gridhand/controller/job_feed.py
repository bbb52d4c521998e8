"""Feed: who wants to hear of changes to jobs, and is told of them once they are durable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gridhand.core.jobs import Job

_MOST_UNREAD = 10_000


class Listening:
    """The latest of what one listener has not read yet; each job once, as it is now."""

    def __init__(self) -> None:
        self._news: dict[str, Job] = {}
        self._there = asyncio.Event()

    def tell(self, job: Job) -> None:
        if len(self._news) < _MOST_UNREAD or job.id in self._news:
            self._news[job.id] = job
            self._there.set()

    async def changes(self, timeout_s: float | None = None) -> list[Job]:
        """What has changed since; nothing if nothing has within the time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._there.wait()
        except TimeoutError:
            return []
        self._there.clear()
        news, self._news = self._news, {}
        return list(news.values())


class Feed:
    """Listeners of one job, and of all. In the event loop only."""

    def __init__(self) -> None:
        self._of: dict[str | None, set[Listening]] = {}

    @contextmanager
    def listen(self, *ids: str | None) -> Iterator[Listening]:
        """Hear of these jobs, or of all of them (None)."""
        listening = Listening()
        for id in ids:
            self._of.setdefault(id, set()).add(listening)
        try:
            yield listening
        finally:
            for id in ids:
                self._of[id].discard(listening)
                if not self._of[id]:
                    del self._of[id]

    def tell(self, job: Job) -> None:
        for listening in (*self._of.get(job.id, ()), *self._of.get(None, ())):
            listening.tell(job)
