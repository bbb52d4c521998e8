"""Scopes: the groups of jobs that quotas count, by owner and by named queue."""

from __future__ import annotations

from typing import NamedTuple

from gridhand.core.jobs.spec import JobSpec
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import UNIT


class Scope(NamedTuple):
    """The jobs of an owner, of a named queue, or of an owner in a queue.

    >>> str(Scope("ann", "gpu"))
    'ann (queue gpu)'
    """

    owner: str | None = None
    queue: str | None = None

    def __str__(self) -> str:
        if self.queue is None:
            return self.owner or "everybody"
        return f"queue {self.queue}" if self.owner is None else f"{self.owner} (queue {self.queue})"


def scopes_of(work: JobSpec) -> tuple[Scope, ...]:
    """Return the scopes that a job counts in."""
    if work.queue is None:
        return (Scope(work.owner),)
    return Scope(work.owner), Scope(None, work.queue), Scope(work.owner, work.queue)


def charged(request: Request) -> dict[str, int]:
    """Return the parts that a quota counts for a request, without its alternatives.

    A request for memory of a device counts the device, too, and the memory of all its devices.

    >>> charged(Request.of(cpu=1, gpu=2, gpu_memory="20GB"))
    {'cpu': 10000, 'gpu': 20000, 'gpu_memory': 40000000000}
    """
    parts, gpu = request.amounts.parts(), request.gpu
    if gpu is not None:
        parts["gpu"] = gpu.share if gpu.share not in (0, UNIT) else gpu.devices * UNIT
        if gpu.memory_bytes is not None:
            parts["gpu_memory"] = gpu.memory_bytes * gpu.devices
    return parts


def most_charged(request: Request, nodes: int | None = None) -> dict[str, int]:
    """Return the largest amounts among a request and its alternatives: any of them may run.

    With `nodes`, those of a gang on so many nodes.
    """
    most = charged(request)
    for other in request.alternatives:
        for name, parts in charged(other).items():
            most[name] = max(parts, most.get(name, 0))
    return most if nodes is None else {name: parts * nodes for name, parts in most.items()}
