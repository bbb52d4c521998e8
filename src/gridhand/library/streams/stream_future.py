"""StreamFuture: the result of one item of a stream, to come; and those that nobody has read yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Generator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import takewhile
from typing import Any

from gridhand.core.graph.stream_run import Outcome
from gridhand.library.functions.future import NoArgument
from gridhand.library.functions.future_state import force_cancel


class StreamFuture(NoArgument, Future[Any]):
    """The result of one pushed item: a `concurrent.futures.Future` that can also be awaited.

    `result()` raises the `FunctionFailed` of an item that failed. `cancel()` gives the item up:
    functions that have not begun with it are not called for it.
    """

    def __init__(self, number: int, withdraw: Callable[[int], None]) -> None:
        super().__init__()
        self.number = number
        self.was_read = False
        self._withdraw = withdraw

    def result(self, timeout: float | None = None) -> Any:
        try:
            value = super().result(timeout)
        finally:
            self.was_read = self.done()
        if isinstance(value, dict):  # the graph has several final functions
            return {id: one.load() for id, one in value.items()}
        return value.load()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        self.was_read = self.was_read or error is not None  # that it went well is not its result
        return error

    def settle(self, outcome: Outcome) -> None:
        """Set the result or the error, unless the item was given up just now."""
        with suppress(InvalidStateError):
            if outcome.error is None:
                self.set_result(outcome.value)
            else:
                self.set_exception(outcome.error)

    def cancel(self) -> bool:
        """Give the item up; return whether it had not ended. What runs for it goes on unseen."""
        if force_cancel(self):
            self._withdraw(self.number)
        return self.cancelled()

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the result. Cancelling the wait gives the item up."""
        import asyncio

        return asyncio.wrap_future(self).__await__()

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} cannot be sent: give what its result() returns")


class UnreadItems:
    """The futures of pushed items, in order, for those who iterate. Used under the stream's lock.

    Items that their own futures have told, or that were given up, are not in it.
    """

    def __init__(self) -> None:
        self._futures: deque[StreamFuture] = deque()

    def __bool__(self) -> bool:
        self._forget_read()
        return bool(self._futures)

    def add(self, future: StreamFuture) -> None:
        self._forget_read()
        self._futures.append(future)

    def first_has_ended(self) -> bool:
        return self._futures[0].done()

    def take_ended(self) -> StreamFuture | None:
        """Take the first item if it has ended."""
        return self._futures.popleft() if self and self.first_has_ended() else None

    def keep_until(self, lost: Container[int]) -> None:
        """Forget the first item that is lost, and all after it."""
        self._futures = deque(takewhile(lambda one: one.number not in lost, self._futures))

    def _forget_read(self) -> None:
        futures = self._futures
        while futures and (futures[0].was_read or futures[0].cancelled()):
            del futures[0]
