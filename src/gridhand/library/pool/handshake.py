"""Accepts connections to a pool, from workers that it has asked for alone."""

from __future__ import annotations

import hmac
import marshal
import socket

from gridhand.posix.peers import peer_credentials
from gridhand.worker import wire

_GREETING_S = 2.0

# The socket, the pid, the number of the shape; then job, attempt, node and allocation.
Arrived = tuple[socket.socket, int, int, list[str]]


def greeted(listener: socket.socket, secret: bytes) -> Arrived | None:
    """Accept a connection; return it with its greeting if it comes from a worker of ours."""
    connected, _ = listener.accept()
    connected.settimeout(_GREETING_S)
    try:
        pid, body = _greeting(connected)
        told, shape, *rest = marshal.loads(body)
        if not hmac.compare_digest(told, secret):
            raise ValueError("another secret")
    except (OSError, ValueError, EOFError, TypeError):
        connected.close()
        return None
    return connected, pid, shape, rest


def _greeting(connected: socket.socket) -> tuple[int, bytes]:
    """Return the pid and the greeting of a peer, which must be the same user's."""
    peer = peer_credentials(connected)
    if not peer.is_trusted:
        raise PermissionError("another user's")
    frames = wire.Frames()
    while True:
        data = connected.recv(4096)
        if not data:
            raise EOFError
        if found := frames.take(data):
            return peer.pid, found[0]
