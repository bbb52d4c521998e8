"""Function: one piece of work, what it costs, and where it must go.

A function may be told to go where another goes. Such functions are one thing to whoever seeks a
node for them: `grouped` follows the chains, and refuses those that lead nowhere.
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
from gridhand.core.names import check_label, check_node_name
from gridhand.core.requests import Request
from gridhand.core.resources import Resources, nearest_name

_set = object.__setattr__


@dataclass(frozen=True, slots=True)
class Collocated:
    """As the node of a function: wherever the function of that id goes."""

    id: str

    def __post_init__(self) -> None:
        check_label(self.id, "collocated")


@dataclass(frozen=True, slots=True)
class Function:
    """One piece of work. A cost of nothing is allowed: it then runs wherever it is put.

    `args` are the ids of functions whose results it takes, `extra_args` come after those. With
    `argument_inclusion="as_list"` the results come as one list. The node is a name,
    `Collocated("other")` (or `("collocated", "other")`), or None for any. Its own `max_retries`
    beat those of the run.

    An `inline` function is evaluated with each that uses it, as a part of that one; an `input` is
    a value that is given when the graph is run. The last four fields are for streams.

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
            _set(self, "args", tuple(_read_arg(one) for one in _listed("args", self.args)))
            _set(self, "extra_args", _listed("extra_args", self.extra_args))
            _set(self, "cost", dict(self.cost) if isinstance(self.cost, Mapping) else self.cost)
            _set(self, "node", _read_node(self.node))
            self.asked()
            _check_fields(self)
            _check_type(self)
        except InvalidInput as fault:
            raise fault.about(f"function {self.id}") from None

    @classmethod
    def read(cls, given: Function | Mapping[str, Any]) -> Function:
        """A function, or one as a mapping: `{"id": "f1", "cost": {"cpu": 1}}`."""
        if isinstance(given, Function):
            return given
        if not isinstance(given, Mapping):
            raise InvalidInput("functions", given, "functions, or mappings with an id and a cost")
        known = [one.name for one in fields(cls)]
        for name in given:
            if name not in known:
                raise InvalidInput("functions", name, f"any of {', '.join(known)}")
        if "id" not in given:
            raise InvalidInput("functions", dict(given), "each of them an id")
        return cls(**given)

    def asked(self) -> Request:
        """What it costs, as a request that may go anywhere."""
        cost = self.cost
        if isinstance(cost, Request):
            if cost.node or cost.prefer or cost.exclude or cost.labels or cost.alternatives:
                raise InvalidRequest("cost", cost.resources, "amounts alone; node says where")
        elif _is_nothing(cost):
            return Request(Resources())
        return Request.of(cost)


def _is_nothing(cost: Any) -> bool:
    """Whether the cost can be read and comes to nothing, which a request may not."""
    try:
        return not Resources.of(cost)
    except InvalidInput:
        return False


_TYPES = {
    # what the others have, and these have not
    "regular": (),
    "inline": ("cost", "node", "max_retries", "init", "batch_size", "batch_timeout"),
    "input": (
        "code", "args", "extra_args", "cost", "node", "max_retries", "init", "batch_size",
        "batch_timeout",
    ),
}  # fmt: skip
_LISTS = ("args", "extra_args", "cost")  # of which an empty one is none
_INCLUSIONS = ("variadic", "as_list")
MOST_RETRIES = 1000
_LONGEST_BATCH_S = 86_400


def _check_fields(one: Function) -> None:
    for name, given, allowed in (
        ("type", one.type, tuple(_TYPES)),
        ("argument_inclusion", one.argument_inclusion, _INCLUSIONS),
    ):
        if given not in allowed:
            raise InvalidInput(name, given, " or ".join(allowed))
    for name, code in (("code", one.code), ("init", one.init)):
        if code is not None and not callable(code):
            raise InvalidInput(name, code, "something that can be called")
    if one.max_retries is not None:
        check_count("max_retries", one.max_retries, 0, MOST_RETRIES)
    if one.batch_size is not None:
        check_count("batch_size", one.batch_size, 1, 1_000_000)
    check_count("parallelism", one.parallelism, 1, 1000)
    wait = one.batch_timeout
    if wait is not None and (type(wait) not in (int, float) or not 0 <= wait <= _LONGEST_BATCH_S):
        raise InvalidInput("batch_timeout", wait, f"seconds from 0 to {_LONGEST_BATCH_S}")


def _check_type(one: Function) -> None:
    for name in _TYPES[one.type]:
        given = one.asked().resources if name == "cost" else getattr(one, name)
        if given is not None and (name not in _LISTS or given):
            of_whom = "those that use it" if one.type == "inline" else "functions with code"
            raise InvalidInput(name, given, f"it to {of_whom}: this function is {one.type}")


def check_count(name: str, given: Any, least: int, most: int) -> int:
    """A whole number within bounds."""
    if type(given) is not int or not least <= given <= most:
        raise InvalidInput(name, given, f"a whole number from {least} to {most}")
    return given


def _read_arg(given: Any) -> str:
    """The id of a function; the function itself will do."""
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
    """The functions in the order given; of a mapping of ids to costs, in the order of the ids.

    The order of a mapping says nothing, and must not decide who gets the last free core.
    """
    if isinstance(given, Mapping):
        ids = sorted(check_label(id, "function id") for id in given)
        return [Function(id, cost=given[id]) for id in ids]
    if isinstance(given, str | bytes | set | frozenset) or not isinstance(given, Iterable):
        raise InvalidInput("functions", given, "a list of functions, or a mapping of ids to costs")
    return [Function.read(one) for one in given]


class Group(NamedTuple):
    """Functions that go to one node: the one that the others follow, then those."""

    functions: tuple[Function, ...]
    node: str | None  # where the first of them is pinned

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(one.id for one in self.functions)


def grouped(functions: Sequence[Function]) -> list[Group]:
    """The functions by where they must go together, in the order of those that are followed."""
    known: dict[str, Function] = {}
    for one in functions:
        if one.id in known:
            raise DuplicateFunction(one.id)
        known[one.id] = one
    leaders: dict[str, str] = {}
    members: dict[str, list[Function]] = {
        one.id: [one] for one in functions if not isinstance(one.node, Collocated)
    }
    for one in functions:
        leader = _leader(one, known, leaders)
        if leader != one.id:
            members[leader].append(one)
    return [
        Group(tuple(those), node if isinstance(node := known[leader].node, str) else None)
        for leader, those in members.items()
    ]


def _leader(one: Function, known: Mapping[str, Function], leaders: dict[str, str]) -> str:
    """The id of the function at the end of the chain. `leaders` keeps what was found before."""
    path: list[str] = []
    passed: set[str] = set()
    while one.id not in leaders and isinstance(one.node, Collocated):
        if one.id in passed:
            raise CircularCollocation(path[path.index(one.id) :])
        path.append(one.id)
        passed.add(one.id)
        wanted = one.node.id
        if wanted not in known:
            raise UnknownFunction(wanted, one.id, nearest_name(wanted, known))
        one = known[wanted]
    leader = leaders.get(one.id, one.id)
    leaders.update(dict.fromkeys(path, leader))
    return leader
