"""How the keeper decides commands about nodes and allocations, on the ledger in memory alone.

A decision that raises leaves the ledger as it was: the keeper rolls back to where it began.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gridhand.controller.keeper.tracked_grants import TrackedGrants
from gridhand.core.errors import (
    InvalidRequest,
    MoveRefused,
    NodeElsewhere,
    NoRoom,
    NotYours,
    UnknownAllocation,
)
from gridhand.core.explain.refusal import Refusal
from gridhand.core.jobs.job import Job
from gridhand.core.ledger.allocations import Allocation, AllocationMove, Lifetime, advance
from gridhand.core.ledger.ledger import Change, Ledger, Placement
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.liveness.remote_nodes import (
    keep_record,
    may_report,
    with_boot_id,
    with_ceiling,
)
from gridhand.core.model.declared_node import merge_all
from gridhand.core.model.names import AllocationId, JobId
from gridhand.core.model.nodes import MACHINE_LABEL, Node
from gridhand.core.model.requests import Request
from gridhand.core.notes import NoteAction
from gridhand.core.operations import (
    Allocate,
    Command,
    EndWithSession,
    Granted,
    MoveAllocation,
    Register,
    ReportHealth,
    SetDraining,
    SetHealth,
    Submitted,
    Unregister,
)
from gridhand.core.placement.gangs import place_group
from gridhand.core.placement.place import place
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import OwnStrategy
from gridhand.core.queue.named_queues import NO_QUEUES, NamedQueues
from gridhand.core.queue.ready import RANKS
from gridhand.core.queue.timeline import Caller, RoomClaim, Timeline, place_around, why_kept

_ID = re.compile(r"a\d+-\d+")


@dataclass(slots=True)
class Context:
    """The state that operations are decided on: the ledger, the time, and rows of the store."""

    ledger: Ledger
    snapshot: Snapshot
    strategy: OwnStrategy | None
    now: int = 0
    past: dict[AllocationId, Allocation] = field(default_factory=dict)  # closed ones, looked up
    past_jobs: dict[JobId, Job] = field(default_factory=dict)  # ended ones, looked up
    submitted: list[Submitted] = field(default_factory=list)  # by this batch
    # Requests that some node can hold, with the shape of the cluster for which that is known.
    can_fit: dict[Request, int] = field(default_factory=dict)
    tracked: TrackedGrants | None = None  # by a tracker of the user's own
    freed: bool = False  # by something outside the ledger: others use less, or more is allowed
    tried_before: bool = False  # the command that is decided now, which waits for room
    timeline: Timeline | None = None  # the room that is kept free for waiting jobs
    queues: NamedQueues = NO_QUEUES

    def rounded(self, request: Request) -> Request:
        """Return a new request with its memory rounded up as the configuration says.

        Not before it gets here: a repeat must be equal to what was sent the first time.
        """
        step = self.snapshot.memory_step_bytes
        return request.rounded_up(step) if step else request

    def place(self, asked: Request, caller: Caller) -> Placement | Refusal | RoomClaim:
        """Place a request, but not where room is kept free for those who come before."""
        if not self.timeline:
            return place(asked, self.snapshot, self.strategy)
        return place_around(self.timeline, asked, caller, self.snapshot, self.strategy, self.now)

    def forget_past(self) -> None:
        """Forget the closed rows that were looked up for one batch."""
        self.past.clear()
        self.past_jobs.clear()

    def tell_tracker(self, *, closing: bool = False) -> None:
        """Tell the user's tracker, if there is one, which allocations have ended."""
        if self.tracked is not None:
            self.tracked.let_go(() if closing else self.ledger.live)

    def find(self, id: str, owner: str) -> Allocation:
        """Return an allocation of `owner` by its id, live or closed, or by its holder's name."""
        ledger, key = self.ledger, AllocationId(id)
        found = ledger.live.get(key) or ledger.closed.get(key) or self.past.get(key)
        if found is None and not _ID.fullmatch(id):  # a closed id is never a holder's name
            found = ledger.held_under(owner, id)
        if found is None:
            raise UnknownAllocation(id)
        if found.owner != owner:
            raise NotYours(id, owner)
        return found


