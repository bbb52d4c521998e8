"""Functions that wait for calls in vain: what counts as waiting, and what the caller is told."""

from __future__ import annotations

import selectors
import sys
import threading
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gridhand.core.errors import CallFailed
from gridhand.core.model.names import AllocationId, NodeName
from gridhand.core.model.resources import Resources
from gridhand.core.queue.standstill import ALL_WAIT, SURE_S, WaitingSlot, fits_beside

if TYPE_CHECKING:
    from gridhand.core.ledger.status import Status
    from gridhand.core.model.requests import Request

__all__ = ["SURE_S", "BlockedCall", "Unchanged", "is_blocked", "no_way_out", "refusal"]

# Where a thread is that waits for a future, a queue, another thread or an event loop. What calls
# it does not matter: `concurrent.futures.wait`, `asyncio.run` and `queue.get` all end up there.
_WAITS = frozenset(
    method.__code__
    for method in (
        threading.Condition.wait,
        threading.Thread.join,
        getattr(threading.Thread, "_wait_for_tstate_lock", threading.Thread.join),
        selectors.EpollSelector.select,
        selectors.PollSelector.select,
        selectors.SelectSelector.select,
    )
)


class BlockedCall(NamedTuple):
    """A call that is blocked, and what it holds meanwhile."""

    since: float
    id: str
    node: str
    held: Mapping[str, int]


class Unchanged:
    """For how long something has been the same."""

    def __init__(self) -> None:
        self._seen: Hashable = None
        self._since = 0.0

    def seconds(self, seen: Hashable, now: float) -> float:
        if seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since


def is_blocked(thread: int | None) -> bool:
    """Return whether this thread does nothing but wait for another one, or for an event loop."""
    frame = sys._current_frames().get(thread or 0)
    return frame is not None and frame.f_code in _WAITS


def no_way_out(request: Request, status: Status, waiting: Iterable[BlockedCall]) -> bool:
    """Return whether no node has room for as long as these hold what they do."""
    slots = [
        WaitingSlot(AllocationId(slot.id), slot.since, NodeName(slot.node), slot.held, {})
        for slot in waiting
    ]
    return not fits_beside(request, {node.name: node.total.parts() for node in status.nodes}, slots)


def refusal(
    name: str, request: Request, held: Mapping[str, int], why: str = ALL_WAIT
) -> CallFailed:
    """Return the error of a call that can never start while its caller waits for it."""
    asked, has = request.resources, Resources(held)
    return CallFailed(
        name,
        "nested",
        f"it asks for {asked} while the function that called it holds {has}, and {why}",
        hint="Ask for less in it; or for nothing in the function that calls it, with cpu=0.",
    )
