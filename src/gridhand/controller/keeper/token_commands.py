"""How the keeper decides commands about tokens.

Their events have no row: what they say is in their reason, and the digest stays out of history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gridhand.controller.keeper.ledger_commands import Context
from gridhand.core.errors import InvalidInput
from gridhand.core.model.tokens import Token
from gridhand.core.operations import Command
from gridhand.core.token_operations import CreateToken, RevokeToken, RotateToken, TokenCommand

MOST_TOKENS = 10_000


def create_token(command: CreateToken, context: Context) -> Token:
    tokens, now = context.ledger.tokens.by_id, context.now
    if command.id in tokens or len(tokens) >= MOST_TOKENS:
        raise InvalidInput("token", command.id, f"a new id, and at most {MOST_TOKENS} tokens")
    expires = None if command.ttl_ms is None else now + command.ttl_ms
    token = Token(command.id, command.holder, command.scope, command.digest, now, expires)
    why = f"for {token.owner} with the scope {token.scope}"
    return context.ledger.put_token("admin.token_created", token, why)


def rotate_token(command: RotateToken, context: Context) -> Token:
    token = _find(command, context)
    if not token.is_valid(context.now):
        raise InvalidInput(
            "token", token.id, f"one that is valid: it is {token.state(context.now)}"
        )
    turned = token._replace(digest=command.digest)
    return context.ledger.put_token("admin.token_rotated", turned, f"of {token.owner}")


def revoke_token(command: RevokeToken, context: Context) -> Token:
    token = _find(command, context)
    if token.revoked_at is not None:
        return token
    revoked = token._replace(revoked_at=context.now)
    return context.ledger.put_token("admin.token_revoked", revoked, f"of {token.owner}")


def _find(command: TokenCommand, context: Context) -> Token:
    return context.ledger.tokens.get(command.id, None if command.any_owner else command.owner)


DECISIONS: Mapping[type[Command[Any]], Callable[[Any, Context], Any]] = {
    CreateToken: create_token,
    RotateToken: rotate_token,
    RevokeToken: revoke_token,
}
