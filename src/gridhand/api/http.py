"""Bodies: how much of a request is read before it is refused, and by when it must be there."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gridhand.api.problems import problem

MOST_BYTES = 1 << 20
MOST_JOB_BYTES = 8 << 20  # a command and an environment may be long, and calls be many
_LONG = ("/api/v1/jobs", "/api/v1/calls")


class LimitBodies:
    """Refuses a body that is too large: by what it says of itself, or once it turns out so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = MOST_JOB_BYTES if scope["path"] in _LONG else MOST_BYTES
        said = dict(scope["headers"]).get(b"content-length", b"0")
        if not said.isdigit() or int(said) > most:
            await _too_large(most)(scope, receive, send)
            return
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > most:
                raise _TooLarge(most)
            return message

        await self._app(scope, limited, send)


class _TooLarge(HTTPException):
    """Of a kind that a route which reads its body lets pass."""

    def __init__(self, most: int) -> None:
        super().__init__(413, _words(most))


def _too_large(most: int) -> ASGIApp:
    hint = "Put what is long into a file that the job reads."
    return problem(413, "too_large", _words(most), hint)


def _words(most: int) -> str:
    return f"the body is larger than {most} bytes"