def allocate(command: Allocate, context: Context) -> Granted:
    ledger, terms = context.ledger, command.terms
    if terms.holder is not None:
        held = ledger.held_by(terms, command.requests)
        if held:
            return Granted(held, fresh=False)
    snapshot = context.snapshot
    # A repeat is compared with what was asked for, so that neither rounding nor its change count.
    asked = map(context.rounded, command.requests)
    requests = [resolve_neighbours(request, command.owner, ledger) for request in asked]
    if not context.tried_before:
        for request in requests:
            snapshot.learn(request)
    if context.tracked is not None:
        return Granted(_grant_tracked(command, requests, context.tracked, context), fresh=True)
    grants = _place(command, requests, context)
    return Granted(ledger.grant(grants, terms, now=context.now), fresh=True)


def _place(command: Allocate, requests: Sequence[Request], context: Context) -> list[Placement]:
    """Return placements of all of the requests, or raise the error of one that has no room."""
    caller = _caller(command, context)
    placed: Placement | list[Placement] | Refusal | RoomClaim
    if len(requests) == 1:
        placed = context.place(requests[0], caller)
    else:
        placed = _place_group(command, requests, caller, context)
    if isinstance(placed, Refusal):
        raise placed.error()
    if isinstance(placed, RoomClaim):
        raise NoRoom(why_kept(placed, context.now))
    grants = [placed] if isinstance(placed, Placement) else placed
    if len(grants) > 1 or requests[0] is not command.requests[0]:
        both = zip(grants, command.requests, strict=True)
        grants = [grant._replace(whole=request) for grant, request in both]
    return grants


def _caller(command: Allocate, context: Context) -> Caller:
    ttl_ms = command.terms.ttl_ms
    ends = None if ttl_ms is None else context.now + ttl_ms
    return Caller(None, RANKS[command.priority], ends)


def _place_group(
    command: Allocate, requests: Sequence[Request], caller: Caller, context: Context
) -> list[Placement] | Refusal | RoomClaim:
    """Place several requests together; return a claim that one of them would break."""
    now, layout, timeline = context.now, command.terms.layout, context.timeline
    placed = place_group(requests, context.snapshot, context.strategy, now=now, layout=layout)
    if isinstance(placed, Refusal) or not timeline:
        return placed
    claims = (timeline.blocking(one, caller, context.ledger, now) for one in placed)
    return next((claim for claim in claims if claim is not None), None) or placed


def _grant_tracked(
    command: Allocate, requests: Sequence[Request], tracked: TrackedGrants, context: Context
) -> list[Allocation]:
    """Grant what the user's tracker has room for, too: nodes that it refuses are left out."""
    ledger, refusal, left = context.ledger, None, list(requests)
    while True:
        try:
            grants = _place(command, left, context)
        except NoRoom as error:
            raise refusal or error from None
        mark = ledger.mark()
        made = ledger.grant(grants, command.terms, now=context.now)
        refused = tracked.take(made, grants)
        if refused is None:
            return made
        refusal, index = refused
        left[index] = left[index].avoiding([made[index].node])
        ledger.rollback(mark)
        tracked.let_go(ledger.live)


def resolve_neighbours(request: Request, owner: str, ledger: Ledger) -> Request:
    """Return the request with `together_with` and `apart_from` replaced by names of nodes."""
    if request.apart_from:
        request = request.avoiding(
            node for name in request.apart_from for node in ledger.nodes_of(owner, name)
        )
    if request.together_with is None:
        return request
    nodes = sorted(set(ledger.nodes_of(owner, request.together_with)))
    if len(nodes) != 1:
        held = "nothing is held under it" if not nodes else f"it is on {', '.join(nodes)}"
        raise InvalidRequest(
            "together_with", request.together_with, f"what is held on one node: {held}"
        )
    if request.node not in (None, nodes[0]):
        raise InvalidRequest("node", request.node, f"{nodes[0]}, where together_with is")
    return request.pinned(nodes[0])


