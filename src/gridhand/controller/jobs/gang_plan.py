"""Dry runs of gangs: on which nodes the members would start now, or what they would wait for."""

from __future__ import annotations

from typing import Any

from gridhand.controller.keeper.gang_starts import place_gang
from gridhand.controller.keeper.ledger_commands import Context, resolve_neighbours
from gridhand.core.explain.refusal import Refusal
from gridhand.core.jobs.job import JobSpec
from gridhand.core.queue.ready import RANKS
from gridhand.core.queue.timeline import Caller, RoomClaim, why_kept


def plan_gang(work: JobSpec, waits: str, context: Context) -> dict[str, Any]:
    """Return whether the gang would start now and where; `waits` is for what it must wait anyway.

    Raise NeverFits if there are too few nodes for it.
    """
    asked = resolve_neighbours(work.request, work.owner, context.ledger)
    said_ms = work.expect_ms or work.time_limit_ms
    ends = None if said_ms is None else context.now + said_ms
    caller = Caller(None, RANKS[work.priority], ends)
    placed = place_gang([asked] * (work.nodes or 1), caller, context)
    if isinstance(placed, Refusal) and not placed.ever:
        raise placed.error()
    why: str | None = waits or None
    if isinstance(placed, Refusal):
        why = why or placed.sentence()
    elif isinstance(placed, RoomClaim):
        why = why or why_kept(placed, context.now)
    found = placed if isinstance(placed, list) and why is None else []
    return {
        "starts_in_s": 0 if why is None else None,
        "starts_on": found[0].node if found else None,
        "starts": why is None,
        "node": found[0].node if found else None,
        "nodes": [one.node for one in found],
        "gpus": [hold.device for one in found for hold in one.devices],
        "why": why,
        "holders": [],
    }
