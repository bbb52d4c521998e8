"""The FastAPI application: all routes of one controller, under /api/v1."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Request
from pydantic import Field

from gridhand import __version__
from gridhand.api import problems
from gridhand.api.access import LastingReplies, guard_routes
from gridhand.api.auth import (
    check_admin,
    check_may_see_all,
    only_owner,
    owner_of,
    set_users,
    user_name,
)
from gridhand.api.browser_logins import BrowserLogins
from gridhand.api.http import JSONResponse, LimitBodies, api_router
from gridhand.api.json_views import amounts, node_json, when
from gridhand.api.network_access import NetworkAccess, NetworkCallers
from gridhand.api.openapi_document import install_document
from gridhand.api.request_meter import MeasuredRequests, RequestMeter
from gridhand.api.request_rates import RequestRates
from gridhand.api.routes.api_browser import api_browser_routes
from gridhand.api.routes.calls import call_routes
from gridhand.api.routes.event_stream import event_routes
from gridhand.api.routes.files import file_routes
from gridhand.api.routes.history import history_routes
from gridhand.api.routes.jobs import job_routes
from gridhand.api.routes.ledger import ledger_routes
from gridhand.api.routes.logins import login_routes
from gridhand.api.routes.monitor import monitor_routes
from gridhand.api.routes.predictions import prediction_routes
from gridhand.api.routes.queue import queue_routes
from gridhand.api.routes.resource_leases import lease_routes
from gridhand.api.routes.sessions import session_routes
from gridhand.api.routes.tokens import token_routes
from gridhand.api.routes.workers import worker_routes
from gridhand.api.schemas.ledger import Strict
from gridhand.controller.controller import Controller

PROTOCOL = 1
_IT, _CONTROLLER = "this machine", "the controller of"


class StopBody(Strict):
    jobs: Annotated[Literal["refuse", "keep", "kill"], Field()] = "refuse"


_LIVE_MS, _LIVE_FOR_MS = 1000, 15_000  # how often a live view measures, and for how long


def make_app(controller: Controller) -> FastAPI:
    """Return the application that serves `controller`."""
    app = FastAPI(
        title="Gridhand",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        default_response_class=JSONResponse,
    )
    problems.install(app)
    set_users(app, controller.users)
    http, logins = controller.settings.http, BrowserLogins(user_name(os.geteuid()))
    rates, replies = RequestRates(http.requests_per_s), LastingReplies()
    app.state.callers = NetworkCallers(controller.tokens, logins, rates, replies)
    app.add_middleware(LimitBodies)
    app.add_middleware(NetworkAccess, callers=app.state.callers, hosts=http.hosts)
    app.add_middleware(MeasuredRequests, meter=(requests := RequestMeter()))
    for routes in (
        _controller_routes,
        job_routes,
        queue_routes,
        history_routes,
        prediction_routes,
        file_routes,
        call_routes,
        ledger_routes,
        lease_routes,
        event_routes,
        session_routes,
        token_routes,
        worker_routes,
    ):
        # `include_router` would analyse every route again, which takes a third of the start.
        app.router.routes.extend(routes(controller).routes)
    for others in (
        login_routes(logins),
        monitor_routes(controller, requests),
        api_browser_routes(),
    ):
        app.router.routes.extend(others.routes)
    guard_routes(app, replies)
    install_document(app)
    return app


def _controller_routes(controller: Controller) -> APIRouter:
    """Return the routes about the controller itself."""
    router = api_router("", "controller")

    @router.get("/version")
    async def version(request: Request) -> dict[str, Any]:
        return {
            "version": __version__,
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "home": controller.home.folder,
            "shared": controller.users.shared,
            "started_at": when(round(controller.started * 1000)),
            "idle": await controller.idle(),
            "owner": owner_of(request),
        }

    @router.get("/status")
    async def status(request: Request, live: bool = False) -> dict[str, Any]:
        if live:
            await controller.runner.sample_every(_LIVE_MS, _LIVE_FOR_MS)
        cluster, running = controller.status(), await controller.running_on()
        facts = controller.samples.facts
        return {
            "controller": {
                "pid": os.getpid(),
                "version": __version__,
                "uptime_s": round(time.monotonic() - controller.since, 3),
                "home": controller.home.folder,
                "store": controller.store_url,
                "lost_file": controller.lost_file(),
                "socket": controller.home.socket,
            },
            "agent": dict(controller.runner.facts()),
            "nodes": [
                node_json(node, facts(node.name), running.get(node.name, 0))
                for node in cluster.nodes
            ],
            "total": amounts(cluster.total),
            "allocated": amounts(cluster.allocated),
            "available": amounts(cluster.available),
            "jobs": await controller.counts(),
            "shares": _shares(controller, only_owner(request)),
            "problems": controller.problems(),
        }

    @router.post("/stop")
    async def stop(body: StopBody, request: Request) -> dict[str, Any]:
        owner, counts = check_admin(request, _IT, _CONTROLLER), await controller.counts()
        await controller.stop(body.jobs, owner)
        return {"pid": os.getpid(), "jobs": counts}

    @router.get("/config")
    async def show_config(request: Request) -> dict[str, Any]:
        """Return every setting with its source."""
        check_may_see_all(request, "configuration")
        return controller.settings.facts()

    @router.post("/config/reload")
    async def reload_config(request: Request) -> dict[str, Any]:
        """Read the configuration file again."""
        owner = check_admin(request, _IT, _CONTROLLER)
        reloaded = await controller.settings.reload(controller.ask)
        await controller.note_action(owner, "admin.config_reloaded", "configuration")
        controller.runner.plan_again()
        return reloaded

    @router.post("/repair")
    async def repair(request: Request) -> dict[str, Any]:
        """Write the store anew if its file was removed."""
        owner = check_admin(request, _IT, _CONTROLLER)
        repaired = await controller.repair_store()
        why = "its file was written anew" if repaired else "nothing was wrong with its file"
        await controller.note_action(owner, "admin.store_repaired", "store", why)
        return {"repaired": repaired}

    return router


def _shares(controller: Controller, only: str | None) -> list[dict[str, Any]]:
    """Return the shares of owners who have or had something, the largest first."""
    found = [one for one in controller.shares() if only in (None, one.owner)]
    return [
        {"owner": one.owner, "share": round(one.share, 6), "past_share": round(one.past, 6)}
        for one in found
    ]
