"""Start a gang: all of its members in one transaction, each on a node of its own, or none."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gridhand.controller.keeper.ledger_commands import Context, resolve_neighbours
from gridhand.core.errors import GridError
from gridhand.core.explain.gang_refusal import GangRefusal
from gridhand.core.explain.refusal import Refusal
from gridhand.core.jobs.gang import meeting_port, members_of
from gridhand.core.jobs.job import Job, JobState
from gridhand.core.ledger.ledger import Ledger, Placement
from gridhand.core.model.names import NodeName
from gridhand.core.model.requests import GangLayout, Request
from gridhand.core.placement.gangs import place_group
from gridhand.core.queue.delays import current_request, declared_ms
from gridhand.core.queue.timeline import Caller, RoomClaim, why_kept

if TYPE_CHECKING:
    from gridhand.controller.keeper.dispatcher import Dispatch

LOOPBACK = "127.0.0.1"

Answer = list[Placement] | Refusal | RoomClaim | str


def start_gang(dispatch: Dispatch, context: Context, first: Job) -> int:
    """Start all members of a gang, of which `first` was offered; return how many were started."""
    members = members_of(first, context.ledger.jobs.open)
    answer = _place_members(dispatch, context, members)
    if isinstance(answer, list):
        _start(dispatch, context, members, answer)
        return len(members)
    if isinstance(answer, RoomClaim):
        dispatch.queue.block(first.id, why_kept(answer, context.now))
        return 0
    dispatch.make_room_later(context, first, answer)
    dispatch.queue.refuse(first.id, answer)
    return 0


def _place_members(dispatch: Dispatch, context: Context, members: Sequence[Job]) -> Answer:
    first, now = members[0], context.now
    if len(members) != first.work.nodes or any(one.state is not JobState.QUEUED for one in members):
        return "some members of its gang are not queued"
    try:
        asks = [
            resolve_neighbours(current_request(one, now), one.work.owner, context.ledger)
            for one in members
        ]
    except GridError as error:  # a neighbour does not exist now
        return str(error)
    said_ms = declared_ms(first)
    ends = None if said_ms is None else now + said_ms
    rank = dispatch.queue.ready.rank(first.work.priority)
    old = first.number if first.attempts else None
    return place_gang(asks, Caller(first.id, rank, ends, first.array, old), context)


def place_gang(
    asks: Sequence[Request], caller: Caller, context: Context
) -> list[Placement] | Refusal | RoomClaim:
    """Place all members on different nodes, where they break no claim; else return why not."""
    kept: RoomClaim | None = None
    avoided: list[NodeName] = []
    while True:
        left = [one.avoiding(avoided) for one in asks] if avoided else asks
        placed = place_group(
            left, context.snapshot, context.strategy, now=context.now, layout=GangLayout.APART
        )
        if isinstance(placed, Refusal):
            return kept or GangRefusal(asks[0], context.snapshot, len(asks))
        claims = [claim for one in placed if (claim := _claim_on(one, caller, context))]
        if not claims:
            return placed
        kept = kept or claims[0]
        avoided += [claim.node for claim in claims]


def _claim_on(placed: Placement, caller: Caller, context: Context) -> RoomClaim | None:
    timeline = context.timeline
    return timeline.blocking(placed, caller, context.ledger, context.now) if timeline else None


def _start(
    dispatch: Dispatch, context: Context, members: Sequence[Job], placed: Sequence[Placement]
) -> None:
    first, now = members[0], context.now
    master = meeting_place(first, [one.node for one in placed], context.ledger)
    for member, one in zip(members, placed, strict=True):
        dispatch.queue.put(dispatch.grant(context, member, one, master))
    dispatch.timeline.drop(first.id)
    dispatch.shares.note_start(first.work.owner, now)
    dispatch.shares.follow(context.ledger, now)


def meeting_place(first: Job, names: Sequence[NodeName], ledger: Ledger) -> str:
    """Return ADDRESS:PORT of the member with rank 0, as the others reach it."""
    nodes = [ledger.nodes[name].node for name in names]
    host = nodes[0].address
    if not host and nodes[0].remote:
        host = nodes[0].name
    if not host:
        host = socket.gethostname() if any(node.remote for node in nodes) else LOOPBACK
    return f"{host}:{meeting_port(first)}"
