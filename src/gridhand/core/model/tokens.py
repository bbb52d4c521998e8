"""Tokens, by which clients on a network prove who they are, and the scopes that limit them.

A token is the text `grid_ID_SECRET`. Only the SHA-256 of the secret is kept: the secret has 256
random bits, so nobody can find it by trying, and a slow hash would gain nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import NamedTuple, NewType

from gridhand.core.errors import InvalidInput
from gridhand.core.model.names import NodeName, check_node_name

TokenId = NewType("TokenId", str)
"""The id of a token, which is not secret."""

SCOPES = ("read", "submit", "admin")  # each may do what those before it may
_AGENT = "agent:"
_TEXT = re.compile(r"grid_([0-9a-z]{10})_([0-9a-f]{64})")
_SCOPE_HINT = "read, submit, admin, or agent:NODE"


class Token(NamedTuple):
    """A token as it is kept. Times are milliseconds of ledger time."""

    id: TokenId
    owner: str
    scope: str
    digest: str
    made_at: int
    expires_at: int | None = None
    revoked_at: int | None = None
    used_at: int | None = None  # written rarely, so it may lag behind

    def is_valid(self, now: int) -> bool:
        """Return whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def state(self, now: int) -> str:
        """Return `valid`, `revoked` or `expired`."""
        if self.revoked_at is not None:
            return "revoked"
        return "valid" if self.is_valid(now) else "expired"

    def matches(self, secret: str) -> bool:
        """Return whether this is its secret, in a time that does not depend on the answer."""
        return hmac.compare_digest(self.digest, digest_of(secret))

    def allows(self, needed: str, node: str | None = None) -> bool:
        """Return whether it may be used where `needed` is asked for: a scope, or `agent`.

        A token of an agent is for its node alone.
        """
        if needed == "agent":
            return self.scope == "admin" or (node is not None and self.scope == f"{_AGENT}{node}")
        return self.scope in SCOPES and SCOPES.index(self.scope) >= SCOPES.index(needed)

    @property
    def node(self) -> NodeName | None:
        """The node of an agent's token."""
        return NodeName(self.scope[len(_AGENT) :]) if self.scope.startswith(_AGENT) else None


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a secret, in hexadecimal digits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def token_text(id: str, secret: str) -> str:
    """Return the text that a client sends."""
    return f"grid_{id}_{secret}"


def read_token(text: str) -> tuple[TokenId, str] | None:
    """Return the id and the secret of a token's text, or None if it is none.

    >>> read_token("grid_0123456789_" + "a" * 64)[0]
    '0123456789'
    >>> read_token("something else")
    """
    found = _TEXT.fullmatch(text)
    return None if found is None else (TokenId(found[1]), found[2])


def check_scope(value: object) -> str:
    """Return a scope, or raise InvalidInput."""
    if isinstance(value, str):
        if value in SCOPES:
            return value
        if value.startswith(_AGENT):
            return _AGENT + check_node_name(value[len(_AGENT) :], "scope")
    raise InvalidInput("scope", value, _SCOPE_HINT)
