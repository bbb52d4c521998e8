"""The problems that `grid status` and `grid doctor` show, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gridhand.core.errors import GridError
from gridhand.core.model.names import NodeName
from gridhand.engines.base import ProblemReport


def list_problems(
    of_nodes: Mapping[NodeName, Sequence[ProblemReport]],
    errors: Iterable[GridError],
    neighbours: Iterable[tuple[int, str]],
) -> list[dict[str, Any]]:
    """Return the problems of nodes, those of the controller, and other controllers beside it."""
    found = [
        {"node": node, **dict(problem)}
        for node, problems in of_nodes.items()
        for problem in problems
    ]
    found += [{"node": None, "message": str(error), "hint": error.hint} for error in errors]
    return found + [
        {
            "node": None,
            "message": f"another controller (pid {pid}, in {home}) promises the cores of this"
            " machine, too",
            "hint": "Use one of them: set GRIDHAND_HOME or GRIDHAND_ADDRESS to the same.",
        }
        for pid, home in neighbours
    ]
