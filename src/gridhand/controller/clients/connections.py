"""Connections on which other things depend: attached jobs and sessions end with them.

A connection may break and come back, so there is a moment of grace. It is longer after a restart of
the controller, when all connections were broken at once. Absence counts only while the controller
can hear the client: not once it has begun to stop, and not while it was itself stopped or too busy.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

MOMENT_S = 0.5
AFTER_RESTART_S = 15.0
_LATE_S = 0.5


class ConnectionCounts:
    """Counts the connections of each thing, and ends it a moment after the last one is gone."""

    def __init__(self, end: Callable[[list[str]], Awaitable[None]]) -> None:
        self._end = end
        self._connected: Counter[str] = Counter()
        self._ending: dict[str, asyncio.TimerHandle] = {}
        self._due: list[str] = []
        self._frozen = False
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
        """End things that had connections before a restart, unless these come back in time."""
        for id in ids:
            if not self.has(id):
                self._end_after(id, within_s)

    def forget(self, id: str) -> None:
        """Forget a thing that has ended by itself."""
        if (timer := self._ending.pop(id, None)) is not None:
            timer.cancel()

    def freeze(self) -> None:
        """End nothing any more: from now on it is the controller who hangs up."""
        self._frozen = True
        for timer in self._ending.values():
            timer.cancel()
        self._ending.clear()

    def _end_after(self, id: str, seconds: float) -> None:
        self.forget(id)
        if not self._frozen:
            loop = asyncio.get_running_loop()
            due = loop.time() + seconds
            self._ending[id] = loop.call_at(due, self._time_over, id, due, seconds)

    def _time_over(self, id: str, due: float, seconds: float) -> None:
        """End it; but if this comes late, clients could not be heard, and have their time again."""
        if asyncio.get_running_loop().time() - due > _LATE_S:
            self._end_after(id, seconds)
        else:
            self._now(id)

    def _now(self, id: str) -> None:
        """End a thing, together with all others that are due in the same turn of the loop."""
        self._ending.pop(id, None)
        self._due.append(id)
        if len(self._due) == 1:
            task = asyncio.get_running_loop().create_task(self._end_due())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _end_due(self) -> None:
        due, self._due = self._due, []
        if not self._frozen:
            await self._end([id for id in due if not self.has(id)])  # or it has just come back
