"""Functions that hold something and wait for calls that ask for more: nobody may ever get it.

Four functions with a core each, on four cores, each of which calls one that asks for two: there is
room for none of these, and there never will be. This finds that out, so that one of them can be
told; what it holds is then for the others. A function counts as waiting only if its thread does.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gridhand.core.errors import CallFailed
from gridhand.core.resources import Resources

if TYPE_CHECKING:
    from gridhand.core.requests import Request
    from gridhand.core.views import Status

SURE_S = 3.0  # things stand like this for so long before anybody is refused

# Where a thread is that waits for a lock, a future, another thread or an event loop.
_WAITING_IN = frozenset({"threading.py", "selectors.py", "queue.py"})


class Waiting(NamedTuple):
    """Somebody who waits for a call in vain, and what it holds meanwhile."""

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
    """Whether this thread does nothing but wait."""
    frame = sys._current_frames().get(thread or 0)
    return frame is not None and frame.f_code.co_filename.rpartition("/")[2] in _WAITING_IN


def no_way_out(request: Request, status: Status, waiting: Iterable[Waiting]) -> bool:
    """Whether it has room on no node for as long as these hold what they do."""
    held: dict[str, dict[str, int]] = {}
    for one in waiting:
        there = held.setdefault(one.node, {})
        for name, amount in one.held.items():
            there[name] = there.get(name, 0) + amount
    for choice in request.choices():
        asked = choice.resources.parts()
        for node in status.nodes:
            there = held.get(node.name, {})
            if all(node.total[name] - there.get(name, 0) >= asked[name] for name in asked):
                return False
    return True


def refusal(
    name: str, request: Request, held: Mapping[str, int], *, alone: bool = False
) -> CallFailed:
    why = "no node has both" if alone else "all who could make room for it wait likewise"
    asked, has = request.resources, Resources(held)
    return CallFailed(
        name,
        "nested",
        f"it asks for {asked} while the function that called it holds {has}, and {why}",
        hint="Ask for less in it; or for nothing in the function that calls it, with cpu=0.",
    )
