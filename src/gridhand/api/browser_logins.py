"""Browser logins: a one-time code in a link becomes a session that a cookie stands for.

Both are kept in memory alone. A cookie is HttpOnly and SameSite=Strict, so neither scripts nor
other sites can use it, and the address bar shows no secret after the first request.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from gridhand.core.model.tokens import Token, TokenId, digest_of

CODE_S = 600.0
SESSION_S = 12 * 3600.0
_MOST = 1000


class BrowserLogins:
    """Codes that were printed and not used, and the sessions that came of others."""

    def __init__(self, owner: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._owner = owner
        self._clock = clock
        self._codes: dict[str, float] = {}  # digests, and when they end
        self._sessions: dict[str, tuple[float, Token]] = {}
        self.cookie = "gridhand"  # its name has the port, which cookies do not tell apart

    def make_code(self) -> str:
        """Return a code for one login."""
        code = secrets.token_urlsafe(32)
        self._codes[digest_of(code)] = self._clock() + CODE_S
        return code

    def exchange(self, code: str) -> str | None:
        """Return the secret of a new session, or None if the code is unknown, used or too old."""
        ends = self._codes.pop(digest_of(code), 0.0)
        if self._clock() >= ends:
            return None
        secret = secrets.token_urlsafe(32)
        digest, now = digest_of(secret), self._clock()
        self._sessions = {
            key: session for key, session in self._sessions.items() if session[0] > now
        }
        token = Token(TokenId(f"login-{digest[:8]}"), self._owner, "admin", digest, 0)
        if len(self._sessions) < _MOST:
            self._sessions[digest] = now + SESSION_S, token
        return secret

    def recognise(self, secret: str) -> Token | None:
        """Return the session of a cookie as a token of the controller's own user."""
        ends, token = self._sessions.get(digest_of(secret), (0.0, None))
        return token if self._clock() < ends else None

    def is_current(self, token: Token) -> bool:
        ends, _ = self._sessions.get(token.digest, (0.0, None))
        return self._clock() < ends

    def end(self, token: Token) -> None:
        """End a session."""
        self._sessions.pop(token.digest, None)
