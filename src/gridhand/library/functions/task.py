"""Tasks: functions that run with the resources they need, wherever there is room."""

from __future__ import annotations

import functools
import itertools
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from time import monotonic
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from gridhand.core.errors import (
    InvalidInput,
)
from gridhand.core.html import sheet
from gridhand.core.model.requests import Request
from gridhand.library.backend import Duration
from gridhand.library.current_grid import current_grid
from gridhand.library.functions.function_runner import FunctionCall, HasRunner, runner_of
from gridhand.library.functions.future import SendableFutures, TaskFuture
from gridhand.library.functions.nested_futures import depends_on, refuse_closure
from gridhand.library.functions.pending_arguments import PendingArguments
from gridhand.library.functions.retry_call import RetriedCall
from gridhand.library.functions.task_options import KEEP, Options
from gridhand.library.job_methods import Asked
from gridhand.library.pool.pool import Pool
from gridhand.library.submission import read_call
from gridhand.worker.by_name import ByName, task_named
from gridhand.worker.importable_modules import is_importable

if TYPE_CHECKING:
    from gridhand.library.functions.detached import DetachedCall

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")

Later = (
    TaskFuture[Any]
    | list[TaskFuture[Any]]
    | tuple[TaskFuture[Any], ...]
    | dict[str, TaskFuture[Any]]
)

_AHEAD = 4096  # how many calls of a map are submitted before their results are taken


