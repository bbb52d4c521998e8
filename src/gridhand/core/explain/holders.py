"""Finds the holders of what a request lacks, on nodes that are large enough for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

from gridhand.core.explain.explanation import Holding
from gridhand.core.explain.shortfalls import find_shortfalls
from gridhand.core.explain.survey import could_hold
from gridhand.core.jobs.job import Job
from gridhand.core.ledger.allocations import Allocation
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.model.job_arrays import tasks_text
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources

if TYPE_CHECKING:
    from gridhand.core.placement.snapshot import Snapshot

MOST_HOLDERS = 5
_MOST_NODES = 3


def holders(
    about: Request, snapshot: Snapshot, nearest: Iterable[int], permitted: Iterable[int]
) -> tuple[tuple[Holding, ...], int]:
    """Return the largest holders on the nearest nodes first, and how many more there are.

    A node that is too small even when it is empty is left out: waiting for it would not help.
    """
    found: list[Holding] = []
    for use in islice(_large_enough(about, snapshot, chain(nearest, permitted)), _MOST_NODES):
        found += _holders_on(about, snapshot, use)
    return tuple(found[:MOST_HOLDERS]), sum(one.count for one in found[MOST_HOLDERS:])


def _large_enough(about: Request, snapshot: Snapshot, rows: Iterable[int]) -> Iterator[NodeUsage]:
    for row in dict.fromkeys(rows):
        use = snapshot.use(row)
        if use.open and use.allocations and could_hold(about, use.node):
            yield use


def _holders_on(about: Request, snapshot: Snapshot, use: NodeUsage) -> list[Holding]:
    """Return the holders on one node; tasks of an array count as one, as does a job."""
    ledger = snapshot.ledger
    short = [missing.resource for missing in find_shortfalls(about, use, snapshot)]
    together: dict[object, list[tuple[Allocation, Resources, Job | None]]] = {}
    for id in use.allocations:
        held = ledger.live[id]
        if parts := _held_of(about, use, held, short):
            job = next(iter(ledger.jobs.holding(id)), None)  # the others run after it
            key = id if job is None or job.array is None else (job.array,)
            together.setdefault(key, []).append((held, parts, job))
    found = [_holding(several) for several in together.values()]
    return sorted(found, key=lambda one: [-one.amounts[name] for name in short])


def _held_of(about: Request, use: NodeUsage, held: Allocation, short: list[str]) -> Resources:
    """Return how much it holds of what is missing; only suitable devices count."""
    parts = {name: held.amounts[name] for name in short}
    if about.gpu is not None and {"gpu", "gpu_memory"} & set(short):
        suited = [one for one in held.devices if about.gpu.suits(use.devices[one.device].gpu)]
        parts["gpu"] = sum(one.share for one in suited)
        parts["gpu_memory"] = sum(one.memory_bytes for one in suited)
    return Resources(parts)


def _holding(several: list[tuple[Allocation, Resources, Job | None]]) -> Holding:
    held, _, job = several[0]
    return Holding(
        node=held.node,
        owner=held.owner,
        holder=held.id if held.holder.startswith("#") else held.holder,
        job=None if job is None else _name(job, [one for _, _, one in several if one is not None]),
        name=None if job is None else job.work.name,
        amounts=sum((parts for _, parts, _ in several), Resources()),
        count=len(several),
    )


def _name(job: Job, tasks: list[Job]) -> str:
    if job.array is None:
        return job.id
    return tasks_text(job.array, (one.array_index or 0 for one in tasks))
