"""The route of the history: ended jobs, added up."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from gridhand.api.auth import only_owner
from gridhand.api.http import api_router
from gridhand.controller.controller import Controller
from gridhand.controller.jobs.job_history import MOST_READ, HistoryFilter, read_history
from gridhand.core.errors import InvalidInput

Name = Annotated[str | None, Query(max_length=200)]
Moment = Annotated[float | None, Query(ge=0, le=2**40)]


def history_routes(controller: Controller) -> APIRouter:
    router = api_router("", "jobs")

    @router.get("/history")
    async def history(
        request: Request,
        group_by: Literal["owner", "type", "queue", "node"] = "owner",
        owner: Name = None,
        type: Name = None,
        node: Name = None,
        since: Moment = None,
        until: Moment = None,
        before: Annotated[str | None, Query(pattern="^[0-9]{1,18}$")] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_READ)] = MOST_READ,
    ) -> dict[str, Any]:
        """Return how ended jobs waited, ran and ended, in groups and in total.

        Jobs count if they ended from `since` on and before `until`, in seconds since 1970. At most
        `limit` ended jobs are read, the newest first; if there are more, `before` of the reply
        reads the next ones. Over the network only administrators see the jobs of others.
        """
        if since is not None and until is not None and until <= since:
            raise InvalidInput("until", until, f"later than since, which is {since:g}")
        only = only_owner(request)
        foreign = only is not None and owner not in (None, only)
        wanted = HistoryFilter(group_by, only or owner, type, node, _ms(since), _ms(until))
        start = None if before is None else int(before)
        return await read_history(controller, wanted, start, 0 if foreign else limit)

    return router


def _ms(moment: float | None) -> int | None:
    return None if moment is None else round(moment * 1000)
