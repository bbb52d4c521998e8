"""Find out who sends a request: the kernel says so for the unix socket, so a client cannot lie."""

from __future__ import annotations

import os
import socket
import time
from functools import lru_cache

from fastapi import FastAPI
from fastapi import Request as HttpRequest

from gridhand.api.slow_clients import MOST_CONNECTIONS, TimedProtocol
from gridhand.controller.jobs.job_users import JobUsers
from gridhand.controller.keeper.job_commands import ADMIN
from gridhand.core.errors import InvalidInput, NotYours
from gridhand.core.model.names import check_label
from gridhand.posix.peers import peer_credentials
from gridhand.posix.unix_users import UnknownUser
from gridhand.posix.unix_users import user_name as look_up_name

_PEER = "uid"
MOST_OF_USER = MOST_CONNECTIONS // 4
_KNOWN_S = 60  # for which the name of a user is not looked up again


class PeerProtocol(TimedProtocol):
    """A protocol of uvicorn whose client address is the user id of the socket's peer."""

    def connection_made(self, transport: object) -> None:
        super().connection_made(transport)
        connected = self.transport.get_extra_info("socket")
        if connected is not None and connected.family == socket.AF_UNIX:
            self.client = (_PEER, peer_credentials(connected).uid)
            if self._has_too_many():
                self.transport.close()

    def _has_too_many(self) -> bool:
        """Return whether another user has so many connections that others would lack them."""
        if len(self.connections) <= MOST_OF_USER or self.client == (_PEER, os.geteuid()):
            return False
        own = [1 for other in self.connections if getattr(other, "client", None) == self.client]
        return len(own) > MOST_OF_USER


def set_users(app: FastAPI, users: JobUsers) -> None:
    """Have requests to this application be judged by these users."""
    app.state.users = users


def owner_of(request: HttpRequest) -> str:
    """Return the owner in whose name the caller acts.

    The user who runs the controller, and root, may act for others: they name them in a header.
    """
    uid, users = _uid(request), _users(request)
    named = request.headers.get("x-gridhand-owner")
    if named is None or named == user_name(uid):
        return user_name(uid)
    if not users.may_act_for_others(uid):
        raise NotYours(named, user_name(uid), "the name")
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
    uid = _uid(request)
    if is_admin(request) and (named is None or not _users(request).may_act_for_others(uid)):
        owner_of(request)  # raises if another one is named
        return ADMIN
    return owner_of(request)


def is_admin(request: HttpRequest) -> bool:
    """Return whether the caller runs the controller, is root, or is in the admin group."""
    return _users(request).is_admin(_uid(request))


def may_see(request: HttpRequest, owner: str) -> bool:
    """Return whether the caller may see all of what belongs to an owner.

    Everybody who reaches a user's own controller may: that is only the user, and root.
    """
    return not _users(request).shared or acts_as(request) in (owner, ADMIN)


def check_admin(request: HttpRequest, what: str, kind: str) -> str:
    """Return the owner who asks; raise `NotYours` unless they are an administrator."""
    owner = owner_of(request)
    if not is_admin(request):
        raise NotYours(what, owner, kind)
    return owner


def check_may_see_all(request: HttpRequest, what: str) -> None:
    """Raise `NotYours` unless the caller may see what belongs to all users."""
    if _users(request).shared:
        check_admin(request, what, "the controller's")


def _users(request: HttpRequest) -> JobUsers:
    users: JobUsers = request.app.state.users
    return users


def _uid(request: HttpRequest) -> int:
    client = request.scope.get("client")
    if client is None or client[0] != _PEER:
        raise PermissionError("the caller is not known")
    return int(client[1])


def user_name(uid: int) -> str:
    """Return the name of a user, or `uid-N` if there is none that could be an owner."""
    return _user_name(uid, round(time.monotonic() / _KNOWN_S))


@lru_cache(maxsize=1024)
def _user_name(uid: int, _: int) -> str:
    return look_up_name(uid)
