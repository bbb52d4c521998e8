"""Dependencies: which jobs wait for others to end, and what becomes of them then."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gridhand.core.errors import InvalidDependency
from gridhand.core.jobs import Condition, Job, JobState

_WORDS = {Condition.OK: "succeed", Condition.ANY: "end", Condition.NOT_OK: "end without success"}
_SHOWN = 3


class Dependencies:
    """Who waits for whom. A circle cannot be: a job names those that were submitted before it."""

    def __init__(self) -> None:
        self._needs: dict[str, dict[str, list[Condition]]] = {}
        self._followers: dict[str, dict[str, None]] = {}
        self._never: dict[str, str] = {}  # why they can never run

    def add(
        self, job: Job, known: Callable[[str], bool], ended: Mapping[str, JobState]
    ) -> list[str]:
        """Note what a job is to run after; answer its id if it can never run."""
        for after in job.after:
            if not known(after.id) and after.id not in ended:
                raise InvalidDependency(job.id, after.id)
        for after in job.after:
            if after.id in ended:
                self._judge(job.id, after.id, after.condition, ended[after.id])
                continue
            self._needs.setdefault(job.id, {}).setdefault(after.id, []).append(after.condition)
            self._followers.setdefault(after.id, {})[job.id] = None
        return [job.id] if job.id in self._never else []

    def settle(self, id: str, state: JobState) -> tuple[list[str], list[str]]:
        """A job has ended: who need wait no longer, and who can never run now."""
        free, lost = [], []
        for follower in self._followers.pop(id, {}):
            needs = self._needs[follower]
            before = follower in self._never
            for condition in needs.pop(id):
                self._judge(follower, id, condition, state)
            if not needs:
                del self._needs[follower]
            if follower in self._never:
                lost += [] if before else [follower]
            elif not needs:
                free.append(follower)
        return free, lost

    def _judge(self, job: str, id: str, condition: Condition, state: JobState) -> None:
        if not condition.met_by(state):
            self._never[job] = (
                f"can never run: job {id} was to {_WORDS[condition]}, and it {_ENDED[state]}"
            )

    def forget(self, id: str) -> None:
        """The job waits no longer, whatever for."""
        self._never.pop(id, None)
        for wanted in self._needs.pop(id, ()):
            followers = self._followers[wanted]
            del followers[id]
            if not followers:
                del self._followers[wanted]

    def waits(self, id: str) -> bool:
        return id in self._needs or id in self._never

    def of(self, id: str) -> tuple[str, ...]:
        return tuple(self._needs.get(id, ()))

    def why(self, id: str) -> str | None:
        """What the job waits for, in words; None if for nothing."""
        if id in self._never:
            return self._never[id]
        needs = self._needs.get(id)
        if not needs:
            return None
        said = [f"job {wanted} to {_WORDS[found[0]]}" for wanted, found in needs.items()]
        more = f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
        return f"waits for {', '.join(said[:_SHOWN])}{more}"


_ENDED = {
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    JobState.LOST: "was lost",
}
