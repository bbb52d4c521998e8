"""Explains for a request where it fits, or what each node lacks and what would help.

This runs only when somebody asks; placement does not depend on it. It changes nothing, and the
answer keeps no reference to the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gridhand.core.explain.explanation import Explanation, NearMiss, NodeGroup
from gridhand.core.explain.holders import holders
from gridhand.core.explain.never_fits import never_because
from gridhand.core.explain.refusal import could_ever
from gridhand.core.explain.shortfalls import reasons_of
from gridhand.core.explain.suggestions import changes
from gridhand.core.explain.survey import MOST_NEAREST, Misses, Survey, survey
from gridhand.core.explain.tied_requests import why_not_there
from gridhand.core.ledger.ledger import Placement
from gridhand.core.model.nodes import Health
from gridhand.core.model.requests import Request, Tie
from gridhand.core.placement.place import place

if TYPE_CHECKING:
    from gridhand.core.ledger.node_usage import NodeUsage
    from gridhand.core.placement.snapshot import Snapshot
    from gridhand.core.placement.strategies import OwnStrategy

MOST_CHOICES = 8


def explain(
    asked: Request,
    snapshot: Snapshot,
    strategy: OwnStrategy | None = None,
    *,
    lower: Sequence[Request] = (),
) -> Explanation:
    """Return where `asked` would go now, or why it fits nowhere, and what would fit.

    `lower` is the same request at lower levels of quality, from a caller who knows how it was made.
    """
    placed = place(asked, snapshot.aside(), strategy)
    if isinstance(placed, Placement):
        return _fitting(asked, placed, snapshot)
    number, about, seen, misses = _nearest_choice(asked, snapshot)
    ever = could_ever(asked, snapshot)
    nearest = [miss.row for miss in misses.nearest]
    return Explanation(
        asked,
        about,
        number,
        None,
        (),
        len(snapshot.ledger.names),
        0,
        _groups(about, snapshot, seen, misses),
        tuple(
            NearMiss(
                snapshot.ledger.names[miss.row],
                tuple(reasons_of(about, snapshot, snapshot.use(miss.row))),
                miss.shortfall,
            )
            for miss in misses.nearest
        ),
        changes(about, snapshot, strategy, seen, lower),
        ever,
        () if ever else never_because(about, snapshot, seen.permitted()),
        *(holders(about, snapshot, nearest, seen.permitted()) if ever else ()),
    )


def _fitting(asked: Request, placed: Placement, snapshot: Snapshot) -> Explanation:
    number = next(n for n, one in enumerate(asked.choices()) if _alone(one) == _alone(placed.asked))
    about = _alone(placed.asked)
    seen = survey(about, snapshot)
    misses = seen.misses()
    return Explanation(
        asked,
        about,
        number,
        placed.node,
        tuple(hold.device for hold in placed.devices),
        len(snapshot.ledger.names),
        misses.fitting,
        _groups(about, snapshot, seen, misses),
    )


def _alone(choice: Request) -> Request:
    return replace(choice, alternatives=())


def _nearest_choice(asked: Request, snapshot: Snapshot) -> tuple[int, Request, Survey, Misses]:
    """Return the choice that comes closest to fitting, the first among equals.

    Of very many choices only the first and the last are examined: the last usually ask for least.
    """
    choices = [(number, _alone(one)) for number, one in enumerate(asked.choices())]
    if len(choices) > MOST_CHOICES:
        choices = [choices[0], *choices[1 - MOST_CHOICES :]]
    candidates = []
    for number, one in choices:
        seen = survey(one, snapshot)
        misses = seen.misses()
        near = misses.nearest[0][:2] if misses.nearest else (_FAR, 0.0)
        candidates.append((near, number, one, seen, misses))
    return min(candidates, key=lambda each: each[:2])[1:]


_FAR = 2**31


# ---- nodes with the same reasons


def _groups(
    about: Request, snapshot: Snapshot, seen: Survey, misses: Misses
) -> tuple[NodeGroup, ...]:
    names = snapshot.ledger.names
    found = [
        NodeGroup(
            "lacks",
            group.lacking,
            tuple(reasons_of(about, snapshot, snapshot.use(group.rows[0]))),
            group.count,
            tuple(names[row] for row in group.rows),
        )
        for group in misses.groups
    ]
    if misses.ungrouped:
        reason = "they lack other combinations of these resources"
        found.append(NodeGroup("lacks", (), (reason,), misses.ungrouped, ()))
    permitted = seen.permitted()
    return (*found, *_closed(snapshot, permitted), *_not_permitted(about, snapshot, permitted))


def _closed(snapshot: Snapshot, permitted: Sequence[int]) -> list[NodeGroup]:
    """Return the nodes that take no work, those that will do so again soonest first."""
    names, nodes = snapshot.ledger.names, snapshot.ledger.nodes
    closed: dict[str, list[str]] = {kind: [] for kind in _STATES}
    for row in permitted:
        use = nodes[names[row]]
        if not use.open:
            closed[_state(use)].append(use.node.name)
    return [
        NodeGroup(kind, (), (_STATES[kind],), len(found), tuple(found[:MOST_NEAREST]))
        for kind, found in closed.items()
        if found
    ]


_STATES = {
    "draining": "the node is draining",
    "suspect": "the node is suspect",
    "elsewhere": "the node is suspect: its machine is not connected to this controller",
    "leftovers": "the node is suspect: processes of jobs that were given up are still there",
    "overcommitted": "the node is overcommitted: more is allocated than it has",
    "down": "the node is down",
}


def _state(use: NodeUsage) -> str:
    if use.node.health is not Health.UP:
        return str(use.node.health)
    if use.elsewhere:
        return "elsewhere"
    if use.has_leftovers:
        return "leftovers"
    return "draining" if use.node.draining else "overcommitted"


def _not_permitted(
    about: Request, snapshot: Snapshot, permitted: Sequence[int]
) -> Iterator[NodeGroup]:
    names = snapshot.ledger.names
    if len(permitted) == len(names):
        return
    if about.node is not None:
        others = [name for name in names[: MOST_NEAREST + 1] if name != about.node]
        near = f", where {about.together_with} runs" if about.together_with is not None else ""
        if len(names) > 1:
            reason = f"the request is pinned to {about.node}{near}"
            yield NodeGroup(
                "not_pinned", (), (reason,), len(names) - 1, tuple(others[:MOST_NEAREST])
            )
    left = set(range(len(names))).difference(permitted)
    rows = sorted(left) if about.node is None else [row for row in left if names[row] == about.node]
    grouped: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        grouped.setdefault(tuple(_forbidden(about, snapshot.use(row))), []).append(names[row])
    for reasons, found in sorted(grouped.items(), key=lambda one: (len(one[0]), one[1])):
        kind = _KINDS.get(reasons[0], "labels")
        yield NodeGroup(kind, (), reasons, len(found), tuple(found[:MOST_NEAREST]))


_EXCLUDED = "the node is excluded"
_KINDS = {_EXCLUDED: "excluded", **{why_not_there(tie): "tied" for tie in Tie}}


def _forbidden(about: Request, use: NodeUsage) -> Iterable[str]:
    if use.node.name in about.exclude:
        return [_EXCLUDED]
    if about.tied_to is not None and use.node.remote:
        return [why_not_there(about.tied_to)]
    has = use.node.labels
    return [
        f"its label {key} is not {value}"
        for key, value in about.labels.items()
        if has.get(key) != value
    ]
