"""Graph: functions joined by their arguments, checked before any of them runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Any, Self

from gridhand.core.errors import (
    CircularDependency,
    DuplicateFunction,
    ImpossibleCollocation,
    InvalidInput,
    UnknownFunction,
)
from gridhand.core.graphplot import Drawing, draw, mermaid
from gridhand.core.graphs import Collocated, Function, grouped, read_functions
from gridhand.core.resources import nearest_name

_SHOWN = 10


class Graph:
    """Functions, each of which may take the results of others.

    >>> graph = Graph().add(Function("two", lambda: 2))
    >>> graph.add(Function("double", lambda x: x * 2, args=["two"])).order()
    ['two', 'double']
    """

    __slots__ = ("_functions",)

    def __init__(self, functions: Iterable[Function | Mapping[str, Any]] = ()) -> None:
        self._functions: dict[str, Function] = {}
        if isinstance(functions, Mapping):
            raise InvalidInput("functions", functions, "a list of functions")
        self.add(*read_functions(functions))

    def add(self, *functions: Function | Mapping[str, Any]) -> Self:
        """Add functions, also as mappings, and come back with the graph itself.

        What they refer to may be added later: only an id that is there already is refused.
        """
        read = [Function.read(one) for one in functions]
        new: dict[str, Function] = {}
        for one in read:
            if one.id in self._functions or one.id in new:
                raise DuplicateFunction(one.id)
            new[one.id] = one
        self._functions |= new
        return self

    @classmethod
    def read(cls, given: Graph | Iterable[Function | Mapping[str, Any]]) -> Graph:
        """A graph, or the functions of one."""
        return given if isinstance(given, Graph) else cls(given)

    # ---- looking

    @property
    def functions(self) -> Mapping[str, Function]:
        """By their ids, in the order they were added."""
        return MappingProxyType(self._functions)

    def __getitem__(self, id: str) -> Function:
        return self._functions[id]

    def __contains__(self, id: object) -> bool:
        return id in self._functions

    def __iter__(self) -> Iterator[Function]:
        return iter(self._functions.values())

    def __len__(self) -> int:
        return len(self._functions)

    def order(self) -> list[str]:
        """The ids, each after those whose results it takes; otherwise as they were added."""
        self._check_args()
        try:
            return list(self._sorter().static_order())
        except CycleError as cycle:
            raise self._circle(cycle) from None

    def _sorter(self) -> TopologicalSorter[str]:
        sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(self._functions, ()))
        for one in self:
            sorter.add(one.id, *one.args)
        return sorter

    def _circle(self, cycle: CycleError) -> CircularDependency:
        """The circle, beginning with the one of it that was added first."""
        ids: list[str] = cycle.args[1][:-1]
        places = {id: place for place, id in enumerate(self._functions)}
        first = ids.index(min(ids, key=lambda id: places[id]))
        return CircularDependency([*ids[first:], *ids[:first]])

    # ---- checking

    def validate(self) -> Self:
        """The graph, if it can be run; else an error that names what is wrong with it."""
        self.order()
        grouped(list(self))
        for one in self:
            self._check_collocation(one)
            if one.type != "input" and one.code is None:
                raise InvalidInput("code", None, "something to call").about(f"function {one.id}")
        return self

    def _check_args(self) -> None:
        for one in self:
            for id in one.args:
                if id not in self._functions:
                    raise UnknownFunction(id, one.id, nearest_name(id, self._functions))

    def _check_collocation(self, one: Function) -> None:
        if not isinstance(one.node, Collocated):
            return
        other = self._functions[one.node.id]
        if other.type != "regular":
            raise ImpossibleCollocation(
                [one.id, other.id], f"{other.id} is {other.type}, and goes to no node itself"
            )

    # ---- showing

    def mermaid(self) -> str:
        """The graph as a Mermaid diagram, for Markdown."""
        return mermaid(self._functions)

    def plot(self) -> Drawing:
        """The graph as an SVG drawing: a text, which notebooks show as a picture."""
        return draw(self._functions)

    def __repr__(self) -> str:
        shown = [f"{one.id}({', '.join(one.args)})" for one in list(self)[:_SHOWN]]
        more = [f"and {len(self) - _SHOWN} more"] if len(self) > _SHOWN else []
        functions = "1 function" if len(self) == 1 else f"{len(self)} functions"
        return f"<graph of {functions}{': ' if shown else ''}{', '.join([*shown, *more])}>"

    def _repr_svg_(self) -> str:
        return self.plot()

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x: auto">{self.plot()}</div>'
