"""Admission to the sockets of agent and starter: jobs have no business there.

A connection begins with a secret from a file in the daemon's folder, which is in no environment. A
job of the same user could read the file, so a peer that belongs to a job is refused as well.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Collection

from gridhand.agent.starter.process_trees import JOB_MARK, STARTER_MARK
from gridhand.posix import procfs
from gridhand.posix.peers import peer_credentials
from gridhand.posix.private_files import replace_file

_FILE = "secret"


class Admission:
    """Decides about each connection: first by its peer, then by its first line."""

    def __init__(
        self, folder_fd: int, mark: Callable[[], str], leaders: Callable[[], Collection[int]]
    ) -> None:
        """`mark` is in the environment of every job here; `leaders` are the pids of commands."""
        self._folder_fd = folder_fd
        self._mark, self._leaders = mark, leaders
        self._secret = read_secret(folder_fd) or os.urandom(16).hex().encode()
        self.put_back()

    def put_back(self) -> None:
        """Write the secret if its file does not have it: no client could connect any more."""
        if read_secret(self._folder_fd) != self._secret:
            with contextlib.suppress(OSError):  # the disk is full; try again later
                replace_file(f"/proc/self/fd/{self._folder_fd}/{_FILE}", self._secret)

    def trusts(self, connected: socket.socket) -> bool:
        """Return whether the peer is our user or root, and not part of a job."""
        peer = peer_credentials(connected)
        return peer.is_trusted and not self._is_in_job(peer.pid)

    def _is_in_job(self, pid: int) -> bool:
        marks = procfs.environment(pid)
        if JOB_MARK in marks and marks.get(STARTER_MARK) == self._mark().encode():
            return True
        leaders, seen = self._leaders(), set[int]()
        while pid not in leaders:
            process = procfs.read_process(pid)
            if process is None or pid in seen:
                return False
            seen.add(pid)
            pid = process.parent
        return True

    def opens(self, line: bytes) -> bool:
        """Return whether the first line of a connection is the secret."""
        return line == self._secret


def read_secret(folder_fd: int) -> bytes:
    """Return the secret of a daemon's folder; nothing if there is none."""
    try:
        fd = os.open(_FILE, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder_fd)
    except OSError:
        return b""
    with open(fd, "rb") as file:
        return file.read(128).strip()
