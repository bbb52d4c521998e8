"""The load of each core, so that jobs are pinned where other programs run least."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gridhand.posix import procfs

_SHORTEST_S = 0.2  # between two readings: the kernel counts in hundredths of a second
_STEPS = 4  # smaller differences are chance, and do not move jobs from core to core


class CoreLoad:
    """The load of the cores between the last two readings of their times."""

    def __init__(
        self,
        times: Callable[[], dict[int, procfs.CpuTimes]] = procfs.cpu_times,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._clock = times, clock
        self._times, self._at = times(), clock()
        self._steps: Mapping[int, int] = {}

    def steps(self) -> Mapping[int, int]:
        """Return how busy each core was since the last reading, in quarters of the time.

        Whoever asks takes a reading. One must be taken every few seconds: a core that became busy
        a moment ago would not show in the mean of an hour.
        """
        now = self._clock()
        if now - self._at >= _SHORTEST_S:
            before, self._times, self._at = self._times, self._read(), now
            known = before.keys() & self._times.keys()
            used = {core: procfs.busy_part(before[core], self._times[core]) for core in known}
            self._steps = {core: round(_STEPS * part) for core, part in used.items()}
        return self._steps
