"""Find out who sends a request, and what they may see and do.

The kernel names the user behind a unix socket, so a client cannot lie. Over the network it is the
owner of a token, which `network_access` has checked before.
"""

from __future__ import annotations

import os
import socket
import time
from functools import lru_cache
from typing import Any

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from starlette.types import Scope

from gridhand.api.slow_clients import TimedProtocol, most_connections
from gridhand.controller.jobs.job_users import JobUsers
from gridhand.controller.keeper.job_commands import ADMIN
from gridhand.core.errors import GridError, InvalidInput, NotYours
from gridhand.core.model.names import check_label
from gridhand.core.model.tokens import Token
from gridhand.posix.peers import peer_credentials
from gridhand.posix.unix_users import UnknownUser
from gridhand.posix.unix_users import user_name as look_up_name

TOKEN = "gridhand.token"  # the key of the caller's token in the scope of a request
_PEER = "uid"
_KNOWN_S = 60  # for which the name of a user is not looked up again
# Seconds, and a count; the last are milliseconds for a peer that takes nothing of what we send.
_KEEP_ALIVE = {
    socket.TCP_KEEPIDLE: 30,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 60_000,
}


class PeerProtocol(TimedProtocol):
    """A protocol of uvicorn whose client address is the user id of the socket's peer.

    Over the network the address stays what it is, so no such client can be taken for a user.
    """

    from_network = False

    def connection_made(self, transport: object) -> None:
        super().connection_made(transport)
        connected = self.transport.get_extra_info("socket")
        if connected is not None and connected.family == socket.AF_UNIX:
            self.client = (_PEER, peer_credentials(connected).uid)
            if self._has_too_many():
                self.transport.close()
        elif connected is not None:
            self._come_from_network(connected)

    def _come_from_network(self, connected: socket.socket) -> None:
        """Notice a peer that is gone, and leave room for the users of this machine."""
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
        self.from_network = True
        most = most_connections() // 2
        if len(self.connections) > most:
            others = [one for one in self.connections if getattr(one, "from_network", False)]
            if len(others) > most:
                self.make_room(others, most)

    def _has_too_many(self) -> bool:
        """Return whether another user has so many connections that others would lack them."""
        most = most_connections() // 4
        if len(self.connections) <= most or self.client == (_PEER, os.geteuid()):
            return False
        own = [1 for other in self.connections if getattr(other, "client", None) == self.client]
        return len(own) > most


def set_users(app: FastAPI, users: JobUsers) -> None:
    """Have requests to this application be judged by these users."""
    app.state.users = users


def is_peer(scope: Scope) -> bool:
    """Return whether a request came over the unix socket."""
    client = scope.get("client")
    return client is not None and client[0] == _PEER


def token_of(request: HttpRequest) -> Token | None:
    """Return the token of a request that came over the network; None on the unix socket."""
    token: Token | None = request.scope.get(TOKEN)
    return token


def owner_of(request: HttpRequest) -> str:
    """Return the owner in whose name the caller acts.

    The user who runs the controller, and root, may act for others: they name them in a header. So
    may the tokens of administrators, unless jobs would then run with the rights of that other user.
    """
    users, own = _users(request), _own_name(request)
    named = request.headers.get("x-gridhand-owner")
    if named is None or named == own:
        return own
    if not _may_act_for_others(request):
        raise NotYours(named, own, "the name")
    try:
        users.find(check_label(named, "owner"))
    except UnknownUser as error:
        raise InvalidInput("owner", named, "a user of this machine") from error
    return named


def acts_as(request: HttpRequest) -> str:
    """Return the owner as `owner_of` does, but `ADMIN` for an administrator who names none.

    An administrator without the rights of root who names himself is one all the same.
    """
    named = request.headers.get("x-gridhand-owner")
    if is_admin(request) and (named is None or not _may_act_for_others(request)):
        owner_of(request)  # raises if another one is named
        return ADMIN
    return owner_of(request)


def is_admin(request: HttpRequest) -> bool:
    """Return whether the caller runs the controller, is root, or is in the admin group.

    Over the network, the scope of the token decides.
    """
    token = token_of(request)
    return _users(request).is_admin(_uid(request)) if token is None else token.scope == "admin"


def may_see(request: HttpRequest, owner: str) -> bool:
    """Return whether the caller may see all of what belongs to an owner.

    Everybody who reaches the socket of a user's own controller may: that is the user, and root.
    """
    return sole_view(request) in (None, owner)


def sole_view(request: HttpRequest) -> str | None:
    """Return the owner of whose things alone the caller may see all; None if of everybody's."""
    if token_of(request) is None and not _users(request).shared:
        return None
    acting = acts_as(request)
    return None if acting == ADMIN else acting


def only_owner(request: HttpRequest) -> str | None:
    """Return the owner whose objects alone the caller may know of; None for all.

    Users of one machine know of each other's jobs: their names and amounts. Over the network only
    administrators know of those of others.
    """
    if token_of(request) is None or acts_as(request) == ADMIN:
        return None
    return owner_of(request)


def check_visible(request: HttpRequest, owner: str, unknown: GridError) -> None:
    """Raise `unknown` if the caller may not know of an object of this owner."""
    if only_owner(request) not in (None, owner):
        raise unknown


def check_admin(request: HttpRequest, what: str, kind: str) -> str:
    """Return the owner who asks; raise `NotYours` unless they are an administrator."""
    owner = owner_of(request)
    if not is_admin(request):
        raise NotYours(what, owner, kind)
    return owner


def check_may_see_all(request: HttpRequest, what: str) -> None:
    """Raise `NotYours` unless the caller may see what belongs to all users."""
    if _users(request).shared or token_of(request) is not None:
        check_admin(request, what, "the controller's")


def _users(request: HttpRequest) -> JobUsers:
    users: JobUsers = request.app.state.users
    return users


def _own_name(request: HttpRequest) -> str:
    token = token_of(request)
    return user_name(_uid(request)) if token is None else token.owner


def _may_act_for_others(request: HttpRequest) -> bool:
    users, token = _users(request), token_of(request)
    if token is None:
        return users.may_act_for_others(_uid(request))
    return token.scope == "admin" and not users.shared


def _uid(request: HttpRequest) -> int:
    if not is_peer(request.scope):
        raise PermissionError("the caller is not known")
    client: Any = request.scope["client"]
    return int(client[1])


def user_name(uid: int) -> str:
    """Return the name of a user, or `uid-N` if there is none that could be an owner."""
    return _user_name(uid, round(time.monotonic() / _KNOWN_S))


@lru_cache(maxsize=1024)
def _user_name(uid: int, _: int) -> str:
    return look_up_name(uid)
