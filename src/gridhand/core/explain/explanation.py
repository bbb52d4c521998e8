"""The answer to `explain`, as data and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from html import escape
from itertools import zip_longest
from typing import Any

from gridhand.core.explain.suggestions import Suggestion
from gridhand.core.html import table
from gridhand.core.model.amount_text import request_text
from gridhand.core.model.durations import duration_text
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources

_SHOWN_GROUPS = 8
_SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that cannot take the request for the same reason.

    `kind` is `lacks` if they lack the resources in `lacking`; if they take no work, it says why:
    `draining`, `suspect`, `overcommitted` or `down`; if the request may not go there, it is
    `not_pinned`, `excluded`, `tied` or `labels`. `reasons` are those of the first of
    `nodes`, the nearest.
    """

    kind: str
    lacking: tuple[str, ...]
    reasons: tuple[str, ...]
    count: int
    nodes: tuple[str, ...]

    def which(self) -> str:
        """Return the names of the first nodes, and how many there are."""
        few = self.nodes[:_SHOWN_NAMES]
        more = ["…"] if self.count > len(few) else []
        if self.count == 1 and few:
            return few[0]
        return f"{self.count} nodes" + (f" ({', '.join([*few, *more])})" if few else "")

    def __str__(self) -> str:
        at_best = ", at best" if self.lacking and self.count > 1 else ""
        return f"{self.which()}{at_best}: {'; '.join(self.reasons)}"

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
    """A node that comes close, and all reasons why it cannot take the request."""

    node: str
    reasons: tuple[str, ...]
    shortfall: float  # the missing parts of the requested amounts, added up

    def __str__(self) -> str:
        return f"{self.node}: {'; '.join(self.reasons)}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "reasons": list(self.reasons),
            "shortfall": round(self.shortfall, 6),
        }


@dataclass(frozen=True, slots=True)
class Holding:
    """A job, tasks of an array, or a reservation that holds what is missing on a node.

    `job` is its id, or those of `count` tasks as in `17_[4-10]`; None for a reservation.
    """

    node: str
    owner: str
    holder: str
    job: str | None
    name: str | None
    amounts: Resources
    count: int = 1

    def __str__(self) -> str:
        who = self.holder if self.job is None else f"job {self.job}"
        name = f" ({self.name})" if self.name else ""
        return f"{self.node}: {who}{name} of {self.owner}: {request_text(self.amounts)}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "owner": self.owner,
            "holder": self.holder,
            "job": self.job,
            "name": self.name,
            "amounts": str(self.amounts),
            "count": self.count,
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a request would go now, or why it fits nowhere, and what would help.

    `about` is the request or the alternative that is explained: the one that fits, or the one that
    comes closest. `alternative` is its number, 0 for the request itself. `fitting` counts the nodes
    where it fits, `nodes` counts all; `groups` has those where it does not fit. `holders` hold what
    is missing on nodes that are large enough; `more_holders` counts those that are not listed. A
    job that asks for this should start on `starts_on` in `starts_in_ms`, if that is known.
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
    changes: tuple[Suggestion, ...] = ()
    ever: bool = True
    never_because: tuple[str, ...] = ()
    holders: tuple[Holding, ...] = ()
    more_holders: int = 0
    starts_in_ms: int | None = None
    starts_on: str | None = None

    def __setstate__(self, state: Sequence[object]) -> None:
        """Restore an explanation, also one of an earlier version, which had fewer fields."""
        for field, value in zip_longest(fields(self), state):
            object.__setattr__(self, field.name, value)

    @property
    def fits(self) -> bool:
        return self.node is not None

    @property
    def quality(self) -> str | None:
        """The quality level of `about`."""
        return self.about.quality

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON. The field names are stable."""
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
            "holders": [one.to_dict() for one in self.holders],
            "more_holders": self.more_holders,
            "starts_in_s": None if self.starts_in_ms is None else self.starts_in_ms / 1000,
            "starts_on": self.starts_on,
        }

    def verdict(self) -> str:
        """Return the answer in one line."""
        asked = f"{request_text(self.asked.resources)}{self._which()}"
        if self.fits:
            devices = f" (devices {', '.join(self.gpus)})" if self.gpus else ""
            return f"{asked} fits now on {self.node}{devices}"
        if not self.nodes:
            return f"{asked} fits nowhere: there are no nodes"
        if not self.ever:
            return f"{asked} can never fit: {'; '.join(self.never_because)}"
        return f"{asked} does not fit now; it may fit when nodes have room or are up again"

    def _which(self) -> str:
        """Return which of several choices is explained, if it is not the first."""
        if not self.alternative:
            return f" at quality {self.quality}" if self.quality else ""
        way = "as" if self.fits else "the closest alternative is"
        level = f" at quality {self.quality}" if self.quality else ""
        return f" ({way} {request_text(self.about.resources)}{level})"

    def __str__(self) -> str:
        if self.fits:
            return self.verdict()
        several = any(group.lacking and group.count > 1 for group in self.groups)
        where = f"the {self.nodes} nodes" if self.nodes > 1 else "the only node"
        lines = [
            self.verdict(),
            *self._start(),
            *_listed("what would fit now:", list(map(str, self.changes))),
            *_listed("nearest:", list(map(str, self.nearest)) if several else []),
            *_listed(f"why not on {where}:", self._by_group(brief=several)),
            *_listed("held by:", self._by_holder()),
        ]
        return "\n".join(lines)

    def _start(self) -> list[str]:
        if self.starts_in_ms is None:
            return []
        return [f"a job would start in {duration_text(self.starts_in_ms)} on {self.starts_on}"]

    def _by_group(self, *, brief: bool) -> list[str]:
        """Return a line for each group; `brief` where the nearest nodes are already listed."""
        shown = [
            f"{group.which()}: short of {', '.join(group.lacking)}"
            if brief and group.lacking
            else str(group)
            for group in self.groups[:_SHOWN_GROUPS]
        ]
        if left := self.groups[_SHOWN_GROUPS:]:
            others = sum(group.count for group in left)
            shown.append(f"and {others} nodes in {len(left)} more groups")
        return shown

    def _by_holder(self) -> list[str]:
        more = [f"and {self.more_holders} more"] if self.more_holders else []
        return [*map(str, self.holders), *more]

    def __repr__(self) -> str:
        return f"<Explanation: {self.verdict()}>"

    def _repr_html_(self) -> str:
        rows = [
            (str(group.count), ", ".join(group.nodes[:_SHOWN_NAMES]), "; ".join(group.reasons))
            for group in self.groups[:_SHOWN_GROUPS]
        ]
        items = "".join(f"<li>{escape(str(change))}</li>" for change in self.changes)
        changes = f"<ul>{items}</ul>" if items else ""
        why = table(("nodes", "such as", "why not"), rows)
        return f"<p>{escape(self.verdict())}</p>{changes}{why}"


def _listed(title: str, lines: list[str]) -> list[str]:
    return [title, *(f"  {line}" for line in lines)] if lines else []
