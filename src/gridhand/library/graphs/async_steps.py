"""Work that is written in steps, done by a task of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gridhand.core.calls import Call
from gridhand.library.steps import Result, Steps, Wait


class LoopInbox:
    """Messages for work that a task drives."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._found: list[Any] = []
        self._there = asyncio.Event()

    def put(self, message: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(self._put, message)
        except RuntimeError:  # the loop has ended, and the work with it
            return

    def _put(self, message: Any) -> None:
        self._found.append(message)
        self._there.set()

    async def take(self, seconds: float | None) -> list[Any]:
        try:
            async with asyncio.timeout(seconds):
                await self._there.wait()
        except TimeoutError:
            pass
        self._there.clear()
        found, self._found = self._found, []
        return found


async def drive_async(
    work: Steps[Result], ask: Callable[[Call[Any]], Awaitable[Any]], inbox: LoopInbox
) -> Result:
    """Do the work in this task, and come back with its result."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = work.send(answer) if error is None else work.throw(error)
            answer = error = None
            answer = await (inbox.take(step.seconds) if isinstance(step, Wait) else ask(step))
        except StopIteration as end:
            result: Result = end.value
            return result
        except BaseException as raised:
            if getattr(work, "gi_frame", None) is None:  # the work itself has ended with it
                raise
            error = raised
