"""A controller that does not answer: describe what its process does, without asking it."""

from __future__ import annotations

import contextlib
import os
import socket
import sys

from gridhand.client.http1 import SILENCE_S
from gridhand.posix import procfs
from gridhand.posix.peers import peer_credentials


def report_silence(connected: socket.socket) -> None:
    """Print that the controller behind a connection has not answered yet, and why if it is seen."""
    text, hint = describe_silence(peer_pid(connected), "`grid doctor` looks at it.")
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"grid: {text}; waiting for it. {hint}\n")
        sys.stderr.flush()


def peer_pid(connected: socket.socket) -> int:
    """Return the process behind a unix socket; 0 if it is elsewhere."""
    if connected.family != socket.AF_UNIX:
        return 0
    return peer_credentials(connected).pid


def describe_silence(pid: int, otherwise: str) -> tuple[str, str]:
    """Return what is wrong with a controller that does not answer, and what to do.

    `otherwise` is what to do if nothing can be seen from outside.
    """
    if pid and procfs.is_stopped(pid):
        return (
            f"the controller (pid {pid}) is stopped and does not answer",
            f"Continue it with `kill -CONT {pid}`.",
        )
    who = f"the controller (pid {pid})" if pid else "the controller"
    return f"{who} has not answered for {SILENCE_S:.0f} s", otherwise


def find_listener(path: str) -> int | None:
    """Return the process that listens at a path, or None if nobody does. Nothing is sent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        connected.settimeout(SILENCE_S)
        try:
            connected.connect(os.fspath(path))
            return peer_pid(connected)
        except BlockingIOError:  # so many wait that it takes no more
            return 0
        except OSError:
            return None
