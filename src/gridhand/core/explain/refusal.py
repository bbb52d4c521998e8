"""Refusals: why no node has room for a request.

The reasons are computed only when they are read, never to make a decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gridhand.core.errors import GridError, NeverFits, NoRoom, UnknownResource
from gridhand.core.explain.shortfalls import find_shortfalls, reasons_of
from gridhand.core.explain.survey import could_hold, survey
from gridhand.core.explain.tied_requests import how_to_permit, why_none_elsewhere
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.model.amount_text import request_text
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import KNOWN, nearest_name

if TYPE_CHECKING:
    from gridhand.core.placement.snapshot import Snapshot


class Refusal:
    """No permitted node has room now. A normal answer, not an error: it may have room later.

    The reasons are computed when they are read, from the ledger as it is then. `settled` computes
    them at once and drops the reference to the ledger, for use later or elsewhere.
    """

    def __init__(self, asked: Request, snapshot: Snapshot) -> None:
        self.asked = asked
        self._snapshot: Snapshot | None = snapshot
        self._known: _Known | None = None

    def settled(self) -> Refusal:
        if self._known is None and self._snapshot is not None:
            self._known = _settle(self.asked, self._snapshot)
            self._snapshot = None
        return self

    @classmethod
    def told(cls, asked: Request, facts: Mapping[str, Any]) -> Refusal:
        """Restore a refusal that was settled elsewhere from its `facts`."""
        refusal = cls.__new__(cls)
        refusal.asked, refusal._snapshot = asked, None
        refusal._known = _Known(**facts, unknown=None)
        return refusal

    def facts(self) -> dict[str, Any]:
        """Return what a settled refusal remembers, as plain data."""
        known = self.settled()._known
        assert known is not None
        return {name: value for name, value in known._asdict().items() if name != "unknown"}

    def lacking(self) -> tuple[str, ...]:
        """Return the resources that some permitted nodes lack, the fewest that a node does.

        Only a few nodes are looked at, so that this can be asked at every refusal. None if that is
        not known any more.
        """
        snapshot = self._snapshot
        if snapshot is None:
            return ()
        rows = snapshot.rows(self.asked)
        some = rows[:: len(rows) // _SAMPLED + 1]
        found = (
            tuple(one.resource for one in find_shortfalls(self.asked, use, snapshot))
            for use in map(snapshot.use, some)
            if use.open and could_hold(self.asked, use.node)
        )
        return min(filter(None, found), key=len, default=())

    def reasons(self) -> dict[str, list[str]]:
        """Return all reasons against each permitted node, CPU first, then memory.

        In a large cluster only the first nodes are listed; `unnamed` counts the others.
        """
        return self._told()[0]

    @property
    def unnamed(self) -> int:
        return self._told()[1]

    @property
    def ever(self) -> bool:
        """Whether some permitted node could hold it if it were empty."""
        if self._known is not None:
            return self._known.ever
        return could_ever(self.asked, self._seen())

    def _told(self) -> tuple[dict[str, list[str]], int]:
        if self._known is not None:
            return self._known.reasons, self._known.unnamed
        return _told(self.asked, self._seen())

    def _seen(self) -> Snapshot:
        assert self._snapshot is not None
        return self._snapshot

    def sentence(self) -> str:
        reasons, unnamed = self._told()
        wanted = f"no room for {request_text(self.asked.resources)}"
        if not reasons:
            return (
                f"{wanted}: {'no node is permitted' if self._any_nodes else 'there are no nodes'}"
            )
        shown = [f"{name}: {found[0]}" for name, found in list(reasons.items())[:_SHOWN]]
        more = unnamed + max(0, len(reasons) - _SHOWN)
        return f"{wanted}: {'; '.join(shown)}{f'; and {more} more nodes' if more else ''}"

    @property
    def _any_nodes(self) -> bool:
        known = self._known
        return known.any_nodes if known is not None else bool(self._seen().ledger.names)

    def hint(self) -> str:
        """Return what to do next, with the smallest change of an amount that would fit now."""
        if not self._any_nodes:
            return "Register a node first."
        known = self._known or _settle(self.asked, self._seen())
        if not known.ever:
            permit = how_to_permit(self.asked) if known.left_out else ""
            other = f", {permit}" if permit else ""
            why = known.never or "no node is large enough"
            ask = f"Ask for less{other}, or register a larger node."
            return f"Waiting will not help: {why}. {ask}{self._elsewhere(known)}"
        less = known.less
        ask = f"ask for {less}" if less else "ask for less"
        permit = how_to_permit(self.asked) if known.left_out else ""
        if permit:  # only where the request itself rules out nodes
            ask += f", {permit}"
        again = "try again when a node has room or is up again."
        return f"A{ask[1:]}, or {again}{self._elsewhere(known)}"

    def _elsewhere(self, known: _Known) -> str:
        """Return a sentence about nodes that cannot be permitted, if there are any."""
        return f" {why_none_elsewhere(self.asked)}".rstrip() if known.left_out else ""

    def error(self) -> GridError:
        """Return the refusal as an error, with its reasons as of now."""
        known = self.settled()._known
        assert known is not None
        if known.unknown is not None:
            return known.unknown
        return NoRoom(self) if known.ever else NeverFits(self)


class _Known(NamedTuple):
    """The reasons that a settled refusal keeps."""

    reasons: dict[str, list[str]]
    unnamed: int
    any_nodes: bool
    ever: bool
    less: str  # the smallest change of an amount that would fit, or empty
    unknown: UnknownResource | None
    left_out: bool = False  # whether the request itself rules out nodes
    never: str = ""  # what no node has, if it can never fit


def _settle(asked: Request, snapshot: Snapshot) -> _Known:
    ever = could_ever(asked, snapshot)
    return _Known(
        *_told(asked, snapshot),
        bool(snapshot.ledger.names),
        ever,
        _less(asked, snapshot) if ever else "",
        unknown_resource(asked, snapshot.ledger),
        _left_out(asked, snapshot),
        "" if ever else _never(asked, snapshot),
    )


def _never(asked: Request, snapshot: Snapshot) -> str:
    from gridhand.core.explain.never_fits import (
        never_because,  # which imports this
    )

    return "; ".join(never_because(asked, snapshot, survey(asked, snapshot).permitted()))


def _left_out(asked: Request, snapshot: Snapshot) -> bool:
    return len(survey(asked, snapshot).permitted()) < len(snapshot.ledger.names)


def _told(asked: Request, snapshot: Snapshot) -> tuple[dict[str, list[str]], int]:
    rows = survey(asked, snapshot).permitted()
    reasons: dict[str, list[str]] = {
        snapshot.ledger.names[row]: reasons_of(asked, snapshot, snapshot.use(row))
        or [_NOT_TOGETHER]
        for row in rows[:_TOLD]
    }
    return reasons, max(0, len(rows) - _TOLD)


def could_ever(asked: Request, snapshot: Snapshot) -> bool:
    """Return whether a permitted node could hold one of the choices if all were empty.

    What the request must stay apart from may end, so the nodes where that runs count as permitted.
    """
    choices = [
        replace(choice, exclude=frozenset()) if choice.apart_from else choice
        for choice in asked.choices()
    ]
    return any(survey(choice, snapshot).could_hold() for choice in choices)


def _less(asked: Request, snapshot: Snapshot) -> str:
    """Return the smallest change of one amount that fits now, where that is cheap to find."""
    from gridhand.core.explain.suggestions import (
        least_change,
    )  # which imports place, and place imports this

    if (
        asked.alternatives or asked.quality is not None
    ):  # the amounts are scaled, not as the user wrote them
        return ""
    return least_change(asked, snapshot, survey(asked, snapshot))


# For a gang on one node whose requests cannot all be placed there.
_NOT_TOGETHER = "there is room for some of its requests, but not for all of them together"
_TOLD = 100
_SAMPLED = 16
_SHOWN = 5


def unknown_resource(asked: Request, ledger: Ledger) -> UnknownResource | None:
    """Return the error for a resource that no node has, with the name probably meant."""
    names = {name for choice in asked.choices() for name in choice.amounts if name not in KNOWN}
    names -= {name for use in ledger.nodes.values() for name in use.total} if names else set()
    if not names or not ledger.names:
        return None
    there = {name for use in ledger.nodes.values() for name in use.total}
    if any(use.devices for use in ledger.nodes.values()):
        there |= {"gpu", "gpu_memory"}
    name = min(names)
    return UnknownResource(name, nearest_name(name, {*KNOWN, *there}), sorted(there))
