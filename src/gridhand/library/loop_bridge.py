"""Threads that ask for the tasks of an event loop.

An answer must be read, and what it grants given back, even if the task that asked and its loop are
gone when it comes. So it is a thread that waits for it, and not the task itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from gridhand.core.calls import Call, Reply
from gridhand.core.errors import GridError
from gridhand.library.asking import Holding

if TYPE_CHECKING:
    import asyncio

    from gridhand.library.remote import Remote


class ThreadPort:
    """Answers for the tasks of one event loop."""

    def __init__(self, remote: Remote, loop: asyncio.AbstractEventLoop) -> None:
        self._remote = remote
        self._loop = loop

    def call(self, call: Call[Reply]) -> asyncio.Future[Reply]:
        """The answer to come. If its future is cancelled, what was granted is given back."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        waits = isinstance(call, Holding) and call.wait_ms > 0
        if waits:
            future.add_done_callback(lambda done: _leave(call, done))
        try:
            self._remote.in_a_thread(lambda: self._work(call, future), long=waits)
        except GridError as error:
            future.set_exception(error)
        return future

    def _work(self, call: Call[Reply], future: asyncio.Future[Reply]) -> None:
        reply: Reply | None = None
        error: BaseException | None = None
        if future.cancelled():
            return
        try:
            reply = self._remote.run(call)
        except BaseException as found:
            error = found
        try:
            self._loop.call_soon_threadsafe(self._settle, call, future, reply, error)
        except RuntimeError:  # the loop has ended, and its tasks with it
            self._abandon(call, reply, error)

    def _settle(
        self,
        call: Call[Reply],
        future: asyncio.Future[Reply],
        reply: Reply | None,
        error: BaseException | None,
    ) -> None:
        if future.done():  # cancelled
            self._abandon(call, reply, error)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast("Reply", reply))

    def _abandon(self, call: Call[Reply], reply: Reply | None, error: object) -> None:
        if error is None:
            self._remote.undo(call, cast("Reply", reply))


def _leave(call: Call[Any], done: asyncio.Future[Any]) -> None:
    if done.cancelled() and isinstance(call, Holding):
        call.abandoned = True
