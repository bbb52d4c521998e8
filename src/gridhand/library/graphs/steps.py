"""Procedures written once, as generators, for both threads and asyncio.

A procedure yields an operation for the ledger, or `Wait` to receive messages, and is sent the
answer. `drive` runs it in the calling thread; `drive_async` in `async_steps` runs it in a task. An
interrupt or a cancelled task is thrown into the generator where it waits, so that its `finally`
blocks release what it holds. An interrupt between two steps is thrown into it as well.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol, TypeVar

from gridhand.core.operations import Operation

Result = TypeVar("Result")


class Wait(NamedTuple):
    """Wait for at least one message, at most `seconds`. The answer is the list of messages."""

    seconds: float | None = None


Steps = Generator[Operation[Any] | Wait, Any, Result]


class Inbox(Protocol):
    """Receives messages for a procedure. Any thread may put one."""

    def put(self, message: Any) -> None: ...


class ThreadInbox:
    """An inbox that a thread reads."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, message: Any) -> None:
        self._queue.put(message)

    def take(self, seconds: float | None) -> list[Any]:
        messages: list[Any] = []
        try:
            messages.append(self._queue.get(timeout=None if seconds is None else max(0.0, seconds)))
            while True:
                messages.append(self._queue.get_nowait())
        except queue.Empty:
            return messages


def drive(work: Steps[Result], ask: Callable[[Operation[Any]], Any], inbox: ThreadInbox) -> Result:
    """Run the generator in this thread and return its result."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = work.send(answer) if error is None else work.throw(error)
            answer = error = None
            answer = inbox.take(step.seconds) if isinstance(step, Wait) else ask(step)
        except StopIteration as end:
            result: Result = end.value
            return result
        except BaseException as raised:
            if getattr(work, "gi_frame", None) is None:  # raised by the generator itself
                raise
            error = raised
