"""Find slots that wait for each other forever.

A function keeps what its slot holds while it waits for calls that it has made. Four functions with
a core each, on four cores, that each call one that needs two cores: none of these calls can ever
start. The controller knows which slots wait for which, and refuses such a call; what its caller
holds is then for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gridhand.core.model.names import AllocationId, JobId, NodeName
from gridhand.core.model.requests import Request

SURE_S = 3.0  # how long a slot must have waited without a change before it counts as waiting

NO_NODE_HAS_BOTH = "no node has both"
ALL_WAIT = "all who could make room for it wait likewise"

Amounts = Mapping[str, int]


class WaitingSlot(NamedTuple):
    """A slot whose function is blocked until calls that it has made end."""

    id: AllocationId
    since: float
    node: NodeName
    held: Amounts
    queued: Mapping[JobId, Request]  # by job: the slots it waits for that have no room yet
    running: frozenset[AllocationId] = frozenset()  # allocations of the slots that run calls for it


def fits_beside(
    request: Request, totals: Mapping[NodeName, Amounts], slots: list[WaitingSlot]
) -> bool:
    """Return whether some node would have room if nothing but these slots held anything."""
    for choice in request.choices():
        asked = choice.resources.parts()
        for node, total in totals.items():
            held = [slot.held for slot in slots if slot.node == node]
            if choice.node in (None, node) and all(
                total.get(name, 0) - sum(one.get(name, 0) for one in held) >= amount
                for name, amount in asked.items()
            ):
                return True
    return False


def stuck_slots(
    slots: Iterable[WaitingSlot], totals: Mapping[NodeName, Amounts]
) -> list[WaitingSlot]:
    """Return the slots that can never go on, in the order in which they began to wait.

    Whatever is not among `slots` ends some day, and so does a slot with a call that can start or
    that runs in such a slot. What they hold is then free for the rest; this is repeated until
    nothing more becomes free.
    """
    stuck = {slot.id: slot for slot in sorted(slots, key=lambda slot: (slot.since, slot.id))}
    while True:
        left = list(stuck.values())
        going = [slot for slot in left if _can_go_on(slot, stuck.keys(), totals, left)]
        if not going:
            return left
        for slot in going:
            del stuck[slot.id]


def _can_go_on(
    slot: WaitingSlot,
    stuck: Iterable[AllocationId],
    totals: Mapping[NodeName, Amounts],
    left: list[WaitingSlot],
) -> bool:
    if not (slot.queued or slot.running) or slot.running.difference(stuck):
        return True
    return any(fits_beside(request, totals, left) for request in slot.queued.values())


def refused_jobs(
    slot: WaitingSlot, waiting: Iterable[WaitingSlot], totals: Mapping[NodeName, Amounts]
) -> dict[JobId, str]:
    """Return which of the jobs that `slot` waits for can never start, each with the reason.

    Where slots wait for each other, the one that began last is refused: the others may then go on.
    """
    alone = [job for job, asked in slot.queued.items() if not fits_beside(asked, totals, [slot])]
    if alone:
        return dict.fromkeys(alone, NO_NODE_HAS_BOTH)
    stuck = [one for one in stuck_slots(waiting, totals) if one.queued]
    return dict.fromkeys(slot.queued, ALL_WAIT) if stuck and stuck[-1].id == slot.id else {}
