"""Find out who sends a request: the kernel says so for the unix socket, so a client cannot lie."""

from __future__ import annotations

import os
import pwd
import socket
from functools import lru_cache

from fastapi import Request as HttpRequest

from gridhand.api.slow_clients import TimedProtocol
from gridhand.controller.keeper.job_commands import ADMIN
from gridhand.core.errors import NotYours
from gridhand.core.model.names import check_label
from gridhand.posix.peers import peer_credentials

_PEER = "uid"


class PeerProtocol(TimedProtocol):
    """A protocol of uvicorn whose client address is the user id of the socket's peer."""

    def connection_made(self, transport: object) -> None:
        super().connection_made(transport)
        connected = self.transport.get_extra_info("socket")
        if connected is not None and connected.family == socket.AF_UNIX:
            self.client = (_PEER, peer_credentials(connected).uid)


def owner_of(request: HttpRequest) -> str:
    """Return the owner in whose name the caller acts.

    The user who runs the controller, and root, may act for others: they name them in a header.
    """
    uid = _uid(request)
    named = request.headers.get("x-gridhand-owner")
    if named is None or named == user_name(uid):
        return user_name(uid)
    if uid in (0, os.geteuid()):
        return check_label(named, "owner")
    raise NotYours(named, user_name(uid), "the name")


def acts_as(request: HttpRequest) -> str:
    """Return the owner as `owner_of` does, but `ADMIN` for an administrator who names none."""
    if is_admin(request) and "x-gridhand-owner" not in request.headers:
        return ADMIN
    return owner_of(request)


def is_admin(request: HttpRequest) -> bool:
    """Return whether the caller runs the controller, or is root."""
    return _uid(request) in (0, os.geteuid())


def _uid(request: HttpRequest) -> int:
    client = request.scope.get("client")
    if client is None or client[0] != _PEER:
        raise PermissionError("the caller is not known")
    return int(client[1])


@lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """Return the name of a user, or `uid-N` if there is none that could be an owner."""
    try:
        return check_label(pwd.getpwuid(uid).pw_name, "owner")
    except Exception:  # no such user, or not a valid name of an owner
        return f"uid-{uid}"
