"""Threads that wait on behalf of the tasks of an event loop.

A reply must be read, and what it grants given back, even if the task and its loop are gone when it
arrives. So a thread waits for it, and not the task itself.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from gridhand.core.errors import GridError
from gridhand.core.operations import Operation, Reply
from gridhand.library.remote_operations import RemoteAllocate, RemoteOperation

if TYPE_CHECKING:
    from gridhand.library.remote import Remote

Item = TypeVar("Item", covariant=True)


class Stoppable(Iterator[Item], Protocol[Item]):
    """An iterator that blocks, and that another thread can stop."""

    def stop(self) -> None: ...

    def close(self) -> None: ...


async def iterate_in_thread(items: Stoppable[Item]) -> AsyncGenerator[Item, None]:
    """Iterate over `items` in a thread of its own, one item at a time as they are asked for.

    The thread ends with the iteration: when the items have ended, the task is cancelled, or the
    event loop is closed.
    """
    loop = asyncio.get_running_loop()
    wanted: queue.SimpleQueue[asyncio.Future[Any] | None] = queue.SimpleQueue()
    thread = threading.Thread(
        target=_iterate, args=(items, loop, wanted), name="gridhand-follow", daemon=True
    )
    thread.start()
    try:
        while True:
            future = loop.create_future()
            wanted.put(future)
            item = await future
            if item is _END:
                return
            yield item
    finally:
        items.stop()
        wanted.put(None)


_END = object()


def _iterate(
    items: Stoppable[Any],
    loop: asyncio.AbstractEventLoop,
    wanted: queue.SimpleQueue[asyncio.Future[Any] | None],
) -> None:
    while (future := wanted.get()) is not None:
        item: Any = None
        error: BaseException | None = None
        try:
            item = next(items, _END)
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(_settle, future, item, error)
        except RuntimeError:  # the loop has been closed
            break
    items.close()


def _settle(future: asyncio.Future[Any], item: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(item)


class LoopThreadPort:
    """Runs operations in threads for the tasks of one event loop."""

    def __init__(self, remote: Remote, loop: asyncio.AbstractEventLoop) -> None:
        self._remote = remote
        self._loop = loop

    def run(self, operation: Operation[Reply]) -> asyncio.Future[Reply]:
        """Return a future of the reply. If it is cancelled, what was granted is released."""
        call = self._remote.call_for(operation)
        future: asyncio.Future[Reply] = self._loop.create_future()
        waits = isinstance(call, RemoteAllocate) and call.wait_ms > 0
        if waits:
            future.add_done_callback(lambda done: _leave(call, done))
        try:
            self._remote.in_a_thread(lambda: self._run(call, future), long=waits)
        except GridError as error:
            future.set_exception(error)
        return future

    def _run(self, call: RemoteOperation[Reply], future: asyncio.Future[Reply]) -> None:
        reply: Reply | None = None
        error: BaseException | None = None
        if future.cancelled():
            return
        try:
            reply = call.run(self._remote)
        except BaseException as raised:
            error = raised
            if isinstance(call, RemoteAllocate) and call.abandoned and not call.chosen:
                self._remote.take_back(call)  # it may have been granted just now
        try:
            self._loop.call_soon_threadsafe(self._settle, call, future, reply, error)
        except RuntimeError:  # the loop has been closed
            self._abandon(call, reply, error)

    def _settle(
        self,
        call: RemoteOperation[Reply],
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

    def _abandon(self, call: RemoteOperation[Reply], reply: Reply | None, error: object) -> None:
        if error is None:
            self._remote.undo(call, cast("Reply", reply))


def _leave(call: RemoteOperation[Any], done: asyncio.Future[Any]) -> None:
    if done.cancelled() and isinstance(call, RemoteAllocate):
        call.leave()
