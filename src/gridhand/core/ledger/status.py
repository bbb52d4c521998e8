"""Read-only views of a ledger: a node, the cluster, and a plain dump for the checker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from gridhand.core.ledger.allocations import grant_number
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.model.amount_text import capacity_text
from gridhand.core.model.gpus import Gpu
from gridhand.core.model.host_use import NO_HOST_USE, HostUse
from gridhand.core.model.names import AllocationId, NodeName
from gridhand.core.model.nodes import Health, Node
from gridhand.core.model.resources import UNIT, Resources
from gridhand.core.rows.jobs import job_row
from gridhand.core.rows.ledger import allocation_row, node_row


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """One device and how much of it is held. `foreign_bytes` is used by foreign processes."""

    gpu: Gpu
    share: float
    memory_bytes: int
    exclusive: bool
    foreign_bytes: int
    free_memory_bytes: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node, what is held on it (reservations included), and what is free.

    `foreign` is the CPU and memory that processes outside of the grid use, where it is respected.
    """

    node: Node
    total: Resources
    allocated: Resources
    available: Resources
    gpus: tuple[GpuStatus, ...]
    overcommitted: bool
    allocations: tuple[AllocationId, ...]
    foreign: Resources = field(default_factory=Resources)

    @property
    def name(self) -> NodeName:
        return self.node.name

    @property
    def health(self) -> Health:
        return self.node.health

    @property
    def draining(self) -> bool:
        return self.node.draining

    def __str__(self) -> str:
        flags = {"draining": self.draining, "overcommitted": self.overcommitted}
        state = ", ".join([str(self.health), *(name for name, on in flags.items() if on)])
        free, total = capacity_text(self.available), capacity_text(self.total)
        return f"{self.name} ({state}): {free} free of {total}"


@dataclass(frozen=True, slots=True)
class Status:
    """The nodes of a cluster and their sums."""

    nodes: tuple[NodeStatus, ...]
    total: Resources
    allocated: Resources
    available: Resources

    def __str__(self) -> str:
        return "\n".join(map(str, self.nodes)) or "no nodes"

    def utilization(self) -> dict[str, float]:
        """Return the held part of each resource from 0 to 1; 0 if the cluster has none of it."""
        names = dict.fromkeys(("cpu", "memory", "gpu", *self.total))
        return {
            name: self.allocated[name] / self.total[name] if self.total[name] else 0.0
            for name in names
        }


def node_status(
    use: NodeUsage, foreign: Mapping[str, int], others: HostUse = NO_HOST_USE
) -> NodeStatus:
    node = use.node
    available = use.available().parts()
    if (use.has_leftovers or use.elsewhere) and node.health is Health.UP:
        node = replace(node, health=Health.SUSPECT)
    return NodeStatus(
        node=node,
        total=use.total_resources(),
        allocated=use.held_resources(),
        available=Resources(
            {name: others.left_of(name, amount) for name, amount in available.items()}
        ),
        gpus=tuple(
            GpuStatus(
                gpu=device.gpu,
                share=device.share / UNIT,
                memory_bytes=device.memory_bytes,
                exclusive=device.exclusive,
                foreign_bytes=foreign.get(device.gpu.id, 0),
                free_memory_bytes=device.free_memory(foreign.get(device.gpu.id, 0)),
            )
            for device in use.devices.values()
        ),
        overcommitted=use.overcommitted,
        allocations=tuple(sorted(use.allocations, key=grant_number)),  # an undone end adds last
        foreign=Resources(others.amounts),
    )


def cluster_status(
    ledger: Ledger,
    foreign: Mapping[str, int],
    host_use: Mapping[NodeName, HostUse] = MappingProxyType({}),
) -> Status:
    nodes = tuple(
        node_status(ledger.nodes[name], foreign, host_use.get(name, NO_HOST_USE))
        for name in ledger.names
    )
    return Status(
        nodes=nodes,
        total=_sum(node.total for node in nodes),
        allocated=_sum(node.allocated for node in nodes),
        available=_sum(node.available for node in nodes),
    )


def _sum(vectors: Iterable[Resources]) -> Resources:
    parts: dict[str, int] = {}
    for vector in vectors:
        for name, amount in vector.pairs:
            parts[name] = parts.get(name, 0) + amount
    return Resources(parts)


def dump(
    ledger: Ledger,
    foreign: Mapping[str, int],
    *,
    now: int,
    host_use: Mapping[NodeName, HostUse] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the ledger as plain data, for `audit` and for bug reports."""
    works: dict[int, dict[str, Any]] = {}  # each once: the jobs of an array share one
    return {
        "now": now,
        "nodes": [_dump_use(ledger.nodes[name]) for name in ledger.names],
        "allocations": [allocation_row(held) for held in ledger.live.values()],
        "jobs": [job_row(job, works) for job in ledger.jobs.open.values()],
        "foreign": dict(foreign),
        "host_use": {name: others.amounts for name, others in host_use.items()},
    }


def _dump_use(use: NodeUsage) -> dict[str, Any]:
    return node_row(use.node) | {
        "overcommitted": use.overcommitted,
        "held": use.held_resources().parts(),
        "available": use.available().parts(),
    }
