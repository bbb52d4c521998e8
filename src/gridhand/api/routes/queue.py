"""The route of the queue: the order in which all that waits would be tried now."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from gridhand.api.auth import only_owner
from gridhand.api.http import api_router
from gridhand.api.queue_views import reading_json
from gridhand.controller.controller import Controller

MOST_LISTED = 1000


def queue_routes(controller: Controller) -> APIRouter:
    router = api_router("", "jobs")

    @router.get("/queue")
    async def queue(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
        owner: Annotated[str | None, Query(max_length=200)] = None,
    ) -> dict[str, Any]:
        """Return the first entries of the queue in the order in which they would be tried now.

        Jobs that wait for other jobs, a time or their owner are counted in `later`. Over the
        network only administrators see the entries of others.
        """
        only = only_owner(request)
        if only is not None and owner not in (None, only):
            return {"entries": [], "ready": 0, "later": 0}
        return reading_json(await controller.queue(limit, only or owner))

    return router
