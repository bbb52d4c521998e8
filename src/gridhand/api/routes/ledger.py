"""The routes of the ledger: nodes, what is held on them, what would fit, what happened.

Answers have the amounts as people read them, and beside them as `row` the exact parts, from which
our own library makes the same values that a keeper in its process would have given it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from gridhand.api.callers import is_admin, owner_of
from gridhand.api.replies import JSONResponse
from gridhand.api.schemas import (
    Fitting,
    ForeignBody,
    GroupOrder,
    HealthBody,
    MoveBody,
    NodesBody,
    OpId,
    Order,
    PruneBody,
    Written,
    op_id_of,
    read_explaining,
)
from gridhand.api.strict import StrictRoute
from gridhand.api.views import amounts, node_json, when
from gridhand.controller.commands import Allocate
from gridhand.controller.controller import Controller
from gridhand.core.allocations import Allocation, Lifetime, Move
from gridhand.core.answers import explanation_row, node_status_row
from gridhand.core.calls import Call
from gridhand.core.errors import InvalidInput, NotYours
from gridhand.core.ledger import Terms
from gridhand.core.names import check_label, check_node_name
from gridhand.core.nodes import Health, Node
from gridhand.core.requests import Layout
from gridhand.core.requests import Request as Asked
from gridhand.core.resources import UNIT
from gridhand.core.views import NodeStatus, allocation_row, node_row

Id = Annotated[str, Path(max_length=100)]
HeldBy = Annotated[str, Path(max_length=200, description="An id, or the name of its holder.")]
Count = Annotated[int, Query(ge=0, le=2**63 - 1)]


def ledger_routes(controller: Controller) -> APIRouter:
    """Each route translates, makes one call, and translates back."""
    router = APIRouter(route_class=StrictRoute)
    _node_routes(router, controller)
    _node_changes(router, controller)
    _allocation_routes(router, controller)
    _asking_routes(router, controller)
    _history_routes(router, controller)
    return router


def _node_routes(router: APIRouter, controller: Controller) -> None:
    def shown(status: NodeStatus) -> dict[str, Any]:
        told = node_json(status, controller.runner.usage.get(status.name))
        return {**told, "row": node_status_row(status)}

    @router.get("/nodes", tags=["nodes"])
    async def nodes() -> Response:
        found = await controller.ask(controller.calls.status())
        return JSONResponse({"nodes": [shown(node) for node in found.nodes]})

    @router.get("/nodes/{name}", tags=["nodes"])
    async def node(name: Id) -> Response:
        return JSONResponse(shown(await controller.ask(controller.calls.node(name))))

    @router.post("/nodes/{name}/foreign", tags=["nodes"])
    async def foreign(name: Id, body: ForeignBody, request: Request) -> Response:
        _admin(request, name)
        used = {check_label(id, "gpu id"): amount for id, amount in body.used.items()}
        await controller.ask(controller.calls.set_foreign(check_node_name(name), used))
        return JSONResponse({})


def _node_changes(router: APIRouter, controller: Controller) -> None:
    async def changed(call: Call[list[Node]]) -> Response:
        [node] = await controller.ask(call)
        return JSONResponse(_changed_json(node))

    @router.post("/nodes", tags=["nodes"])
    async def register(body: NodesBody, request: Request, op_id: OpId = None) -> Response:
        owner, nodes = _admin(request, "it"), body.described()
        made = await controller.ask(controller.calls.register(owner, op_id_of(op_id), nodes))
        return JSONResponse({"nodes": [_changed_json(node) for node in made]})

    @router.post("/nodes/{name}/drain", tags=["nodes"])
    async def drain(name: Id, request: Request, op_id: OpId = None) -> Response:
        owner = _admin(request, name)
        return await changed(controller.calls.set_draining(owner, op_id_of(op_id), name, True))

    @router.post("/nodes/{name}/resume", tags=["nodes"])
    async def resume(name: Id, request: Request, op_id: OpId = None) -> Response:
        owner = _admin(request, name)
        return await changed(controller.calls.set_draining(owner, op_id_of(op_id), name, False))

    @router.post("/nodes/{name}/health", tags=["nodes"])
    async def health(name: Id, body: HealthBody, request: Request, op_id: OpId = None) -> Response:
        owner, is_now = _admin(request, name), Health(body.health)
        call = controller.calls.set_health(owner, op_id_of(op_id), name, is_now, body.why)
        return await changed(call)

    @router.delete("/nodes/{name}", tags=["nodes"])
    async def remove(
        name: Id, request: Request, force: bool = False, op_id: OpId = None
    ) -> Response:
        owner = _admin(request, name)
        await controller.ask(controller.calls.unregister(owner, op_id_of(op_id), name, force))
        return JSONResponse({"removed": name})


def _allocation_routes(router: APIRouter, controller: Controller) -> None:
    async def hold(
        body: Order | GroupOrder,
        asked: tuple[Asked, ...],
        terms: Terms,
        op_id: str | None,
        request: Request,
    ) -> list[dict[str, Any]]:
        session, wait_ms = body.session, round(body.wait_s * 1000)
        if session is not None and not controller.sessions.alive(terms.owner, session):
            raise _no_session(session)
        call = controller.calls.allocate(terms.owner, op_id_of(op_id), asked, terms, wait_ms)
        made = await controller.ask(call)
        if wait_ms and await request.is_disconnected():  # nobody waited for it
            controller.calls.give_back(call, made)
        if session is not None and not await controller.hold_in(session, made):
            raise _no_session(session)
        fresh = isinstance(call, Allocate) and call.fresh
        return [{**allocation_json(held), "fresh": fresh} for held in made]

    @router.get("/allocations", tags=["allocations"])
    async def allocations() -> Response:
        held = await controller.ask(controller.calls.allocations())
        return JSONResponse({"allocations": [allocation_json(one) for one in held]})

    @router.get("/allocations/{id}", tags=["allocations"])
    async def allocation(id: Id) -> Response:
        return JSONResponse(allocation_json(await controller.allocation(id)))

    @router.post("/allocations", tags=["allocations"], status_code=201)
    async def allocate(body: Order, request: Request, op_id: OpId = None) -> Response:
        terms = body.terms(owner_of(request))
        [made] = await hold(body, (body.asked(),), terms, op_id, request)
        return JSONResponse(made, 201)

    @router.post("/allocations/group", tags=["allocations"], status_code=201)
    async def allocate_group(body: GroupOrder, request: Request, op_id: OpId = None) -> Response:
        terms = body.terms(owner_of(request), Layout(body.layout))
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
        call = controller.calls.move(owner, op_id_of(op_id), id, Move(move), ttl_ms)
        [moved] = await controller.ask(call)
        if not moved.live or moved.lifetime is not Lifetime.SESSION:
            controller.sessions.let_go(owner, moved.id)
        return JSONResponse(allocation_json(moved))


def _asking_routes(router: APIRouter, controller: Controller) -> None:
    @router.post("/fits", tags=["knowing"])
    async def fits(body: Fitting, request: Request) -> Response:
        asked = body.asked() if body.node is None else body.asked().pinned(body.node)
        found = await controller.ask(controller.calls.fits(owner_of(request), asked))
        return JSONResponse({"fits": found})

    @router.post("/explain", tags=["knowing"])
    async def explain(body: Written, request: Request) -> Response:
        asked, lower = read_explaining(body)
        found = await controller.ask(controller.calls.explain(owner_of(request), asked, lower))
        told = {**found.to_dict(), "text": str(found), "row": explanation_row(found)}
        return JSONResponse(told)


def _history_routes(router: APIRouter, controller: Controller) -> None:
    @router.get("/events", tags=["knowing"])
    async def events(
        after: Count = 0, limit: Annotated[int, Query(ge=1, le=10_000)] = 1000
    ) -> Response:
        found = await controller.ask(controller.calls.events(after, limit))
        told = [{**one._asdict(), "at": when(one.at), "at_ms": one.at} for one in found]
        return JSONResponse({"events": told})

    @router.get("/check", tags=["knowing"])
    async def check() -> Response:
        found = await controller.ask(controller.calls.check())
        violations = [
            {"invariant": one.invariant, "subject": one.subject, "message": one.message}
            for one in found
        ]
        return JSONResponse({"clean": not violations, "violations": violations})

    @router.get("/dump", tags=["knowing"])
    async def dump() -> Response:
        return JSONResponse(await controller.ask(controller.calls.dump()))

    @router.get("/identity", tags=["knowing"])
    async def identity() -> Response:
        return JSONResponse({"identity": controller.calls.identity})

    @router.post("/prune", tags=["knowing"])
    async def prune(body: PruneBody, request: Request) -> Response:
        _admin(request, "history")
        call = controller.calls.prune(round(body.older_than_s * 1000), body.most)
        return JSONResponse({"left": await controller.ask(call)})


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


def _changed_json(node: Node) -> dict[str, Any]:
    """A node as it was when it was changed; what is held there is not told."""
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
    """The owner who asks, if they may change the inventory."""
    owner = owner_of(request)
    if not is_admin(request):
        raise NotYours(what, owner, "node")
    return owner


def _no_session(id: str) -> InvalidInput:
    return InvalidInput("session", id, "a session that is connected")
