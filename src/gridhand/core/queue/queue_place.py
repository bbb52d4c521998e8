"""QueuePlace: who comes before a waiting job and why, and when it should start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from gridhand.core.jobs.job import Job, Priority
from gridhand.core.model.durations import duration_text
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.queue.forecast import ExpectedStart, expected_start
from gridhand.core.queue.preemption_forecast import PlannedStop, stops_text
from gridhand.core.queue.queue import Queue
from gridhand.core.queue.queue_order import MOST_READ, order_of
from gridhand.core.queue.ready import RANKS
from gridhand.core.queue.request_classes import QueueEntry
from gridhand.core.queue.shares import Shares
from gridhand.core.queue.timeline import Timeline

_SHOWN = 5


class JobsAhead(NamedTuple):
    """Jobs of one owner and priority that come first, and why.

    `why` is `priority`, `waited` (nothing of that priority has started for long), `own` (of the
    same owner, submitted earlier) or `share`.
    """

    owner: str
    priority: str
    jobs: int
    why: str
    share: float
    past_share: float

    def text(self, share: float, past_share: float) -> str:
        """Return the reason; the shares are those of the owner who is behind."""
        jobs = f"{self.jobs} job{'s' * (self.jobs != 1)}"
        if self.why == "own":
            return f"{jobs} of {self.owner}, submitted earlier"
        if self.why == "priority":
            return f"{jobs} of {self.owner} with priority {self.priority}"
        if self.why == "waited":
            return f"{jobs} of {self.owner}: {self.priority} has waited too long"
        theirs, own = _percent(self.share, self.past_share), _percent(share, past_share)
        return f"{jobs} of {self.owner}, who has {theirs}; the owner of this one has {own}"


class QueuePlace(NamedTuple):
    """The place of a job. `position` is None beyond the first thousands, or if it is not ready."""

    position: int | None
    ready: int  # jobs that wait for room, or their turn
    ahead: tuple[JobsAhead, ...]
    share: float
    past_share: float
    start: ExpectedStart | None

    def lines(self, now: int) -> list[str]:
        """Return it in words."""
        if self.position is None:
            return [f"place in the queue: behind the first {MOST_READ} of {self.ready}"]
        found = [f"place in the queue: {self.position} of {self.ready}"]
        if self.ahead:
            texts = [one.text(self.share, self.past_share) for one in self.ahead[:_SHOWN]]
            more = len(self.ahead) - _SHOWN
            texts += [f"and others of {more} more"] if more > 0 else []
            found += ["ahead of it:", *(f"  {text}" for text in texts)]
        return [*found, f"expected start: {start_text(self.start, now)}"]


def start_text(start: ExpectedStart | None, now: int) -> str:
    """Return when a job should start, for people.

    >>> start_text(ExpectedStart(2_400_000, "n1"), 0)
    'in 40m on n1'
    """
    if start is None:
        return "not known"
    wait_s = -(-(start.at - now) // 1000)
    when = f"{f'in {duration_text(wait_s * 1000)}' if wait_s > 0 else 'soon'} on {start.node}"
    if not start.stops:
        return when
    if all(job.stopping for job in start.stops):
        return f"{when} at the latest\n  stopping for it: {stops_text(start.stops)}"
    return f"{when} at the latest\n  it would stop {stops_text(start.stops)}"


def queue_place(
    job: Job,
    queue: Queue,
    shares: Shares,
    timeline: Timeline,
    snapshot: Snapshot,
    now: int,
    *,
    submitted: bool = True,
    stop: PlannedStop | None = None,
) -> QueuePlace | None:
    """Return the place of a ready job; None if it is not ready.

    One that is not `submitted` is placed as if it were. `stop` says which others it would stop.
    """
    if submitted and not queue.is_ready(job.id):
        return None
    ready, owner = queue.ready, job.work.owner
    ahead = _ahead(job, order_of(ready, now, None if submitted else job))
    own = shares.share(owner), shares.past_share(owner)
    total = ready.count() + (not submitted)
    if ahead is None:
        return QueuePlace(None, total, (), *own, None)
    rank = ready.rank(job.work.priority)
    start = expected_start(job, rank, ahead, timeline, snapshot, now, stop)
    return QueuePlace(len(ahead) + 1, total, _grouped(job, ahead, shares), *own, start)


def _ahead(job: Job, order: Iterable[QueueEntry]) -> list[Job] | None:
    """Return the jobs before this one; None if there are too many."""
    ahead: list[Job] = []
    for entry in order:
        if entry.job.id == job.id:
            return ahead
        if len(ahead) == MOST_READ:
            break
        ahead.append(entry.job)
    return None


def _grouped(job: Job, ahead: list[Job], shares: Shares) -> tuple[JobsAhead, ...]:
    counts = Counter((one.work.owner, one.work.priority) for one in ahead)
    return tuple(
        JobsAhead(
            owner,
            str(priority),
            count,
            _why_first(job, owner, priority),
            shares.share(owner),
            shares.past_share(owner),
        )
        for (owner, priority), count in counts.items()
    )


def _why_first(job: Job, owner: str, priority: Priority) -> str:
    own = RANKS[job.work.priority]
    if RANKS[priority] != own:
        return "priority" if RANKS[priority] < own else "waited"
    return "own" if owner == job.work.owner else "share"


def _percent(share: float, past_share: float) -> str:
    return f"{100 * share:.0f} % now and {100 * past_share:.0f} % before"
