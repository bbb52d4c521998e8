"""The routes of tokens: create, list, rotate, revoke. A secret is in one reply only."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from pydantic import Field

from gridhand.api.auth import acts_as, check_admin, is_admin, owner_of
from gridhand.api.http import api_router, listed
from gridhand.api.json_views import when
from gridhand.api.schemas.ledger import Name, OpId, Seconds, Strict, op_id_of
from gridhand.controller.controller import Controller
from gridhand.controller.keeper.job_commands import ADMIN
from gridhand.core.errors import GridError, InvalidInput
from gridhand.core.model.names import check_label
from gridhand.core.model.tokens import Token, TokenId, check_scope, digest_of, token_text
from gridhand.core.token_operations import CreateToken, RevokeToken, RotateToken
from gridhand.posix.unix_users import UnknownUser

Id = Annotated[str, Path(pattern="^[0-9a-z]{10}$")]

_LETTERS = "0123456789abcdefghijkmnpqrstuvwxyz"
_USERS_SCOPES = ("read", "submit")  # that users may create for themselves


class TokenBody(Strict):
    """A token to create: by default for the caller, and for good."""

    scope: Annotated[str, Field(max_length=210)]
    owner: Name | None = None
    ttl_s: Seconds | None = None


def token_routes(controller: Controller) -> APIRouter:
    """Return the routes of tokens."""
    router = api_router("/tokens", "tokens")
    book = controller.tokens

    def shown(token: Token, secret: str | None = None) -> dict[str, Any]:
        told = token_json(token, book.now())
        return told if secret is None else {**told, "token": token_text(token.id, secret)}

    @router.get("")
    async def list_tokens(request: Request) -> Response:
        """Return the tokens, the oldest first: of all owners to administrators, else one's own."""
        who = acts_as(request)
        own = [shown(one) for one in book.all() if who in (ADMIN, one.owner)]
        return listed(request, {"tokens": own})

    @router.post("", status_code=201)
    async def create(body: TokenBody, request: Request, op_id: OpId = None) -> dict[str, Any]:
        """Create a token. This reply alone has the text that a client sends."""
        owner = owner_of(request)
        holder, scope = check_label(body.owner or owner, "owner"), check_scope(body.scope)
        if holder != owner or scope not in _USERS_SCOPES:
            check_admin(request, scope, "the scope")
        _check_user(controller, holder)
        secret = secrets.token_hex(32)
        id = TokenId("".join(secrets.choice(_LETTERS) for _ in range(10)))
        ttl_ms = None if body.ttl_s is None else round(body.ttl_s * 1000)
        command = CreateToken(
            owner, op_id_of(op_id), id, False, holder, scope, digest_of(secret), ttl_ms
        )
        return shown(_fresh(await book.change(command), secret), secret)

    @router.post("/{id}/rotate")
    async def rotate(id: Id, request: Request, op_id: OpId = None) -> dict[str, Any]:
        """Give a token another secret, which this reply alone has; the old one is refused."""
        owner, secret, any_owner = owner_of(request), secrets.token_hex(32), is_admin(request)
        command = RotateToken(owner, op_id_of(op_id), TokenId(id), any_owner, digest_of(secret))
        return shown(_fresh(await book.change(command), secret), secret)

    @router.delete("/{id}")
    async def revoke(id: Id, request: Request, op_id: OpId = None) -> dict[str, Any]:
        """Refuse a token from now on, and cut the replies that are open with it."""
        owner, any_owner = owner_of(request), is_admin(request)
        command = RevokeToken(owner, op_id_of(op_id), TokenId(id), any_owner)
        return shown(await book.change(command))

    return router


def token_json(token: Token, now: int) -> dict[str, Any]:
    """Return a token as JSON, without anything that is secret."""
    return {
        "id": token.id,
        "owner": token.owner,
        "scope": token.scope,
        "state": token.state(now),
        "made_at": when(token.made_at),
        "expires_at": when(token.expires_at),
        "revoked_at": when(token.revoked_at),
        "last_used_at": when(token.used_at),
    }


def _check_user(controller: Controller, owner: str) -> None:
    """Raise InvalidInput if jobs of the owner could not run: the machine has no such user."""
    try:
        controller.users.find(owner)
    except UnknownUser as error:
        raise InvalidInput("owner", owner, "a user of this machine") from error


def _fresh(token: Token, secret: str) -> Token:
    """Return the token; raise if it has another secret, which an earlier reply has shown."""
    if token.digest == digest_of(secret):
        return token
    raise _Shown(token.id)


class _Shown(GridError):
    code = "token_shown"

    def __init__(self, id: str) -> None:
        super().__init__(
            f"this was done before: token {id}, and its secret is shown only once",
            hint=f"`grid token rotate {id}` makes another secret.",
        )
