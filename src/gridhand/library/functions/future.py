"""TaskFuture: the result of a task to come, which can be an argument of another task."""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Callable, Container, Generator
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from gridhand.core.errors import CallFailed
from gridhand.core.html import sheet
from gridhand.library.functions.future_state import force_cancel, mark_running
from gridhand.library.pool.shape import CallFuture

if TYPE_CHECKING:
    from gridhand.library.functions.function_runner import FunctionRunner, Returned, Value

R = TypeVar("R")

_NOT_LOADED = object()


class _InItsThread(partial[Any]):
    """A callback that is called in the event loop it was added in."""


class TaskFuture(CallFuture, Generic[R]):
    """The result of a task: a `concurrent.futures.Future` that can also be awaited.

    The value stays where the task has put it until `result` is called here. As an argument of
    another task, alone or in a list or a dictionary, the future makes that task wait for it; the
    value is read by the process that runs that task.

    >>> future = square.submit(3)  # doctest: +SKIP
    >>> future.result(timeout=10)  # doctest: +SKIP
    9
    >>> future.node  # doctest: +SKIP
    'workstation'
    """

    def __init__(self, caller: FunctionRunner, name: str) -> None:
        super().__init__()
        self._caller = caller
        self._name = name
        self._inner: Future[Returned] | None = None  # of this try, if there may be others
        self._loaded: Any = _NOT_LOADED

    def result(self, timeout: float | None = None) -> R:
        """Return what the task returned, or raise its error. Wait for it if it is not done."""
        if self._loaded is _NOT_LOADED:
            try:
                returned = super().result(timeout)
            except TimeoutError:
                if self.done():  # the function has raised it
                    raise
                raise TimeoutError(self._standing()) from None
            if self._loaded is _NOT_LOADED:
                self._loaded = returned.value.load()
        return cast("R", self._loaded)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            error = super().exception(timeout)
        except TimeoutError:
            raise TimeoutError(self._standing()) from None
        if error is None:
            try:
                self.result()
            except Exception as unreadable:
                return unreadable
        return error

    def _standing(self) -> str:
        """Return what the call is doing, for the error of a wait that timed out."""
        one = self._inner or self
        call = one.call if isinstance(one, CallFuture) else None
        name = self._name or "the call"
        if one.running():
            node = call.worker.node if call is not None and call.worker is not None else ""
            return f"{name} still runs on {node}" if node else f"{name} still runs"
        waits_for = "its arguments" if one is self and call is None else "room"
        return f"{name} still waits for {waits_for}"

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the error. Of a call that found no place, that is the reason, as for `allocate`."""
        if isinstance(exception, CallFailed) and exception.reason == "not_placed":
            exception = exception.__cause__ or exception
        super().set_exception(exception)

    def cancel(self) -> bool:
        """Withdraw the call if it has not begun; return whether it was. One that runs goes on."""
        inner = self._inner
        if inner is not None and not inner.cancel() and not inner.done():
            return False
        return super().cancel()

    def stop(self) -> None:
        """End the call even if it runs. It then counts as cancelled."""
        inner, self._inner = self._inner, None
        if self.call is not None:
            self._caller.stop(self)
        if force_cancel(self) and inner is not None:
            self._caller.stop(inner)

    def follow(self, inner: Future[Returned]) -> None:
        """Take over the outcome of another future."""
        self._inner = inner
        inner.add_done_callback(self._take_over)

    def _take_over(self, inner: Future[Returned]) -> None:
        if self._inner is not inner:  # stopped
            return
        error = None if inner.cancelled() else inner.exception()
        if inner.cancelled():
            force_cancel(self)
        elif mark_running(self):
            if error is None:
                self.set_result(inner.result())
            else:
                self.set_exception(error)

    @property
    def node(self) -> str | None:
        """The node that it ran on; None before it has ended well."""
        return self._returned.node if self._ended_well else None

    @property
    def value(self) -> Value:
        """The value as it came, to be passed on without being loaded here."""
        return self._returned.value

    @property
    def _returned(self) -> Returned:
        return cast("Returned", super().result())

    @property
    def _ended_well(self) -> bool:
        return self.done() and not self.cancelled() and super().exception() is None

    def add_done_callback(self, fn: Callable[..., Any]) -> None:
        """Add a callback, as for any future. Those of `asyncio.wait` run in its event loop."""
        if getattr(fn, "__module__", None) == "asyncio.tasks":
            import asyncio

            fn = _InItsThread(asyncio.get_running_loop().call_soon_threadsafe, fn)
        super().add_done_callback(fn)

    def remove_done_callback(self, fn: Callable[..., Any]) -> int:
        """Remove a callback and return how often it was there, as `asyncio.wait` needs."""
        with self._condition:
            had: list[Any] = vars(self)["_done_callbacks"]
            left = [one for one in had if (one.args[0] if type(one) is _InItsThread else one) != fn]
            vars(self)["_done_callbacks"] = left
            return len(had) - len(left)

    def __await__(self) -> Generator[Any, None, R]:
        return self._awaited().__await__()

    async def _awaited(self) -> R:
        import asyncio

        try:
            return cast("R", await asyncio.wrap_future(self))
        except asyncio.CancelledError:
            if not self.done():
                self.stop()  # nobody waits for it any more
            raise

    def __reduce__(self) -> Any:
        """Pickle the value instead: an argument of a task stands for what it returned."""
        if _sending.futures is not None and self not in _sending.futures:
            raise TypeError(
                f"the future of {self._name or 'a task'} is inside of an object where it cannot be"
                " waited for: give it in a list, a dictionary or a dataclass"
            )
        if not self._ended_well:
            raise TypeError(
                f"the future of {self._name or 'a task'} is not done: wait for it first"
            )
        return cast("Any", self.value).__reduce__()

    def __repr__(self) -> str:
        text = super().__repr__()
        if self._loaded is _NOT_LOADED:
            text = text.replace(" returned Returned>", ">")
        else:
            text = text.replace(" returned Returned>", f" returned {type(self._loaded).__name__}>")
        return text.replace(" state=", f" {self._name} state=", 1) if self._name else text

    def _repr_html_(self) -> str:
        """Show what is known without waiting for the call, or loading its value."""
        error = super().exception() if self.done() and not self.cancelled() else None
        state = "failed" if error is not None else self._state.lower().replace("_", " ")
        value = reprlib.repr(self._loaded) if self._loaded is not _NOT_LOADED else None
        rows = [("ran on", self.node), ("value", value), ("error", error and repr(error))]
        return sheet(f"{self._name or 'call'}: {state}", rows)


class _Sending(threading.local):
    futures: Container[TaskFuture[Any]] | None = None  # None: any may be sent


_sending = _Sending()


class SendableFutures:
    """Have futures refuse to be pickled in this thread, except these, which were waited for.

    Whether a call is accepted must not depend on whether a future happens to be done. A class, as
    every call enters it, and a generator takes twice the time.
    """

    __slots__ = ("_before", "_futures")

    def __init__(self, futures: Container[TaskFuture[Any]]) -> None:
        self._futures = futures

    def __enter__(self) -> None:
        self._before = _sending.futures
        _sending.futures = self._futures

    def __exit__(self, *_: object) -> None:
        _sending.futures = self._before


class NoArgument:
    """Base of what stands for a value, but cannot be an argument of a task."""


def error_of(future: TaskFuture[Any]) -> BaseException | None:
    """Return the error of a future that is done, without loading its value."""
    try:
        return Future.exception(future)
    except CancelledError as error:
        return error
