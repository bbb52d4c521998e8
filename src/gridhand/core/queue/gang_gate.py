"""GangGate: keeps the members of a gang from being tried until all of them are ready.

A gang that is queued again comes back member by member, as each has stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridhand.core.jobs.job import Job
    from gridhand.core.model.names import JobId
    from gridhand.core.queue.request_classes import QueueEntry

WHY = "it waits for the other members of its gang to stop"


class GangGate:
    """The members that are ready, of gangs that are not."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[JobId, QueueEntry]] = {}

    def __contains__(self, job: Job) -> bool:
        return job.id in self._waiting.get(job.array or "", ())

    def admit(self, entry: QueueEntry) -> list[QueueEntry]:
        """Return the entries that may be tried: all of a gang with its last member, or none."""
        array, nodes = entry.job.array or "", entry.job.work.nodes or 1
        waiting = self._waiting.setdefault(array, {})
        waiting[entry.job.id] = entry
        if len(waiting) < nodes:
            return []
        return list(self._waiting.pop(array).values())

    def remove(self, job: Job) -> None:
        """Forget a member that no longer waits here, if it did."""
        waiting = self._waiting.get(job.array or "")
        if waiting is not None:
            waiting.pop(job.id, None)
            if not waiting:
                del self._waiting[job.array or ""]
