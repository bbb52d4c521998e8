"""Unix sockets that listen at a path, and notice when their file is removed or replaced."""

from __future__ import annotations

import contextlib
import os
import socket

CHECK_S = 1.0  # between two looks at the file: a client that does not find it waits longer

_BACKLOG = 1024


class SocketFile:
    """A listening socket and its file, to which by default only its owner may connect.

    A process connects by the file, so a socket without one is out of reach: its owner makes a new
    `SocketFile` for the same path then.
    """

    def __init__(self, path: str, mode: int = 0o600) -> None:
        """Listen at the path, in place of whatever an earlier process left there.

        The file appears there only when the socket listens: a client that sees it is never refused.
        """
        self.path = path
        unready = f"{path[:-1]}~"  # of the same length, as the system limits that
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unready)
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.listening.bind(unready)
            os.chmod(unready, mode)
            self.listening.listen(_BACKLOG)
            self.listening.setblocking(False)
            self._identity = _identity(unready)
            os.rename(unready, path)
        except BaseException:
            self.listening.close()
            raise

    def is_in_place(self) -> bool:
        """Return whether the path still leads here."""
        try:
            return _identity(self.path) == self._identity
        except OSError:
            return False

    def close(self, *, keep_file: bool = False) -> None:
        """Stop listening, and remove the file unless another one is there now.

        With `keep_file` it stays: clients who find it wait for the next process to listen there.
        """
        with contextlib.suppress(OSError):
            if not keep_file and self.is_in_place():
                os.unlink(self.path)
        self.listening.close()


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino
