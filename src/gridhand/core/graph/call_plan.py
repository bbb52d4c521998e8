"""CallPlan: how to call a function of a graph together with the inline functions it uses.

An inline function is not called on its own: it is evaluated where its result is needed, once for
each use, as a part of the call that uses it. Such a call becomes a short stack program, because a
chain of inline functions may be longer than Python's recursion limit. The program is plain data
and code, so that it can be sent to a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gridhand.core.errors import InvalidInput
from gridhand.core.graph.function import Function

MOST_EVALUATIONS = 10_000  # evaluations of inline functions in one call


@dataclass(frozen=True, slots=True)
class Apply:
    """A step that calls `code` with the last `count` values."""

    code: Callable[..., Any]
    count: int
    as_list: bool
    extra_args: tuple[Any, ...]
    inline: str = ""  # the id of an inline function

    def __call__(self, values: Sequence[Any]) -> Any:
        given = [list(values)] if self.as_list else values
        try:
            return self.code(*given, *self.extra_args)
        except BaseException as error:
            if self.inline:
                error.add_note(f"Raised in the inline function {self.inline}.")
            raise


@dataclass(frozen=True, slots=True)
class Program:
    """A stack program: a number pushes that argument, an `Apply` calls a function."""

    steps: tuple[int | Apply, ...]

    def __call__(self, *values: Any) -> Any:
        stack: list[Any] = []
        for step in self.steps:
            if isinstance(step, int):
                stack.append(values[step])
                continue
            first = len(stack) - step.count
            given = stack[first:]
            del stack[first:]
            stack.append(step(given))
        return stack.pop()


class CallPlan(NamedTuple):
    """The code to call for a function, and the ids of the functions whose values it takes."""

    code: Callable[..., Any]
    needs: tuple[str, ...]
    extra_args: tuple[Any, ...]


def plan(function: Function, functions: Mapping[str, Function]) -> CallPlan:
    """Return how to call a function of a valid graph."""
    assert function.code is not None
    simple = function.argument_inclusion == "variadic"
    if simple and all(functions[id].type != "inline" for id in function.args):
        return CallPlan(function.code, tuple(function.args), tuple(function.extra_args))
    needs: dict[str, int] = {}
    backwards: list[int | Apply] = []
    waiting = [function]
    while waiting:
        current = waiting.pop()
        if current.type == "input" or (current.type == "regular" and current is not function):
            backwards.append(needs.setdefault(current.id, len(needs)))
            continue
        backwards.append(_apply(current))
        if len(backwards) > MOST_EVALUATIONS:
            raise _too_many(function)
        # The last argument comes first, because the steps are reversed at the end.
        waiting += [functions[id] for id in current.args]
    return CallPlan(Program(tuple(reversed(backwards))), tuple(needs), ())


def _apply(function: Function) -> Apply:
    assert function.code is not None
    as_list = function.argument_inclusion == "as_list"
    inline = function.id if function.type == "inline" else ""
    return Apply(function.code, len(function.args), as_list, tuple(function.extra_args), inline)


def _too_many(function: Function) -> InvalidInput:
    fault = InvalidInput(
        "type", "inline", f"functions of which one call evaluates at most {MOST_EVALUATIONS}"
    )
    return fault.about(f"function {function.id}")
