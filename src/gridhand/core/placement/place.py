"""Placement: which node and which devices a request gets, or why it gets none.

Nodes are filtered and ranked, then devices are picked. The answer depends on the arguments alone.
Rows are in the order of node names, and so are ties.
"""

from __future__ import annotations

from gridhand.core.explain.refusal import Refusal
from gridhand.core.ledger.ledger import Placement
from gridhand.core.model.names import NodeName
from gridhand.core.model.requests import Request
from gridhand.core.placement.features import Features, Number
from gridhand.core.placement.own_scores import own_scores
from gridhand.core.placement.snapshot import Snapshot, permits
from gridhand.core.placement.strategies import (
    NOWHERE,
    OwnStrategy,
    Strategy,
    best_fit,
    fragmentation,
    strategy_named,
)


def place(
    asked: Request, snapshot: Snapshot, strategy: OwnStrategy | None = None
) -> Placement | Refusal:
    """Choose a node for `asked` or for the first of its alternatives that fits.

    The strategy that the request names comes before `strategy`. The default, None, is
    `fragmentation` where there are GPUs, else `best_fit`.
    """
    if asked.strategy is not None:
        strategy = strategy_named(asked.strategy)
    placed = _place_one(asked, snapshot, strategy)
    if placed is not None:
        return placed
    for other in asked.alternatives:
        placed = _place_one(other, snapshot, strategy)
        if placed is not None:
            return placed._replace(whole=asked)
    return Refusal(asked, snapshot)


def ranked(asked: Request, snapshot: Snapshot, strategy: OwnStrategy | None) -> list[NodeName]:
    """Return the names of the nodes that `asked` itself fits, the best first."""
    names = snapshot.ledger.names
    if asked.node is not None:
        return [asked.node] if _place_pinned(asked, snapshot) is not None else []
    rows = _fitting(asked, snapshot)
    if asked.strategy is not None:
        strategy = strategy_named(asked.strategy)
    if strategy is None:
        strategy = fragmentation if snapshot.has_gpus else best_fit
    scores = own_scores(strategy, asked, snapshot, rows) if rows else ()
    preferred = [names[row] in asked.prefer for row in rows]
    order = sorted(zip(preferred, scores, rows, strict=True), key=lambda one: (not one[0], -one[1]))
    return [names[row] for _, _, row in order]


def count_fitting(asked: Request, snapshot: Snapshot) -> int:
    """Return how many nodes `asked` itself fits and may go to."""
    if asked.node is not None:
        return int(_place_pinned(asked, snapshot) is not None)
    return len(_fitting(asked, snapshot))


def _place_one(
    asked: Request, snapshot: Snapshot, strategy: OwnStrategy | None
) -> Placement | None:
    ledger = snapshot.ledger
    if asked.node is not None:
        return _place_pinned(asked, snapshot)
    if not ledger.names:
        return None
    if isinstance(strategy, Strategy):
        row = _choose(asked, snapshot, strategy)
    elif strategy is None:
        row = _choose(asked, snapshot, fragmentation if snapshot.has_gpus else best_fit)
    else:
        row = _choose_by(asked, snapshot, strategy)
    if row is None:
        return None
    name = ledger.names[row]
    devices = snapshot.room(asked, ledger.nodes[name])
    assert devices is not None, f"{asked.resources} should fit on {name}"
    return Placement(asked, name, devices)


def _place_pinned(asked: Request, snapshot: Snapshot) -> Placement | None:
    assert asked.node is not None
    use = snapshot.ledger.node(asked.node)  # raises if it is unknown
    if not permits(asked, use):
        return None
    devices = snapshot.room(asked, use)
    return None if devices is None else Placement(asked, asked.node, devices)


def _choose(asked: Request, snapshot: Snapshot, strategy: Strategy) -> int | None:
    scores = snapshot.scores(asked, strategy)
    if not asked.exclude and not asked.prefer:
        return strategy.choose(snapshot, scores)
    scores = scores.copy()
    for name in asked.exclude:
        row = snapshot.row(name)
        if row is not None:
            scores[row] = NOWHERE
    preferred = {row for name in asked.prefer if (row := snapshot.row(name)) is not None}
    best = [row for row in sorted(preferred) if scores[row] != NOWHERE]
    if best:
        only = [NOWHERE] * len(scores)
        for row in best:
            only[row] = float(scores[row])
        return strategy.choose(snapshot, only)
    return strategy.choose(snapshot, scores)


def _choose_by(asked: Request, snapshot: Snapshot, strategy: OwnStrategy) -> int | None:
    """Choose with the user's function, which is called only where there is a choice."""
    rows = _fitting(asked, snapshot)
    names = snapshot.ledger.names
    if asked.prefer:
        rows = [row for row in rows if names[row] in asked.prefer] or rows
    if len(rows) < 2:
        return rows[0] if rows else None
    scores = own_scores(strategy, asked, snapshot, rows)
    return max(zip(scores, (-row for row in rows), rows, strict=True))[2]


def _fitting(asked: Request, snapshot: Snapshot) -> list[int]:
    """Return the rows that `asked` fits and may go to."""
    names = snapshot.ledger.names
    scores = snapshot.scores(asked, _fits) if names else ()
    return [
        row
        for row, score in enumerate(scores)
        if score != NOWHERE and names[row] not in asked.exclude
    ]


@Strategy
def _fits(features: Features) -> Number:
    """Score all fitting nodes the same."""
    return 0.0 * features.gpus
