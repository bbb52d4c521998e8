"""Preemption: which running jobs to stop so that a more urgent one can start.

1. Only jobs of a lower priority are stopped, whose attempts run in allocations of their own, have
   run for `minimum_run_ms`, and were not preempted `most_times` already. What is held by hand, and
   jobs within it, are spared. A gang is one victim: all of its members are stopped, or none, so
   it is spared if one of them has ended already.
2. A node is considered only if the request would really fit there without them, so nobody is
   stopped in vain.
3. On a node one job is stopped if that suffices, else two if there are few to choose from, else as
   many as needed: of the lowest priority first, of these the youngest.
4. Of all nodes, the one that costs the fewest jobs is taken, then the lowest priorities, then the
   youngest jobs, then the first name. So the same state gives the same victims.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from gridhand.core.jobs.gang import members_of
from gridhand.core.jobs.job import Job, Reason
from gridhand.core.ledger.allocations import Lifetime
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.model.names import AllocationId, NodeName
from gridhand.core.model.requests import Request
from gridhand.core.placement.snapshot import Snapshot, permits
from gridhand.core.queue.ready import RANKS
from gridhand.core.queue.scheduling_times import MINIMUM_RUN_MS, MOST_TIMES

_WORKER = "/gridhand/worker/__main__.py"  # the program of a slot
_DETACHED = "--once"  # its option for a single call that nobody is connected to
_FEW = 24  # candidates of which all pairs are tried


class Victim(NamedTuple):
    """An allocation that can be freed by stopping the jobs in it."""

    rank: int  # the priority of the most urgent of them
    placed: int
    id: AllocationId
    jobs: tuple[Job, ...]


class Eviction(NamedTuple):
    """The jobs to stop, and the request that fits on the node without them."""

    node: NodeName
    asked: Request
    victims: tuple[Victim, ...]

    @property
    def cost(self) -> tuple[int, int, int, NodeName]:
        ranks = sum(victim.rank for victim in self.victims)
        return len(self.victims), -ranks, -sum(one.placed for one in self.victims), self.node


class Preemption:
    """The rules of one cluster."""

    def __init__(self) -> None:
        self.minimum_run_ms = MINIMUM_RUN_MS
        self.most_times = MOST_TIMES

    def find(self, asked: Request, rank: int, snapshot: Snapshot, now: int) -> Eviction | None:
        """Return what to stop so that the request, or an alternative, fits; None if nothing does.

        The first choice of the request for which there is something is taken.
        """
        for choice in asked.choices():
            found = self._evictions(choice, rank, snapshot, now)
            best = min(found, key=lambda eviction: eviction.cost, default=None)
            if best is not None:
                return best
        return None

    def _evictions(
        self, asked: Request, rank: int, snapshot: Snapshot, now: int
    ) -> Iterable[Eviction]:
        ledger = snapshot.ledger
        for name in ledger.names if asked.node is None else [asked.node]:
            use = ledger.nodes.get(name)
            if use is None or not use.open or not permits(asked, use):
                continue
            victims = self._victims_on(use, asked, rank, snapshot, now)
            if victims:
                yield Eviction(name, asked, victims)

    def _victims_on(
        self, use: NodeUsage, asked: Request, rank: int, snapshot: Snapshot, now: int
    ) -> tuple[Victim, ...]:
        """Return the fewest allocations to free on a node; none if that would not suffice."""
        candidates = sorted(
            self._candidates(use, rank, snapshot.ledger, now),
            key=lambda victim: (-victim.rank, -victim.placed, victim.id),
        )
        if not candidates or not _fits_without(asked, use, candidates, snapshot):
            return ()
        for count in (1, 2) if len(candidates) <= _FEW else (1,):
            for chosen in combinations(candidates, count):
                if _fits_without(asked, use, chosen, snapshot):
                    return chosen
        return _needed(asked, use, candidates, snapshot)

    def _candidates(self, use: NodeUsage, rank: int, ledger: Ledger, now: int) -> Iterable[Victim]:
        for id in use.allocations:
            jobs = _with_gang(ledger.jobs.holding(id), ledger)
            if ledger.live[id].lifetime is not Lifetime.JOB or not jobs:
                continue
            if all(self.may_stop(job, rank, now) for job in jobs):
                ranks = [RANKS[job.work.priority] for job in jobs]
                placed = min(job.attempt.placed for job in jobs if job.attempt is not None)
                yield Victim(min(ranks), placed, id, tuple(jobs))

    def next_chance(self, rank: int, ledger: Ledger, now: int) -> int:
        """Return when the next job of a lower priority will have run for long enough."""
        jobs = (job for id in ledger.jobs.allocations() for job in ledger.jobs.holding(id))
        dues = [
            job.attempt.placed + self.minimum_run_ms
            for job in jobs
            if job.attempt is not None and RANKS[job.work.priority] > rank
        ]
        return min((due for due in dues if due > now), default=now + MINIMUM_RUN_MS)

    def may_stop(self, job: Job, rank: int, now: int) -> bool:
        """Return whether a running job may be stopped for one of this rank."""
        attempt = job.attempt
        if attempt is None or attempt.stopping is not None or job.work.within is not None:
            return False
        if RANKS[job.work.priority] <= rank or not _comes_back(job):
            return False
        times = sum(past.reason is Reason.PREEMPTED for past in job.attempts)
        return now - attempt.placed >= self.minimum_run_ms and times < self.most_times


def _with_gang(jobs: list[Job], ledger: Ledger) -> list[Job]:
    """Return the jobs of an allocation, or the whole gang of one of them; none if it has gaps."""
    nodes = jobs[0].work.nodes if jobs else None
    if nodes is None:
        return jobs
    members = members_of(jobs[0], ledger.jobs.open)
    return members if len(members) == nodes else []


def _comes_back(job: Job) -> bool:
    """Return whether a job can be run again as if nothing had happened.

    A worker of functions cannot: its calls would be lost. Neither can a job whose retry policy
    does not cover preemption, such as one that has read from a pipe.
    """
    command = job.work.command
    is_slot = any(word.endswith(_WORKER) for word in command) and _DETACHED not in command
    return Reason.PREEMPTED in job.work.retry.on and not is_slot


def _needed(
    asked: Request, use: NodeUsage, candidates: Sequence[Victim], snapshot: Snapshot
) -> tuple[Victim, ...]:
    """Return candidates, the first ones first, until it fits, but none that is not needed."""
    taken: list[Victim] = []
    for victim in candidates:
        taken.append(victim)
        if _fits_without(asked, use, taken, snapshot):
            break
    for victim in list(taken):
        others = [other for other in taken if other is not victim]
        if _fits_without(asked, use, others, snapshot):
            taken = others
    return tuple(taken)


def _fits_without(
    asked: Request, use: NodeUsage, victims: Sequence[Victim], snapshot: Snapshot
) -> bool:
    ledger, gone = snapshot.ledger, {victim.id for victim in victims}
    then = use.empty()
    for id in use.allocations:
        if id not in gone:
            then.add(ledger.live[id])
    if not snapshot.amounts_fit(asked, then):
        return False
    return then.room(asked, snapshot.foreign) is not None
