"""The table of all routes with the scope that a token needs for each, and the guard before them.

A request over the unix socket comes from a user that the kernel names, and needs no token. An
application with a route that is not in this table is not served at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gridhand.api.auth import TOKEN
from gridhand.api.request_meter import ROUTE
from gridhand.core.errors import ScopeTooNarrow, TokenRefused
from gridhand.core.model.tokens import Token

OPEN = "open"  # needs no token
PREFIX = "/api/v1"

_TABLE = """
open    GET  /healthz
open    GET  /login
read    GET  /readyz
read    GET  /metrics
read    GET  /docs
read    GET  /docs/{file}
read    GET  /openapi.json
read    POST /logout

read    GET  /api/v1/version
read    GET  /api/v1/identity
read    GET  /api/v1/status
admin   GET  /api/v1/check
admin   GET  /api/v1/dump
admin   GET  /api/v1/config
admin   POST /api/v1/config/reload
admin   POST /api/v1/repair
admin   POST /api/v1/stop
admin   POST /api/v1/prune

read    GET  /api/v1/events lasts
read    GET  /api/v1/queue
read    GET  /api/v1/history
read    GET  /api/v1/predict/{task_type}
read    POST /api/v1/fits
read    POST /api/v1/explain

read    GET  /api/v1/nodes
read    GET  /api/v1/nodes/{name}
admin   POST /api/v1/nodes
admin   POST /api/v1/nodes/{name}/drain
admin   POST /api/v1/nodes/{name}/resume
admin   POST /api/v1/nodes/{name}/health
admin   POST /api/v1/nodes/{name}/foreign
admin   DELETE /api/v1/nodes/{name}
agent   POST /api/v1/nodes/{name}/heartbeat
agent   POST /api/v1/nodes/{name}/join
agent   POST /api/v1/nodes/{name}/orders lasts
agent   POST /api/v1/nodes/{name}/reports
agent   POST /api/v1/nodes/{name}/output
agent   GET  /api/v1/nodes/{name}/input
agent   POST /api/v1/nodes/{name}/leave
agent   GET  /api/v1/nodes/{name}/files
agent   GET  /api/v1/nodes/{name}/file
agent   POST /api/v1/nodes/{name}/file

read    GET  /api/v1/allocations
read    GET  /api/v1/allocations/{id}
submit  POST /api/v1/allocations lasts
submit  POST /api/v1/allocations/group lasts
submit  POST /api/v1/allocations/{id}/{move}

read    GET  /api/v1/resources/status
submit  POST /api/v1/resources/allocate
submit  POST /api/v1/resources/allocate/batch
submit  POST /api/v1/resources/reserve
submit  POST /api/v1/resources/reserve/batch
submit  POST /api/v1/resources/confirm
submit  POST /api/v1/resources/confirm/batch
submit  POST /api/v1/resources/renew
submit  POST /api/v1/resources/renew/batch
submit  POST /api/v1/resources/release
submit  POST /api/v1/resources/release/batch

read    GET  /api/v1/jobs
read    GET  /api/v1/jobs/{id}
read    GET  /api/v1/jobs/{id}/why
read    GET  /api/v1/jobs/{id}/logs
read    GET  /api/v1/jobs/{id}/follow lasts
read    POST /api/v1/jobs/plan
read    GET  /api/v1/jobs/{id}/files
read    GET  /api/v1/jobs/{id}/files/{name}
submit  PUT  /api/v1/uploads/{id}/{name}
submit  POST /api/v1/jobs
submit  POST /api/v1/jobs/{id}/cancel
submit  POST /api/v1/jobs/{id}/hold
submit  POST /api/v1/jobs/{id}/unhold
submit  POST /api/v1/jobs/{id}/signal

read    GET  /api/v1/calls
read    GET  /api/v1/calls/{id}
submit  POST /api/v1/calls
submit  POST /api/v1/calls/waiting

submit  POST /api/v1/sessions lasts
submit  POST /api/v1/sessions/{id}/jobs
submit  DELETE /api/v1/sessions/{id}

admin   GET  /api/v1/tokens
admin   POST /api/v1/tokens
admin   POST /api/v1/tokens/{id}/rotate
admin   DELETE /api/v1/tokens/{id}
"""


class Access(NamedTuple):
    """The scope that a route needs, and whether its reply lasts: revoking a token cuts it."""

    scope: str
    lasts: bool


def _read_table() -> dict[str, Access]:
    table = {}
    for words in (line.split() for line in _TABLE.splitlines() if line):
        scope, method, path, *more = words
        table[f"{method} {path}"] = Access(scope, more == ["lasts"])
    return table


ACCESS = _read_table()


class LastingReplies:
    """The replies that are open, which end when the token they were asked for with does."""

    def __init__(self) -> None:
        self._open: dict[asyncio.Task[object], Token] = {}
        self._cut: set[asyncio.Task[object]] = set()

    def count(self, token: Token) -> int:
        return sum(other.id == token.id for other in self._open.values())

    def cut(self, is_current: Callable[[Token], bool]) -> None:
        """End the replies whose tokens are no longer valid."""
        for task, token in self._open.items():
            if task not in self._cut and not is_current(token):
                self._cut.add(task)
                task.cancel()

    async def run(self, token: Token, reply: Awaitable[None]) -> bool:
        """Send a reply; return False if it was cut."""
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = token
        try:
            await reply
        except asyncio.CancelledError:
            if task not in self._cut:
                raise
            task.uncancel()
            return False
        finally:
            del self._open[task]
            self._cut.discard(task)
        return True


class RouteGuard:
    """A route behind a check of the caller's scope."""

    def __init__(self, app: ASGIApp, path: str, access: Access, replies: LastingReplies) -> None:
        self._app = app
        self._path = path
        self._access = access
        self._replies = replies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ROUTE] = scope["method"], self._path, self._access.lasts
        token: Token | None = scope.get(TOKEN)
        if token is None:
            await self._app(scope, receive, send)
            return
        needed = self._access.scope
        node = scope["path_params"].get("name")
        if needed != OPEN and not token.allows(needed, node):
            raise ScopeTooNarrow(token.scope, f"agent:{node}" if needed == "agent" else needed)
        if self._access.lasts:
            await self._send_lasting(token, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _send_lasting(self, token: Token, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a reply that ends in good order if it is cut: the client asks again, and is told."""
        begun = False

        async def note_begin(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        if await self._replies.run(token, self._app(scope, receive, note_begin)):
            return
        if not begun:
            raise TokenRefused(f"the token {token.id} was revoked or has expired")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def route_keys(route: Route) -> list[str]:
    """Return the names of a route in the table, one for each method."""
    methods = sorted((route.methods or set()) - {"HEAD"})
    return [f"{method} {route.path_format}" for method in methods]


def guard_routes(app: FastAPI, replies: LastingReplies) -> None:
    """Put the guard before every route; raise KeyError for one that is not in the table."""
    for route in app.router.routes:
        assert isinstance(route, Route), route
        [access] = {ACCESS[key] for key in route_keys(route)}
        route.app = RouteGuard(route.app, route.path_format, access, replies)
