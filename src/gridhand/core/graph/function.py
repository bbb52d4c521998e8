"""Function: a user's function in a graph, with its cost and its node.

A function may be collocated with another. `grouped` follows such chains and returns the functions
that must go to one node as a `Group`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from gridhand.core.errors import (
    CircularCollocation,
    DuplicateFunction,
    InvalidInput,
    InvalidRequest,
    UnknownFunction,
)
from gridhand.core.model.names import NodeName, check_label, check_node_name
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources, nearest_name

_set = object.__setattr__


@dataclass(frozen=True, slots=True)
class Collocated:
    """The node of a function: the same node as the function with that id."""

    id: str

    def __post_init__(self) -> None:
        check_label(self.id, "collocated")


@dataclass(frozen=True, slots=True)
class Function:
    """A function with its arguments, cost and node. It may cost nothing.

    `args` are the ids of the functions whose results it takes; `extra_args` follow them. With
    `argument_inclusion="as_list"` the results are passed as one list. `node` is a name,
    `Collocated("other")` (or `("collocated", "other")`), or None for any node. `max_retries`
    overrides that of the run. The resources of a task are its cost unless one is given.

    An `inline` function is evaluated as a part of each function that uses it; an `input` is a
    value given when the graph is run. The last four fields are for streams.

    >>> Function("train", cost={"cpu": 2, "memory": "4GB"}).asked().resources
    Resources('cpu=2 memory=4GB')
    """

    id: str
    code: Callable[..., Any] | None = None
    args: Sequence[Any] = ()
    extra_args: Sequence[Any] = ()
    cost: Request | Resources | Mapping[str, Any] | str = field(default_factory=dict, hash=False)
    node: str | Collocated | None = None
    max_retries: int | None = None
    type: str = "regular"
    argument_inclusion: str = "variadic"
    init: Callable[..., Any] | None = None
    parallelism: int = 1
    batch_size: int | None = None
    batch_timeout: float | None = None  # in seconds

    def __post_init__(self) -> None:
        check_label(self.id, "function id")
        try:
            _set(self, "args", tuple(map(_read_arg, _listed("args", self.args))))
            _set(self, "extra_args", _listed("extra_args", self.extra_args))
            cost = self.cost or getattr(self.code, "request", None) or {}  # that of a task
            _set(self, "cost", dict(cost) if isinstance(cost, Mapping) else cost)
            _set(self, "node", _read_node(self.node))
            self.asked()
            _check_fields(self)
            _check_type(self)
        except InvalidInput as fault:
            raise fault.about(f"function {self.id}") from None

    @classmethod
    def read(cls, given: Function | Mapping[str, Any]) -> Function:
        """Read a function, which may be a mapping: `{"id": "f1", "cost": {"cpu": 1}}`."""
        if isinstance(given, Function):
            return given
        if not isinstance(given, Mapping):
            raise InvalidInput("functions", given, "functions, or mappings with an id and a cost")
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise InvalidInput("functions", name, f"any of {', '.join(known)}")
        if "id" not in given:
            raise InvalidInput("functions", dict(given), "each of them an id")
        return cls(**given)

    def asked(self) -> Request:
        """Return the cost as a request without constraints on the node."""
        cost = self.cost
        if isinstance(cost, Request):
            if cost.node or cost.prefer or cost.exclude or cost.labels or cost.alternatives:
                raise InvalidRequest("cost", cost.resources, "amounts alone; node says where")
        elif _is_empty(cost):
            return Request(Resources())
        return Request.of(cost)


def _is_empty(cost: Any) -> bool:
    """Return whether the cost is valid and empty, which `Request.of` refuses."""
    try:
        return not Resources.of(cost)
    except InvalidInput:
        return False


_TYPES = {
    # type: the fields that functions of this type cannot have
    "regular": (),
    "inline": ("cost", "node", "max_retries", "init", "batch_size", "batch_timeout"),
    "input": (
        "code", "args", "extra_args", "cost", "node", "max_retries", "init", "batch_size",
        "batch_timeout",
    ),
}  # fmt: skip
_LISTS = ("args", "extra_args", "cost")  # fields whose empty value counts as absent
_INCLUSIONS = ("variadic", "as_list")
MOST_RETRIES = 1000
_LONGEST_BATCH_S = 86_400


def _check_fields(function: Function) -> None:
    for name, given, allowed in (
        ("type", function.type, tuple(_TYPES)),
        ("argument_inclusion", function.argument_inclusion, _INCLUSIONS),
    ):
        if given not in allowed:
            raise InvalidInput(name, given, " or ".join(allowed))
    for name, code in (("code", function.code), ("init", function.init)):
        if code is not None and not callable(code):
            raise InvalidInput(name, code, "something that can be called")
    if function.max_retries is not None:
        check_count("max_retries", function.max_retries, 0, MOST_RETRIES)
    if function.batch_size is not None:
        check_count("batch_size", function.batch_size, 1, 1_000_000)
    check_count("parallelism", function.parallelism, 1, 1000)
    wait = function.batch_timeout
    if wait is not None and (type(wait) not in (int, float) or not 0 <= wait <= _LONGEST_BATCH_S):
        raise InvalidInput("batch_timeout", wait, f"seconds from 0 to {_LONGEST_BATCH_S}")


def _check_type(function: Function) -> None:
    for name in _TYPES[function.type]:
        given = function.asked().resources if name == "cost" else getattr(function, name)
        if given is not None and (name not in _LISTS or given):
            owner = "those that use it" if function.type == "inline" else "functions with code"
            raise InvalidInput(name, given, f"it to {owner}: this function is {function.type}")


def check_count(name: str, given: Any, least: int, most: int) -> int:
    """Return a whole number within bounds, or raise InvalidInput."""
    if type(given) is not int or not least <= given <= most:
        raise InvalidInput(name, given, f"a whole number from {least} to {most}")
    return given


def _read_arg(given: Any) -> str:
    """Return the id of a function, given the id or the function."""
    if isinstance(given, Function):
        return given.id
    try:
        return check_label(given, "args")
    except InvalidInput:
        raise InvalidInput(
            "args", given, "ids of functions; what is no function's result goes into extra_args"
        ) from None


def _listed(name: str, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, list | tuple):
        raise InvalidInput(name, given, "a list")
    return tuple(given)


def _read_node(given: Any) -> str | Collocated | None:
    if given is None or isinstance(given, Collocated):
        return given
    if isinstance(given, list | tuple) and len(given) == 2 and given[0] == "collocated":
        return Collocated(given[1])
    return check_node_name(given)


def read_functions(given: Any) -> list[Function]:
    """Read functions in the order given; a mapping of ids to costs in the order of its ids.

    The order of a mapping must not decide which function gets the last free core.
    """
    if isinstance(given, Mapping):
        ids = sorted(check_label(id, "function id") for id in given)
        return [Function(id, cost=given[id]) for id in ids]
    if isinstance(given, str | bytes | set | frozenset) or not isinstance(given, Iterable):
        raise InvalidInput("functions", given, "a list of functions, or a mapping of ids to costs")
    return [Function.read(function) for function in given]


class Group(NamedTuple):
    """Functions that go to one node: the leader, then those collocated with it."""

    functions: tuple[Function, ...]
    node: NodeName | None  # the node to which the leader is pinned

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(function.id for function in self.functions)


def grouped(functions: Sequence[Function]) -> list[Group]:
    """Group the functions that must go together, in the order of their leaders."""
    known: dict[str, Function] = {}
    for function in functions:
        if function.id in known:
            raise DuplicateFunction(function.id)
        known[function.id] = function
    leaders: dict[str, str] = {}
    groups: dict[str, list[Function]] = {
        function.id: [function]
        for function in functions
        if not isinstance(function.node, Collocated)
    }
    for function in functions:
        leader = _find_leader(function, known, leaders)
        if leader != function.id:
            groups[leader].append(function)
    return [
        Group(
            tuple(members),
            NodeName(node) if isinstance(node := known[leader].node, str) else None,
        )
        for leader, members in groups.items()
    ]


def _find_leader(function: Function, known: Mapping[str, Function], leaders: dict[str, str]) -> str:
    """Return the id at the end of the chain of collocations. `leaders` caches earlier results."""
    path: list[str] = []
    passed: set[str] = set()
    while function.id not in leaders and isinstance(function.node, Collocated):
        if function.id in passed:
            raise CircularCollocation(path[path.index(function.id) :])
        path.append(function.id)
        passed.add(function.id)
        wanted = function.node.id
        if wanted not in known:
            raise UnknownFunction(wanted, function.id, nearest_name(wanted, known))
        function = known[wanted]
    leader = leaders.get(function.id, function.id)
    leaders.update(dict.fromkeys(path, leader))
    return leader
