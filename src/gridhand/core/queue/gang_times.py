"""When a gang should find room: on as many nodes at the same time as it has members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gridhand.core.ledger.ledger import Ledger
from gridhand.core.model.names import NodeName
from gridhand.core.model.requests import Request

if TYPE_CHECKING:
    from gridhand.core.placement.snapshot import Snapshot
    from gridhand.core.queue.timeline import RoomClaim, Timeline


def earliest_together(
    timeline: Timeline, asked: Request, nodes: int, rank: int, snapshot: Snapshot, now: int
) -> tuple[int, list[NodeName], Request] | None:
    """Return the first time at which so many nodes should have room, and these nodes.

    All members use the same choice of the request.
    """
    ledger, best = snapshot.ledger, None
    for choice in asked.choices():
        starts: list[tuple[int, NodeName]] = []
        for use in timeline.candidates(choice, rank, ledger):
            free = snapshot.room(choice, use) is not None
            start = now if free else timeline.start_on(choice, use, ledger, now)
            if start is not None:
                starts.append((start, use.node.name))
        first = sorted(starts)[:nodes]
        if len(first) == nodes and (best is None or first[-1][0] < best[0]):
            best = first[-1][0], [name for _, name in first], choice
    return best


def sooner_together(
    timeline: Timeline, claims: Sequence[RoomClaim], ledger: Ledger, now: int
) -> int | None:
    """Return when all nodes of a gang's claims should have room, if that is sooner than claimed."""
    latest = now
    for claim in claims:
        use = ledger.nodes.get(claim.node)
        if use is None:
            return None
        if use.room(claim.asked, {}) is not None:
            continue
        start = timeline.start_on(claim.asked, use, ledger, now, claim.start)
        if start is None:
            return None
        latest = max(latest, start)
    return latest if latest < claims[0].start else None
