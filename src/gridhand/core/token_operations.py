"""The operations on tokens, as plain data like those of `core/operations.py`."""

from __future__ import annotations

import json

from gridhand.core.model.tokens import Token, TokenId
from gridhand.core.operations import Command, Question, operation


@operation
class TokenCommand(Command[Token]):
    """A change to a token. A stored reply lacks the digest, as a repeat has no secret to show."""

    id: TokenId = TokenId("")
    any_owner: bool = False  # an administrator does it

    def encode_reply(self, reply: Token) -> str:
        return json.dumps(reply._replace(digest=""))

    def decode_reply(self, text: str) -> Token:
        return Token(*json.loads(text))


@operation
class CreateToken(TokenCommand):
    """Let a client act for an owner. A repeat may bring another id and secret: the first stay."""

    holder: str = ""  # the owner of the token
    scope: str = "read"
    digest: str = ""
    ttl_ms: int | None = None

    def body(self) -> str:
        return f"create token {self.holder} {self.scope} {self.ttl_ms}"


@operation
class RotateToken(TokenCommand):
    """Give a token another secret; the old one is refused from now on."""

    digest: str = ""

    def body(self) -> str:
        return f"rotate token {self.id}"


@operation
class RevokeToken(TokenCommand):
    """Refuse a token from now on."""

    def frees_resources(self) -> bool:
        return True

    def body(self) -> str:
        return f"revoke token {self.id}"


@operation
class ListTokens(Question[list[Token]]):
    """Ask for all tokens, the oldest first."""
