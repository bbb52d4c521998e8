"""The HTTP plumbing of all routes: bounded bodies, strict JSON in, plain ASCII JSON out."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse as Utf8Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gridhand.api.problems import problem

MOST_BYTES = 1 << 20
MOST_JOB_BYTES = 8 << 20  # a command and an environment may be long, and calls many
DEEPEST = 100
SMALL_BYTES = 64 << 10  # a smaller body does not wait for its turn
MOST_LARGE_BODIES = 16
_LARGE_BODIES = ("/api/v1/jobs", "/api/v1/calls")
_UPLOADS = "/api/v1/uploads/"
_NODES, _OF_WORKERS = "/api/v1/nodes/", ("/join", "/reports", "/output", "/file")

Reply = TypeVar("Reply")

# Matches a string to its end, or to the end of the body: each byte is looked at once.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class JSONResponse(Utf8Response):
    """A JSON reply in plain ASCII.

    Commands and paths may contain bytes that are not UTF-8. Python keeps them as lone surrogates,
    which UTF-8 cannot encode; one such job must not break the list of all jobs.
    """

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class LimitBodies:
    """Middleware that refuses a body that is too large, by its stated or its actual size.

    Few large bodies are read at a time, so that many clients cannot fill the memory: the others
    wait, and are not read meanwhile.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turns = asyncio.Semaphore(MOST_LARGE_BODIES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        large = path in _LARGE_BODIES or path.startswith(_UPLOADS) or _is_of_worker(path)
        most = MOST_JOB_BYTES if large else MOST_BYTES
        headers = dict(scope["headers"])
        stated = headers.get(b"content-length", b"0")
        if not stated.isdigit() or int(stated) > most:
            hint = "Put long data into a file that the job reads."
            await problem(413, "too_large", _too_large(most), hint)(scope, receive, send)
            return
        limited = _limited(receive, most)
        if int(stated) <= SMALL_BYTES and b"transfer-encoding" not in headers:
            await self._app(scope, limited, send)
            return
        async with contextlib.AsyncExitStack() as turn:
            await self._app(scope, self._in_turn(limited, turn), send)

    def _in_turn(self, receive: Receive, turn: contextlib.AsyncExitStack) -> Receive:
        """Return a function that waits for its turn, and ends it with the body."""
        waited = False

        async def in_turn() -> Message:
            nonlocal waited
            if not waited:
                waited = True
                await turn.enter_async_context(self._turns)
            message = await receive()
            if not message.get("more_body"):
                await turn.aclose()
            return message

        return in_turn


def _is_of_worker(path: str) -> bool:
    return path.startswith(_NODES) and path.endswith(_OF_WORKERS)


def _limited(receive: Receive, most: int) -> Receive:
    """Return a function that refuses what is received beyond `most` bytes."""
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:  # an HTTPException passes through a route that reads its body
            raise HTTPException(413, _too_large(most))
        return message

    return limited


def _too_large(most: int) -> str:
    return f"the body is larger than {most} bytes"


class StrictRequest(Request):
    """A request whose JSON is read by `read_json`."""

    async def json(self) -> Any:
        if not hasattr(self, "_strict"):
            self._strict = read_json(await self.body())
        return self._strict


class StrictRoute(APIRoute):
    """A route whose body is read as strict JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(StrictRequest(request.scope, request.receive))

        return strict


def api_router(prefix: str, *tags: str) -> APIRouter:
    """Return a router for the routes below /api/v1 and `prefix`."""
    return APIRouter(
        prefix=f"/api/v1{prefix}",
        tags=list(tags),
        route_class=StrictRoute,
        default_response_class=JSONResponse,
    )


BYTES: dict[int | str, dict[str, Any]] = {  # how a reply is described that is no JSON
    200: {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}
}


def listed(request: Request, content: Any) -> Response:
    """Return a list with an ETag, or 304 if the client has it already."""
    response = JSONResponse(content)
    tag = f'"{hashlib.blake2b(response.body, digest_size=12).hexdigest()}"'
    response.headers["etag"] = tag
    response.headers["cache-control"] = "no-cache"
    known = [word.strip() for word in request.headers.get("if-none-match", "").split(",")]
    if tag in known or f"W/{tag}" in known or "*" in known:
        return Response(status_code=304, headers={"etag": tag, "cache-control": "no-cache"})
    return response


async def unless_gone(request: Request, reply: asyncio.Future[Reply]) -> Reply:
    """Return the reply, which is cancelled if the client goes away meanwhile."""
    gone = asyncio.ensure_future(until_gone(request.receive))
    try:
        await asyncio.wait((reply, gone), return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            raise HTTPException(499, "the client has closed the connection")
        return reply.result()
    finally:
        reply.cancel()  # does nothing if it is done
        gone.cancel()


async def until_gone(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def read_json(body: bytes) -> Any:
    """Decode `body`, or raise `JSONDecodeError` whatever is wrong with it.

    NaN and Infinity are not JSON, but Python accepts them. Numbers of thousands of digits and
    lists a thousand deep raise other errors in Python, which would look like bugs of ours.
    """
    _check_depth(body)
    try:
        return json.loads(body, parse_constant=_refuse)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:  # too many digits, not UTF-8, too deep
        raise json.JSONDecodeError(str(error), "", 0) from error


def _check_depth(body: bytes) -> None:
    """Refuse what is nested too deep. Few brackets, even in strings, cannot be."""
    if body.count(b"[") + body.count(b"{") <= DEEPEST:
        return
    depth = deepest = 0
    for byte in _STRING.sub(b"", body).translate(None, _NO_BRACKETS):
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    if deepest > DEEPEST:
        raise json.JSONDecodeError(f"nested more than {DEEPEST} deep", "", 0)


def _refuse(word: str) -> NoReturn:
    raise json.JSONDecodeError(f"{word} is not a number", "", 0)
