"""Plain data read back into the values of the core: what `views` and `jobviews` write.

Rows come from a store or over a connection, so nothing is imported here that only one of them has.
Who does not trust the one who sent a row checks the value that comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gridhand.core.allocations import Allocation, Lifetime, State
from gridhand.core.gpus import DeviceHold, Gpu, GpuAsk, GpuHealth
from gridhand.core.nodes import Health, Node
from gridhand.core.requests import Request
from gridhand.core.resources import Resources

Row = Mapping[str, Any]


def node_from_row(row: Row) -> Node:
    """What `node_row` was made of."""
    return Node(
        name=row["name"],
        capacity=Resources(row["capacity"]),
        gpus=tuple(gpu_from_row(gpu) for gpu in row["devices"]),
        labels=dict(row["labels"]),
        price=row["price"],
        address=row["address"],
        health=Health(row["health"]),
        draining=bool(row["draining"]),
    )


def gpu_from_row(row: Row) -> Gpu:
    return Gpu(
        id=row["id"],
        index=row["index"],
        model=row["model"],
        memory_bytes=row["memory"],
        capability=None if row["capability"] is None else tuple(row["capability"]),
        health=GpuHealth(row["health"]),
    )


def allocation_from_row(row: Row) -> Allocation:
    """What `allocation_row` was made of."""
    return Allocation(
        row["id"], row["number"], row["epoch"], row["owner"], row["holder"], row["node"],
        Resources(row["amounts"]), tuple(map(_hold, row["devices"])), State(row["state"]),
        Lifetime(row["lifetime"]), row["deadline"], row["ttl"], row["group"], row["asked"],
        row["quality"], row["made_at"],
    )  # fmt: skip


def _hold(row: Row) -> DeviceHold:
    return DeviceHold(row["device"], row["share"], row["memory"], row["exclusive"])


def request_from_row(row: Row) -> Request:
    """What `request_row` was made of."""
    gpu = row.get("gpu")
    return Request(
        amounts=Resources(row["amounts"]),
        gpu=None if gpu is None else _gpu_ask(gpu),
        node=row.get("node"),
        prefer=tuple(row.get("prefer", ())),
        exclude=frozenset(row.get("exclude", ())),
        labels=dict(row.get("labels", {})),
        quality=row.get("quality"),
        alternatives=tuple(map(request_from_row, row.get("alternatives", ()))),
        together_with=row.get("together_with"),
        apart_from=tuple(row.get("apart_from", ())),
    )


def _gpu_ask(row: Row) -> GpuAsk:
    least = row.get("capability")
    return GpuAsk(
        devices=row["devices"],
        share=row["share"],
        memory_bytes=row.get("memory"),
        model=row.get("model"),
        capability=None if least is None else tuple(least),
    )
