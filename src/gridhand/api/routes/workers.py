"""The routes of external workers: processes on other machines that serve a node each.

All may be repeated. A token with the scope `agent:NODE` may use those of its node, and an
administrator those of all nodes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from gridhand.api.auth import check_admin, token_of
from gridhand.api.http import BYTES, JSONResponse, api_router
from gridhand.api.schemas.workers import (
    JoinBody,
    LeaveBody,
    OrdersBody,
    ReportsBody,
    node_named,
    plain,
)
from gridhand.controller.controller import Controller
from gridhand.core.liveness.budget import HEARTBEAT_MS, KILL_MS, SELF_FENCE_MS
from gridhand.core.model.names import JobId, NodeName, check_node_name

NAME = Annotated[str, Path(max_length=100)]
Session = Annotated[str, Query(pattern="^[0-9a-f]{32}$")]
Job = Annotated[str, Query(pattern="^[0-9]+(_[0-9]+)?$", max_length=40)]
Attempt = Annotated[int, Query(ge=1, le=2**31)]
Offset = Annotated[int, Query(ge=0, le=2**50)]
FileName = Annotated[str, Query(max_length=4096)]


def worker_routes(controller: Controller) -> APIRouter:
    """Return the routes of workers."""
    router = api_router("/nodes/{name}", "workers")
    nodes = controller.external

    @router.post("/join")
    async def join(name: NAME, body: JoinBody, request: Request) -> Response:
        node = node_named(body.row, _own(request, name))
        joined = await nodes.join(
            node,
            body.incarnation,
            body.cluster,
            body.epoch,
            plain(body.attempts),
            plain(body.problems),
        )
        times = {
            "heartbeat_ms": HEARTBEAT_MS,
            "self_fence_ms": SELF_FENCE_MS,
            "kill_ms": KILL_MS,
        }
        return JSONResponse({**joined._asdict(), **times})

    @router.post("/orders")
    async def orders(name: NAME, body: OrdersBody, request: Request) -> Response:
        node = _own(request, name)
        found = await nodes.orders(node, body.session, body.done, body.busy, body.wait_s)
        return JSONResponse({"orders": found})

    @router.post("/reports")
    async def reports(name: NAME, body: ReportsBody, request: Request) -> Response:
        node = _own(request, name)
        nodes.report(node, body.session, plain(body.attempts), body.answers())
        if body.node is not None:
            found, problems = node_named(body.node.row, node), plain(body.node.problems)
            nodes.note_node(found, body.session, problems)
        return JSONResponse({})

    @router.post("/output")
    async def output(
        name: NAME,
        session: Session,
        job: Job,
        attempt: Attempt,
        stream: Literal["stdout", "stderr"],
        offset: Offset,
        request: Request,
    ) -> Response:
        node, data = _own(request, name), await request.body()
        key = JobId(job), attempt
        end, pause = await nodes.take_output(node, session, key, stream, offset, data)
        return JSONResponse({"end": end, "pause": pause})

    @router.get("/input", response_class=Response, responses=BYTES)
    async def read_input(
        name: NAME, session: Session, job: Job, attempt: Attempt, offset: Offset, request: Request
    ) -> Response:
        node, key = _own(request, name), (JobId(job), attempt)
        data = await nodes.read_input(node, session, key, offset)
        return Response(data, media_type="application/octet-stream")

    @router.post("/leave")
    async def leave(name: NAME, body: LeaveBody, request: Request) -> Response:
        await nodes.leave(_own(request, name), body.session, stopped=body.stopped)
        return JSONResponse({})

    _file_routes(router, controller)
    return router


def _file_routes(router: APIRouter, controller: Controller) -> None:
    nodes = controller.external

    @router.get("/files")
    async def files(
        name: NAME, session: Session, job: Job, attempt: Attempt, request: Request
    ) -> Response:
        node, key = _own(request, name), (JobId(job), attempt)
        found = await nodes.list_files(node, session, key)
        return JSONResponse({"files": [{"name": one, "bytes": size} for one, size in found]})

    @router.get("/file", response_class=Response, responses=BYTES)
    async def read_file(
        name: NAME,
        session: Session,
        job: Job,
        attempt: Attempt,
        file: FileName,
        offset: Offset,
        request: Request,
    ) -> Response:
        node, key = _own(request, name), (JobId(job), attempt)
        part = await nodes.read_file(node, session, key, file, offset)
        headers = {"X-Gridhand-Executable": str(int(part.executable))}
        return Response(part.data, media_type="application/octet-stream", headers=headers)

    @router.post("/file")
    async def write_file(
        name: NAME,
        session: Session,
        job: Job,
        attempt: Attempt,
        file: FileName,
        offset: Offset,
        request: Request,
        executable: bool = False,
    ) -> Response:
        node, key, data = _own(request, name), (JobId(job), attempt), await request.body()
        await nodes.write_file(node, session, key, file, offset, data, executable=executable)
        return JSONResponse({"end": offset + len(data)})


def _own(request: Request, name: str) -> NodeName:
    """Return the node; over the unix socket only administrators may act for one."""
    if token_of(request) is None:  # else the scope is of this node alone
        check_admin(request, name, "node")
    return check_node_name(name)
