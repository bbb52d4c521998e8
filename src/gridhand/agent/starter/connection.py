"""Lines between the starter and its clients, over a unix socket in the starter's folder."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

from gridhand.agent.orders import LINE_BYTES, START_BYTES

SOCKET = "socket"
_CHUNK = 1 << 18
_MOST_UNREAD = 64 << 20  # by a client that does not listen; it is let go, and may come back
_START = b'"start"'
_CREDENTIALS = struct.Struct("3i")


class TooLong(Exception):
    """A line without an end. The rest of it is skipped; the next line counts again."""


class Connection:
    """One client as the starter sees it. What it is to be told is kept back until `release`."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.epoch: int | None = None
        self.watching = False
        self._skipping = False
        self._inbox = bytearray()
        self._held: list[bytes] = []
        self._outbox = bytearray()

    def receive(self) -> Iterator[bytes]:
        """Complete lines. Raises EOFError when the client is gone, `TooLong` once for a line."""
        try:
            chunk = self.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            raise EOFError from error
        if not chunk:
            raise EOFError
        if self._skipping:
            _, end_of_line, chunk = chunk.partition(b"\n")
            self._skipping = not end_of_line
        begin, searched = 0, len(self._inbox)
        self._inbox += chunk
        while (end := self._inbox.find(b"\n", searched)) >= 0:
            yield bytes(self._inbox[begin:end])
            begin = searched = end + 1
        del self._inbox[:begin]
        limit = START_BYTES if _START in self._inbox[:64] else LINE_BYTES
        if len(self._inbox) > limit:
            self._inbox.clear()
            self._skipping = True
            raise TooLong

    def tell(self, message: dict[str, Any]) -> None:
        self._held.append(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def release(self) -> None:
        """Let out what was held back."""
        if self._held:
            self._outbox += b"".join(self._held)
            self._held.clear()

    @property
    def unsent(self) -> bool:
        return bool(self._outbox)

    def send(self) -> bool:
        """Send what the client takes now; False when it is gone or has not listened for long."""
        if not self._outbox:
            return True
        try:
            sent = self.socket.send(self._outbox)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        del self._outbox[:sent]
        return len(self._outbox) <= _MOST_UNREAD

    def ours(self) -> bool:
        """Whether the one at the other end is our own user, or root."""
        raw = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(raw)
        return uid in (0, os.geteuid())


def listen(folder_fd: int) -> socket.socket:
    """A socket in the folder, in place of one that a starter before us may have left."""
    path = _path(folder_fd)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(path)
    os.chmod(path, 0o600)
    listening.listen(1024)
    listening.setblocking(False)
    return listening


def unlisten(listening: socket.socket, folder_fd: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(_path(folder_fd))
    listening.close()


def connect(folder: str, timeout_s: float) -> socket.socket:
    """Raises OSError when nobody listens there."""
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout_s)
        connected.connect(_path(folder_fd))
    except BaseException:
        connected.close()
        raise
    finally:
        os.close(folder_fd)
    return connected


def _path(folder_fd: int) -> str:
    # The name of a socket has at most 107 bytes; this way the folder's may be as long as it likes.
    return f"/proc/self/fd/{folder_fd}/{SOCKET}"
