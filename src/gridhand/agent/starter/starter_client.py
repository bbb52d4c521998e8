"""Find the starter of a folder, or start one, without an event loop."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from gridhand.agent.link_errors import LinkAbsent, LinkLost, LinkRefused
from gridhand.agent.starter import connection
from gridhand.agent.starter.message_fields import StarterGreeting, StarterListing
from gridhand.posix.daemon import DaemonFailed, launch, start_lock

_TIMEOUT_S = 10.0
_HELLO = {"do": "hello", "epoch": None, "id": 1}


def ensure_starter(
    folder: str,
    *,
    grace_s: float = 60.0,
    timeout_s: float = _TIMEOUT_S,
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> StarterGreeting:
    """Return the greeting of the folder's starter; start one, belonging to nobody, if none runs.

    However many callers do this at the same moment, one is started. A starter that is there and
    does not answer is not replaced, because its jobs would be lost with it. The new process is
    created inside `around`, for callers with settings it must not inherit.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with contextlib.suppress(LinkAbsent):
        return greet_starter(folder, timeout_s=timeout_s)
    try:
        with start_lock(folder):
            with contextlib.suppress(LinkAbsent):
                return greet_starter(folder, timeout_s=timeout_s)
            launch(["gridhand.agent.starter", folder, "--grace", str(grace_s)], folder, around)
    except DaemonFailed as error:
        # One may run, and have put back a socket that was removed.
        with contextlib.suppress(LinkAbsent):
            return greet_starter(folder, timeout_s=timeout_s)
        raise LinkLost(f"no starter can be started: {error}") from error
    return greet_starter(folder, timeout_s=timeout_s)


def greet_starter(folder: str, *, timeout_s: float = _TIMEOUT_S) -> StarterGreeting:
    """Say hello to the starter of a folder; raise LinkAbsent if none runs."""
    [greeting] = _ask(folder, _HELLO, timeout_s=timeout_s)
    return cast(StarterGreeting, greeting)


def list_attempts(folder: str, *, timeout_s: float = _TIMEOUT_S) -> StarterListing:
    """Return what the starter of a folder knows; raise LinkAbsent if none runs."""
    _, listing = _ask(folder, _HELLO, {"do": "list", "id": 2}, timeout_s=timeout_s)
    return cast(StarterListing, listing)


def _ask(folder: str, *requests: dict[str, Any], timeout_s: float) -> list[Any]:
    """Return the answers to requests on a connection of their own."""
    replies = []
    try:
        with connection.connect(folder, timeout_s) as connected, connected.makefile("rb") as file:
            for request in requests:
                connected.sendall(json.dumps(request).encode() + b"\n")
                replies.append(json.loads(_read_line(file)))
    except OSError as error:
        raise unreachable(folder, error) from error
    for reply in replies:
        if "error" in reply:
            raise LinkRefused("starter", reply["error"], reply["message"])
    return replies


def unreachable(folder: str, error: OSError) -> LinkLost:
    """Return LinkAbsent only if no starter can be there, so that starting another one is right."""
    absent = isinstance(error, ConnectionError | FileNotFoundError)
    return (LinkAbsent if absent else LinkLost)(f"no starter answers in {folder}: {error}")


def _read_line(file: BinaryIO) -> bytes:
    line = file.readline()
    if not line.endswith(b"\n"):
        raise ConnectionResetError("it closed the connection")
    return line
