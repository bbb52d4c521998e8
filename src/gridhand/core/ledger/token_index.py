"""TokenIndex: the tokens of a ledger by their ids."""

from __future__ import annotations

from collections.abc import Iterable

from gridhand.core.errors import NotYours, UnknownToken
from gridhand.core.model.tokens import Token, TokenId


class TokenIndex:
    """All tokens, including those that were revoked and are still kept."""

    __slots__ = ("by_id",)

    def __init__(self) -> None:
        self.by_id: dict[TokenId, Token] = {}

    def load(self, tokens: Iterable[Token]) -> None:
        self.by_id = {token.id: token for token in tokens}

    def apply(self, before: Token | None, after: Token | None) -> None:
        """Replace one row by another, or take it away."""
        if after is not None:
            self.by_id[after.id] = after
        elif before is not None:
            del self.by_id[before.id]

    def get(self, id: TokenId, owner: str | None) -> Token:
        """Return a token of `owner`, or of anybody if that is None."""
        token = self.by_id.get(id)
        if token is None:
            raise UnknownToken(id)
        if owner is not None and token.owner != owner:
            raise NotYours(id, owner, "token")
        return token
