"""TaskFuture: the result of a task to come, which may be given to another task as it is."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from gridhand.core.errors import CallFailed
from gridhand.core.html import sheet
from gridhand.library.shapes import CallFuture, begin, force_cancel

if TYPE_CHECKING:
    from gridhand.library.caller import Caller, Returned, Value

R = TypeVar("R")

_NOT_LOADED = object()


class _InItsThread(partial[Any]):
    """A callback that is called by the loop of whoever has added it."""


class TaskFuture(CallFuture, Generic[R]):
    """A `concurrent.futures.Future` that can also be awaited.

    The value stays where the task has put it until somebody asks for it here. Given to another
    task, as an argument or inside of a list or a dictionary, it makes that one wait for it, and is
    read by the process that runs it.
    """

    def __init__(self, caller: Caller, name: str) -> None:
        super().__init__()
        self._caller = caller
        self._name = name
        self._inner: Future[Returned] | None = None  # of this try, if there may be others
        self._loaded: Any = _NOT_LOADED

    def result(self, timeout: float | None = None) -> R:
        """What the task returned, or the error it met."""
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
            except Exception as found:  # it came, and cannot be read here
                return found
        return error

    def _standing(self) -> str:
        """What it does while somebody waits for it in vain."""
        one = self._inner or self
        call = one.call if isinstance(one, CallFuture) else None
        name = self._name or "the call"
        if one.running():
            node = call.worker.node if call is not None and call.worker is not None else ""
            return f"{name} still runs on {node}" if node else f"{name} still runs"
        waits_for = "its arguments" if one is self and call is None else "room"
        return f"{name} still waits for {waits_for}"

    def set_exception(self, exception: BaseException | None) -> None:
        """Who finds no place is told why, as by `allocate`: that is not about one call."""
        if isinstance(exception, CallFailed) and exception.reason == "not_placed":
            exception = exception.__cause__ or exception
        super().set_exception(exception)

    def cancel(self) -> bool:
        """Whether it was taken back before it began; one that runs goes on."""
        inner = self._inner
        if inner is not None and not inner.cancel() and not inner.done():
            return False
        return super().cancel()

    def stop(self) -> None:
        """End it even if it runs. It then counts as cancelled."""
        inner, self._inner = self._inner, None
        if self.call is not None:
            self._caller.stop(self)
        if force_cancel(self) and inner is not None:
            self._caller.stop(inner)

    def follow(self, inner: Future[Returned]) -> None:
        """End as the other one does."""
        self._inner = inner
        inner.add_done_callback(self._take_over)

    def _take_over(self, inner: Future[Returned]) -> None:
        if self._inner is not inner:  # stopped
            return
        error = None if inner.cancelled() else inner.exception()
        if inner.cancelled():
            force_cancel(self)
        elif begin(self):
            if error is None:
                self.set_result(inner.result())
            else:
                self.set_exception(error)

    @property
    def node(self) -> str | None:
        """Where it ran, once it has."""
        return self._returned.node if self._ended_well else None

    @property
    def value(self) -> Value:
        """What it returned, as it came: for one who passes it on, and does not look at it."""
        return self._returned.value

    @property
    def _returned(self) -> Returned:
        return cast("Returned", super().result())

    @property
    def _ended_well(self) -> bool:
        return self.done() and not self.cancelled() and super().exception() is None

    def add_done_callback(self, fn: Callable[..., Any]) -> None:
        """As for any future. `asyncio.wait` wants to be told in its own thread."""
        if getattr(fn, "__module__", None) == "asyncio.tasks":
            import asyncio

            fn = _InItsThread(asyncio.get_running_loop().call_soon_threadsafe, fn)
        super().add_done_callback(fn)

    def remove_done_callback(self, fn: Callable[..., Any]) -> int:
        """How many there were of these: for `asyncio.wait`."""
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
        """As an argument it is what it stands for."""
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
        """What is known without waiting for it, or fetching what it returned."""
        error = super().exception() if self.done() and not self.cancelled() else None
        state = "failed" if error is not None else self._state.lower().replace("_", " ")
        value = reprlib.repr(self._loaded) if self._loaded is not _NOT_LOADED else None
        rows = [("ran on", self.node), ("value", value), ("error", error and repr(error))]
        return sheet(f"{self._name or 'call'}: {state}", rows)


class NoArgument:
    """What stands for a value, but not as an argument of a task."""


def depends_on(args: Any, found: list[TaskFuture[Any]]) -> None:
    """Collect the futures among arguments, also those inside of plain containers."""
    for one in args.values() if type(args) is dict else args:
        if isinstance(one, TaskFuture):
            found.append(one)
        elif type(one) in CONTAINERS:
            depends_on(one, found)
        elif isinstance(one, _REFUSED):
            raise _refused(one)


def with_values(one: Any) -> Any:
    """The same with the values of the futures in it; waits for those that are not done."""
    if isinstance(one, TaskFuture):
        return one.result()
    if isinstance(one, _REFUSED):
        raise _refused(one)
    if type(one) is dict:
        return {key: with_values(value) for key, value in one.items()}
    return type(one)(map(with_values, one)) if type(one) in CONTAINERS else one


def _refused(one: object) -> TypeError:
    return TypeError(
        f"{one!r} cannot be an argument of a task: give what its result() returns, or a future"
        " that a task's submit() returned"
    )


CONTAINERS = frozenset({list, tuple, dict, set, frozenset})
_REFUSED = (NoArgument, Future)


def error_of(future: TaskFuture[Any]) -> BaseException | None:
    """What it met, without a look at its value."""
    try:
        return Future.exception(future)
    except CancelledError as error:
        return error
