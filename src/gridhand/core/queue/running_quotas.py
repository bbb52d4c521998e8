"""RunningQuotas: what runs of each owner and named queue, and the jobs that wait for that to end.

A quota holds for the jobs of an owner, of a named queue, or of an owner in a queue. While one has
no room for a request, the queues of that request are parked with it: they cost nothing until a job
that it counts has ended, and block nobody. What runs is counted by allocation, so tasks that wait
their turn on one allocation count once. Jobs within an allocation of their owner do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from gridhand.core.jobs.job import Job, JobSpec
from gridhand.core.jobs.scopes import Scope, charged, scopes_of
from gridhand.core.model.names import AllocationId, JobId
from gridhand.core.model.resources import amount_text
from gridhand.core.queue.named_queues import NO_QUEUES, Amounts, NamedQueues, Quota
from gridhand.core.queue.request_classes import OwnerQueue

_FEW = 64


class RunningQuota:
    """One quota: what runs under it, and the queues that it has no room for."""

    __slots__ = ("_charges", "_jobs", "_tidy_at", "parked", "quota", "scope", "used")

    def __init__(self, scope: Scope, quota: Quota) -> None:
        self.scope, self.quota = scope, quota
        self.used: dict[str, int] = {}
        self.parked: dict[int, OwnerQueue] = {}  # by serial
        self._jobs: dict[JobId, AllocationId] = {}
        self._charges: dict[AllocationId, tuple[set[JobId], Amounts]] = {}
        self._tidy_at = _FEW

    @property
    def running(self) -> int:
        """How many allocations are held, which is the number of jobs that really run."""
        return len(self._charges)

    @property
    def idle(self) -> bool:
        return not self._jobs and not self.parked

    def begin(self, id: JobId, allocation: AllocationId, charge: Amounts) -> None:
        if id in self._jobs:
            return
        self._jobs[id] = allocation
        if allocation in self._charges:
            self._charges[allocation][0].add(id)
            return
        self._charges[allocation] = {id}, charge
        for name, parts in charge.items():
            self.used[name] = self.used.get(name, 0) + parts

    def leave(self, id: JobId) -> bool:
        """Stop counting a job; return whether something is free now."""
        allocation = self._jobs.pop(id, None)
        if allocation is None:
            return False
        sharing, charge = self._charges[allocation]
        sharing.discard(id)
        if sharing:
            return False
        del self._charges[allocation]
        for name, parts in charge.items():
            self.used[name] -= parts
        return True

    def why_full(self, charge: Amounts, nodes: int | None = None) -> str | None:
        """Return why there is no room for such a request, or for a gang; None if there is."""
        most = self.quota.max_running_jobs
        if most is not None and self.running + (nodes or 1) > most:
            more = f"; this needs {nodes}" if self.running < most else ""
            return self._sentence(str(self.running), str(most), "jobs", more)
        for name, limit in self.quota.running.items():
            asked, used = charge.get(name, 0), self.used.get(name, 0)
            if asked and used + asked > limit:
                more = "" if used >= limit else f"; this needs {amount_text(name, asked)}"
                return self._sentence(amount_text(name, used), amount_text(name, limit), name, more)
        return None

    def _sentence(self, used: str, most: str, what: str, more: str = "") -> str:
        owner, queue = self.scope
        who = f"queue {queue}" if owner is None else owner
        where = f" (queue {queue})" if owner is not None and queue is not None else ""
        return f"quota: {who} runs {used} of {most} {what}{where}{more}"

    def park(self, queue: OwnerQueue) -> None:
        """Keep a queue until there is room for it; drop empty queues when there are many."""
        self.parked[queue.serial] = queue
        if len(self.parked) > self._tidy_at:
            self.parked = {serial: queue for serial, queue in self.parked.items() if queue}
            self._tidy_at = _FEW + 2 * len(self.parked)


class RunningQuotas:
    """All quotas of what runs. `begin` and `leave` tell it of every job."""

    def __init__(self) -> None:
        self._queues = NO_QUEUES
        self._limited = False
        self._quotas: dict[Scope, RunningQuota] = {}

    def __bool__(self) -> bool:
        """Whether anything is limited at all."""
        return self._limited

    def use(self, queues: NamedQueues, jobs: Iterable[Job]) -> list[OwnerQueue]:
        """Apply other quotas to the jobs that run; return the queues that were parked."""
        parked = [queue for quota in self._quotas.values() for queue in quota.parked.values()]
        self._queues, self._quotas = queues, {}
        self._limited = any(quota.limits_running for quota in queues.all_quotas())
        if self._limited:
            for job in jobs:
                self.begin(job)
        return parked

    def begin(self, job: Job) -> None:
        """Count a job that runs."""
        attempt = job.attempt
        if not self._limited or attempt is None or job.work.within is not None:
            return
        charge = charged(next(islice(job.request.choices(), attempt.choice, None), job.request))
        for quota in self._quotas_of(job.work):
            quota.begin(job.id, attempt.allocation, charge)

    def leave(self, job: Job) -> list[OwnerQueue]:
        """Stop counting a job; return the queues for which there may be room now."""
        free: list[OwnerQueue] = []
        for scope in scopes_of(job.work) if self._quotas else ():
            quota = self._quotas.get(scope)
            if quota is None:
                continue
            if quota.leave(job.id):
                free += _take_free(quota)
            if quota.idle:
                del self._quotas[scope]
        return free

    def full_for(self, work: JobSpec, charge: Amounts) -> RunningQuota | None:
        """Return a quota without room for such a job; None if all have room."""
        if not self._limited or work.within is not None:
            return None
        quotas = self._quotas_of(work)
        return next((one for one in quotas if one.why_full(charge, work.nodes) is not None), None)

    def why(self, work: JobSpec, charge: Amounts) -> str | None:
        """Return which quota has no room for such a job, in numbers; None if all have room."""
        full = self.full_for(work, charge)
        return None if full is None else full.why_full(charge, work.nodes)

    def _quotas_of(self, work: JobSpec) -> Iterator[RunningQuota]:
        for scope in scopes_of(work):
            known = self._quotas.get(scope)
            if known is None:
                rules = self._queues.quota_of(scope)
                if not rules.limits_running:
                    continue
                known = self._quotas[scope] = RunningQuota(scope, rules)
            yield known


def running_quotas(queues: NamedQueues, jobs: Iterable[Job]) -> RunningQuotas:
    """Return the quotas with what runs of these jobs."""
    quotas = RunningQuotas()
    quotas.use(queues, jobs)
    return quotas


def _take_free(quota: RunningQuota) -> list[OwnerQueue]:
    """Take out the parked queues that the quota has room for."""
    free = [
        queue
        for queue in quota.parked.values()
        if quota.why_full(queue.charge, queue.request_class.key.nodes) is None
    ]
    for queue in free:
        del quota.parked[queue.serial]
    return free
