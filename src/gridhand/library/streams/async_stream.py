"""A `Stream` for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from gridhand.library.streams.stream import Stream
    from gridhand.library.streams.stream_future import StreamFuture

_WAIT_S = 0.5  # a thread that waits for a reader who is gone ends after this


class AsyncStream:
    """Push items and iterate over the results without blocking the event loop."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def push(self, *value: Any, **inputs: Any) -> StreamFuture:
        """Push an item; wait while `capacity` items are in the stream. Its future can be awaited.

        If the wait is cancelled, the item is given up.
        """
        return await _pushed(self._stream.push, *value, **inputs)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        """Wait for the next result in a thread, and take it here: a cancelled wait takes none."""
        while await self._wait_for_next():
            if (future := self._stream.take_next()) is not None:
                return self._stream.outcome(future)
        raise StopAsyncIteration

    async def _wait_for_next(self) -> bool:
        while True:
            with contextlib.suppress(TimeoutError):
                return await asyncio.to_thread(self._stream.wait_for_next, _WAIT_S)

    async def map(self, items: Iterable[Any]) -> AsyncIterator[Any]:
        """Push every item and yield the result of each, in order. Nobody else gets them.

        If the iterator is abandoned, its items are given up.
        """
        futures: deque[StreamFuture] = deque()
        try:
            for item in items:
                if len(futures) >= self._stream.capacity:
                    yield await self._outcome(futures.popleft())
                futures.append(await _pushed(self._stream.push_for_map, item))
            while futures:
                yield await self._outcome(futures.popleft())
        finally:
            for future in futures:
                future.cancel()

    async def _outcome(self, future: StreamFuture) -> Any:
        with contextlib.suppress(Exception):
            await future
        return self._stream.outcome(future)

    async def stop(self, *, at_once: bool = False) -> None:
        """Refuse further items, finish those in the stream, and release the resources."""
        await asyncio.to_thread(self._stream.stop, at_once=at_once)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        await self.stop(at_once=kind is not None)

    def __repr__(self) -> str:
        return repr(self._stream)

    def _repr_html_(self) -> str:
        return self._stream._repr_html_()


async def _pushed(push: Callable[..., StreamFuture], *value: Any, **inputs: Any) -> StreamFuture:
    """Push an item, in a thread if there is no room; give it up if nobody waits for that."""
    with contextlib.suppress(TimeoutError):
        return push(*value, timeout=0, **inputs)
    pushing = asyncio.ensure_future(asyncio.to_thread(push, *value, **inputs))
    try:
        return await asyncio.shield(pushing)
    except asyncio.CancelledError:
        pushing.add_done_callback(_give_up)
        raise


def _give_up(pushing: asyncio.Future[StreamFuture]) -> None:
    if not pushing.cancelled() and pushing.exception() is None:
        pushing.result().cancel()
