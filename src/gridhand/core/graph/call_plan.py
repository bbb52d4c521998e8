"""What is really called when a function of a graph is: its code, with the inline ones it uses.

An inline function has no turn of its own. It is evaluated where its result is needed, once for
each use, as a part of the call that uses it. The call becomes a short program for a stack, since
chains of inline functions may be longer than Python likes to recurse; it is plain data and code,
so that it can be sent to whoever runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gridhand.core.errors import InvalidInput
from gridhand.core.graphs import Function

MOST_EVALUATIONS = 10_000  # of inline functions in one call


@dataclass(frozen=True, slots=True)
class Apply:
    """Call `code` with the last `count` values."""

    code: Callable[..., Any]
    count: int
    as_list: bool
    extra_args: tuple[Any, ...]
    inline: str = ""  # the id, if it is an inline one

    def __call__(self, values: Sequence[Any]) -> Any:
        given = [list(values)] if self.as_list else values
        try:
            return self.code(*given, *self.extra_args)
        except BaseException as error:
            if self.inline:
                error.add_note(f"It was raised in the inline function {self.inline}.")
            raise


@dataclass(frozen=True, slots=True)
class Program:
    """A function that takes plain values: a number stands for one of those, the rest is called."""

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


class Plan(NamedTuple):
    """What to call for a function, and the ids of those whose values it is called with."""

    code: Callable[..., Any]
    needs: tuple[str, ...]
    extra_args: tuple[Any, ...]


def plan(one: Function, functions: Mapping[str, Function]) -> Plan:
    """How to call a function of a graph that was found to be valid."""
    assert one.code is not None
    simple = one.argument_inclusion == "variadic"
    if simple and all(functions[id].type != "inline" for id in one.args):
        return Plan(one.code, tuple(one.args), tuple(one.extra_args))
    needs: dict[str, int] = {}
    backwards: list[int | Apply] = []
    waiting = [one]
    while waiting:
        current = waiting.pop()
        if current.type == "input" or (current.type == "regular" and current is not one):
            backwards.append(needs.setdefault(current.id, len(needs)))
            continue
        backwards.append(_apply(current))
        if len(backwards) > MOST_EVALUATIONS:
            raise _too_many(one)
        # The last argument comes first, as the program is read from its end.
        waiting += [functions[id] for id in current.args]
    return Plan(Program(tuple(reversed(backwards))), tuple(needs), ())


def _apply(one: Function) -> Apply:
    assert one.code is not None
    as_list = one.argument_inclusion == "as_list"
    inline = one.id if one.type == "inline" else ""
    return Apply(one.code, len(one.args), as_list, tuple(one.extra_args), inline)


def _too_many(one: Function) -> InvalidInput:
    fault = InvalidInput(
        "type", "inline", f"functions of which one call evaluates at most {MOST_EVALUATIONS}"
    )
    return fault.about(f"function {one.id}")
