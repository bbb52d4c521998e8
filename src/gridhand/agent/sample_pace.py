"""SamplePace: when the next sample of a node is due.

Samples are taken every ten seconds. Somebody who needs them more often asks for it, for a while:
a request that is not renewed ends by itself, so nobody has to take it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gridhand.posix.boot_clock import boot_ms

USUAL_MS = 10_000
LEAST_MS = 1000
MOST_MS = 600_000  # for which samples can be asked for at once


class SamplePace:
    """The time of the next sample, from the last one and from what was asked for."""

    def __init__(self, clock: Callable[[], int] = boot_ms) -> None:
        self._clock = clock
        self._until: dict[int, int] = {}  # for each pace, how long it was asked for
        self._last = clock()
        self._soon = True  # the first one
        self._changed = asyncio.Event()

    def ask(self, every_ms: int, for_ms: int) -> None:
        """Take samples at least this often from now on, for this long."""
        end = self._clock() + for_ms
        self._until[every_ms] = max(end, self._until.get(every_ms, 0))
        self._changed.set()

    def ask_soon(self) -> None:
        """Take the next sample as soon as a pace of one second would."""
        self._soon = True
        self._changed.set()

    def every_ms(self) -> int:
        now = self._clock()
        self._until = {pace: end for pace, end in self._until.items() if end > now}
        return min((USUAL_MS, *self._until))

    def left_ms(self) -> int:
        """Return how long it is until the next sample; nothing if it is due."""
        pace = LEAST_MS if self._soon else self.every_ms()
        return max(0, self._last + pace - self._clock())

    def taken(self) -> int:
        """Take note of a sample; return how long ago the one before it was."""
        now = self._clock()
        passed, self._last, self._soon = now - self._last, now, False
        return passed

    async def wait(self) -> None:
        """Wait until the next sample is due."""
        while left_ms := self.left_ms():
            self._changed.clear()
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._changed.wait()
            except TimeoutError:
                continue
