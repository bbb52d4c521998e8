"""What can be seen of a ledger: a node, the whole cluster, and a plain dump for the checker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gridhand.core.allocations import Allocation
from gridhand.core.gpus import DeviceHold, Gpu
from gridhand.core.jobviews import job_row
from gridhand.core.ledger import Ledger
from gridhand.core.nodes import Health, Node
from gridhand.core.readable import there_text
from gridhand.core.resources import UNIT, Resources
from gridhand.core.usage import NodeUse


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """One device, and how much of it is held. `foreign_bytes` is used by strangers."""

    gpu: Gpu
    share: float
    memory_bytes: int
    exclusive: bool
    foreign_bytes: int
    free_memory_bytes: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node with what is held on it, reservations included, and what is left."""

    node: Node
    total: Resources
    allocated: Resources
    available: Resources
    gpus: tuple[GpuStatus, ...]
    overcommitted: bool
    allocations: tuple[str, ...]

    @property
    def name(self) -> str:
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
        free, total = there_text(self.available), there_text(self.total)
        return f"{self.name} ({state}): {free} free of {total}"


@dataclass(frozen=True, slots=True)
class Status:
    """The cluster, added up, and each of its nodes."""

    nodes: tuple[NodeStatus, ...]
    total: Resources
    allocated: Resources
    available: Resources

    def __str__(self) -> str:
        return "\n".join(map(str, self.nodes)) or "no nodes"

    def utilization(self) -> dict[str, float]:
        """The part of each resource that is held, from 0 to 1; of what there is none, 0."""
        names = dict.fromkeys(("cpu", "memory", "gpu", *self.total))
        return {
            name: self.allocated[name] / self.total[name] if self.total[name] else 0.0
            for name in names
        }


def node_status(use: NodeUse, foreign: Mapping[str, int]) -> NodeStatus:
    return NodeStatus(
        node=use.node,
        total=use.total_resources(),
        allocated=use.held_resources(),
        available=use.available(),
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
        allocations=tuple(use.allocations),
    )


def cluster_status(ledger: Ledger, foreign: Mapping[str, int]) -> Status:
    nodes = tuple(node_status(ledger.nodes[name], foreign) for name in ledger.names)
    return Status(
        nodes=nodes,
        total=_sum(node.total for node in nodes),
        allocated=_sum(node.allocated for node in nodes),
        available=_sum(node.available for node in nodes),
    )


def _sum(vectors: Any) -> Resources:
    parts: dict[str, int] = {}
    for vector in vectors:
        for name, amount in vector.pairs:
            parts[name] = parts.get(name, 0) + amount
    return Resources(parts)


def dump(ledger: Ledger, foreign: Mapping[str, int], *, now: int) -> dict[str, Any]:
    """The ledger as plain data: what `core.check` reads, and what a bug report can carry."""
    works: dict[int, dict[str, Any]] = {}  # each once: the jobs of an array share theirs
    return {
        "now": now,
        "nodes": [_dump_use(ledger.nodes[name]) for name in ledger.names],
        "allocations": [allocation_row(held) for held in ledger.live.values()],
        "jobs": [job_row(job, works) for job in ledger.jobs.open.values()],
        "foreign": dict(foreign),
    }


def _dump_use(use: NodeUse) -> dict[str, Any]:
    return node_row(use.node) | {
        "overcommitted": use.overcommitted,
        "held": use.held_resources().parts(),
        "available": use.available().parts(),
    }


def node_row(node: Node) -> dict[str, Any]:
    """A node as plain data, amounts in parts."""
    return {
        "name": node.name,
        "capacity": node.capacity.parts(),
        "devices": [_gpu_row(gpu) for gpu in node.gpus],
        "labels": dict(node.labels),
        "price": node.price,
        "address": node.address,
        "health": str(node.health),
        "draining": node.draining,
    }


def _gpu_row(gpu: Gpu) -> dict[str, Any]:
    row = asdict(gpu)
    row["memory"] = row.pop("memory_bytes")
    row["capability"] = None if gpu.capability is None else list(gpu.capability)
    row["health"] = str(gpu.health)
    return row


def device_row(hold: DeviceHold) -> dict[str, Any]:
    return {
        "device": hold.device,
        "share": hold.share,
        "memory": hold.memory_bytes,
        "exclusive": hold.exclusive,
    }


def allocation_row(held: Allocation) -> dict[str, Any]:
    """An allocation as plain data, amounts in parts."""
    return {
        "id": held.id,
        "number": held.number,
        "epoch": held.epoch,
        "owner": held.owner,
        "holder": held.holder,
        "node": held.node,
        "amounts": held.amounts.parts(),
        "devices": [device_row(hold) for hold in held.devices],
        "state": str(held.state),
        "lifetime": str(held.lifetime),
        "deadline": held.deadline,
        "ttl": held.ttl_ms,
        "group": held.group,
        "asked": held.asked,
        "quality": held.quality,
        "made_at": held.made_at,
    }
