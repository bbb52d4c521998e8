"""The routes below /resources: the two original calls, and what goes with them.

Grants are leases. A request that fits nowhere is a normal answer, `success: false`, with the
original error text and our explanation beside it; everything else that is wrong is a problem.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gridhand.api.auth import owner_of
from gridhand.api.http import JSONResponse, api_router, listed
from gridhand.api.problems import refusal_reasons
from gridhand.api.schemas.ledger import OpId, op_id_of
from gridhand.api.schemas.resource_leases import (
    LeaseMove,
    LeaseReply,
    ResourceRequest,
    ResourceStatus,
    Several,
    SeveralReply,
    TimedMove,
)
from gridhand.api.spec_views import grant_json, held_json, status_json
from gridhand.controller.controller import Controller
from gridhand.core.command_list import CommandFault, CommandList, CommandOutcome
from gridhand.core.errors import NeverFits, NoRoom, UnknownResource
from gridhand.core.ledger.allocations import Allocation, AllocationMove
from gridhand.core.operations import Allocate, Command, MoveAllocation

NO_WORKER = "No suitable worker found for requirements"
_NO_ROOM = (NoRoom, UnknownResource)
_NO_ROOM_CODES = frozenset({NoRoom.code, NeverFits.code, UnknownResource.code})
_ONE: Any = {200: {"model": LeaseReply}}
_MANY: Any = {200: {"model": SeveralReply}}


def lease_routes(controller: Controller) -> APIRouter:
    """Return the routes of `/resources`. Each translates, runs one operation, translates back."""
    router = api_router("/resources", "resources")
    _grant_routes(router, controller)
    _move_routes(router, controller)
    _batch_routes(router, controller)

    @router.get("/status", responses={200: {"model": ResourceStatus}})
    async def status(request: Request) -> Response:
        """Return the current utilization of the cluster."""
        return listed(request, status_json(controller.status()))

    return router


def _grant_routes(router: APIRouter, controller: Controller) -> None:
    async def grant(command: Allocate) -> Response:
        try:
            granted = await controller.ask(command)
        except _NO_ROOM as error:
            return JSONResponse(_refused(CommandFault.of(error), refusal_reasons(error)))
        [held] = granted.allocations
        return JSONResponse(grant_json(held, command.requests[0], fresh=granted.fresh))

    @router.post("/allocate", responses=_ONE)
    async def allocate(body: ResourceRequest, request: Request, op_id: OpId = None) -> Response:
        """Allocate resources for a task, as a lease."""
        return await grant(body.allocation(owner_of(request), op_id_of(op_id)))

    @router.post("/reserve", responses=_ONE)
    async def reserve(body: ResourceRequest, request: Request, op_id: OpId = None) -> Response:
        """Reserve resources until they are confirmed, at most for `ttl` seconds."""
        return await grant(body.reservation(owner_of(request), op_id_of(op_id)))


def _move_routes(router: APIRouter, controller: Controller) -> None:
    async def moved(command: MoveAllocation) -> Response:
        [held] = await controller.ask(command)
        return JSONResponse(_moved(controller, held))

    @router.post("/confirm", responses=_ONE)
    async def confirm(body: TimedMove, request: Request, op_id: OpId = None) -> Response:
        """Turn a reservation into a lease."""
        owner = owner_of(request)
        return await moved(body.command(owner, AllocationMove.CONFIRM, op_id_of(op_id)))

    @router.post("/renew", responses=_ONE)
    async def renew(body: TimedMove, request: Request, op_id: OpId = None) -> Response:
        """Let a lease last for another `ttl` seconds, or as long as before."""
        owner = owner_of(request)
        return await moved(body.command(owner, AllocationMove.RENEW, op_id_of(op_id)))

    @router.post("/release", responses=_ONE)
    async def release(body: LeaseMove, request: Request, op_id: OpId = None) -> Response:
        """Release an allocation. Releasing it again changes nothing."""
        owner = owner_of(request)
        return await moved(body.command(owner, AllocationMove.RELEASE, op_id_of(op_id)))


def _batch_routes(router: APIRouter, controller: Controller) -> None:
    async def run(owner: str, op_id: str | None, commands: list[Command[Any]]) -> Response:
        listing = CommandList(owner, op_id_of(op_id), tuple(commands))
        outcomes = await controller.ask(listing)
        both = zip(commands, outcomes, strict=True)
        return JSONResponse({"results": [_outcome(controller, *pair) for pair in both]})

    @router.post("/allocate/batch", responses=_MANY)
    async def allocate_all(
        body: Several[ResourceRequest], request: Request, op_id: OpId = None
    ) -> Response:
        """Allocate for up to 1,000 tasks together; each has its own outcome."""
        owner = owner_of(request)
        return await run(owner, op_id, [item.allocation(owner) for item in body.items])

    @router.post("/reserve/batch", responses=_MANY)
    async def reserve_all(
        body: Several[ResourceRequest], request: Request, op_id: OpId = None
    ) -> Response:
        """Reserve for up to 1,000 tasks together; each has its own outcome."""
        owner = owner_of(request)
        return await run(owner, op_id, [item.reservation(owner) for item in body.items])

    @router.post("/confirm/batch", responses=_MANY)
    async def confirm_all(
        body: Several[TimedMove], request: Request, op_id: OpId = None
    ) -> Response:
        """Confirm up to 1,000 reservations together."""
        owner, move = owner_of(request), AllocationMove.CONFIRM
        return await run(owner, op_id, [item.command(owner, move) for item in body.items])

    @router.post("/renew/batch", responses=_MANY)
    async def renew_all(body: Several[TimedMove], request: Request, op_id: OpId = None) -> Response:
        """Renew up to 1,000 leases together."""
        owner, move = owner_of(request), AllocationMove.RENEW
        return await run(owner, op_id, [item.command(owner, move) for item in body.items])

    @router.post("/release/batch", responses=_MANY)
    async def release_all(
        body: Several[LeaseMove], request: Request, op_id: OpId = None
    ) -> Response:
        """Release up to 1,000 allocations together."""
        owner, move = owner_of(request), AllocationMove.RELEASE
        return await run(owner, op_id, [item.command(owner, move) for item in body.items])


def _outcome(
    controller: Controller, command: Command[Any], outcome: CommandOutcome
) -> dict[str, Any]:
    if outcome.fault is not None:
        return _refused(outcome.fault)
    if isinstance(command, Allocate):
        granted = outcome.reply
        return grant_json(granted.allocations[0], command.requests[0], fresh=granted.fresh)
    return _moved(controller, outcome.reply[0])


def _moved(controller: Controller, held: Allocation) -> dict[str, Any]:
    controller.sessions.let_go(held.owner, held.id)  # a lease does not end with a session
    return {"success": True, **held_json(held)}


def _refused(fault: CommandFault, reasons: dict[str, list[str]] | None = None) -> dict[str, Any]:
    text = NO_WORKER if fault.code in _NO_ROOM_CODES else fault.message
    told = {"code": fault.code, "text": fault.message, "hint": fault.hint}
    return {"success": False, "error": text, "explanation": {**told, "reasons": reasons or {}}}
