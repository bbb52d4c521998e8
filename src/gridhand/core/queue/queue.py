"""Queue: the order in which waiting jobs are tried, and why each of them waits.

One pass over the queue:

1. Jobs whose back-off is over become ready. Jobs with open dependencies are not ready, and arrays
   at their limit are skipped.
2. Higher priorities come first; within a priority the lower job number, whoever the owner is. A
   retried job keeps its number, and so its place.
3. The caller tries to place the job it is offered, then calls `put` with the running job, or
   `refuse`. In both cases the next job is offered: a job that does not fit blocks nobody.
4. A refusal holds for all jobs with the same request. They are skipped, in later passes too, until
   `freed` says that something has changed.

So a pass costs one try for each request class and each job that starts, however many jobs wait.

Places for what is to come. Fair shares and ageing: `ReadyJobs._rank`, the only code that orders
the queues, which are per owner for that reason. Backfill: after the first refusal, `order` offers
only jobs that end in time. Preemption: the caller, for an urgent job that was refused; the
preempted jobs come back by `put`. Quotas: a refusal for the queues of one owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from gridhand.core.errors import UnknownJob
from gridhand.core.jobs.job import Job, JobState
from gridhand.core.model.names import JobId
from gridhand.core.queue.dependencies import Dependencies
from gridhand.core.queue.ready import ReadyJobs
from gridhand.core.queue.request_classes import JobHeap, QueueEntry

if TYPE_CHECKING:
    from gridhand.core.explain.refusal import Refusal

_NONE_ENDED: Mapping[JobId, JobState] = {}


class Queue:
    """The waiting jobs. `put` tells it about every change of a job.

    To rebuild it, put the running jobs, then the queued ones, lowest number first.
    """

    def __init__(self, startable: Callable[[Job], bool] = lambda job: True) -> None:
        """A job that is not `startable` is never offered: another machine has what it needs."""
        self._startable = startable
        self._entries: dict[JobId, QueueEntry] = {}
        self._running: set[JobId] = set()
        self._ready = ReadyJobs()
        self._later = JobHeap()
        self._aside: list[QueueEntry] = []
        self._after = Dependencies()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: JobId) -> bool:
        return id in self._entries

    def __iter__(self) -> Iterator[Job]:
        """Yield all waiting jobs in no particular order."""
        return (entry.job for entry in self._entries.values())

    # ---- changes

    def put(self, job: Job, ended: Mapping[JobId, JobState] = _NONE_ENDED) -> list[JobId]:
        """Record the current state of a job; return the ids of jobs that can never run.

        Those depend on a job that did not end as required; the caller must cancel them. `ended`
        has the states of ended jobs that a new job depends on; a dependency that is neither open
        nor in `ended` raises InvalidDependency and changes nothing. Putting the same job again
        changes nothing.
        """
        entry = self._entries.get(job.id)
        if job.state is not JobState.QUEUED:
            if entry is not None:
                self._take_out(entry)
                self._after.forget(job.id)
            return self._begin(job) if job.state is JobState.RUNNING else self._finish(job)
        if entry is not None and entry.job == job:
            return []
        doomed = self._add_dependencies(job, ended)
        if entry is not None:
            self._take_out(entry)
        self._running.discard(job.id)
        self._ready.leave(job)
        self._entries[job.id] = entry = QueueEntry(job)
        if not self._after.waits(job.id):
            self._enqueue(entry)
        return doomed

    def refuse(self, id: JobId, why: str | Refusal) -> None:
        """Record that there is no room for this job, nor for any with the same request."""
        request_class = self._entry(id).request_class
        if request_class is None:
            raise ValueError(f"job {id} was not offered")
        self._ready.refuse(request_class, why)

    def freed(self) -> None:
        """Let refused jobs be tried again, as something was freed or a node has changed."""
        self._ready.freed()

    # ---- questions

    def order(self, now: int) -> Iterator[Job]:
        """Yield the jobs to try, in order. Only one pass may be active.

        A job that the caller neither puts nor refuses is offered again in the next pass.
        """
        self._return_aside()
        self._enqueue_due(now)
        while (entry := self._ready.first()) is not None:
            yield entry.job
            request_class = entry.request_class
            if entry.heap is not None and request_class is not None and not request_class.refused:
                self._entries[entry.job.id] = aside = self._ready.put_aside(entry)
                self._aside.append(aside)
        self._return_aside()

    def waits_for(self, id: JobId) -> tuple[JobId, ...]:
        """Return the ids of the open jobs that this one depends on."""
        return self._after.needed_by(id)

    def next_due(self) -> int | None:
        """Return when the next back-off is over."""
        entry = self._later.first()
        return None if entry is None else entry.order

    def why(self, id: JobId, now: int) -> str:
        """Explain why a job waits, from the latest refusal of a job with the same request."""
        entry = self._entry(id)
        job = entry.job
        if (waits := self._after.why(id)) is not None:
            return waits
        if not self._startable(job):
            return "its environment is on the machine where it was submitted"
        if job.not_before is not None and job.not_before > now:
            last = job.attempts[-1].reason if job.attempts else None
            return f"retries in {-(-(job.not_before - now) // 1000)} s, after {last}"
        if (running := self._ready.running_in_array(job)) >= (job.work.at_once or running + 1):
            return f"{running} jobs of its array are running, which is its limit"
        if entry.request_class is None or entry.request_class.why is None:
            return "it has not been tried yet"
        why = entry.request_class.why
        return why if isinstance(why, str) else why.sentence()

    # ---- entries

    def _entry(self, id: JobId) -> QueueEntry:
        entry = self._entries.get(id)
        if entry is None:
            raise UnknownJob(id)
        return entry

    def _add_dependencies(self, job: Job, ended: Mapping[JobId, JobState]) -> list[JobId]:
        """Add the dependencies of a new job. After its first attempt a job has none."""
        if not job.after or job.attempts or job.id in self._entries:
            return []
        return self._after.add(job, lambda id: id in self._entries or id in self._running, ended)

    def _begin(self, job: Job) -> list[JobId]:
        self._running.add(job.id)
        self._ready.begin(job)
        return []

    def _finish(self, job: Job) -> list[JobId]:
        self._running.discard(job.id)
        self._ready.leave(job)
        free, doomed = self._after.settle(job.id, job.state)
        for id in free:
            self._enqueue(self._entries[id])
        return doomed

    def _enqueue(self, entry: QueueEntry, *, due: bool = False) -> None:
        """Make the job ready, or keep it until its back-off is over."""
        job = entry.job
        if not self._startable(job):
            return
        if job.not_before is not None and not due:
            entry.order = job.not_before
            self._later.push(entry)
        else:
            entry.order = job.number
            self._ready.add(entry)

    def _enqueue_due(self, now: int) -> None:
        while (entry := self._later.first()) is not None and entry.order <= now:
            self._later.pop()
            self._enqueue(entry, due=True)

    def _take_out(self, entry: QueueEntry) -> None:
        del self._entries[entry.job.id]
        if entry.request_class is not None:
            self._ready.remove(entry)
        elif entry.heap is not None:
            entry.heap.remove(entry)

    def _return_aside(self) -> None:
        aside, self._aside = self._aside, []
        for entry in aside:
            if self._entries.get(entry.job.id) is entry:
                self._ready.put_back(entry)
