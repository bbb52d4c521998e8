"""Drive a step generator from an asyncio task.

Apart from `steps`, so that programs without asyncio do not import it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gridhand.core.operations import Operation
from gridhand.library.graphs.steps import Result, Steps, Wait


class LoopInbox:
    """An inbox that an asyncio task reads. Any thread may put a message."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._messages: list[Any] = []
        self._arrived = asyncio.Event()

    def put(self, message: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(self._put, message)
        except RuntimeError:  # the loop is closed, so nobody reads any more
            return

    def _put(self, message: Any) -> None:
        self._messages.append(message)
        self._arrived.set()

    async def take(self, seconds: float | None) -> list[Any]:
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            pass
        self._arrived.clear()
        messages, self._messages = self._messages, []
        return messages


async def drive_async(
    work: Steps[Result], ask: Callable[[Operation[Any]], Awaitable[Any]], inbox: LoopInbox
) -> Result:
    """Run the generator in this task and return its result."""
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
            if getattr(work, "gi_frame", None) is None:  # raised by the generator itself
                raise
            error = raised
