"""The process at the other end of a unix socket, as the kernel identifies it."""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

_CREDENTIALS = struct.Struct("3i")


class PeerCredentials(NamedTuple):
    """The peer's process, user and group at the time it connected."""

    pid: int
    uid: int
    gid: int

    @property
    def is_trusted(self) -> bool:
        """Whether the peer is our own user, or root."""
        return self.uid in (0, os.geteuid())


def peer_credentials(connected: socket.socket) -> PeerCredentials:
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return PeerCredentials(*_CREDENTIALS.unpack(raw))


def check_peer(connected: socket.socket, *, trusted_uid: int | None = None) -> None:
    """Raise PermissionError unless the peer is our own user, root, or `trusted_uid`.

    Clients do this before they send anything: another user may listen at the path.
    """
    peer = peer_credentials(connected)
    if not peer.is_trusted and peer.uid != trusted_uid:
        raise PermissionError(f"another user (uid {peer.uid}) listens there")
