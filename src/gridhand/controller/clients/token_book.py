"""TokenBook: the tokens as the event loop knows them, so that a request need not ask the keeper."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from gridhand.controller.keeper.questions import AskStore
from gridhand.controller.store_retry import retry_while_store_is_away
from gridhand.core.errors import GridError, TokenRefused
from gridhand.core.model.tokens import Token, TokenId, digest_of, read_token
from gridhand.core.operations import Operation
from gridhand.core.token_operations import ListTokens, TokenCommand

USES_S = 600.0
_UNKNOWN = "the token is not known here"


class TokenBook:
    """Recognises tokens, and remembers when each was last used."""

    def __init__(
        self, ask: Callable[[Operation[Any]], Awaitable[Any]], now: Callable[[], int]
    ) -> None:
        self._ask = ask
        self.now = now
        self._tokens: dict[TokenId, Token] = {}
        self._used: dict[TokenId, int] = {}
        self._written: dict[TokenId, int] = {}  # as far as it is stored

    async def load(self) -> None:
        """Read the tokens from the ledger, however long its store is away."""
        known = await retry_while_store_is_away(lambda: self._ask(ListTokens()))
        self._tokens = {token.id: token for token in known}

    async def change(self, command: TokenCommand) -> Token:
        """Run a command; the requests after it are judged by its outcome, whatever that is."""
        try:
            changed: Token = await self._ask(command)
            return changed
        finally:
            await self.load()

    def recognise(self, text: str) -> Token:
        """Return the token that a client sent, or raise TokenRefused."""
        read = read_token(text)
        if read is None:
            raise TokenRefused("this is not a token of Gridhand")
        id, secret = read
        token = self._tokens.get(id)
        if token is None:
            digest_of(secret)  # takes the time that a known one takes
            raise TokenRefused(_UNKNOWN)
        if not token.matches(secret):
            raise TokenRefused(_UNKNOWN)
        now = self.now()
        if not token.is_valid(now):
            raise TokenRefused(f"the token {id} is {token.state(now)}")
        self._used[id] = now
        return token

    def is_current(self, token: Token) -> bool:
        """Return whether what was recognised once would be recognised now."""
        known = self._tokens.get(token.id)
        return known is not None and known.digest == token.digest and known.is_valid(self.now())

    def all(self) -> list[Token]:
        """Return every token, with when it was last used."""
        return [
            token._replace(used_at=self._used.get(token.id, token.used_at))
            for token in self._tokens.values()
        ]

    async def keep_uses(self) -> None:
        """Write now and then when tokens were last used, for as long as the controller runs."""
        while True:
            await asyncio.sleep(USES_S)
            with contextlib.suppress(GridError):  # another time
                await self.write_uses()

    async def write_uses(self) -> None:
        """Write when tokens were last used, if that has changed since it was written."""
        used = dict(self._used.items() - self._written.items())
        if used:
            await self._ask(AskStore(lambda store, _: store.note_token_use(used)))
            self._written |= used
