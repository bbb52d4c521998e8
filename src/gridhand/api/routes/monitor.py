"""The routes for monitors: health, readiness, and metrics for Prometheus."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from gridhand.api.http import JSONResponse
from gridhand.api.problems import problem
from gridhand.api.readiness import unready_reasons
from gridhand.api.request_meter import RequestMeter
from gridhand.controller.controller import Controller

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
}


def monitor_routes(controller: Controller, requests: RequestMeter) -> APIRouter:
    """Return the routes for monitors."""
    router = APIRouter(default_response_class=JSONResponse, tags=["monitor"])

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Say that the controller answers. It says nothing else, as it needs no token."""
        return {"status": "ok"}

    @router.get("/readyz")
    async def readyz() -> Response:
        """Say whether work can be done now: the store answers, and a node is up."""
        reasons = await unready_reasons(controller)
        if not reasons:
            return JSONResponse({"status": "ready"})
        hint = "`grid doctor` says more."
        return problem(503, "not_ready", "; ".join(reasons), hint, {"reasons": reasons})

    @router.get("/metrics", response_class=Response, responses=_TEXT)
    async def metrics() -> Response:
        """Return what there is and what has happened, in the text format of Prometheus."""
        # Imported when it is wanted: most controllers are never asked for it.
        from gridhand.api.metrics_page import MEDIA_TYPE, MetricsView, render_metrics

        view = MetricsView(
            controller.status().nodes,
            dict(controller.samples.latest),
            await controller.counts(),
            controller.model.tally,
            controller.meter,
            requests,
            0 if controller.events is None else controller.events.followers,
        )
        page = await asyncio.to_thread(render_metrics, view)
        return Response(page, headers={"content-type": MEDIA_TYPE})

    return router
