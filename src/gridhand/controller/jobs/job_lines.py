"""Lists of jobs with one line for the tasks of an array that are alike, counted exactly.

Tasks are alike if they are in the same state for the same reason. They are folded here and not by
clients: a page of jobs may hold only a part of an array.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gridhand.core.jobs.job import Job, Reason
from gridhand.core.model.job_arrays import tasks_text
from gridhand.core.model.names import NodeName
from gridhand.core.queue.job_view import JobView


class JobLine:
    """A job, or tasks of an array that are alike; `view` is the first of them."""

    __slots__ = ("count", "indices", "longest_ms", "nodes", "view")

    def __init__(self, view: JobView) -> None:
        self.view = view
        self.count = 0
        self.indices: list[int] = []
        self.nodes: set[NodeName] = set()
        self.longest_ms = 0

    def add(self, view: JobView, now: int) -> None:
        job = view.job
        if job.number < self.view.job.number:
            self.view = view
        self.count += 1
        if job.array_index is not None:
            self.indices.append(job.array_index)
        if job.attempts:
            last = job.attempts[-1]
            self.nodes.add(last.node)
            if last.started is not None:
                ended = job.ended or last.ended or now
                self.longest_ms = max(self.longest_ms, ended - last.started)

    def summary(self) -> dict[str, Any]:
        """Return what the tasks of the line have in common."""
        job = self.view.job
        return {
            "count": self.count,
            "named": job.id if job.array is None else tasks_text(job.array, self.indices),
            "nodes": len(self.nodes),
            "longest_s": self.longest_ms / 1000,
        }


class JobLines:
    """Lines of jobs, in any order until they are listed."""

    def __init__(self) -> None:
        self._lines: dict[tuple[object, ...], JobLine] = {}
        self._seen: set[int] = set()

    def add(self, views: Iterable[JobView], now: int) -> None:
        """Add jobs to the lines of those they are like; one that was added before is left out."""
        for view in views:
            if view.job.number in self._seen:
                continue
            self._seen.add(view.job.number)
            key = _key(view)
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = JobLine(view)
            line.add(view, now)

    def newest(self, limit: int) -> list[JobLine]:
        """Return the newest lines, each as old as its first job."""
        lines = sorted(self._lines.values(), key=lambda line: -line.view.job.number)
        return lines[:limit]

    def count_from(self, number: int) -> int:
        """Return how many lines are complete once all jobs from this number on were added."""
        jobs = (line.view.job for line in self._lines.values())
        return sum(int(job.array or job.number) >= number for job in jobs)


def _key(view: JobView) -> tuple[object, ...]:
    job = view.job
    if job.array is None:
        return (job.number,)
    last = None if job.open or not job.attempts else job.attempts[-1]
    by_code = job.reason in (Reason.EXIT, Reason.SIGNAL)  # any other reason says it all
    code = last.status if last is not None and by_code else None
    return (job.array, view.state, view.why, job.reason, code)


def alike(job: Job) -> tuple[object, ...] | None:
    """Return a key that is equal for tasks of an array that wait for the same; None for others.

    Tasks that were never tried and have the same request wait for the same.
    """
    if job.array is None or job.attempts:
        return None
    return (job.array, id(job.request), job.not_before, job.state)
