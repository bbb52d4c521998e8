"""GridExecutor: the executor of `concurrent.futures` that holds what its calls need."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from gridhand.core.errors import InvalidInput
from gridhand.library.backend import read_count
from gridhand.library.caller import FunctionCall
from gridhand.library.calling import HasCaller, caller_of
from gridhand.library.current import current_grid
from gridhand.library.pool import Group, Pool
from gridhand.library.shapes import BrokenGridExecutor
from gridhand.library.submitting import read_call
from gridhand.library.taskfuture import TaskFuture
from gridhand.library.tasks import Options, Task
from gridhand.worker.values import dumps

if TYPE_CHECKING:
    from gridhand.library.running import Asked

P = ParamSpec("P")
R = TypeVar("R")


class GridExecutor(Executor):
    """Calls functions in processes that hold what `resources` say: one core each, by default.

    It can do what `ProcessPoolExecutor` can, and takes what that takes. Processes are started as
    there is work and room for them, and given back when there is none for a moment; `max_workers`
    limits them further. Functions and arguments may be whatever cloudpickle can send.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        grid: HasCaller | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        resources: Asked = None,
        timeout: float | None = None,
        **named: Any,
    ) -> None:
        if max_workers is not None:
            if max_workers <= 0:
                raise ValueError("max_workers must be greater than 0")
            read_count(max_workers, "max_workers", 1, 1_000_000)
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        self._request = read_call(resources, named)
        self._timeout = Options(timeout=timeout).checked().timeout
        self._caller = caller_of(grid if grid is not None else current_grid())
        if not isinstance(self._caller, Pool) and (max_workers or initializer):
            raise InvalidInput(
                "max_workers or initializer",
                max_workers,
                "it with Grid(): in memory there are none",
            )
        setup = None if initializer is None else bytes(dumps((initializer, initargs)))
        self._group: Group = (setup, max_workers)
        self._lock = threading.Lock()
        self._open: set[Future[Any]] = set()
        self._shut = False
        self._pid = os.getpid()
        _executors.add(self)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have `fn(*args, **kwargs)` called, and come back at once with a future."""
        if not callable(fn):
            raise TypeError(f"{fn!r} cannot be called")
        name = getattr(fn, "__name__", type(fn).__name__)
        code = fn._to_send() if isinstance(fn, Task) and isinstance(self._caller, Pool) else fn
        call = FunctionCall(code, self._request, args, kwargs, name, self._timeout)
        future: TaskFuture[R] = TaskFuture(self._caller, name)
        with self._lock:
            if self._shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._open.add(future)
        future.add_done_callback(self._over)
        if isinstance(self._caller, Pool):
            self._caller.start(call, future, self._group)
            if self._group[0] is not None:
                self._check_setup(future)
        else:
            future.follow(self._caller.submit(call))
        return future

    def map(
        self,
        fn: Callable[..., R],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[R]:
        """As `map(fn, *iterables)`, each call by itself, or `chunksize` of them in one."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        end = None if timeout is None else monotonic() + timeout
        calls = zip(*iterables, strict=False)
        if chunksize == 1:
            return _results([self.submit(fn, *args) for args in calls], end)
        chunks = iter(lambda: tuple(itertools.islice(calls, chunksize)), ())
        futures = [self.submit(partial(_chunk, fn), chunk) for chunk in chunks]
        return itertools.chain.from_iterable(_results(futures, end))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; with `wait`, come back when those that were taken have ended."""
        with self._lock:
            self._shut = True
            left = list(self._open)
        if cancel_futures:
            for future in left:
                future.cancel()
        if wait:
            try:
                for future in left:
                    with suppress(CancelledError):
                        Future.exception(future)
            except KeyboardInterrupt:
                self._stop()
                raise

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        """Wait for what was submitted. Ctrl-C ends it, also what runs: its processes are not of
        this terminal, and would not hear of that by themselves.
        """
        if kind is not None and not issubclass(kind, Exception | SystemExit):
            self._stop()
        self.shutdown()

    def _stop(self) -> None:
        """Take back what has not begun, and end what runs."""
        with self._lock:
            self._shut = True
            left = list(self._open)
        for future in left:
            future.cancel()
        for future in left:
            if isinstance(future, TaskFuture):
                future.stop()

    def _over(self, future: Future[Any]) -> None:
        with self._lock:
            self._open.discard(future)

    def _check_setup(self, future: TaskFuture[Any]) -> None:
        """Once the initializer has failed nothing more is taken."""
        if future.done() and not future.cancelled():
            error = Future.exception(future)
            if isinstance(error, BrokenGridExecutor):
                raise error


def _chunk(fn: Callable[..., R], calls: Iterable[tuple[Any, ...]]) -> list[R]:
    return [fn(*args) for args in calls]


def _results(futures: list[Any], end: float | None) -> Iterator[Any]:
    """Results in order. When one fails, or comes too late, the rest is cancelled."""
    futures.reverse()

    def results() -> Iterator[Any]:
        try:
            while futures:
                left = None if end is None else max(0.0, end - monotonic())
                yield futures.pop().result(left)
        finally:
            for future in futures:
                future.cancel()

    return results()


_executors: weakref.WeakSet[GridExecutor] = weakref.WeakSet()


def _at_exit() -> None:
    """A program that ends waits for what it has submitted, as with the executors of Python.

    One that is ended by Ctrl-C does not: it would have to be pressed twice.
    """
    last: object = getattr(sys, "last_type", None)
    interrupted = last is KeyboardInterrupt and not hasattr(sys, "ps1")
    for executor in list(_executors):
        if executor._pid == os.getpid():  # those of the process we were forked from are not ours
            if interrupted:
                executor._stop()
            executor.shutdown()


threading._register_atexit(_at_exit)  # type: ignore[attr-defined]
