"""Nodes, allocations and events as plain data and back, amounts in parts.

The store, the API and the checker read and write the same rows. A reader that does not trust the
sender of a row checks the value that comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from gridhand.core.ledger.allocations import Allocation, AllocationState, Lifetime
from gridhand.core.ledger.devices import DeviceHold
from gridhand.core.model.gpus import Gpu, GpuHealth
from gridhand.core.model.names import AllocationId
from gridhand.core.model.nodes import Health, Node
from gridhand.core.model.resources import Resources

Row = Mapping[str, Any]

_STATES = {str(state): state for state in AllocationState}  # much faster than calling the enums
_LIFETIMES = {str(lifetime): lifetime for lifetime in Lifetime}


class Event(NamedTuple):
    """One change as it was stored. `row` is the new row, or None for a removed node.

    Of a job only `job.submitted` has its work; the row of a later event builds on it.
    """

    number: int
    at: int
    kind: str
    subject: str
    owner: str
    op_id: str | None
    why: str
    row: dict[str, Any] | None
    token: str | None = None  # the id of the token by which it was asked for


# ---- nodes


def node_row(node: Node) -> dict[str, Any]:
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


def node_from_row(row: Row) -> Node:
    return Node(
        name=row["name"],
        capacity=Resources(row["capacity"]),
        gpus=tuple(map(_gpu_from_row, row["devices"])),
        labels=dict(row["labels"]),
        price=row["price"],
        address=row["address"],
        health=Health(row["health"]),
        draining=bool(row["draining"]),
    )


def _gpu_from_row(row: Row) -> Gpu:
    return Gpu(
        id=row["id"],
        index=row["index"],
        model=row["model"],
        memory_bytes=row["memory"],
        capability=None if row["capability"] is None else tuple(row["capability"]),
        health=GpuHealth(row["health"]),
    )


# ---- allocations


def allocation_row(allocation: Allocation) -> dict[str, Any]:
    return {
        "id": allocation.id,
        "number": allocation.number,
        "epoch": allocation.epoch,
        "owner": allocation.owner,
        "holder": allocation.holder,
        "node": allocation.node,
        "amounts": allocation.amounts.parts(),
        "devices": [device_row(hold) for hold in allocation.devices],
        "state": str(allocation.state),
        "lifetime": str(allocation.lifetime),
        "deadline": allocation.deadline,
        "ttl": allocation.ttl_ms,
        "group": allocation.group,
        "asked": allocation.asked,
        "quality": allocation.quality,
        "made_at": allocation.made_at,
    }


def device_row(hold: DeviceHold) -> dict[str, Any]:
    return {
        "device": hold.device,
        "share": hold.share,
        "memory": hold.memory_bytes,
        "exclusive": hold.exclusive,
    }


def allocation_from_row(row: Row) -> Allocation:
    return make_allocation(row, Resources(row["amounts"]), device_holds(row["devices"]))


def make_allocation(row: Row, amounts: Resources, devices: tuple[DeviceHold, ...]) -> Allocation:
    """Make an allocation of a row whose amounts and devices are read already.

    The id is made of the epoch and the number, so a table needs no column for it.
    """
    number, epoch = row["number"], row["epoch"]
    return Allocation(
        AllocationId(f"a{epoch}-{number}"), number, epoch, row["owner"], row["holder"], row["node"],
        amounts, devices, _STATES[row["state"]], _LIFETIMES[row["lifetime"]],
        row["deadline"], row["ttl"], row["group"], row["asked"], row["quality"], row["made_at"],
    )  # fmt: skip


def device_holds(rows: Iterable[Row]) -> tuple[DeviceHold, ...]:
    return tuple(
        DeviceHold(row["device"], row["share"], row["memory"], row["exclusive"]) for row in rows
    )
