"""Wait causes: for how long a job has waited for what.

1. A job that is not ready waits for other jobs, for its owner, for a time or for the end of its
   back-off. These times are counted for each job, when that changes.
2. A ready job shares its cause with all jobs of its queue (one owner, request and priority): they
   are refused together and tried again together. Their time is counted once for the queue, and a
   job that leaves it gets the difference to when it joined. So a refusal costs the same however
   many jobs it holds for.

The times of a job add up to its whole wait, to the millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gridhand.core.jobs.attempt import Waited

DEPENDENCY = "dependency"
HELD = "held"
BEGIN = "begin"
BACK_OFF = "back_off"
ELSEWHERE = "elsewhere"
GANG = "gang"
TURN = "turn"
KEPT = "kept"
ARRAY_LIMIT = "array_limit"
QUOTA = "quota"
ROOM = "room"  # also with resources: "room:gpu", "room:cpu+memory"
OTHER = "other"
UNKNOWN = "unknown"

_TEXTS = {
    DEPENDENCY: "for other jobs",
    HELD: "held",
    BEGIN: "for its time to begin",
    BACK_OFF: "between retries",
    ELSEWHERE: "for the machine where it was submitted",
    GANG: "for the rest of its gang",
    TURN: "behind others",
    KEPT: "room kept for others",
    ARRAY_LIMIT: "limit of its array",
    QUOTA: "quota",
    ROOM: "no room",
    OTHER: "for its node or neighbour",
    UNKNOWN: "not recorded",
}
_LABELS = {"cpu": "CPU", "gpu": "GPU", "gpu_memory": "GPU memory", "disk": "storage"}


def room_cause(lacking: Iterable[str]) -> str:
    """Return the cause of those for whom no node has enough of these resources.

    >>> room_cause(["gpu"]), room_cause([])
    ('room:gpu', 'room')
    """
    return ":".join(filter(None, [ROOM, "+".join(lacking)]))


def cause_text(cause: str) -> str:
    """Return a cause in words.

    >>> cause_text("room:cpu+memory"), cause_text("held")
    ('no CPU and memory free', 'held')
    """
    kind, _, lacking = cause.partition(":")
    if not lacking:
        return _TEXTS.get(kind, kind)
    return f"no {' and '.join(_LABELS.get(name, name) for name in lacking.split('+'))} free"


class QueueClock:
    """How long the jobs of one queue wait for what: shared by all jobs in it."""

    __slots__ = ("cause", "since", "spent")

    def __init__(self, now: int) -> None:
        self.cause, self.since = TURN, now
        self.spent: Mapping[str, int] = {}  # never changed, only replaced: jobs refer to it

    def switch(self, cause: str, now: int) -> None:
        """Count the time until now for the cause until now."""
        if now > self.since:
            self.spent = _added(self.spent, self.cause, now - self.since)
            self.since = now
        self.cause = cause


class JobClock:
    """How long one job waits for what, since it came to the queue."""

    __slots__ = ("_before", "_cause", "_late_ms", "_queue", "_since", "_spent")

    def __init__(self, since: int, now: int) -> None:
        """Count the time before `now`, from `since` on, as unknown: nobody has seen it."""
        self._spent: dict[str, int] = {UNKNOWN: now - since} if now > since else {}
        self._cause, self._since = TURN, max(since, now)
        self._queue: QueueClock | None = None
        self._before: Mapping[str, int] = {}
        self._late_ms = 0  # for how long the queue had waited for its cause when the job joined

    def wait_for(self, cause: str, now: int) -> None:
        """Go on waiting for this cause, in no queue."""
        self._settle(now)
        self._queue, self._cause, self._since = None, cause, now

    def join(self, queue: QueueClock, now: int) -> None:
        """Go on waiting for whatever the queue waits for."""
        self._settle(now)
        self._queue, self._before = queue, queue.spent
        self._cause, self._late_ms = queue.cause, max(0, now - queue.since)

    def waited(self, now: int) -> Waited:
        """Return the causes and their times until now, in order of appearance."""
        spent = dict(self._spent)
        for cause, ms in self._open(now):
            spent[cause] = spent.get(cause, 0) + ms
        return tuple((cause, ms) for cause, ms in spent.items() if ms > 0)

    def _settle(self, now: int) -> None:
        self._spent = dict(self.waited(now))

    def _open(self, now: int) -> Iterable[tuple[str, int]]:
        """Return what was not settled yet."""
        queue = self._queue
        if queue is None:
            return [(self._cause, max(0, now - self._since))]
        found = {name: ms - self._before.get(name, 0) for name, ms in queue.spent.items()}
        found[queue.cause] = found.get(queue.cause, 0) + max(0, now - queue.since)
        found[self._cause] = found.get(self._cause, 0) - self._late_ms
        return found.items()


def _added(spent: Mapping[str, int], cause: str, ms: int) -> dict[str, int]:
    return {**spent, cause: spent.get(cause, 0) + ms}
