"""The app: all routes of one controller, under /api/v1."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field

from gridhand import __version__
from gridhand.api import problems
from gridhand.api.bodies import LimitBodies
from gridhand.api.callers import is_admin
from gridhand.api.calls import call_routes
from gridhand.api.jobs import job_routes
from gridhand.api.ledger import ledger_routes
from gridhand.api.replies import JSONResponse
from gridhand.api.sessions import session_routes
from gridhand.api.strict import StrictRoute
from gridhand.api.views import amounts, node_json, when
from gridhand.controller.controller import Controller
from gridhand.core.errors import NotYours

PROTOCOL = 1


class StopBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    jobs: Annotated[Literal["refuse", "keep", "kill"], Field()] = "refuse"


def make_app(controller: Controller) -> FastAPI:
    app = FastAPI(
        title="Gridhand",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        default_response_class=JSONResponse,
    )
    problems.install(app)
    app.add_middleware(LimitBodies)
    router = APIRouter(prefix="/api/v1")
    router.include_router(_own_routes(controller))
    router.include_router(job_routes(controller))
    router.include_router(call_routes(controller))
    router.include_router(ledger_routes(controller))
    router.include_router(session_routes(controller))
    app.include_router(router)
    return app


def _own_routes(controller: Controller) -> APIRouter:
    """Of the controller itself."""
    router = APIRouter(tags=["controller"], route_class=StrictRoute)

    @router.get("/version")
    async def version() -> dict[str, Any]:
        return {
            "version": __version__,
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "home": controller.home.folder,
            "started_at": when(round(controller.started * 1000)),
            "idle": await controller.idle(),
        }

    @router.get("/status")
    async def status() -> dict[str, Any]:
        found = await controller.ask(controller.calls.status())
        return {
            "controller": {
                "pid": os.getpid(),
                "version": __version__,
                "uptime_s": round(time.monotonic() - controller.since, 3),
                "home": controller.home.folder,
                "store": controller.store_url,
                "socket": controller.home.socket,
            },
            "agent": dict(controller.runner.facts()),
            "nodes": [
                node_json(node, controller.runner.usage.get(node.name)) for node in found.nodes
            ],
            "total": amounts(found.total),
            "allocated": amounts(found.allocated),
            "available": amounts(found.available),
            "jobs": await controller.counts(),
            "problems": controller.problems(),
        }

    @router.post("/stop")
    async def stop(body: StopBody, request: Request) -> dict[str, Any]:
        if not is_admin(request):
            raise NotYours("it", "who asks", "the controller")
        counts = await controller.counts()
        await controller.stop(body.jobs)
        return {"pid": os.getpid(), "jobs": counts}

    return router
