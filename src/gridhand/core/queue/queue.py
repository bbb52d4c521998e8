"""Queue: the order in which waiting jobs are tried, and why each of them waits.

One pass over the queue:

1. Jobs whose back-off is over become ready. Jobs with open dependencies are not ready, and arrays
   at their limit and jobs over a quota are skipped.
2. Ready jobs are offered by priority, then by the shares of their owners, then by number: see
   `ready` and `shares`. A retried job keeps its number, and so its place.
3. The caller tries to place the job it is offered, then calls `put` with the running job, `refuse`
   or `block`. In all cases the next job is offered: a job that does not fit blocks nobody, unless
   room is kept free for it (see `timeline`).
4. A refusal holds for all jobs with the same request. They are skipped, in later passes too, until
   `freed` says that something has changed on which their request could fit.

So a pass costs one try for each request class that could fit and each job that starts, however many
jobs wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gridhand.core.errors import UnknownJob
from gridhand.core.jobs.attempt import Waited
from gridhand.core.jobs.job import HELD, Job, JobState, Reason
from gridhand.core.model.names import JobId
from gridhand.core.queue import wait_causes
from gridhand.core.queue.delays import expires_at, fallback_at, must_start_by
from gridhand.core.queue.dependencies import Dependencies
from gridhand.core.queue.gang_gate import WHY as GATED
from gridhand.core.queue.gang_gate import GangGate
from gridhand.core.queue.named_queues import NO_QUEUES, NamedQueues
from gridhand.core.queue.ready import ReadyJobs
from gridhand.core.queue.request_classes import JobHeap, QueueEntry
from gridhand.core.queue.wait_causes import JobClock

if TYPE_CHECKING:
    from gridhand.core.explain.refusal import Refusal
    from gridhand.core.model.requests import Request

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
        self.ready = ReadyJobs()
        self._rules = NO_QUEUES
        self._alarms: list[tuple[int, JobId]] = []  # when something about a waiting job changes
        self._later = JobHeap()
        self._aside: list[QueueEntry] = []
        self._after = Dependencies()
        self._gate = GangGate()

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
        self.ready.leave(job)
        clock = JobClock(job.waits_since, self.ready.time) if entry is None else entry.clock
        self._entries[job.id] = entry = QueueEntry(job, clock)
        self._set_alarms(job)
        if self._after.waits(job.id):
            held = job.not_before == HELD
            clock.wait_for(wait_causes.HELD if held else wait_causes.DEPENDENCY, self.ready.time)
        else:
            self._enqueue(entry)
        return doomed

    def advance(self, now: int) -> None:
        """Count waits up to this time."""
        self.ready.time = max(self.ready.time, now)

    def refuse(self, id: JobId, why: str | Refusal) -> None:
        """Record that there is no room for this job, nor for any with the same request."""
        self.ready.refuse(self._entry(id), why)

    def block(self, id: JobId, why: str) -> None:
        """Record that the only room for this job is kept free for others, as for its like."""
        self.ready.block(self._entry(id), why)

    def freed(self, could_fit: Callable[[Request], bool] | None = None) -> None:
        """Let refused jobs be tried again, as something was freed or a node has changed.

        With `could_fit`, only those whose request could fit where that happened.
        """
        self.ready.freed(could_fit)

    def use_rules(self, rules: NamedQueues, running: Iterable[Job]) -> None:
        """Apply other named queues and quotas to all that waits, beside these jobs that run."""
        self._rules = rules
        self.ready.use_quotas(rules, running)
        for entry in self._entries.values():
            self._set_alarm(entry.job, expires_at(entry.job, rules))

    def too_late(self, now: int) -> list[tuple[Job, Reason]]:
        """Return the waiting jobs that can no longer start in time; the caller must cancel them.

        Others are filed anew whose alternatives begin to count.
        """
        found: dict[JobId, tuple[Job, Reason]] = {}  # a job may have several alarms
        while self._alarms and self._alarms[0][0] <= now:
            entry = self._entries.get(heapq.heappop(self._alarms)[1])
            if entry is None:
                continue
            if (reason := self._why_too_late(entry.job, now)) is not None:
                found[entry.job.id] = entry.job, reason
            elif entry.request_class is not None:
                self._file_anew(entry, now)
        return list(found.values())

    # ---- questions

    def order(self, now: int) -> Iterator[Job]:
        """Yield the jobs to try, in order. Only one pass may be active.

        A job that the caller neither puts nor refuses is offered again in the next pass.
        """
        self._return_aside()
        self.ready.begin_pass(now)
        self._enqueue_due(now)
        complete = False
        try:
            while (entry := self.ready.first()) is not None:
                yield entry.job
                self._put_aside(entry)
            complete = True
        finally:
            self.ready.end_pass(complete=complete)
        self._return_aside()

    def is_ready(self, id: JobId) -> bool:
        """Return whether the job waits for room, and for nothing else."""
        entry = self._entries.get(id)
        if entry is None or entry.request_class is None:
            return False
        return not self.ready.is_limited(entry)

    def look_again_at(self, id: JobId, at: int) -> None:
        """Offer the job again at that time, though nothing was freed."""
        heapq.heappush(self._alarms, (at, id))

    def waits_for(self, id: JobId) -> tuple[JobId, ...]:
        """Return the ids of the open jobs that this one depends on."""
        return self._after.needed_by(id)

    def waited(self, id: JobId, now: int) -> Waited:
        """Return for what the job has waited until now, and for how long."""
        return self._entry(id).clock.waited(now)

    def next_due(self) -> int | None:
        """Return when something is to do next, without any change."""
        entry = self._later.first()
        dues = [None if entry is None else entry.order, self.ready.next_patience()]
        dues += [self._alarms[0][0]] if self._alarms else []
        return min((due for due in dues if due is not None), default=None)

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
        if (running := self.ready.running_in_array(job)) >= (job.work.at_once or running + 1):
            return f"{running} jobs of its array are running, which is its limit"
        if job in self._gate:
            return GATED
        why = self.ready.why_limited(entry) or self.ready.why(entry)
        if why is None:
            return "it has not been tried yet"
        return why if isinstance(why, str) else why.sentence()

    # ---- entries

    def _entry(self, id: JobId) -> QueueEntry:
        entry = self._entries.get(id)
        if entry is None:
            raise UnknownJob(id)
        return entry

    def _set_alarms(self, job: Job) -> None:
        for at in (fallback_at(job), must_start_by(job), expires_at(job, self._rules)):
            self._set_alarm(job, at)

    def _set_alarm(self, job: Job, at: int | None) -> None:
        if at is not None:
            heapq.heappush(self._alarms, (at, job.id))

    def _why_too_late(self, job: Job, now: int) -> Reason | None:
        latest, expiry = must_start_by(job), expires_at(job, self._rules)
        if latest is not None and latest <= now:
            return Reason.DEADLINE
        return Reason.EXPIRED if expiry is not None and expiry <= now else None

    def _file_anew(self, entry: QueueEntry, now: int) -> None:
        self.ready.now = max(self.ready.now, now)
        self._take_out(entry)
        self._entries[entry.job.id] = filed = QueueEntry(entry.job, entry.clock)
        self.ready.add(filed)  # it was ready, and so was the rest of its gang
        if filed.request_class is not None:
            request = filed.request_class.key.request
            self.ready.freed(lambda asked: asked == request)

    def _add_dependencies(self, job: Job, ended: Mapping[JobId, JobState]) -> list[JobId]:
        """Add the dependencies of a new job. After its first attempt a job has none."""
        if not job.after or job.attempts or job.id in self._entries:
            return []
        return self._after.add(job, lambda id: id in self._entries or id in self._running, ended)

    def _begin(self, job: Job) -> list[JobId]:
        self._running.add(job.id)
        self.ready.begin(job)
        return []

    def _finish(self, job: Job) -> list[JobId]:
        self._running.discard(job.id)
        self.ready.leave(job)
        free, doomed = self._after.settle(job.id, job.state)
        for id in free:
            self._enqueue(self._entries[id])
        return doomed

    def _enqueue(self, entry: QueueEntry, *, due: bool = False) -> None:
        """Make the job ready, or keep it until its back-off is over."""
        job = entry.job
        if not self._startable(job):
            entry.clock.wait_for(wait_causes.ELSEWHERE, self.ready.time)
            return
        if job.not_before is not None and not due:
            entry.order = job.not_before
            entry.clock.wait_for(_delay_cause(job), self.ready.time)
            self._later.push(entry)
        else:
            entry.order = job.number
            self._make_ready(entry)

    def _make_ready(self, entry: QueueEntry) -> None:
        if entry.job.work.nodes is None:
            self.ready.add(entry)
            return
        entry.clock.wait_for(wait_causes.GANG, self.ready.time)
        for member in self._gate.admit(entry):
            self.ready.add(member)

    def _enqueue_due(self, now: int) -> None:
        while (entry := self._later.first()) is not None and entry.order <= now:
            self._later.pop()
            self._enqueue(entry, due=True)

    def _take_out(self, entry: QueueEntry) -> None:
        del self._entries[entry.job.id]
        if entry.request_class is not None:
            self.ready.remove(entry)
        elif entry.heap is not None:
            entry.heap.remove(entry)
        elif entry.job.work.nodes is not None:
            self._gate.remove(entry.job)

    def _put_aside(self, entry: QueueEntry) -> None:
        """Put a job aside that was offered, and then neither put nor refused."""
        request_class = entry.request_class
        if entry.heap is not None and request_class is not None and not request_class.refused:
            self._entries[entry.job.id] = aside = self.ready.put_aside(entry)
            self._aside.append(aside)

    def _return_aside(self) -> None:
        aside, self._aside = self._aside, []
        for entry in aside:
            if self._entries.get(entry.job.id) is entry:
                self.ready.put_back(entry)


def _delay_cause(job: Job) -> str:
    if job.not_before == HELD:
        return wait_causes.HELD
    return wait_causes.BACK_OFF if job.attempts else wait_causes.BEGIN
