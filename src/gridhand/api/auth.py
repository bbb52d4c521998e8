"""Callers: who asks. On the unix socket the kernel tells, and nothing in a message can lie."""

from __future__ import annotations

import os
import pwd
import socket
import struct
from functools import lru_cache

from fastapi import Request as HttpRequest
from uvicorn.protocols.http.h11_impl import H11Protocol

from gridhand.controller.job_commands import ADMIN
from gridhand.core.errors import NotYours
from gridhand.core.names import check_label

_CREDENTIALS = struct.Struct("3i")
_PEER = "uid"


class PeerProtocol(H11Protocol):
    """Puts the user at the other end of the socket where the address of a client would be."""

    def connection_made(self, transport: object) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        connected = self.transport.get_extra_info("socket")
        if connected is not None and connected.family == socket.AF_UNIX:
            raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            _, uid, _ = _CREDENTIALS.unpack(raw)
            self.client = (_PEER, uid)


def owner_of(request: HttpRequest) -> str:
    """The owner in whose name the caller acts.

    Who runs the controller, and root, may act for others: they say so in a header.
    """
    uid = _uid(request)
    named = request.headers.get("x-gridhand-owner")
    if named is None or named == user_name(uid):
        return user_name(uid)
    if uid in (0, os.geteuid()):
        return check_label(named, "owner")
    raise NotYours(named, user_name(uid), "the name")


def acts_as(request: HttpRequest) -> str:
    """As `owner_of`, but those who may act for others act for all, unless they name one."""
    if is_admin(request) and "x-gridhand-owner" not in request.headers:
        return ADMIN
    return owner_of(request)


def is_admin(request: HttpRequest) -> bool:
    """Whether the caller runs the controller, or is root."""
    return _uid(request) in (0, os.geteuid())


def _uid(request: HttpRequest) -> int:
    client = request.scope.get("client")
    if client is None or client[0] != _PEER:
        raise PermissionError("who asks is not known")
    return int(client[1])


@lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    try:
        return check_label(pwd.getpwuid(uid).pw_name, "owner")
    except Exception:  # no such user, or a name that is not one of ours
        return f"uid-{uid}"
