"""Who holds what a request is short of, on the nodes where it could go if they did not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

from gridhand.core.allocations import Allocation
from gridhand.core.arrays import tasks_text
from gridhand.core.explanation import Holding
from gridhand.core.jobs import Job
from gridhand.core.lacks import lacks
from gridhand.core.requests import Request
from gridhand.core.resources import Resources
from gridhand.core.survey import could_hold
from gridhand.core.usage import NodeUse

if TYPE_CHECKING:
    from gridhand.core.placement import Snapshot

MOST_HOLDERS = 5
_MOST_NODES = 3


def holders(
    about: Request, snapshot: Snapshot, nearest: Iterable[int], permitted: Iterable[int]
) -> tuple[tuple[Holding, ...], int]:
    """Those who hold most of it on the nearest nodes first; and how many more there are.

    A node that is too small even when it is empty is not worth waiting for, and left out.
    """
    found: list[Holding] = []
    for use in islice(_worth_it(about, snapshot, chain(nearest, permitted)), _MOST_NODES):
        found += _on(about, snapshot, use)
    return tuple(found[:MOST_HOLDERS]), sum(one.count for one in found[MOST_HOLDERS:])


def _worth_it(about: Request, snapshot: Snapshot, rows: Iterable[int]) -> Iterator[NodeUse]:
    for row in dict.fromkeys(rows):
        use = snapshot.use(row)
        if use.open and use.allocations and could_hold(about, use.node):
            yield use


def _on(about: Request, snapshot: Snapshot, use: NodeUse) -> list[Holding]:
    """The holders on one node; the tasks of an array, and what a job holds, are one."""
    ledger = snapshot.ledger
    short = [lack.resource for lack in lacks(about, use, snapshot.foreign)]
    together: dict[object, list[tuple[Allocation, Resources, Job | None]]] = {}
    for id in use.allocations:
        held = ledger.live[id]
        if parts := _of_it(about, use, held, short):
            job = next(iter(ledger.jobs.holding(id)), None)  # the others are to follow it
            key = id if job is None or job.array is None else (job.array,)
            together.setdefault(key, []).append((held, parts, job))
    found = [_holding(several) for several in together.values()]
    return sorted(found, key=lambda one: [-one.amounts[name] for name in short])


def _of_it(about: Request, use: NodeUse, held: Allocation, short: list[str]) -> Resources:
    """How much it holds of what is short; of devices only those that would do."""
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
