"""Explanation: the answer to `explain`, as data and in words."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from gridhand.core.changes import Change
from gridhand.core.requests import Request

_SHOWN_GROUPS = 8
_SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes against which the same speaks.

    `kind` is `lacks` where they take work but are short of what `lacking` names; otherwise why
    they take none: `draining`, `suspect`, `overcommitted`, `down`, or why they may not have it:
    `not_pinned`, `excluded`, `labels`. `reasons` are those of the first of `nodes`, the nearest.
    """

    kind: str
    lacking: tuple[str, ...]
    reasons: tuple[str, ...]
    count: int
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        few = self.nodes[:_SHOWN_NAMES]
        more = ["…"] if self.count > len(few) else []
        which = few[0] if self.count == 1 and few else f"{self.count} nodes"
        if self.count > 1 and few:
            which += f" ({', '.join([*few, *more])})"
        at_best = ", at best" if self.lacking and self.count > 1 else ""
        return f"{which}{at_best}: {'; '.join(self.reasons)}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "lacking": list(self.lacking),
            "reasons": list(self.reasons),
            "count": self.count,
            "nodes": list(self.nodes),
        }


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A node that comes near, and all that speaks against it."""

    node: str
    reasons: tuple[str, ...]
    shortfall: float  # what is missing as a part of what is asked, all that is short added up

    def __str__(self) -> str:
        return f"{self.node}: {'; '.join(self.reasons)}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "reasons": list(self.reasons),
            "shortfall": round(self.shortfall, 6),
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a request would go now, or why nowhere, and what would help.

    `about` is the one of the request and its alternatives that all else is about: the one that
    fits, or the one that comes nearest; `alternative` is its number, 0 for the request itself.
    `fitting` counts the nodes on which it fits, `nodes` all there are; `groups` has the others.
    """

    asked: Request
    about: Request
    alternative: int
    node: str | None
    gpus: tuple[str, ...]
    nodes: int
    fitting: int
    groups: tuple[NodeGroup, ...] = ()
    nearest: tuple[NearMiss, ...] = ()
    changes: tuple[Change, ...] = ()
    ever: bool = True
    never_because: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.node is not None

    @property
    def quality(self) -> str | None:
        """The quality level of `about`."""
        return self.about.quality

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, ready for JSON. The names stay."""
        return {
            "asked": str(self.asked.resources),
            "about": str(self.about.resources),
            "alternative": self.alternative,
            "quality": self.quality,
            "fits": self.fits,
            "node": self.node,
            "gpus": list(self.gpus),
            "nodes": self.nodes,
            "fitting": self.fitting,
            "groups": [group.to_dict() for group in self.groups],
            "nearest": [miss.to_dict() for miss in self.nearest],
            "changes": [change.to_dict() for change in self.changes],
            "ever": self.ever,
            "never_because": list(self.never_because),
        }

    def verdict(self) -> str:
        """The answer in one line."""
        asked = f"{self.asked.resources}{self._which()}"
        if self.fits:
            devices = f" (devices {', '.join(self.gpus)})" if self.gpus else ""
            return f"{asked} fits now on {self.node}{devices}"
        if not self.nodes:
            return f"{asked} fits nowhere: there are no nodes"
        if not self.ever:
            return f"{asked} can never fit: {'; '.join(self.never_because)}"
        return f"{asked} does not fit now; it could when nodes have room or are up again"

    def _which(self) -> str:
        """Which of several choices it is about, if it is not the first."""
        if not self.alternative:
            return f" at quality {self.quality}" if self.quality else ""
        way = "as" if self.fits else "the nearest of its alternatives is"
        level = f" at quality {self.quality}" if self.quality else ""
        return f" ({way} {self.about.resources}{level})"

    def __str__(self) -> str:
        lines = [self.verdict()]
        if not self.fits:
            lines += _listed("what would fit now:", list(map(str, self.changes)))
            if any(group.lacking and group.count > 1 for group in self.groups):
                lines += _listed("nearest:", list(map(str, self.nearest)))
            shown = list(map(str, self.groups[:_SHOWN_GROUPS]))
            left = self.groups[_SHOWN_GROUPS:]
            if left:
                others = sum(group.count for group in left)
                shown.append(f"and {others} nodes in {len(left)} more groups")
            lines += _listed(f"why not on the {self.nodes} nodes:", shown)
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Explanation: {self.verdict()}>"

    def _repr_html_(self) -> str:
        rows = [
            (str(group.count), ", ".join(group.nodes[:_SHOWN_NAMES]), "; ".join(group.reasons))
            for group in self.groups[:_SHOWN_GROUPS]
        ]
        cells = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
        )
        head = "<tr><th>nodes</th><th>such as</th><th>why not</th></tr>"
        table = f"<table>{head}{cells}</table>" if rows else ""
        items = "".join(f"<li>{escape(str(change))}</li>" for change in self.changes)
        changes = f"<ul>{items}</ul>" if items else ""
        return f"<p>{escape(self.verdict())}</p>{changes}{table}"


def _listed(title: str, lines: list[str]) -> list[str]:
    return [title, *(f"  {line}" for line in lines)] if lines else []
