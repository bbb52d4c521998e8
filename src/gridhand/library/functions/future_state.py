"""Changes of the state of a future that `concurrent.futures` has no public method for."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from typing import Any


def mark_running(future: Future[Any]) -> bool:
    """Return whether the call may run: it was neither cancelled nor stopped while it waited."""
    if future._state in ("PENDING", "CANCELLED"):
        with contextlib.suppress(RuntimeError):  # stopped just now
            return future.set_running_or_notify_cancel()
    return False


def mark_pending(future: Future[Any]) -> None:
    """Count a call as waiting again that was given away and not begun; it can be cancelled."""
    with future._condition:
        if future._state == "RUNNING":
            future._state = "PENDING"


def force_cancel(future: Future[Any]) -> bool:
    """Count the call as cancelled even if it runs; return whether it was open."""
    with future._condition:
        if future._state not in ("PENDING", "RUNNING"):
            return False
        future._state = "CANCELLED"
        future._condition.notify_all()
    future._invoke_callbacks()  # type: ignore[attr-defined]
    with contextlib.suppress(Exception):
        future.set_running_or_notify_cancel()
    return True
