"""task: a function that is called with what it needs, wherever there is room for that."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from gridhand.core.errors import (
    CallFailed,
    GridClosed,
    InvalidInput,
    NoRoom,
    OutOfMemory,
    UnknownResource,
)
from gridhand.core.html import sheet
from gridhand.core.requests import Request
from gridhand.core.resources import Resources
from gridhand.core.retries import enough
from gridhand.library.backend import read_count, read_flag, read_ttl
from gridhand.library.caller import FunctionCall, Returned
from gridhand.library.calling import HasCaller, caller_of
from gridhand.library.current import current_grid
from gridhand.library.pool import Pool
from gridhand.library.running import Asked
from gridhand.library.shapes import begin, force_cancel
from gridhand.library.submitting import read_call
from gridhand.library.taskfuture import CONTAINERS, TaskFuture, depends_on, error_of, with_values
from gridhand.worker.finding import ByName, task_named

P = ParamSpec("P")
R = TypeVar("R")

# What other systems call our options; any other keyword is a resource.
_HABITS = {
    "max_retries": "retries",
    "retry": "retries",
    "time_limit": "timeout",
    "timeout_s": "timeout",
    "detached": "detach",
}
_OPTIONS = ("retries", "timeout", "detach")
_RESOURCES = frozenset({"cpu", "memory", "gpu", "disk", "num_cpus", "num_gpus"})  # as most are
_AHEAD = 4096  # of the calls of a map, how many are submitted before their results are taken


@dataclass(frozen=True)
class Options:
    """How a task is called: what it needs, and what becomes of it if it fails."""

    resources: Asked = None
    named: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 0
    timeout: float | None = None
    name: str | None = None
    grid: HasCaller | None = None
    detach: bool = False

    def checked(self) -> Options:
        read_count(self.retries, "retries", 0, 999)
        read_ttl(self.timeout, "timeout")
        read_flag(self.detach, "detach")
        if self.name is not None and not isinstance(self.name, str):
            raise InvalidInput("name", self.name, "a text")
        for name, value in self.named.items():
            if (meant := _meant_by(name)) is not None:
                raise InvalidInput(name, value, f"{meant}=, if that is meant; no resource")
        return self

    def updated(
        self, resources: Asked, named: Mapping[str, Any], given: Mapping[str, Any]
    ) -> Options:
        """The same with what is given: resources anew, if there are any among it."""
        if resources is None and not named:
            return replace(self, **given).checked()
        return replace(self, resources=resources, named=dict(named), **given).checked()


def _meant_by(name: str) -> str | None:
    """The option of which this is another name, or one that was mistyped."""
    if name in _RESOURCES:
        return None
    from difflib import get_close_matches

    return _HABITS.get(name) or next(iter(get_close_matches(name, _OPTIONS, 1, 0.75)), None)


class Task(Generic[P, R]):
    """A function, and what it needs. Calling it runs it here, as if it were not a task."""

    def __init__(self, code: Callable[P, R], options: Options) -> None:
        if not callable(code):
            raise InvalidInput("task", code, "a function")
        self._code = code
        self._options = options.checked()
        self.request: Request = read_call(options.resources, options.named)
        self._name = str(options.name or getattr(code, "__name__", type(code).__name__))
        self._sent: Callable[..., Any] | None = None
        functools.update_wrapper(self, code)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._code(*args, **kwargs)

    def submit(self, *args: Any, **kwargs: Any) -> TaskFuture[R]:
        """Have it called where there is room, and come back at once.

        Arguments may be futures of other tasks, alone or in lists, tuples, sets and dictionaries:
        it is called when these are done, with what they returned. If one of them fails, so does
        this, with the same error.
        """
        options = self._options
        grid = options.grid if options.grid is not None else current_grid()
        if options.detach:
            from gridhand.library.detached import submit_detached

            detached: Any = submit_detached(grid, self, args, kwargs)
            return cast("TaskFuture[R]", detached)
        caller = caller_of(grid)
        future: TaskFuture[R] = TaskFuture(caller, self._name)
        needed: list[TaskFuture[Any]] = []
        depends_on(args, needed)
        if kwargs:
            depends_on(kwargs, needed)
        if needed:
            _Waiting(self, future, args, kwargs, needed)
        else:
            self._start(future, args, kwargs)
        return future

    def map(self, *iterables: Iterable[Any], timeout: float | None = None) -> Iterator[R]:
        """The results for each item, in order, as from `map()`; all run as there is room.

        Items are taken, and called, a few thousand ahead of the results that were taken. `timeout`
        is for all of them together, from this call on. When one has failed its error is raised
        in its place, and the rest is cancelled.
        """
        end = None if timeout is None else monotonic() + timeout
        source = zip(*iterables, strict=False)
        futures = deque(self.submit(*args) for args in itertools.islice(source, _AHEAD))
        return self._results(source, futures, end)

    def _results(
        self, source: Iterator[tuple[Any, ...]], futures: deque[TaskFuture[R]], end: float | None
    ) -> Iterator[R]:
        try:
            while futures:
                left = None if end is None else max(0.0, end - monotonic())
                yield futures.popleft().result(left)
                futures.extend(self.submit(*args) for args in itertools.islice(source, 1))
        finally:
            for one in futures:
                one.cancel()

    def options(
        self,
        resources: Asked = None,
        /,
        *,
        retries: int | None = None,
        timeout: float | None = None,
        name: str | None = None,
        grid: HasCaller | None = None,
        detach: bool | None = None,
        **named: Any,
    ) -> Task[P, R]:
        """The same task with other options. Those that are not given stay as they are; of what it
        needs, all is given anew or nothing.
        """
        mine = {
            "retries": retries,
            "timeout": timeout,
            "name": name,
            "grid": grid,
            "detach": detach,
        }
        given = {key: value for key, value in mine.items() if value is not None}
        other = Task(self._code, self._options.updated(resources, named, given))
        other._sent = self._to_send()
        return other

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method it is called with its object, as functions are."""
        if instance is None:
            return self
        return Task(
            functools.partial(self._code, instance), replace(self._options, name=self._name)
        )

    def __repr__(self) -> str:
        return f"<task {self._name}: {self.request.resources}>"

    def _repr_html_(self) -> str:
        return sheet(f"task {self._name}", [("needs", self.request.resources), *self._wishes()])

    def _wishes(self) -> list[tuple[str, object]]:
        options = self._options
        return [("retries", options.retries or None), ("time limit in s", options.timeout)]

    def __reduce__(self) -> Any:
        if (found := self._by_name()) is not None:
            return task_named, (found.module, found.name)
        return Task, (self._code, replace(self._options, grid=None))

    # ---- inside

    def _start(self, future: TaskFuture[R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        caller, options = future._caller, self._options
        pool = isinstance(caller, Pool)
        code = self._to_send() if pool else self._code
        call = FunctionCall(code, self.request, args, kwargs, self._name, options.timeout)
        if not options.retries and isinstance(caller, Pool):
            caller.start(call, future)
        else:
            _Trying(call, future, options.retries + 1).start()

    def _to_send(self) -> Callable[..., Any]:
        """The function by its name where that leads to it, else itself."""
        if self._sent is None:
            self._sent = self._by_name() or self._code
        return self._sent

    def _by_name(self) -> ByName | None:
        """Where other processes find it: its name leads to the task, which knows the function."""
        module, name = getattr(self, "__module__", None), getattr(self, "__qualname__", "")
        if module in (None, "__main__") or "<" in name or _is_sent_by_value(module):
            return None
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        return (
            ByName(module, name) if isinstance(found, Task) and found._code is self._code else None
        )


def _is_sent_by_value(module: str) -> bool:
    """Whether the user has said so, of the module or of a package that it is in."""
    import cloudpickle  # type: ignore[import-untyped]

    said = cloudpickle.list_registry_pickle_by_value()
    parts = module.split(".")
    return any(".".join(parts[:count]) in said for count in range(1, len(parts) + 1))


class _Waiting:
    """A call whose arguments are not there yet."""

    def __init__(
        self,
        task: Task[Any, Any],
        future: TaskFuture[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        needed: list[TaskFuture[Any]],
    ) -> None:
        self._wanted: tuple[Task[Any, Any], TaskFuture[Any], tuple[Any, ...], dict[str, Any]] | None
        self._wanted = task, future, args, kwargs
        self._left = len(needed)
        self._lock = threading.Lock()
        # What another kind of caller has kept, in threads or in processes, ours could not read.
        self._foreign = any(type(one._caller) is not type(future._caller) for one in needed)
        for one in needed:
            one.add_done_callback(self._done)

    def _done(self, needed: Future[Any]) -> None:
        error = error_of(cast("TaskFuture[Any]", needed))
        with self._lock:
            self._left -= 1
            wanted = self._wanted
            if error is not None or not self._left:
                self._wanted = None  # those that were needed know of us, and we need nothing more
        if wanted is None:
            return
        if error is not None:
            _fail(wanted[1], error)
        elif not self._left and not wanted[1].done():
            self._start(*wanted)

    def _start(
        self,
        task: Task[Any, Any],
        future: TaskFuture[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        nested = isinstance(future._caller, Pool)
        try:
            if self._foreign:
                args, kwargs = with_values(args), with_values(kwargs)
            values = tuple(_given(one, nested) for one in args)
            task._start(future, values, {name: _given(kwargs[name], nested) for name in kwargs})
        except Exception as refused:  # the grid was closed meanwhile
            _fail(future, refused)


def _given(one: Any, as_it_is: bool) -> Any:
    """An argument as callers take it. Processes read futures inside of containers by themselves."""
    if isinstance(one, TaskFuture):
        return one.value
    return one if as_it_is or type(one) not in CONTAINERS else with_values(one)


class _Trying:
    """A call that is tried again if it fails."""

    def __init__(self, call: FunctionCall, future: TaskFuture[Any], tries: int) -> None:
        self._call = call
        self._future = future
        self._tries = tries
        self._first: BaseException | None = None

    def start(self) -> None:
        self._tries -= 1
        inner = self._future._caller.submit(self._call)
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
            self._again(error)
            return
        self._future._inner = None
        if error is not None:
            _fail(self._future, self._first or error)
        elif begin(self._future):
            self._future.set_result(inner.result())

    def _again(self, error: BaseException) -> None:
        if isinstance(error, OutOfMemory):
            self._first = error  # to be told if there is no more
            self._call = replace(self._call, request=_with_more(self._call.request, error))
        else:
            self._first = None
        try:
            self.start()
        except Exception:  # the grid was closed meanwhile
            _fail(self._future, error)


def _may_succeed(error: BaseException) -> bool:
    """Whether it is of use to try again: a time limit, or a request, stays what it is."""
    if isinstance(error, CallFailed):
        return error.reason not in ("timeout", "unsendable", "nested", "not_placed")
    return isinstance(error, Exception) and not isinstance(
        error, GridClosed | NoRoom | InvalidInput | UnknownResource
    )


def _with_more(request: Request, error: OutOfMemory) -> Request:
    """More of what ran out, as a job would get."""
    had = request.amounts["memory"]
    if not had:
        return request
    amounts = {**request.amounts.parts(), "memory": enough(had, error.peak_bytes or had)}
    return replace(request, amounts=Resources(amounts))


def _fail(future: TaskFuture[Any], error: BaseException) -> None:
    if isinstance(error, CancelledError):
        force_cancel(future)
    elif begin(future):
        with suppress(InvalidStateError):
            future.set_exception(error)


@overload
def task(
    code: Callable[P, R],
    /,
    *,
    retries: int = 0,
    timeout: float | None = None,
    name: str | None = None,
    grid: HasCaller | None = None,
    detach: bool = False,
    **named: Any,
) -> Task[P, R]: ...


@overload
def task(
    resources: Asked = None,
    /,
    *,
    retries: int = 0,
    timeout: float | None = None,
    name: str | None = None,
    grid: HasCaller | None = None,
    detach: bool = False,
    **named: Any,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def task(
    resources: Any = None,
    /,
    *,
    retries: int = 0,
    timeout: float | None = None,
    name: str | None = None,
    grid: HasCaller | None = None,
    detach: bool = False,
    **named: Any,
) -> Any:
    """Say what a function needs: `@task(cpu=2, memory="4GB", gpu=1)`, or `@task` for one core.

    Keywords are amounts and the wishes of `Request.of`, as for `Grid.allocate`. With `cpu=0` alone
    nothing is held for it, as suits a function that only calls others and waits for them. `retries`
    is how often it is called again when it raises, or its process dies. `timeout` is in seconds,
    for each call. With `detach` each call is a job of its own that outlives this program.

    >>> @task(cpu=2)
    ... def double(number):
    ...     return 2 * number
    >>> double(21)
    42
    """
    code = resources if callable(resources) and not isinstance(resources, Mapping) else None
    asked = None if code is not None else resources
    options = Options(asked, named, retries, timeout, name, grid, detach).checked()
    read_call(asked, named)  # what is wrong with it is told here, not where it is used
    return Task(code, options) if code is not None else lambda code: Task(code, options)