class DetachedTask(Protocol[P, R_co]):
    """A task with `detach=True`, for type checkers: each call of it is a job."""

    request: Request

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def submit(
        self: DetachedTask[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> DetachedCall[T]: ...

    @overload
    def submit(self, *args: P.args, **kwargs: P.kwargs) -> DetachedCall[R_co]: ...

    def options(self, resources: Asked = None, /, **options: Any) -> DetachedTask[P, R_co]: ...


class Task(Generic[P, R]):
    """A function and the resources it needs, made with `@task`.

    Calling it runs it here, as if it were not a task. `submit` runs it on the grid and returns a
    future at once; `map` does so for many arguments.

    >>> @task(cpu=1)
    ... def square(number):
    ...     return number * number
    >>> square(3)
    9
    >>> list(square.map(range(4)))  # doctest: +SKIP
    [0, 1, 4, 9]
    """

    def __init__(self, code: Callable[P, R], options: Options) -> None:
        if not callable(code):
            raise InvalidInput("task", code, "a function")
        self._code = code
        self._options = options.checked()
        self._timeout_s = options.timeout_s
        self.request: Request = read_call(options.resources, options.named)
        self._name = str(options.name or getattr(code, "__name__", type(code).__name__))
        self._sent: Callable[..., Any] | None = None
        functools.update_wrapper(self, code)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._code(*args, **kwargs)

    # What an async function returns is awaited by its worker. Where an argument is a future,
    # nothing is known of the others: how a value may take its place cannot be said in types.
    @overload
    def submit(
        self: Task[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskFuture[T]: ...

    @overload
    def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[R]: ...

    @overload
    def submit(self, first: Later, /, *args: Any, **kwargs: Any) -> TaskFuture[R]: ...

    @overload
    def submit(self, first: Any, second: Later, /, *args: Any, **kwargs: Any) -> TaskFuture[R]: ...

    @overload
    def submit(
        self, first: Any, second: Any, third: Later, /, *args: Any, **kwargs: Any
    ) -> TaskFuture[R]: ...

    def submit(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the function where there is room, and return its future at once.

        Arguments may be futures of other tasks, alone or in lists, tuples, sets, dictionaries and
        dataclasses: the function is called with their results once they are done. If one of them
        fails, this call fails with the same error. Futures anywhere else are refused.

        >>> total = add.submit(square.submit(3), square.submit(4))  # doctest: +SKIP
        >>> total.result()  # doctest: +SKIP
        25
        """
        options = self._options
        grid = options.grid if options.grid is not None else current_grid()
        if options.detach:
            from gridhand.library.functions.detached import submit_detached

            return submit_detached(grid, self, args, kwargs)
        refuse_closure(self._code)
        caller = runner_of(grid)
        future: TaskFuture[Any] = TaskFuture(caller, self._name)
        needed: list[TaskFuture[Any]] = []
        depends_on(args, needed)
        if kwargs:
            depends_on(kwargs, needed)
        if needed:
            PendingArguments(self._start, future, args, kwargs, needed)
        else:
            with SendableFutures(()):
                self._start(future, args, kwargs)
        return future

    @overload
    def map(
        self: Task[P, Coroutine[Any, Any, T]],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
    ) -> Iterator[T]: ...

    @overload
    def map(
        self: Callable[[A], T], items: Iterable[A], /, *, timeout: float | None = None
    ) -> Iterator[T]: ...

    @overload
    def map(
        self: Callable[[A, B], T],
        first: Iterable[A],
        second: Iterable[B],
        /,
        *,
        timeout: float | None = None,
    ) -> Iterator[T]: ...

    @overload
    def map(
        self,
        first: Iterable[Any],
        second: Iterable[Any],
        third: Iterable[Any],
        /,
        *more: Iterable[Any],
        timeout: float | None = None,
    ) -> Iterator[R]: ...

    def map(self, *iterables: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        """Return the results for each item in order, as `map()` does; all run as there is room.

        Items are taken, and submitted, a few thousand ahead of the results. `timeout` is in
        seconds, for all of them together, from now on. If a call fails, its error is raised in the
        place of its result, and the rest is cancelled.
        """
        end = None if timeout is None else monotonic() + timeout
        source = zip(*iterables, strict=False)
        submit: Callable[..., TaskFuture[Any]] = self.submit
        futures = deque(submit(*args) for args in itertools.islice(source, _AHEAD))
        return self._results(source, futures, end)

    def _results(
        self, source: Iterator[tuple[Any, ...]], futures: deque[TaskFuture[Any]], end: float | None
    ) -> Iterator[Any]:
        submit: Callable[..., TaskFuture[Any]] = self.submit
        try:
            while futures:
                left = None if end is None else max(0.0, end - monotonic())
                yield futures.popleft().result(left)
                for args in itertools.islice(source, 1):
                    futures.append(submit(*args))
        finally:
            for one in futures:
                one.cancel()

    @overload
    def options(
        self,
        resources: Asked = None,
        /,
        *,
        detach: Literal[True],
        retries: int | None = KEEP,
        timeout: Duration | None = KEEP,
        name: str | None = KEEP,
        priority: str | None = KEEP,
        grid: HasRunner | None = KEEP,
        **named: Any,
    ) -> DetachedTask[P, R]: ...

    @overload
    def options(
        self,
        resources: Asked = None,
        /,
        *,
        retries: int | None = KEEP,
        timeout: Duration | None = KEEP,
        name: str | None = KEEP,
        priority: str | None = KEEP,
        grid: HasRunner | None = KEEP,
        detach: bool | None = KEEP,
        **named: Any,
    ) -> Task[P, R]: ...

    def options(
        self,
        resources: Asked = None,
        /,
        *,
        retries: int | None = KEEP,
        timeout: Duration | None = KEEP,
        name: str | None = KEEP,
        priority: str | None = KEEP,
        grid: HasRunner | None = KEEP,
        detach: bool | None = KEEP,
        **named: Any,
    ) -> Any:
        """Return the same task with other options.

        Options and resources that are not given stay as they are; None removes one. Resources
        that are given as a whole, as a mapping or a text, replace all others.

        >>> train.options(gpu=2, retries=1).submit("large")  # doctest: +SKIP
        """
        given = {
            "retries": retries,
            "timeout": timeout,
            "name": name,
            "priority": priority,
            "grid": grid,
            "detach": detach,
        }
        other: Task[P, R] = Task(self._code, self._options.updated(resources, named, given))
        other._sent = self._to_send()
        return other

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind the task to an object, as functions do in classes."""
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
        wishes = ("retries", options.retries or None), ("time limit in s", options.timeout_s)
        return [*wishes, ("priority", options.priority)]

    def __reduce__(self) -> Any:
        if (found := self._by_name()) is not None:
            return task_named, (found.module, found.name)
        return Task, (self._code, replace(self._options, grid=None))

    # ---- inside

    def _start(
        self, future: TaskFuture[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        caller, options = future._caller, self._options
        pool = isinstance(caller, Pool)
        code = self._to_send() if pool else self._code
        call = FunctionCall(
            code, self.request, args, kwargs, self._name, self._timeout_s, priority=options.priority
        )
        if not options.retries and isinstance(caller, Pool):
            caller.start(call, future)
        else:
            RetriedCall(call, future, options.retries + 1).start()

    def _to_send(self) -> Callable[..., Any]:
        """Return what workers are sent: the function's name where that leads to it, else itself."""
        if self._sent is None:
            self._sent = self._by_name() or self._code
        return self._sent

    def _by_name(self) -> ByName | None:
        """Return the name by which other processes find the task, which knows the function."""
        module, name = getattr(self, "__module__", None), getattr(self, "__qualname__", "")
        if module in (None, "__main__") or "<" in name or _is_sent_by_value(module):
            return None
        if not is_importable(module):
            return None
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        return (
            ByName(module, name) if isinstance(found, Task) and found._code is self._code else None
        )


def _is_sent_by_value(module: str) -> bool:
    """Return whether the module, or a package that it is in, is registered with cloudpickle."""
    import cloudpickle  # type: ignore[import-untyped]

    said = cloudpickle.list_registry_pickle_by_value()
    parts = module.split(".")
    return any(".".join(parts[:count]) in said for count in range(1, len(parts) + 1))


@overload
def task(
    code: Callable[P, R],
    /,
    *,
    detach: Literal[True],
    retries: int = 0,
    timeout: Duration | None = None,
    name: str | None = None,
    priority: str | None = None,
    grid: HasRunner | None = None,
    **named: Any,
) -> DetachedTask[P, R]: ...


@overload
def task(
    resources: Asked = None,
    /,
    *,
    detach: Literal[True],
    retries: int = 0,
    timeout: Duration | None = None,
    name: str | None = None,
    priority: str | None = None,
    grid: HasRunner | None = None,
    **named: Any,
) -> Callable[[Callable[P, R]], DetachedTask[P, R]]: ...


@overload
def task(
    code: Callable[P, R],
    /,
    *,
    retries: int = 0,
    timeout: Duration | None = None,
    name: str | None = None,
    priority: str | None = None,
    grid: HasRunner | None = None,
    detach: bool = False,
    **named: Any,
) -> Task[P, R]: ...


@overload
def task(
    resources: Asked = None,
    /,
    *,
    retries: int = 0,
    timeout: Duration | None = None,
    name: str | None = None,
    priority: str | None = None,
    grid: HasRunner | None = None,
    detach: bool = False,
    **named: Any,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def task(
    resources: Any = None,
    /,
    *,
    retries: int = 0,
    timeout: Duration | None = None,
    name: str | None = None,
    priority: str | None = None,
    grid: HasRunner | None = None,
    detach: bool = False,
    **named: Any,
) -> Any:
    """Make a function a task: `@task(cpu=2, memory="4GB", gpu=1)`, or `@task` for one core.

    Keywords are resources and the options of `Request.of`, as for `Grid.allocate`. With `cpu=0`
    alone nothing is held for it, which suits a function that only calls others and waits for them.

    retries: how often it is called again when it raises, or when its process dies.
    timeout: seconds that each call may take, or a text such as "5m"; then it is killed and raises
        `CallTimeout`.
    name: what it is called in lists and errors; by default the name of the function.
    priority: while it waits for room: `urgent`, `high`, `medium` (the default) or `low`.
    grid: where it runs; by default the grid of the enclosing `with Grid()`, or this machine's.
    detach: make each call a job of its own that outlives this program.

    >>> @task(cpu=2)
    ... def double(number):
    ...     return 2 * number
    >>> double(21)
    42
    """
    code = resources if callable(resources) and not isinstance(resources, Mapping) else None
    asked = None if code is not None else resources
    options = Options(asked, named, retries, timeout, name, grid, detach, priority).checked()
    read_call(asked, named)  # raises what is wrong with it here, not where it is used
    return Task(code, options) if code is not None else lambda code: Task(code, options)
