"""Named queues and quotas: the rules of the configuration as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gridhand.core.jobs.scopes import Scope
from gridhand.core.jobs.spec import Priority
from gridhand.core.queue.scheduling_times import USUAL_TIMES, SchedulingTimes

DEFAULT_QUEUE = "default"  # of jobs that name none, if there is such a queue
EVERYBODY = "*"  # has the quota of owners without one of their own
MOST_OPEN_OF_OWNER = 500_000  # jobs; half of what all owners together may have open

Amounts = Mapping[str, int]  # parts; unlike in Resources a name with 0 differs from no name


@dataclass(frozen=True, slots=True)
class Quota:
    """How much may run and wait at once. A resource without an entry is not limited."""

    running: Amounts = field(default_factory=dict)
    queued: Amounts = field(default_factory=dict)
    max_running_jobs: int | None = None
    max_queued_jobs: int | None = None

    @property
    def limits_running(self) -> bool:
        return bool(self.running) or self.max_running_jobs is not None


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class QueueRules:
    """The rules of a named queue.

    `priority` is the default of its jobs and the highest they may have; None permits all. Only
    `owners` may use it, or everybody if there are none. `quota` counts all its jobs, and
    `owner_quota` those of each owner.
    """

    name: str
    priority: Priority | None = None
    owners: frozenset[str] = frozenset()
    max_length: int | None = None
    default_duration_ms: int | None = None
    expiry_ms: int | None = None
    defaults: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)
    quota: Quota = NO_QUOTA
    owner_quota: Quota = NO_QUOTA
    weight: float = 1.0

    def admits(self, owner: str) -> bool:
        return not self.owners or owner in self.owners


@dataclass(frozen=True, slots=True)
class NamedQueues:
    """All named queues, the quotas and weights of owners, and the times of the queue."""

    queues: Mapping[str, QueueRules] = field(default_factory=dict)
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    times: SchedulingTimes = USUAL_TIMES

    def rules_of(self, queue: str | None) -> QueueRules | None:
        """Return the rules of a queue; None without a queue, or if it is no longer configured."""
        return None if queue is None else self.queues.get(queue)

    def open_to(self, owner: str) -> list[str]:
        """Return the names of the queues that an owner may use."""
        return sorted(name for name, rules in self.queues.items() if rules.admits(owner))

    def quota_of(self, scope: Scope) -> Quota:
        """Return the quota of an owner, of a queue, or of an owner in a queue."""
        if scope.queue is None:
            own = self.quotas.get(scope.owner or "")
            return own or self.quotas.get(EVERYBODY, NO_QUOTA)
        rules = self.queues.get(scope.queue)
        if rules is None:
            return NO_QUOTA
        return rules.quota if scope.owner is None else rules.owner_quota

    def all_quotas(self) -> Iterator[Quota]:
        yield from self.quotas.values()
        for rules in self.queues.values():
            yield rules.quota
            yield rules.owner_quota

    def weight_of(self, owner: str, queue: str | None = None) -> float:
        """Return the weight of an owner's jobs in a queue: that of the owner times the queue's."""
        own = self.weights.get(owner, self.weights.get(EVERYBODY, 1.0))
        rules = self.rules_of(queue)
        return own if rules is None else own * rules.weight


NO_QUEUES = NamedQueues()
