"""A feed of changes to jobs, for listeners, once the changes are durable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gridhand.core.jobs.job import Job
from gridhand.core.model.names import JobId

_MOST_UNREAD = 10_000


class Listening:
    """The changes that one listener has not read yet: each job once, in its latest state."""

    def __init__(self) -> None:
        self._news: dict[JobId, Job] = {}
        self._there = asyncio.Event()

    def tell(self, job: Job) -> None:
        if len(self._news) < _MOST_UNREAD or job.id in self._news:
            self._news[job.id] = job
            self._there.set()

    async def changes(self, timeout_s: float | None = None) -> list[Job]:
        """Wait for changes and return them; return nothing after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._there.wait()
        except TimeoutError:
            return []
        self._there.clear()
        news, self._news = self._news, {}
        return list(news.values())


class Feed:
    """Listeners to one job or to all jobs. Used in the event loop only."""

    def __init__(self) -> None:
        self.count = 0  # of the changes until now
        self._of: dict[JobId | None, set[Listening]] = {}

    @contextmanager
    def listen(self, *ids: JobId | None) -> Iterator[Listening]:
        """Listen to these jobs, or to all jobs (None)."""
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
        self.count += 1
        for listening in (*self._of.get(job.id, ()), *self._of.get(None, ())):
            listening.tell(job)
