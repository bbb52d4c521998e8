"""Queue: in which order waiting jobs are tried, and why each of them waits.

One pass over the queue:

1. Jobs whose back-off is over step in line. Jobs that wait for others are in no line, and lines
   that an array's limit holds back are left out.
2. Higher priorities come first; within one, the lower number, whoever owns it. A job that comes
   back has the number it had, and so its old place.
3. The caller tries to place the job it is offered, then tells the queue: `put` the job that is now
   running, or `refuse` it. Either way the next one is offered: nobody blocks those behind.
4. A refusal counts for the whole class that asks for the same. The class is left alone, in later
   passes too, until `freed` says that something has changed.

So a pass costs one try for each class and each job that starts, however many wait.

What is to come has its place. Fair shares and ageing: `Ready._place`, the only code that says
which line comes first; lines are per owner for that. Backfill: `order` then offers, after the first
refusal, only what ends in time, which the caller's reservation decides. Preemption: the caller,
for a job that was refused and is urgent; victims come back by `put`. Quotas: a refusal for one
owner's lines instead of the class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gridhand.core.dependencies import Dependencies
from gridhand.core.errors import UnknownJob
from gridhand.core.jobs import Job, JobState
from gridhand.core.lines import Entry, Line
from gridhand.core.ready import Ready

if TYPE_CHECKING:
    from gridhand.core.refusals import Refusal

_NONE_ENDED: Mapping[str, JobState] = {}


class Queue:
    """The waiting jobs. It is told of every change of a job by `put`, and decides nothing else.

    It is rebuilt by putting those that run, then those that are queued, lowest number first.
    """

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._running: set[str] = set()
        self._ready = Ready()
        self._later = Line()
        self._aside: list[Entry] = []
        self._after = Dependencies()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: str) -> bool:
        return id in self._entries

    def __iter__(self) -> Iterator[Job]:
        """All that wait, in no order."""
        return (entry.job for entry in self._entries.values())

    # ---- what the queue is told

    def put(self, job: Job, ended: Mapping[str, JobState] = _NONE_ENDED) -> list[str]:
        """Take note of a job as it is now, and answer the ids of those that can never run.

        Those wait for a job that ended otherwise than they needed; cancel them for it. `ended`
        has the states of jobs that are over, where a new job is to run after them; one that is
        neither open nor there raises `InvalidDependency`, and nothing is changed. Putting the
        same job again changes nothing.
        """
        entry = self._entries.get(job.id)
        if job.state is not JobState.QUEUED:
            if entry is not None:
                self._take_out(entry)
                self._after.forget(job.id)
            return self._begin(job) if job.state is JobState.RUNNING else self._finish(job)
        if entry is not None and entry.job == job:
            return []
        lost = self._wait(job, ended)
        if entry is not None:
            self._take_out(entry)
        self._running.discard(job.id)
        self._ready.leave(job)
        self._entries[job.id] = entry = Entry(job)
        if not self._after.waits(job.id):
            self._step_in(entry)
        return lost

    def refuse(self, id: str, why: str | Refusal) -> None:
        """There is no room for that job, nor for any that asks for the same."""
        kind = self._entry(id).kind
        if kind is None:
            raise ValueError(f"job {id} was not offered")
        self._ready.refuse(kind, why)

    def freed(self) -> None:
        """Something became free, or a node came or changed: what was refused may be tried again."""
        self._ready.freed()

    # ---- what it answers

    def order(self, now: int) -> Iterator[Job]:
        """What may be tried, first things first. One pass at a time.

        What the caller neither puts nor refuses is offered again in the next pass.
        """
        self._return_aside()
        self._step_in_due(now)
        while (entry := self._ready.first()) is not None:
            yield entry.job
            if entry.home is not None and entry.kind is not None and not entry.kind.refused:
                self._entries[entry.job.id] = again = self._ready.put_aside(entry)
                self._aside.append(again)
        self._return_aside()

    def waits_for(self, id: str) -> tuple[str, ...]:
        """The ids of the open jobs that this one is to run after."""
        return self._after.of(id)

    def next_due(self) -> int | None:
        """When the next job's back-off is over."""
        entry = self._later.first()
        return None if entry is None else entry.order

    def why(self, id: str, now: int) -> str:
        """What a waiting job waits for: the latest answer it, or one that asks the same, got."""
        entry = self._entry(id)
        job = entry.job
        if (waits := self._after.why(id)) is not None:
            return waits
        if job.not_before is not None and job.not_before > now:
            last = job.attempts[-1].reason if job.attempts else None
            return f"tries again in {-(-(job.not_before - now) // 1000)} s, after {last}"
        if (running := self._ready.running_beside(job)) >= (job.work.at_once or running + 1):
            return f"{running} of its array are running, and no more may at once"
        if entry.kind is None or entry.kind.why is None:
            return "it has not been tried yet"
        why = entry.kind.why
        return why if isinstance(why, str) else why.sentence()

    # ---- lines

    def _entry(self, id: str) -> Entry:
        entry = self._entries.get(id)
        if entry is None:
            raise UnknownJob(id)
        return entry

    def _wait(self, job: Job, ended: Mapping[str, JobState]) -> list[str]:
        """Note what a job is to run after. One that has had an attempt is past that."""
        if not job.after or job.attempts or job.id in self._entries:
            return []
        return self._after.add(job, lambda id: id in self._entries or id in self._running, ended)

    def _begin(self, job: Job) -> list[str]:
        self._running.add(job.id)
        self._ready.begin(job)
        return []

    def _finish(self, job: Job) -> list[str]:
        self._running.discard(job.id)
        self._ready.leave(job)
        free, lost = self._after.settle(job.id, job.state)
        for id in free:
            self._step_in(self._entries[id])
        return lost

    def _step_in(self, entry: Entry, *, due: bool = False) -> None:
        """Into line, or among those whose time has not come."""
        job = entry.job
        if job.not_before is not None and not due:
            entry.order = job.not_before
            self._later.push(entry)
        else:
            entry.order = job.number
            self._ready.add(entry)

    def _step_in_due(self, now: int) -> None:
        while (entry := self._later.first()) is not None and entry.order <= now:
            self._later.pop()
            self._step_in(entry, due=True)

    def _take_out(self, entry: Entry) -> None:
        del self._entries[entry.job.id]
        if entry.kind is not None:
            self._ready.remove(entry)
        elif entry.home is not None:
            entry.home.step_out(entry)

    def _return_aside(self) -> None:
        aside, self._aside = self._aside, []
        for entry in aside:
            if self._entries.get(entry.job.id) is entry:
                self._ready.put_back(entry)