def move_allocation(command: MoveAllocation, context: Context) -> list[Allocation]:
    held = context.find(command.id, command.owner)
    move = command.move
    if held.lifetime is Lifetime.JOB and held.live:
        jobs = context.ledger.jobs.holding(held.id)
        if move is AllocationMove.RELEASE and any(job.work.within == held.id for job in jobs):
            return [held]  # it was released already, and ends with the job that runs in it
        raise MoveRefused(move, held.id, f"job {jobs[0].id if jobs else '?'} holds it")
    if not held.live:
        return [advance(held, move, now=context.now)]
    return [context.ledger.move(held.id, move, now=context.now, ttl_ms=command.ttl_ms)]


def end_with_session(command: EndWithSession, context: Context) -> list[Allocation]:
    held = context.find(command.id, command.owner)
    if not held.live or held.lifetime is not Lifetime.SESSION:
        return [held]
    why = "the session that held it has ended"
    return [context.ledger.move(command.id, AllocationMove.RELEASE, now=context.now, why=why)]


def register(command: Register, context: Context) -> list[Node]:
    nodes = merge_all(command.nodes, command.found)
    return [_register(node, context) for node in nodes]


def _register(node: Node, context: Context) -> Node:
    """Add a node, and forget what was measured on what was not part of it until now.

    That is forgotten when devices come back and not when they go: if their removal fails to be
    written, they are still here, and still in use.
    """
    known = context.ledger.nodes.get(node.name)
    if known is not None and known.elsewhere and known.allocations:
        raise NodeElsewhere(node.name, known.node.machine)
    if node.remote:
        node = keep_record(node, known.node if known is not None else None)
    else:
        node = _on_this_machine(node, known, context.ledger.machine)
    before = set(known.devices) if known is not None else set()
    registered = context.ledger.register(node)
    if known is None:
        context.snapshot.host_use.pop(node.name, None)
    for gpu in node.gpus:
        if gpu.id not in before:
            context.snapshot.foreign.pop(gpu.id, None)
    return registered


def _on_this_machine(node: Node, known: NodeUsage | None, machine: str) -> Node:
    """Return the node with its machine: ours, or what it was if we are no controller."""
    machine = machine or (known.node.machine if known is not None else "")
    return replace(node, labels={**node.labels, MACHINE_LABEL: machine}) if machine else node


def set_draining(command: SetDraining, context: Context) -> list[Node]:
    return [context.ledger.set_draining(command.name, command.draining)]


def set_health(command: SetHealth, context: Context) -> list[Node]:
    name, health, ledger = command.name, command.health, context.ledger
    labels = with_ceiling(ledger.node(name).node, health)
    return [ledger.set_health(name, health, now=context.now, why=command.why, labels=labels)]


def report_health(command: ReportHealth, context: Context) -> list[Node]:
    use, health = context.ledger.nodes.get(command.name), command.health
    if use is None or not may_report(use.node, command.was, health):
        return []  # removed, served by us now, or changed since the heartbeats were judged
    labels, now = with_boot_id(use.node, command.boot_id), context.now
    node = context.ledger.set_health(command.name, health, now=now, why=command.why, labels=labels)
    return [node]


def note_action(command: NoteAction, context: Context) -> None:
    event = Change(command.kind, command.subject, None, None, command.why)
    context.ledger.changes.append(event)


def unregister(command: Unregister, context: Context) -> list[Node]:
    context.ledger.unregister(command.name, now=context.now, force=command.force)
    return []


DECISIONS: Mapping[type[Command[Any]], Callable[[Any, Context], Any]] = {
    Allocate: allocate,
    MoveAllocation: move_allocation,
    EndWithSession: end_with_session,
    Register: register,
    SetDraining: set_draining,
    SetHealth: set_health,
    ReportHealth: report_health,
    Unregister: unregister,
    NoteAction: note_action,
}
