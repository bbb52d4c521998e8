"""The routes by which a browser logs in and out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from gridhand.api.auth import TOKEN
from gridhand.api.browser_logins import SESSION_S, BrowserLogins
from gridhand.api.http import JSONResponse
from gridhand.core.errors import TokenRefused


def login_routes(logins: BrowserLogins) -> APIRouter:
    """Return the routes by which browsers log in."""
    router = APIRouter(default_response_class=JSONResponse)

    @router.get("/login", tags=["browser"])
    async def login(request: Request, code: Annotated[str, Query(max_length=100)] = "") -> Response:
        """Exchange the code of the printed link for a session, and leave the code behind."""
        secret = logins.exchange(code)
        if secret is None:
            raise TokenRefused("the code of this link was used, or is too old")
        reply = RedirectResponse("/", status_code=303)
        reply.set_cookie(
            logins.cookie,
            secret,
            max_age=round(SESSION_S),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return reply

    @router.post("/logout", tags=["browser"])
    async def logout(request: Request) -> Response:
        """End the session of this browser."""
        if (token := request.scope.get(TOKEN)) is not None:
            logins.end(token)
        reply = JSONResponse({})
        reply.delete_cookie(logins.cookie)
        return reply

    return router
