"""The result of a graph run: the values, and where each function ran."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gridhand.core.html import table

if TYPE_CHECKING:
    from gridhand.core.model.resources import Resources

_SHOWN = 10
_ROWS = 100
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


@dataclass(frozen=True, slots=True)
class Used:
    """Where a function ran and what it held there; a function without a cost holds nothing."""

    node: str | None
    id: str | None
    resources: Resources

    def __str__(self) -> str:
        return f"{self.resources} of {self.node or 'no node'}"


@dataclass(frozen=True, slots=True, repr=False)
class GraphResult:
    """The values of a run by function id, in the order of the graph.

    Inline functions and inputs have no value, nor do functions left out by `keep`.

    >>> GraphResult("r1", {"a": 1}, {}, {"a": 1}, 0.5)["a"]
    1
    """

    run_id: str
    results: Mapping[str, Any]
    allocations: Mapping[str, Used]
    attempts: Mapping[str, int]
    seconds: float

    def __getitem__(self, id: str) -> Any:
        return self.results[id]

    def __repr__(self) -> str:
        shown = [f"{id}={_shown(self.results[id])}" for id in list(self.results)[:_SHOWN]]
        more = len(self.results) - len(shown)
        values = ", ".join([*shown, *([f"and {more} more"] if more else [])])
        count = len(self.allocations)
        functions = "1 function" if count == 1 else f"{count} functions"
        return f"<run {self.run_id}: {functions} in {self.seconds:.2f} s{values and ': '}{values}>"

    def _repr_html_(self) -> str:
        rows = map(self._row, list(self.allocations)[:_ROWS])
        more = len(self.allocations) - _ROWS
        after = f"<p>and {more} more functions</p>" if more > 0 else ""
        title = f"run {self.run_id}: {len(self.allocations)} functions in {self.seconds:.2f} s"
        return table(("function", "value", *_COLUMNS), rows, title) + after

    def _row(self, id: str) -> list[object]:
        used = self.allocations[id]
        value = _shown(self.results[id]) if id in self.results else "not kept"
        held = used.resources if used.id else "nothing"
        return [id, value, used.node or "any", held, self.attempts[id]]


_COLUMNS = ("node", "held", "attempts")


def _shown(value: Any) -> str:
    """Return a short repr of `value`, even if its own repr raises."""
    try:
        return " ".join(_short.repr(value).split())
    except Exception:
        return f"a {type(value).__name__}"
