"""Clients: what ends with the connection of those who asked for it.

An attached job ends with its client, and so does what a session holds. A connection may break and
come back: there is a moment of grace, longer after a restart of the controller, when all of them
were broken at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

MOMENT_S = 0.5
AFTER_RESTART_S = 15.0


class Clients:
    """Counts the connections on which each thing depends, and ends it a moment after the last."""

    def __init__(self, end: Callable[[list[str]], Awaitable[None]]) -> None:
        self._end = end
        self._connected: Counter[str] = Counter()
        self._ending: dict[str, asyncio.TimerHandle] = {}
        self._due: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def connected(self, id: str) -> Iterator[None]:
        self.join(id)
        try:
            yield
        finally:
            self.leave(id)

    def join(self, id: str) -> None:
        self._connected[id] += 1
        if (timer := self._ending.pop(id, None)) is not None:
            timer.cancel()

    def leave(self, id: str) -> None:
        self._connected[id] -= 1
        if self._connected[id] <= 0:
            del self._connected[id]
            self._end_after(id, MOMENT_S)

    def has(self, id: str) -> bool:
        return self._connected[id] > 0

    def expect(self, ids: Iterable[str], within_s: float = AFTER_RESTART_S) -> None:
        """These had clients before a restart; who is not back in time is gone."""
        for id in ids:
            if not self.has(id):
                self._end_after(id, within_s)

    def forget(self, id: str) -> None:
        """It is over by itself."""
        if (timer := self._ending.pop(id, None)) is not None:
            timer.cancel()

    def close(self) -> None:
        for timer in self._ending.values():
            timer.cancel()
        self._ending.clear()

    def _end_after(self, id: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.forget(id)
        self._ending[id] = loop.call_later(seconds, self._now, id)

    def _now(self, id: str) -> None:
        """Those whose time is over in the same turn of the loop are ended together."""
        self._ending.pop(id, None)
        self._due.append(id)
        if len(self._due) == 1:
            task = asyncio.get_running_loop().create_task(self._end_due())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _end_due(self) -> None:
        due, self._due = self._due, []
        await self._end([id for id in due if not self.has(id)])  # or it has just come back
