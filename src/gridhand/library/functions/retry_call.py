"""Calls that are tried again when they fail."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gridhand.core.errors import (
    CallFailed,
    GridClosed,
    InvalidInput,
    NoRoom,
    OutOfMemory,
    UnknownResource,
)
from gridhand.core.jobs.retry_policy import enough
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources
from gridhand.library.functions.function_runner import FunctionCall, Returned
from gridhand.library.functions.future import TaskFuture
from gridhand.library.functions.future_state import force_cancel, mark_running


class RetriedCall:
    """A call that is tried again if it fails, `tries` times in all.

    After it ran out of memory it is tried with more. If there is no room for more, the future gets
    the error of the first try.
    """

    def __init__(
        self,
        call: FunctionCall,
        future: TaskFuture[Any],
        tries: int,
        submit: Callable[[FunctionCall], Future[Returned]] | None = None,
    ) -> None:
        self._call = call
        self._submit = submit or future._caller.submit
        self._future = future
        self._tries = tries
        self._first: BaseException | None = None

    def start(self) -> None:
        self._tries -= 1
        inner = self._submit(self._call)
        self._future._inner = inner
        inner.add_done_callback(self._done)

    def _done(self, inner: Future[Returned]) -> None:
        if self._future._inner is not inner:  # stopped
            return
        if inner.cancelled():
            force_cancel(self._future)
            return
        error = inner.exception()
        if error is not None and self._tries > 0 and _may_succeed(error):
            self._try_again(error)
            return
        self._future._inner = None
        if error is not None:
            fail_future(self._future, self._first or error)
        elif mark_running(self._future):
            self._future.set_result(inner.result())

    def _try_again(self, error: BaseException) -> None:
        if isinstance(error, OutOfMemory):
            self._first = error
            self._call = replace(self._call, request=_with_more(self._call.request, error))
        else:
            self._first = None
        try:
            self.start()
        except Exception:  # the grid was closed meanwhile
            fail_future(self._future, error)


def _may_succeed(error: BaseException) -> bool:
    """Return whether another try is of use: a time limit, or a request, stays what it is."""
    if isinstance(error, CallFailed):
        return error.reason not in ("timeout", "unsendable", "nested", "not_placed")
    return isinstance(error, Exception) and not isinstance(
        error, GridClosed | NoRoom | InvalidInput | UnknownResource
    )


def _with_more(request: Request, error: OutOfMemory) -> Request:
    """Return the request with more memory, as a job would get."""
    had = request.amounts["memory"]
    if not had:
        return request
    amounts = {**request.amounts.parts(), "memory": enough(had, error.peak_bytes or had)}
    return replace(request, amounts=Resources(amounts))


def fail_future(future: TaskFuture[Any], error: BaseException) -> None:
    """Set the error of a future, or cancel it if what it needed was cancelled."""
    if isinstance(error, CancelledError):
        force_cancel(future)
    elif mark_running(future):
        with suppress(InvalidStateError):
            future.set_exception(error)
