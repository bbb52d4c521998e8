"""Ledger time: milliseconds that only go forward, whatever is done to the wall clock."""

from __future__ import annotations

import time
from typing import Protocol

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # counts suspended time, too


class Clock(Protocol):
    """Tells the time of the ledger."""

    def now(self) -> int: ...


class LedgerClock:
    """The larger of the stored high-water mark and the wall clock at start, and the time since.

    Setting the wall clock back or forth afterwards changes nothing, and a restart after it was set
    back never sees an earlier time than was written before.
    """

    def __init__(self, high_water_ms: int = 0) -> None:
        self._base_ms = max(high_water_ms, time.time_ns() // 1_000_000)
        self._start_ns = time.clock_gettime_ns(_STEADY)

    def now(self) -> int:
        return self._base_ms + (time.clock_gettime_ns(_STEADY) - self._start_ns) // 1_000_000
