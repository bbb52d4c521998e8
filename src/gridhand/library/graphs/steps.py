"""Work written once, for threads and for asyncio.

Such work is a generator: it yields what it wants to ask of the ledger, or that it waits for
something to happen, and is sent the answer. `drive` does so in the thread that calls it, and
`drive_async` of `asteps` in a task. An interrupt, or the cancelling of the task, is thrown into the
work where it waits, so that its own `finally` gives back what it holds. An interrupt may also come
between two steps, when the work is not looking: that one is thrown into it, too.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol, TypeVar

from gridhand.core.calls import Call

Result = TypeVar("Result")


class Wait(NamedTuple):
    """For at least one message, or until so many seconds have passed. The answer is a list."""

    seconds: float | None = None


Steps = Generator[Call[Any] | Wait, Any, Result]


class Inbox(Protocol):
    """Where messages for the work go. Any thread may put one there."""

    def put(self, message: Any) -> None: ...


class ThreadInbox:
    """Messages for work that a thread drives."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, message: Any) -> None:
        self._queue.put(message)

    def take(self, seconds: float | None) -> list[Any]:
        found: list[Any] = []
        try:
            found.append(self._queue.get(timeout=None if seconds is None else max(0.0, seconds)))
            while True:
                found.append(self._queue.get_nowait())
        except queue.Empty:
            return found


def drive(work: Steps[Result], ask: Callable[[Call[Any]], Any], inbox: ThreadInbox) -> Result:
    """Do the work here, and come back with its result."""
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
            if getattr(work, "gi_frame", None) is None:  # the work itself has ended with it
                raise
            error = raised
