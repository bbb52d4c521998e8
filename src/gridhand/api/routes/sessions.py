"""The routes of sessions: a connection that is kept open, and what ends with it.

The reply to `POST /sessions` does not end by itself: it is a line with the id of the session, then
a line every few seconds, so that both sides notice when the other one is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from gridhand.api.auth import owner_of
from gridhand.api.http import JSONResponse, api_router, until_gone
from gridhand.api.schemas.ledger import AttachBody, SessionBody
from gridhand.controller.controller import Controller
from gridhand.core.errors import InvalidInput
from gridhand.core.rows.stream_messages import AliveFrame, SessionOpened

ALIVE_S = 5.0

Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]


def session_routes(controller: Controller) -> APIRouter:
    router = api_router("/sessions", "sessions")

    @router.post("")
    async def open_session(request: Request, body: SessionBody | None = None) -> Response:
        return _SessionResponse(controller, owner_of(request), body or SessionBody())

    @router.post("/{id}/jobs")
    async def attach(id: Id, body: AttachBody, request: Request) -> Response:
        """Have these jobs end with the session; return those that are still open."""
        owner = owner_of(request)
        _, jobs = await controller.come_back(owner, id, (), body.jobs)
        if not controller.sessions.alive(owner, id):
            raise InvalidInput("session", id, "a session that is connected")
        return JSONResponse({"jobs": jobs})

    @router.delete("/{id}")
    async def end(id: Id, request: Request) -> Response:
        """End a session without waiting whether its connection comes back."""
        await controller.sessions.end(owner_of(request), id)
        return JSONResponse({})

    return router


class _SessionResponse(Response):
    """A reply that lasts until the client is gone, the session ends or the controller stops."""

    media_type = "application/x-ndjson"

    def __init__(self, controller: Controller, owner: str, body: SessionBody) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._controller = controller
        self._owner = owner
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id = self._body.session or os.urandom(16).hex()
        with self._controller.sessions.connected(self._owner, id) as ended:
            held, jobs = await self._controller.come_back(
                self._owner, id, self._body.held, self._body.jobs, self._body.runs
            )
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            opened: SessionOpened = {"session": id, "held": held, "jobs": jobs}
            await _send_line(send, opened)
            with contextlib.suppress(OSError):  # the client is gone
                await self._stay_open(ended, receive, send)

    async def _stay_open(self, ended: asyncio.Event, receive: Receive, send: Send) -> None:
        events = (until_gone(receive), ended.wait(), self._controller.stopping.wait())
        waiting = [asyncio.ensure_future(event) for event in events]
        try:
            while not await _any_done(waiting, ALIVE_S):
                await _send_line(send, {"event": "alive"})
            if not waiting[0].done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            for task in waiting:
                task.cancel()


async def _any_done(tasks: Sequence[asyncio.Future[Any]], timeout_s: float) -> bool:
    done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when="FIRST_COMPLETED")
    return bool(done)


async def _send_line(send: Send, message: SessionOpened | AliveFrame) -> None:
    body = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})
