"""Calls whose arguments are futures of other calls, until these are done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

from gridhand.library.functions.future import SendableFutures, TaskFuture, error_of
from gridhand.library.functions.nested_futures import with_values
from gridhand.library.functions.retry_call import fail_future
from gridhand.library.pool.pool import Pool

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Start = Callable[[TaskFuture[Any], Args, Kwargs], None]


class PendingArguments:
    """Starts a call once the futures among its arguments are done; if one fails, the call does."""

    def __init__(
        self,
        start: Start,
        future: TaskFuture[Any],
        args: Args,
        kwargs: Kwargs,
        needed: list[TaskFuture[Any]],
    ) -> None:
        self._call: tuple[Start, TaskFuture[Any], Args, Kwargs, list[TaskFuture[Any]]] | None
        self._call = start, future, args, kwargs, needed
        self._left = len(needed)
        self._lock = threading.Lock()
        # Values kept by another kind of runner, in threads or in processes, ours could not read.
        self._foreign = any(type(one._caller) is not type(future._caller) for one in needed)
        for one in needed:
            one.add_done_callback(self._done)

    def _done(self, needed: Future[Any]) -> None:
        error = error_of(cast("TaskFuture[Any]", needed))
        with self._lock:
            self._left -= 1
            call = self._call
            if error is not None or not self._left:
                self._call = None  # the needed futures keep this object; it keeps nothing more
        if call is None:
            return
        if error is not None:
            fail_future(call[1], error)
        elif not self._left and not call[1].done():
            self._start(*call)

    def _start(
        self,
        start: Start,
        future: TaskFuture[Any],
        args: Args,
        kwargs: Kwargs,
        needed: list[TaskFuture[Any]],
    ) -> None:
        in_processes = isinstance(future._caller, Pool)
        try:
            if self._foreign:
                args, kwargs = with_values(args), with_values(kwargs)
            values = tuple(_given(one, in_processes) for one in args)
            named = {name: _given(value, in_processes) for name, value in kwargs.items()}
            with SendableFutures(set(needed)):
                start(future, values, named)
        except Exception as refused:  # the grid was closed meanwhile
            fail_future(future, refused)


def _given(argument: Any, in_processes: bool) -> Any:
    """Return an argument as runners take it. Processes read futures in containers by themselves."""
    if isinstance(argument, TaskFuture):
        return argument.value
    return argument if in_processes else with_values(argument)
