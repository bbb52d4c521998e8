"""Graph: functions joined by their arguments, validated before any of them runs."""

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
from gridhand.core.graph.function import Collocated, Function, grouped, read_functions
from gridhand.core.graph.picture import Drawing, draw, mermaid
from gridhand.core.model.resources import nearest_name

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
        """Add functions, which may be mappings, and return the graph itself.

        Functions they refer to may be added later; only an id that exists already is refused.
        """
        new: dict[str, Function] = {}
        for function in [Function.read(each) for each in functions]:
            if function.id in self._functions or function.id in new:
                raise DuplicateFunction(function.id)
            new[function.id] = function
        self._functions |= new
        return self

    @classmethod
    def read(cls, given: Graph | Iterable[Function | Mapping[str, Any]]) -> Graph:
        """Return a graph, given a graph or its functions."""
        return given if isinstance(given, Graph) else cls(given)

    # ---- access

    @property
    def functions(self) -> Mapping[str, Function]:
        """The functions by id, in the order they were added."""
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
        """Return the ids, each after those whose results it takes, otherwise as they were added."""
        self._check_args()
        try:
            return list(self._sorter().static_order())
        except CycleError as cycle:
            raise self._cycle_error(cycle) from None

    def _sorter(self) -> TopologicalSorter[str]:
        sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(self._functions, ()))
        for function in self:
            sorter.add(function.id, *function.args)
        return sorter

    def _cycle_error(self, cycle: CycleError) -> CircularDependency:
        """Return the error for a cycle, starting with its function that was added first."""
        ids: list[str] = cycle.args[1][:-1]
        places = {id: place for place, id in enumerate(self._functions)}
        first = ids.index(min(ids, key=lambda id: places[id]))
        return CircularDependency([*ids[first:], *ids[:first]])

    # ---- validation

    def validate(self) -> Self:
        """Return the graph if it can be run, or raise an error that names what is wrong."""
        self.order()
        grouped(list(self))
        for function in self:
            self._check_collocation(function)
            if function.type != "input" and function.code is None:
                error = InvalidInput("code", None, "something to call")
                raise error.about(f"function {function.id}")
        return self

    def _check_args(self) -> None:
        for function in self:
            for id in function.args:
                if id not in self._functions:
                    raise UnknownFunction(id, function.id, nearest_name(id, self._functions))

    def _check_collocation(self, function: Function) -> None:
        if not isinstance(function.node, Collocated):
            return
        other = self._functions[function.node.id]
        if other.type != "regular":
            raise ImpossibleCollocation(
                [function.id, other.id], f"{other.id} is {other.type} and has no node of its own"
            )

    # ---- pictures

    def mermaid(self) -> str:
        """Return the graph as a Mermaid diagram, for Markdown."""
        return mermaid(self._functions)

    def plot(self) -> Drawing:
        """Return the graph as SVG text, which notebooks show as a picture."""
        return draw(self._functions)

    def __repr__(self) -> str:
        shown = [f"{each.id}({', '.join(each.args)})" for each in list(self)[:_SHOWN]]
        more = [f"and {len(self) - _SHOWN} more"] if len(self) > _SHOWN else []
        functions = "1 function" if len(self) == 1 else f"{len(self)} functions"
        return f"<graph of {functions}{': ' if shown else ''}{', '.join([*shown, *more])}>"

    def _repr_svg_(self) -> str:
        return self.plot()

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x: auto">{self.plot()}</div>'
