"""Clocks that processes of one machine can compare: time since boot, and the wall clock."""

from __future__ import annotations

import time

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ms() -> int:
    """Return milliseconds since boot, including time suspended; setting the clock has no effect."""
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


def wall_ms() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
