"""Lines of JSON over a unix socket in a daemon's folder: listen, connect, send and receive."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping

from gridhand.agent.starter.admission import read_secret
from gridhand.agent.starter.message_fields import LINE_BYTES, START_BYTES
from gridhand.posix.peers import check_peer
from gridhand.posix.socket_file import SocketFile

SOCKET = "socket"
_CHUNK = 1 << 18
_MOST_UNREAD = 64 << 20  # a client that does not read is dropped then, and may come back
_START = b'"start"'


class TooLong(Exception):
    """A line is too long. The rest of it is skipped, and the next line counts again."""


class Connection:
    """A client of the starter. Messages to it are held back until `release`."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.epoch: int | None = None
        self.admitted = False  # whether it has given the secret
        self.watching = False
        self._skipping = False
        self._inbox = bytearray()
        self._held: list[bytes] = []
        self._outbox = bytearray()

    def receive(self) -> Iterator[bytes]:
        """Yield complete lines; raise EOFError if the client is gone, TooLong once for a line."""
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

    def tell(self, message: Mapping[str, object]) -> None:
        self._held.append(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def release(self) -> None:
        """Queue the messages that were held back for sending."""
        if self._held:
            self._outbox += b"".join(self._held)
            self._held.clear()

    @property
    def unsent(self) -> bool:
        return bool(self._outbox)

    def send(self) -> bool:
        """Send what the client takes now; return False if it is gone or has not read for long."""
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


def listen(folder_fd: int) -> SocketFile:
    """Listen in the folder, in place of a socket that an earlier process may have left."""
    return SocketFile(_path(folder_fd))


def connect(folder: str, timeout_s: float) -> socket.socket:
    """Connect to the daemon of a folder, and give its secret; raise OSError if nobody listens."""
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout_s)
        connected.connect(_path(folder_fd))
        check_peer(connected)
        if secret := read_secret(folder_fd):
            connected.sendall(secret + b"\n")
    except BaseException:
        connected.close()
        raise
    finally:
        os.close(folder_fd)
    return connected


def _path(folder_fd: int) -> str:
    # The path of a socket has at most 107 bytes; this way the folder's may be of any length.
    return f"/proc/self/fd/{folder_fd}/{SOCKET}"
