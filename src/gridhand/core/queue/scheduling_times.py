"""The times by which the queue weighs waiting against running, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass

HALF_LIFE_MS = 7 * 86_400_000
CLASS_PATIENCE_MS = 3_600_000
PATIENCE_MS = 10_000
MINIMUM_RUN_MS = 10_000
MOST_TIMES = 3


@dataclass(frozen=True, slots=True)
class SchedulingTimes:
    """See `shares`, `ready`, `timeline` and `preemption`, in this order."""

    half_life_ms: int = HALF_LIFE_MS
    class_patience_ms: int = CLASS_PATIENCE_MS
    patience_ms: int = PATIENCE_MS
    minimum_run_ms: int = MINIMUM_RUN_MS
    most_preemptions: int = MOST_TIMES


USUAL_TIMES = SchedulingTimes()
