"""Preemption forecast: which jobs an urgent one would stop, and when it would start then.

It asks the same rules as the dispatcher does, so that a forecast and the decision agree. What may
be stopped at one time may be stopped at each later one, as long as nothing else changes; so the
first time at which there is somebody to stop is found by halving.
"""

from __future__ import annotations

from typing import NamedTuple

from gridhand.core.jobs.job import Job
from gridhand.core.model.durations import duration_text
from gridhand.core.model.names import JobId, NodeName
from gridhand.core.model.requests import Request
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.queue.preemption import Eviction, Preemption

_SHOWN = 5
_MANY = 2000  # allocations, beyond which only the present is looked at


class StoppedJob(NamedTuple):
    """A job that is stopped for another: whose it is, and how long it has run for nothing.

    `name` and `owner` are None where they are not to be told.
    """

    id: JobId
    name: str | None
    owner: str | None
    ran_ms: int
    stopping: bool  # it was told to stop already


class PlannedStop(NamedTuple):
    """Jobs to stop from `at` on, so that another can start on the node at `start` at the latest."""

    at: int
    start: int
    node: NodeName
    jobs: tuple[StoppedJob, ...]


def planned_stop(
    rules: Preemption, job: Job, asked: Request, rank: int, snapshot: Snapshot, now: int
) -> PlannedStop | None:
    """Return what a refused job stops now, or as soon as that is allowed; None if nothing."""
    found = rules.decide(job, asked, rank, snapshot, now)
    if found is not None:
        return _plan(found, now, now)
    if not rules.may_preempt(job) or len(snapshot.ledger.live) > _MANY:
        return None
    times = rules.chances(rank, snapshot.ledger, now)
    first, last = 0, len(times)
    while first < last:
        middle = (first + last) // 2
        if rules.decide(job, asked, rank, snapshot, times[middle]) is None:
            first = middle + 1
        else:
            last = middle
    if first == len(times):
        return None
    found = rules.decide(job, asked, rank, snapshot, times[first])
    return None if found is None else _plan(found, times[first], now)


def _plan(found: Eviction, at: int, now: int) -> PlannedStop:
    jobs = [job for victim in found.victims for job in victim.jobs]
    stopped = tuple(_stopped(job, now) for job in jobs)
    return PlannedStop(at, at + max(job.work.grace_ms for job in jobs), found.node, stopped)


def _stopped(job: Job, now: int) -> StoppedJob:
    attempt, work = job.attempt, job.work
    assert attempt is not None
    since = attempt.placed if attempt.started is None else attempt.started
    stopping = attempt.stopping is not None
    return StoppedJob(job.id, work.name, work.owner, max(0, now - since), stopping)


def stops_text(jobs: tuple[StoppedJob, ...]) -> str:
    """Return whom it stops, for people.

    >>> stops_text((StoppedJob("7", "train", "bob", 720_000, False),))
    '1 job of bob (7), which has run for 12m'
    """
    owners = list(dict.fromkeys(job.owner or "others" for job in jobs))
    whose = owners[0] if len(owners) == 1 else f"{len(owners)} owners"
    more = [f"and {len(jobs) - _SHOWN} more"] if len(jobs) > _SHOWN else []
    ids = ", ".join([*(job.id for job in jobs[:_SHOWN]), *more])
    ran = duration_text(sum(job.ran_ms for job in jobs) // 1000 * 1000)
    if len(jobs) == 1:
        return f"1 job of {whose} ({ids}), which has run for {ran}"
    return f"{len(jobs)} jobs of {whose} ({ids}), which have run for {ran} in all"
