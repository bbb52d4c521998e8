"""Ledger time: milliseconds that never go back, even if the wall clock is set."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple, Protocol

DAY_MS = 86_400_000
COUNTED_MS = DAY_MS  # how much of a step ahead at a start counts as age
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # includes suspended time


class Clock(Protocol):
    """A source of ledger time."""

    def now(self) -> int: ...


class LedgerClock:
    """A clock that starts at the wall clock or the stored high-water mark, whichever is later.

    Setting the wall clock afterwards has no effect, and a restart after it was set back never sees
    an earlier time than was written before.
    """

    def __init__(self, high_water_ms: int = 0) -> None:
        self._base_ms = max(high_water_ms, time.time_ns() // 1_000_000)
        self._start_ns = time.clock_gettime_ns(_STEADY)

    def now(self) -> int:
        return self._base_ms + (time.clock_gettime_ns(_STEADY) - self._start_ns) // 1_000_000


class ClockJump(NamedTuple):
    """A step ahead of ledger time at a start, and how much of it does not count as age.

    Nobody can tell whether the wall clock was set ahead or no controller ran for that long.
    """

    at: int  # the first moment after it
    ms: int


def jump_between(high_water_ms: int, now: int) -> ClockJump | None:
    """Return the jump of a clock that starts at `now`; None if the whole step counts as age."""
    uncounted_ms = now - high_water_ms - COUNTED_MS
    return ClockJump(now, uncounted_ms) if high_water_ms and uncounted_ms > 0 else None


def time_ago(age_ms: int, now: int, jumps: Iterable[ClockJump]) -> int:
    """Return the moment whose age is `age_ms` now, if jumps do not count."""
    moment = now - age_ms
    for jump in sorted(jumps, reverse=True):
        if moment < jump.at:
            moment -= jump.ms
    return moment
