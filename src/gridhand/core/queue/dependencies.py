"""Dependencies: the jobs that wait for other jobs to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gridhand.core.errors import InvalidDependency
from gridhand.core.jobs.job import Condition, Job, JobState
from gridhand.core.model.names import JobId

_WORDS = {Condition.OK: "succeed", Condition.ANY: "end", Condition.NOT_OK: "end without success"}
_SHOWN = 3


class Dependencies:
    """The graph of job dependencies. It is acyclic: a job can only name earlier ones."""

    def __init__(self) -> None:
        self._needs: dict[JobId, dict[JobId, list[Condition]]] = {}
        self._followers: dict[JobId, dict[JobId, None]] = {}
        self._never: dict[JobId, str] = {}  # why a job can never run

    def add(
        self, job: Job, known: Callable[[JobId], bool], ended: Mapping[JobId, JobState]
    ) -> list[JobId]:
        """Add the dependencies of a job; return its id in a list if it can never run."""
        for after in job.after:
            if not known(after.id) and after.id not in ended:
                raise InvalidDependency(job.id, after.id)
        for after in job.after:
            if after.id in ended:
                self._check(job.id, after.id, after.condition, ended[after.id])
                continue
            self._needs.setdefault(job.id, {}).setdefault(after.id, []).append(after.condition)
            self._followers.setdefault(after.id, {})[job.id] = None
        return [job.id] if job.id in self._never else []

    def settle(self, id: JobId, state: JobState) -> tuple[list[JobId], list[JobId]]:
        """Return the jobs that need not wait for this ended job, and those that can never run."""
        free, doomed = [], []
        for follower in self._followers.pop(id, {}):
            needs = self._needs[follower]
            before = follower in self._never
            for condition in needs.pop(id):
                self._check(follower, id, condition, state)
            if not needs:
                del self._needs[follower]
            if follower in self._never:
                doomed += [] if before else [follower]
            elif not needs:
                free.append(follower)
        return free, doomed

    def _check(self, job: JobId, id: JobId, condition: Condition, state: JobState) -> None:
        if not condition.met_by(state):
            self._never[job] = (
                f"can never run: job {id} had to {_WORDS[condition]}, but it {_ENDED[state]}"
            )

    def forget(self, id: JobId) -> None:
        """Drop the dependencies of a job that no longer waits."""
        self._never.pop(id, None)
        for wanted in self._needs.pop(id, ()):
            followers = self._followers[wanted]
            del followers[id]
            if not followers:
                del self._followers[wanted]

    def waits(self, id: JobId) -> bool:
        return id in self._needs or id in self._never

    def needed_by(self, id: JobId) -> tuple[JobId, ...]:
        return tuple(self._needs.get(id, ()))

    def why(self, id: JobId) -> str | None:
        """Describe what the job waits for; None if it waits for nothing."""
        if id in self._never:
            return self._never[id]
        needs = self._needs.get(id)
        if not needs:
            return None
        texts = [f"job {wanted} to {_WORDS[found[0]]}" for wanted, found in needs.items()]
        more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
        return f"waits for {', '.join(texts[:_SHOWN])}{more}"


_ENDED = {
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    JobState.LOST: "was lost",
}
