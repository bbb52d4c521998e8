"""Who comes to a pool: only workers that this process has asked for are let in."""

from __future__ import annotations

import hmac
import marshal
import os
import socket
import struct

from gridhand.worker import wire

_GREETING_S = 2.0
_CREDENTIALS = struct.Struct("3i")

Arrived = tuple[
    socket.socket, int, int, list[str]
]  # its pid, its shape, and what it says of itself


def greeted(listener: socket.socket, secret: bytes) -> Arrived | None:
    """The next one who comes, if it is one of ours."""
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
    """What a process says that is the same user's."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(told)
    if uid not in (os.geteuid(), 0):
        raise PermissionError("another user's")
    frames = wire.Frames()
    while True:
        data = connected.recv(4096)
        if not data:
            raise EOFError
        if found := frames.take(data):
            return pid, found[0]
