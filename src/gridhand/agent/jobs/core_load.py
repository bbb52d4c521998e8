"""Cores that other programs keep busy, so that jobs are pinned elsewhere if they can be."""

from __future__ import annotations

import time
from collections.abc import Callable

from gridhand.posix import procfs

_SHORTEST_S = 0.2  # between two readings: the kernel counts in hundredths of a second
_BUSY = 0.5


class CoreLoad:
    """The cores that were busy between the last two readings of their times."""

    def __init__(
        self,
        times: Callable[[], dict[int, procfs.CpuTimes]] = procfs.cpu_times,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._clock = times, clock
        self._times, self._at = times(), clock()
        self._busy: frozenset[int] = frozenset()

    def busy(self) -> frozenset[int]:
        """Return the cores that were busy for over half of the time since the last reading."""
        now = self._clock()
        if now - self._at >= _SHORTEST_S:
            before, self._times, self._at = self._times, self._read(), now
            used = {core: procfs.cores_used(before, self._times, [core]) for core in self._times}
            self._busy = frozenset(core for core, part in used.items() if part > _BUSY)
        return self._busy
