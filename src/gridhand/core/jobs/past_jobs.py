"""PastJobs: how ended jobs waited, ran and ended, and what they used of what they asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gridhand.core.jobs.attempt import Attempt
from gridhand.core.jobs.job import Job
from gridhand.core.jobs.task_kind import task_kind
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import UNIT

GROUPS = ("owner", "type", "queue", "node")


def group_of(job: Job, group_by: str) -> str | None:
    """Return the group of a job; None if it has no queue, or was never placed.

    Without a stated type the name of its program or script is its type, as for predictions.
    """
    if group_by == "node":
        return job.attempts[-1].node if job.attempts else None
    names = {"owner": job.work.owner, "type": task_kind(job.work), "queue": job.work.queue}
    return names[group_by]


class PastJobs:
    """The figures of some ended jobs, all of them added one by one."""

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._waits: list[int] = []
        self._runs: list[int] = []
        self._attempts = 0
        self._core_ms = 0  # in parts of a core
        self._asked: list[int] = []  # memory, of attempts whose peak is known
        self._peaks: list[int] = []

    def __len__(self) -> int:
        return sum(self._outcomes.values())

    def add(self, job: Job) -> None:
        self._outcomes[str(job.state)] += 1
        self._attempts += len(job.attempts)
        if job.attempts:
            self._waits.append(max(0, job.attempts[0].placed - job.submitted))
        ran = [_ran_ms(one) for one in job.attempts if one.started is not None]
        if ran:
            self._runs.append(sum(ran))
        for one in job.attempts:
            self._add_use(one, _granted(job.request, one))

    def _add_use(self, attempt: Attempt, granted: Request) -> None:
        held_ms = max(0, (attempt.ended or attempt.placed) - attempt.placed)
        self._core_ms += held_ms * granted.amounts["cpu"]
        asked = granted.amounts["memory"]
        if asked and attempt.peak_bytes is not None:
            self._asked.append(asked)
            self._peaks.append(attempt.peak_bytes)

    def figures(self) -> dict[str, Any]:
        """Return the figures, times in seconds; null where nothing is known."""
        asked, peaks = sum(self._asked), sum(self._peaks)
        return {
            "jobs": len(self),
            "outcomes": dict(sorted(self._outcomes.items())),
            "attempts": self._attempts,
            "wait_s": _times(self._waits),
            "run_s": _times(self._runs),
            "cpu_allocated_s": round(self._core_ms / UNIT / 1000, 3),
            "memory": {
                "measured": len(self._peaks),
                "asked_mean": round(asked / len(self._asked)) if self._asked else None,
                "peak_mean": round(peaks / len(self._peaks)) if self._peaks else None,
                "peak_max": max(self._peaks, default=None),
                "used_part": round(peaks / asked, 4) if asked else None,
            },
        }


def _granted(request: Request, attempt: Attempt) -> Request:
    """Return the choice of the request that the attempt was granted."""
    choices = list(request.choices())
    return choices[attempt.choice] if attempt.choice < len(choices) else request


def _ran_ms(attempt: Attempt) -> int:
    assert attempt.started is not None
    return max(0, (attempt.ended or attempt.started) - attempt.started)


def _times(found: Sequence[int]) -> dict[str, float | None]:
    """Return the mean, the 95th percentile (nearest rank) and the sum in seconds."""
    if not found:
        return {"mean": None, "p95": None, "sum": 0.0}
    nearest = sorted(found)[-(-95 * len(found) // 100) - 1]
    return {
        "mean": round(sum(found) / len(found) / 1000, 3),
        "p95": nearest / 1000,
        "sum": round(sum(found) / 1000, 3),
    }
