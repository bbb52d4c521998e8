"""Everything that a request over the network must pass before it reaches a route.

In this order: the name by which the client reached us, against pages that rebind a name to our
address; the page that sends it, against other sites; the token or the cookie; and how often that is
used. The unix socket needs none of this: there the kernel says who asks.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gridhand.api.access import LastingReplies
from gridhand.api.auth import TOKEN, is_peer
from gridhand.api.browser_logins import BrowserLogins
from gridhand.api.problems import problem, problem_of
from gridhand.api.request_rates import RequestRates
from gridhand.controller.clients.token_book import TokenBook
from gridhand.controller.keeper.tickets import acting_token
from gridhand.core.errors import GridError, TokenRefused, TooManyRequests
from gridhand.core.model.tokens import Token

MOST_LASTING = 500  # open replies of one token
_WITHOUT_TOKEN = frozenset({"/healthz", "/login"})
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_SECURITY = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'; object-src 'none'",
}


@dataclass(frozen=True, slots=True)
class NetworkCallers:
    """The callers over the network: known by a token, or browsers that have logged in."""

    tokens: TokenBook
    logins: BrowserLogins
    rates: RequestRates
    replies: LastingReplies

    def cut_ended(self) -> None:
        """End the replies whose tokens or logins have ended."""
        self.replies.cut(lambda one: self.tokens.is_current(one) or self.logins.is_current(one))

    def recognise(self, headers: Mapping[str, str], *, needs_origin: bool) -> Token:
        """Return the token of a request, or one that stands for its login; or raise."""
        kind, _, text = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.tokens.recognise(text.strip())
        secret = _cookie(headers.get("cookie", ""), self.logins.cookie)
        if secret is None:
            raise TokenRefused("a request over the network needs a token")
        token = self.logins.recognise(secret)
        if token is None:
            raise TokenRefused("this login has ended; `grid serve` prints a link for a new one")
        if needs_origin and "origin" not in headers:  # only a browser has a cookie, and it says so
            raise TokenRefused("a change by a browser needs the Origin header")
        return token


class NetworkAccess:
    """Middleware that lets only known callers in, and says in whose name they act."""

    def __init__(
        self, app: ASGIApp, *, callers: NetworkCallers, hosts: Collection[str] = ()
    ) -> None:
        self._app = app
        self._callers = callers
        self._hosts = own_names() | {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        acting_token.set(None)
        scope.pop(TOKEN, None)
        if scope["type"] != "http" or is_peer(scope):
            await self._app(scope, receive, send)
            return
        send = _with_security_headers(send)
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        host = headers.get("host", "")
        if not is_allowed_host(host, self._hosts):
            hint = "Use its address or its own name, or add the name to http.hosts."
            detail = "this controller is not known by the name in the Host header"
            await problem(421, "unknown_host", detail, hint)(scope, receive, send)
            return
        try:
            self._enter(scope, headers)
        except GridError as error:
            await problem_of(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _enter(self, scope: Scope, headers: Mapping[str, str]) -> None:
        """Note who asks, or raise."""
        origin = headers.get("origin")
        own = origin is None or origin == f"{scope['scheme']}://{headers['host']}"
        changes = scope["method"] not in _SAFE_METHODS
        if changes and not own:
            raise TokenRefused("a page of another site sent this request")
        if scope["path"] in _WITHOUT_TOKEN:
            return
        token = self._callers.recognise(headers, needs_origin=changes)
        self._callers.rates.take(token.id)
        if self._callers.replies.count(token) >= MOST_LASTING:
            raise TooManyRequests("open replies", 1)
        scope[TOKEN] = token
        acting_token.set(token.id)


def own_names() -> set[str]:
    """Return the names of this machine, by which clients may reach it."""
    name = socket.gethostname().lower()
    return {"localhost", name, f"{name}.local", socket.getfqdn().lower()}


def is_allowed_host(host: str, names: Collection[str]) -> bool:
    """Return whether a Host header names us: by a name of ours, or by any address.

    A page can rebind a name of its own to our address, but not an address.

    >>> is_allowed_host("127.0.0.1:7070", ()), is_allowed_host("evil.example", {"localhost"})
    (True, False)
    """
    name = host.lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    else:
        name = name.partition(":")[0]
    if name.rstrip(".") in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _cookie(header: str, name: str) -> str | None:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return None
    return None if found is None else found.value


def _with_security_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _SECURITY.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "private, no-cache")
        await send(message)

    return send_with_headers
