"""GridExecutor: an executor of `concurrent.futures` that holds the resources of its calls."""

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
from multiprocessing.context import BaseContext
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from gridhand.core.errors import InvalidInput
from gridhand.library.backend import Duration, read_count
from gridhand.library.current_grid import current_grid
from gridhand.library.functions.function_runner import (
    FunctionCall,
    HasRunner,
    Returned,
    runner_of,
)
from gridhand.library.functions.future import SendableFutures, TaskFuture
from gridhand.library.functions.retry_call import RetriedCall
from gridhand.library.functions.task import Task
from gridhand.library.functions.task_options import Options
from gridhand.library.pool.pool import Pool
from gridhand.library.pool.shape import CallFuture
from gridhand.library.pool.worker_group import BrokenGridExecutor, WorkerGroup
from gridhand.library.submission import read_call
from gridhand.worker.encoded_values import dumps

if TYPE_CHECKING:
    from gridhand.library.job_methods import Asked

P = ParamSpec("P")
R = TypeVar("R")


class GridExecutor(Executor):
    """Calls functions in processes that hold the given resources: one core each, by default.

    A drop-in replacement for `ProcessPoolExecutor`. Processes are started as there is work and
    room for them, and given back when they have been idle for a moment; `max_workers` limits their
    number. Functions and arguments may be anything that cloudpickle can pickle.

    max_workers: how many processes at most. With 1, the process stays while the executor is open,
        so that it keeps what calls have set in it, unless another call or allocation of this
        program waits for what it holds.
    resources, and any further keyword: what each process holds, as for `Grid.allocate`.
    initializer, initargs: called once in each process of this executor, before its first call.
    timeout: seconds that each call may take, or a text such as "5m"; then it is killed and raises
        `CallTimeout`.
    retries, name: as for `task`.
    mp_context: accepted as by `ProcessPoolExecutor`; a process is always a new interpreter.
    max_tasks_per_child: how many calls a process does before another one takes its place.
    grid: where the calls run; by default that of the enclosing `with Grid()`, or this machine's.

    >>> with GridExecutor(cpu=2, memory="1GB") as executor:  # doctest: +SKIP
    ...     list(executor.map(pow, [2, 3], [10, 10]))
    [1024, 59049]
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        grid: HasRunner | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        resources: Asked = None,
        timeout: Duration | None = None,
        retries: int = 0,
        name: str | None = None,
        priority: str | None = None,
        mp_context: BaseContext | None = None,
        max_tasks_per_child: int | None = None,
        **named: Any,
    ) -> None:
        if max_workers is not None:
            if max_workers <= 0:
                raise ValueError("max_workers must be greater than 0")
            read_count(max_workers, "max_workers", 1, 1_000_000)
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        self._request = read_call(resources, named)
        if mp_context is not None and not isinstance(mp_context, BaseContext):
            raise InvalidInput("mp_context", mp_context, "one of multiprocessing.get_context()")
        if max_tasks_per_child is not None:
            read_count(max_tasks_per_child, "max_tasks_per_child", 1, 1_000_000_000)
        options = Options(None, named, retries, timeout, name, priority=priority).checked()
        self._timeout, self._tries, self._name = options.timeout_s, retries + 1, name
        self._priority = priority
        self._caller = runner_of(grid if grid is not None else current_grid())
        if not isinstance(self._caller, Pool) and (
            max_workers or initializer or max_tasks_per_child
        ):
            raise InvalidInput(
                "max_workers, initializer or max_tasks_per_child",
                max_workers,
                "it with Grid(): in memory there are none",
            )
        setup = None if initializer is None else bytes(dumps((initializer, initargs)))
        self._group = WorkerGroup(
            setup, max_workers, max_tasks_per_child, keeps_idle=max_workers == 1
        )
        self._lock = threading.Lock()
        self._open: set[Future[Any]] = set()
        self._shut = False
        self._pid = os.getpid()
        _executors.add(self)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call `fn(*args, **kwargs)` when there is room; return its future at once."""
        if not callable(fn):
            raise TypeError(f"{fn!r} cannot be called")
        name = str(self._name or getattr(fn, "__name__", type(fn).__name__))
        code = fn._to_send() if isinstance(fn, Task) and isinstance(self._caller, Pool) else fn
        call = FunctionCall(
            code, self._request, args, kwargs, name, self._timeout, priority=self._priority
        )
        future: TaskFuture[R] = TaskFuture(self._caller, name)
        with self._lock:
            if self._shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._open.add(future)
        future.add_done_callback(self._over)
        with SendableFutures(()):
            self._start(call, future)
        if self._group.setup is not None:
            self._check_setup(future)
        return future

    def _start(self, call: FunctionCall, future: TaskFuture[Any]) -> None:
        if self._tries > 1:
            RetriedCall(call, future, self._tries, self._start_call).start()
        elif isinstance(self._caller, Pool):
            self._caller.start(call, future, self._group)
        else:
            future.follow(self._caller.submit(call))

    def _start_call(self, call: FunctionCall) -> Future[Returned]:
        """Start a call that may be tried again, in the workers of this executor."""
        if isinstance(self._caller, Pool):
            return self._caller.start(call, CallFuture(), self._group)
        return self._caller.submit(call)

    def map(
        self,
        fn: Callable[..., R],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[R]:
        """Return the results in order, as `map()` does, with `chunksize` calls sent as one."""
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
        """Take no more calls; with `wait`, return when all that were submitted have ended.

        Then its processes have ended, too, and what they held is released.
        """
        with self._lock:
            self._shut = True
            self._group.keeps_idle = False
            left = list(self._open)
        if cancel_futures:
            for future in left:
                future.cancel()
        if wait:
            try:
                for future in left:
                    with suppress(CancelledError):
                        Future.exception(future)
                if isinstance(self._caller, Pool):
                    self._caller.give_back(lambda shape: shape.group is self._group)
            except KeyboardInterrupt:
                self._stop()
                raise

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        """Wait for all calls. After Ctrl-C, end them instead, also those that run: their processes
        do not belong to this terminal, and so do not get its signals.
        """
        if kind is not None and not issubclass(kind, Exception | SystemExit):
            self._stop()
        self.shutdown()

    def _stop(self) -> None:
        """Withdraw calls that have not begun, and end those that run."""
        with self._lock:
            self._shut = True
            left = list(self._open)
        for future in left:
            future.cancel()
        for future in left:
            if isinstance(future, TaskFuture):
                future.stop()

    def __del__(self) -> None:
        """Keep no worker for an executor that nobody can use any more."""
        if hasattr(self, "_group"):
            self._group.keeps_idle = False

    def _over(self, future: Future[Any]) -> None:
        with self._lock:
            self._open.discard(future)

    def _check_setup(self, future: TaskFuture[Any]) -> None:
        """Raise if the initializer has failed: then no more calls are taken."""
        if future.done() and not future.cancelled():
            error = Future.exception(future)
            if isinstance(error, BrokenGridExecutor):
                raise error


def _chunk(fn: Callable[..., R], calls: Iterable[tuple[Any, ...]]) -> list[R]:
    return [fn(*args) for args in calls]


def _results(futures: list[Any], end: float | None) -> Iterator[Any]:
    """Yield results in order. When one fails, or comes too late, cancel the rest."""
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
    """Wait for submitted calls before the program ends, as Python's executors do.

    After Ctrl-C, stop them instead: else it would have to be pressed twice.
    """
    last: object = getattr(sys, "last_type", None)
    interrupted = last is KeyboardInterrupt and not hasattr(sys, "ps1")
    for executor in list(_executors):
        if executor._pid == os.getpid():  # not of the process that we were forked from
            if interrupted:
                executor._stop()
            executor.shutdown()


threading._register_atexit(_at_exit)  # type: ignore[attr-defined]
