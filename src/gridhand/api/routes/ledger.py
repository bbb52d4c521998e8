"""The routes of the ledger: nodes, allocations, what would fit, and events.

Answers have the amounts as people read them, and beside them as `row` the exact parts, from which
our own library makes the same values that a keeper in its process would have given it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from gridhand.api.auth import (
    check_admin,
    check_may_see_all,
    check_visible,
    only_owner,
    owner_of,
    token_of,
)
from gridhand.api.http import JSONResponse, api_router, listed, unless_gone
from gridhand.api.json_views import amounts, node_json, when
from gridhand.api.schemas.ledger import (
    AllocateBody,
    FitsBody,
    ForeignBody,
    GroupBody,
    HealthBody,
    HeartbeatBody,
    MoveBody,
    NodesBody,
    OpId,
    PruneBody,
    Written,
    op_id_of,
    read_explain_body,
)
from gridhand.api.urgent_access import check_urgent
from gridhand.controller.controller import Controller
from gridhand.core.errors import InvalidInput, UnknownAllocation
from gridhand.core.explain.explanation import Explanation
from gridhand.core.jobs.spec import JobSpec, Priority
from gridhand.core.ledger.allocations import Allocation, AllocationMove, Lifetime, Terms
from gridhand.core.ledger.status import NodeStatus
from gridhand.core.liveness.heartbeats import Receipt
from gridhand.core.model.names import AllocationId, NodeName, check_label, check_node_name
from gridhand.core.model.nodes import Health, Node
from gridhand.core.model.requests import GangLayout
from gridhand.core.model.requests import Request as Asked
from gridhand.core.model.resources import UNIT
from gridhand.core.notes import NoteAction
from gridhand.core.observations import SetForeignUse
from gridhand.core.operations import (
    Allocate,
    CheckLedger,
    DumpLedger,
    Explain,
    Fits,
    MoveAllocation,
    NodeCommand,
    Prune,
    Register,
    SetDraining,
    SetHealth,
    Unregister,
)
from gridhand.core.rows.answers import explanation_row, node_status_row
from gridhand.core.rows.ledger import allocation_row, node_row

Id = Annotated[str, Path(max_length=100)]
HeldBy = Annotated[str, Path(max_length=200, description="An id, or the name of its holder.")]
Count = Annotated[int, Query(ge=0, le=2**63 - 1)]


def ledger_routes(controller: Controller) -> APIRouter:
    """Return the routes of the ledger. Each translates, runs one operation, and translates back."""
    router = api_router("")
    _node_routes(router, controller)
    _node_changes(router, controller)
    _allocation_routes(router, controller)
    _asking_routes(router, controller)
    _history_routes(router, controller)
    return router


def _node_routes(router: APIRouter, controller: Controller) -> None:
    def shown(status: NodeStatus, jobs: Mapping[NodeName, int]) -> dict[str, Any]:
        facts, running = controller.samples.facts(status.name), jobs.get(status.name, 0)
        view = {**node_json(status, facts, running), "row": node_status_row(status)}
        heard = controller.liveness.last_heard(status.name)
        return view if heard is None else {**view, "last_seen_at": when(heard)}

    @router.get("/nodes", tags=["nodes"])
    async def nodes(request: Request) -> Response:
        found, jobs = controller.status(), await controller.running_on()
        return listed(request, {"nodes": [shown(node, jobs) for node in found.nodes]})

    @router.get("/nodes/{name}", tags=["nodes"])
    async def node(name: Id) -> Response:
        return JSONResponse(shown(controller.node(NodeName(name)), await controller.running_on()))

    @router.post("/nodes/{name}/heartbeat", tags=["nodes"])
    async def heartbeat(name: Id, body: HeartbeatBody, request: Request) -> Response:
        if token_of(request) is None:  # else the scope is of this node alone
            _admin(request, name)
        beat = body.heartbeat(check_node_name(name))
        answer = await controller.external.heartbeat(beat, body.usage)
        acknowledged = answer.receipt is Receipt.TAKEN
        return JSONResponse({"acknowledged": acknowledged, "stop": list(answer.stop)})

    @router.post("/nodes/{name}/foreign", tags=["nodes"])
    async def foreign(
        name: Id, body: ForeignBody, request: Request, op_id: OpId = None
    ) -> Response:
        owner = _admin(request, name)
        used = {check_label(id, "gpu id"): amount for id, amount in body.used.items()}
        await controller.ask(SetForeignUse(check_node_name(name), used))
        why = f"{sum(used.values())} bytes of {len(used)} devices are used by others"
        await controller.ask(NoteAction(owner, op_id_of(op_id), "admin.foreign", name, why))
        return JSONResponse({})


def _node_changes(router: APIRouter, controller: Controller) -> None:
    async def changed(command: NodeCommand) -> Response:
        [node] = await controller.declared.run(command)
        return JSONResponse(_changed_json(node))

    @router.post("/nodes", tags=["nodes"])
    async def register(body: NodesBody, request: Request, op_id: OpId = None) -> Response:
        owner, nodes = _admin(request, "it"), body.described()
        made = await controller.declared.run(Register(owner, op_id_of(op_id), nodes))
        return JSONResponse({"nodes": [_changed_json(node) for node in made]})

    @router.post("/nodes/{name}/drain", tags=["nodes"])
    async def drain(name: Id, request: Request, op_id: OpId = None) -> Response:
        owner = _admin(request, name)
        return await changed(SetDraining(owner, op_id_of(op_id), NodeName(name), True))

    @router.post("/nodes/{name}/resume", tags=["nodes"])
    async def resume(name: Id, request: Request, op_id: OpId = None) -> Response:
        owner = _admin(request, name)
        return await changed(SetDraining(owner, op_id_of(op_id), NodeName(name), False))

    @router.post("/nodes/{name}/health", tags=["nodes"])
    async def health(name: Id, body: HealthBody, request: Request, op_id: OpId = None) -> Response:
        owner, is_now = _admin(request, name), Health(body.health)
        return await changed(SetHealth(owner, op_id_of(op_id), NodeName(name), is_now, body.why))

    @router.delete("/nodes/{name}", tags=["nodes"])
    async def remove(
        name: Id, request: Request, force: bool = False, op_id: OpId = None
    ) -> Response:
        owner = _admin(request, name)
        await controller.declared.run(Unregister(owner, op_id_of(op_id), NodeName(name), force))
        return JSONResponse({"removed": name})


def _allocation_routes(router: APIRouter, controller: Controller) -> None:
    async def hold(
        body: AllocateBody | GroupBody,
        asked: tuple[Asked, ...],
        terms: Terms,
        op_id: str | None,
        request: Request,
    ) -> list[dict[str, Any]]:
        session, wait_ms = body.session, round(body.wait_s * 1000)
        if session is not None and not controller.sessions.alive(terms.owner, session):
            raise _no_session(session)
        priority = Priority.read(body.priority)
        shared = controller.users.shared
        check_urgent(request, priority, controller.settings, shared=shared, queue=None)
        command = Allocate(terms.owner, op_id_of(op_id), asked, terms, wait_ms, priority)
        reply = controller.ask(command)
        granted = await (unless_gone(request, reply) if wait_ms else reply)
        if wait_ms and await request.is_disconnected():  # nobody waited for it
            controller.give_back(command, granted)
        if session is not None and not await controller.hold_in(session, granted.allocations):
            raise _no_session(session)
        fresh = granted.fresh
        return [{**allocation_json(held), "fresh": fresh} for held in granted.allocations]

    @router.get("/allocations", tags=["allocations"])
    async def allocations(request: Request) -> Response:
        held, only = controller.allocations(), only_owner(request)
        shown = [allocation_json(one) for one in held if only in (None, one.owner)]
        return listed(request, {"allocations": shown})

    @router.get("/allocations/{id}", tags=["allocations"])
    async def allocation(id: Id, request: Request) -> Response:
        held = await controller.allocation(AllocationId(id))
        check_visible(request, held.owner, UnknownAllocation(id))
        return JSONResponse(allocation_json(held))

    @router.post("/allocations", tags=["allocations"], status_code=201)
    async def allocate(body: AllocateBody, request: Request, op_id: OpId = None) -> Response:
        terms = body.terms(owner_of(request))
        [made] = await hold(body, (body.asked(),), terms, op_id, request)
        return JSONResponse(made, 201)

    @router.post("/allocations/group", tags=["allocations"], status_code=201)
    async def allocate_group(body: GroupBody, request: Request, op_id: OpId = None) -> Response:
        terms = body.terms(owner_of(request), GangLayout(body.layout))
        made = await hold(body, body.asked(), terms, op_id, request)
        return JSONResponse({"allocations": made}, 201)

    @router.post("/allocations/{id:path}/{move}", tags=["allocations"])
    async def move_one(
        id: HeldBy,
        move: Literal["confirm", "renew", "release"],
        request: Request,
        body: MoveBody | None = None,
        op_id: OpId = None,
    ) -> Response:
        owner, ttl_ms = owner_of(request), body.ttl_ms() if body else None
        command = MoveAllocation(owner, op_id_of(op_id), id, AllocationMove(move), ttl_ms)
        [moved] = await controller.ask(command)
        if not moved.live or moved.lifetime is not Lifetime.SESSION:
            controller.sessions.let_go(owner, moved.id)
        return JSONResponse(allocation_json(moved))


def _asking_routes(router: APIRouter, controller: Controller) -> None:
    @router.post("/fits", tags=["knowing"])
    async def fits(body: FitsBody, request: Request) -> Response:
        asked = body.asked() if body.node is None else body.asked().pinned(body.node)
        found = await controller.ask(Fits(owner_of(request), asked))
        return JSONResponse({"fits": found})

    @router.post("/explain", tags=["knowing"])
    async def explain(body: Written, request: Request) -> Response:
        asked, lower = read_explain_body(body)
        found = await controller.ask(Explain(owner_of(request), asked, lower))
        found = without_other_holders(found, only_owner(request))
        found = await _with_start(found, owner_of(request), controller)
        told = {**found.to_dict(), "text": str(found), "row": explanation_row(found)}
        return JSONResponse(told)


def _history_routes(router: APIRouter, controller: Controller) -> None:
    @router.get("/check", tags=["knowing"])
    async def check() -> Response:
        found = await controller.ask(CheckLedger())
        violations = [
            {"invariant": one.invariant, "subject": one.subject, "message": one.message}
            for one in found
        ]
        return JSONResponse({"clean": not violations, "violations": violations})

    @router.get("/dump", tags=["knowing"])
    async def dump(request: Request) -> Response:
        check_may_see_all(request, "dump")
        return JSONResponse(await controller.ask(DumpLedger()))

    @router.get("/identity", tags=["knowing"])
    async def identity() -> Response:
        return JSONResponse({"identity": controller.identity})

    @router.post("/prune", tags=["knowing"])
    async def prune(body: PruneBody, request: Request, op_id: OpId = None) -> Response:
        owner = _admin(request, "history")
        left = await controller.ask(Prune(round(body.older_than_s * 1000), body.most))
        why = f"older than {body.older_than_s:g} s"
        await controller.ask(NoteAction(owner, op_id_of(op_id), "admin.pruned", "history", why))
        return JSONResponse({"left": left})


def allocation_json(held: Allocation) -> dict[str, Any]:
    return {
        "id": held.id,
        "owner": held.owner,
        "holder": held.holder,
        "node": held.node,
        "resources": amounts(held.resources),
        "gpus": [hold.device for hold in held.devices],
        "state": str(held.state),
        "lifetime": str(held.lifetime),
        "group": held.group,
        "quality": held.quality,
        "made_at": when(held.made_at),
        "expires_at": when(held.deadline),
        "row": allocation_row(held),
    }


async def _with_start(found: Explanation, owner: str, controller: Controller) -> Explanation:
    """Return the explanation with when a job of this owner would start, if it does not fit now."""
    if found.fits or not found.ever:
        return found
    place = await controller.new_place(JobSpec(owner, ("explain",), "/", found.asked))
    if place is None or place.start is None:
        return found
    wait_ms = max(0, place.start.at - controller.now())
    return replace(found, starts_in_ms=wait_ms, starts_on=place.start.node)


def without_other_holders(found: Explanation, only: str | None) -> Explanation:
    """Return an explanation that names only the holders that the caller may know of."""
    own = tuple(one for one in found.holders if only in (None, one.owner))
    hidden = sum(one.count for one in found.holders) - sum(one.count for one in own)
    return replace(found, holders=own, more_holders=found.more_holders + hidden)


def _changed_json(node: Node) -> dict[str, Any]:
    """Return a node after a change, without its allocations."""
    return {
        "name": node.name,
        "health": str(node.health),
        "draining": node.draining,
        "total": amounts(node.total),
        "labels": dict(node.labels),
        "price": node.price / UNIT,
        "address": node.address,
        "row": node_row(node),
    }


def _admin(request: Request, what: str) -> str:
    """Return the owner who asks; raise `NotYours` unless they may change the nodes."""
    return check_admin(request, what, "node")


def _no_session(id: str) -> InvalidInput:
    return InvalidInput("session", id, "a session that is connected")
