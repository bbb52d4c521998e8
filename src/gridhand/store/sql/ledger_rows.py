"""Rows of the tables and JSON of the events, to and from the values of the core."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from sqlalchemy import RowMapping

from gridhand.core.allocations import Allocation, Lifetime, State
from gridhand.core.gpus import DeviceHold, Gpu, GpuHealth
from gridhand.core.nodes import Health, Node
from gridhand.core.resources import Resources
from gridhand.core.views import device_row, node_row

_encode = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def compact(value: Any) -> str:
    """JSON with the names in order and no spaces, as the guards of the tables expect it."""
    return without_false_alarm(_encode(value))


def without_false_alarm(encoded: str) -> str:
    """The same JSON, with nothing in its texts that looks like a name and a negative number."""
    return encoded.replace('\\":-', "\\u0022:-")


@lru_cache(maxsize=4096)
def amounts_json(amounts: Resources) -> str:
    return compact(amounts.parts())


def devices_json(devices: tuple[DeviceHold, ...]) -> str:
    return compact([device_row(hold) for hold in devices]) if devices else "[]"


def node_columns(node: Node) -> dict[str, Any]:
    row = node_row(node)
    for name in ("capacity", "devices", "labels"):
        row[name] = compact(row[name])
    return row


def node_from_columns(row: RowMapping) -> Node:
    texts = {name: json.loads(row[name]) for name in ("capacity", "devices", "labels")}
    return node_from_row({**dict(row), **texts})


def node_from_row(row: Mapping[str, Any]) -> Node:
    return Node(
        name=row["name"],
        capacity=Resources(row["capacity"]),
        gpus=tuple(_gpu(gpu) for gpu in row["devices"]),
        labels=dict(row["labels"]),
        price=row["price"],
        address=row["address"],
        health=Health(row["health"]),
        draining=bool(row["draining"]),
    )


def _gpu(row: Mapping[str, Any]) -> Gpu:
    return Gpu(
        id=row["id"],
        index=row["index"],
        model=row["model"],
        memory_bytes=row["memory"],
        capability=None if row["capability"] is None else tuple(row["capability"]),
        health=GpuHealth(row["health"]),
    )


def allocation_from_columns(row: RowMapping) -> Allocation:
    return _allocation(row, _amounts(row["amounts"]), _devices(row["devices"]))


def allocation_from_row(row: Mapping[str, Any]) -> Allocation:
    return _allocation(row, Resources(row["amounts"]), _holds(row["devices"]))


@lru_cache(maxsize=4096)
def _amounts(text: str) -> Resources:
    return Resources(json.loads(text))


def _devices(text: str) -> tuple[DeviceHold, ...]:
    return () if text == "[]" else _holds(json.loads(text))


def _holds(rows: list[Mapping[str, Any]]) -> tuple[DeviceHold, ...]:
    return tuple(
        DeviceHold(row["device"], row["share"], row["memory"], row["exclusive"]) for row in rows
    )


_STATES = {str(state): state for state in State}
_LIFETIMES = {str(lifetime): lifetime for lifetime in Lifetime}


def _allocation(
    row: Mapping[str, Any] | RowMapping, amounts: Resources, devices: tuple[DeviceHold, ...]
) -> Allocation:
    number, epoch = row["number"], row["epoch"]
    return Allocation(
        f"a{epoch}-{number}", number, epoch, row["owner"], row["holder"], row["node"],
        amounts, devices, _STATES[row["state"]], _LIFETIMES[row["lifetime"]],
        row["deadline"], row["ttl"], row["group"], row["asked"], row["quality"], row["made_at"],
    )  # fmt: skip


def allocation_columns(held: Allocation) -> tuple[Any, ...]:
    """The row of the table, in the order of its columns."""
    live_node = held.node if held.live else None
    return (
        held.number, held.epoch, held.owner, held.holder, held.node, live_node,
        amounts_json(held.amounts), devices_json(held.devices), held.state._value_,
        held.lifetime._value_, held.deadline, held.ttl_ms, held.group, held.asked, held.quality,
        held.made_at,
    )  # fmt: skip


def node_json(node: Node | None) -> str | None:
    return None if node is None else compact(node_row(node))


def allocation_json(held: Allocation) -> str:
    """What `json.dumps(allocation_row(held))` gives, five times as fast: one for every change."""
    deadline = "null" if held.deadline is None else held.deadline
    ttl = "null" if held.ttl_ms is None else held.ttl_ms
    group = "null" if held.group is None else quoted(held.group)
    asked = "null" if held.asked is None else quoted(held.asked)
    quality = "null" if held.quality is None else quoted(held.quality)
    return (
        f'{{"id":"{held.id}","number":{held.number},"epoch":{held.epoch},'
        f'"owner":{quoted(held.owner)},"holder":{quoted(held.holder)},"node":{quoted(held.node)},'
        f'"amounts":{amounts_json(held.amounts)},"devices":{devices_json(held.devices)},'
        f'"state":"{held.state._value_}","lifetime":"{held.lifetime._value_}",'
        f'"deadline":{deadline},"ttl":{ttl},'
        f'"group":{group},"asked":{asked},"quality":{quality},"made_at":{held.made_at}}}'
    )
