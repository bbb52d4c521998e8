"""AsyncStream: a stream whose waiting is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from gridhand.library.streams import Stream

_NO_MORE = object()


class AsyncStream:
    """Push items and iterate over what comes of them, as with `Stream`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def push(self, *value: Any, **inputs: Any) -> None:
        """Put an item in, and wait while as many are on their way as may be."""
        if not self._stream.push_now(*value, **inputs):
            await asyncio.to_thread(self._stream.push, *value, **inputs)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        found = await asyncio.to_thread(next, self._stream, _NO_MORE)
        if found is _NO_MORE:
            raise StopAsyncIteration
        return found

    async def map(self, items: Iterable[Any]) -> AsyncIterator[Any]:
        """Push all of these, and give what comes of each, in order."""
        found = self._stream.map(items)
        while (one := await asyncio.to_thread(next, found, _NO_MORE)) is not _NO_MORE:
            yield one

    async def stop(self, *, at_once: bool = False) -> None:
        """Take no more, let what is on its way come out, and give back what is held."""
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
