"""Find nested calls that can never start because everything they need is held by waiting calls."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gridhand.core.errors import CallFailed
from gridhand.library.pool.blocked_threads import (
    SURE_S,
    BlockedCall,
    Unchanged,
    is_blocked,
    no_way_out,
    refusal,
)
from gridhand.library.thread_runner.thread_call import Phase, ThreadCall

if TYPE_CHECKING:
    from gridhand.core.ledger.status import Status


class StalledCalls:
    """Nested calls that ask for more than their caller can lend, in the order of arrival."""

    def __init__(self) -> None:
        self._calls: dict[ThreadCall, None] = {}
        self._unchanged = Unchanged()

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, call: ThreadCall) -> None:
        self._calls[call] = None

    def find_hopeless(self, open_calls: Iterable[ThreadCall], status: Status) -> ThreadCall | None:
        """Return the last call that can never get room, once that has been so for a while."""
        self._calls = {call: None for call in self._calls if call.phase is Phase.WAITING}
        lenders = dict.fromkeys(call.parent.holder for call in self._calls if call.parent)
        blocked = [call for call in lenders if self._is_blocked(call, open_calls)]
        seconds = self._unchanged.seconds(tuple(map(id, blocked)), time.monotonic())
        if not blocked or seconds < SURE_S:
            return None
        waiting = [BlockedCall(0.0, call.held_id, call.node, call.amounts) for call in blocked]
        for call in reversed(self._calls):
            lends = call.parent is not None and call.parent.holder in blocked
            if lends and no_way_out(call.call.request, status, waiting):
                return call
        return None

    def _is_blocked(self, lender: ThreadCall, open_calls: Iterable[ThreadCall]) -> bool:
        """Return whether everything in the lender's allocation waits for stalled calls only."""
        running = {c for c in open_calls if c.holder is lender and c.phase is Phase.RUNNING}
        made = [c for c in open_calls if c.parent in running and c not in running]
        return all(is_blocked(call.thread) for call in running) and all(
            call in self._calls for call in made
        )


def refusal_of(call: ThreadCall) -> CallFailed:
    """Return the error of a call that can never start."""
    held = call.parent.holder.amounts if call.parent else {}
    return refusal(call.call.name, call.call.request, held)
