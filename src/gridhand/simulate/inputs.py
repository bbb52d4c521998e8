"""Reads nodes and tasks from our own files or from those of the openb traces.

openb files are recognized by their columns. In our own, the fields are those that `Node.of` and
`Request.of` take, and `count` stands for so many equal ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridhand.core.errors import InvalidInput, InvalidRequest, UnknownNode, UnknownResource
from gridhand.core.model.gpus import MOST_DEVICES
from gridhand.core.model.names import NodeName
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import KNOWN, UNIT, Resources, amount_text, nearest_name
from gridhand.simulate.files import (
    BadFile,
    FileEntry,
    at,
    copies,
    given,
    pairs,
    read_entries,
    whole,
)

_OF_OPENB = frozenset(
    {"sn", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "creation_time"}
)
_OF_TASKS = frozenset({"num_gpu", "gpu_milli", "gpu_spec", "duration", "fallback", "quality"})
_OF_NODES = frozenset({"sn", "gpus", "price", "address"})
MOST_NODES = 100_000
MOST_VALUES = 100_000  # of one field
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) ?([smhd]?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class SimulatedTask:
    """A task that arrives and requests resources. Without a duration, one is drawn if needed.

    Tasks with equal requests share one `asked` object, so that results can be kept for it once.
    """

    name: str
    asked: Request
    duration_s: float | None = None
    where: str = ""


def read_nodes(path: Path) -> list[Node]:
    """Return the nodes of a file, in the order of their names."""
    nodes: dict[str, Node] = {}
    for number, entry in enumerate(read_entries(path, "nodes"), start=1):
        _check_kind(entry, _OF_TASKS, "nodes", "--tasks")
        with at(entry.where):
            read = _openb_nodes if entry.fields.keys() & _OF_OPENB else _own_nodes
            for node in read(given(entry.fields), f"node-{number}"):
                if node.name in nodes:
                    raise InvalidInput("name", node.name, "each name once")
                nodes[node.name] = node
                if len(nodes) > MOST_NODES:
                    raise InvalidInput("count", len(nodes), f"at most {MOST_NODES:,} nodes in all")
    return [nodes[name] for name in sorted(nodes)]


def _check_size(name: str, value: object) -> None:
    """Raise InvalidInput for YAML whose aliases expand to an enormous size."""
    left, seen = [value], 0
    while left:
        one = left.pop()
        seen += 1
        if isinstance(one, dict | list):
            left += one.values() if isinstance(one, dict) else one
        if seen + len(left) > MOST_VALUES:
            raise InvalidInput(name, "a very large value", f"at most {MOST_VALUES:,} values in it")


def read_tasks(path: Path, nodes: Sequence[Node]) -> list[SimulatedTask]:
    """Return the tasks of a file in order. The nodes must have what they name."""
    tasks: list[SimulatedTask] = []
    shapes: dict[str, Request] = {}
    there = {name for node in nodes for name in node.total}
    names = {node.name for node in nodes}
    for number, entry in enumerate(read_entries(path, "tasks"), start=1):
        _check_kind(entry, _OF_NODES, "tasks", "--nodes")
        with at(entry.where):
            read = _openb_task if entry.fields.keys() & _OF_OPENB else _own_task
            fields = given(entry.fields)
            called = copies(fields, f"task-{number}")
            for name, value in fields.items():
                _check_size(name, value)
            duration, wishes = read(fields)
            key = repr(sorted(wishes.items()))
            if key not in shapes:
                shapes[key] = _request(wishes, there, names)
            tasks += [SimulatedTask(name, shapes[key], duration, entry.where) for name in called]
    if not tasks:
        raise BadFile(path.name, "it has no tasks", "Give a count above 0.")
    return tasks


def _check_kind(entry: FileEntry, foreign: frozenset[str], kind: str, option: str) -> None:
    """Raise BadFile if the files of nodes and tasks seem to be swapped."""
    found = sorted(entry.fields.keys() & foreign)
    if found:
        raise BadFile(
            entry.where,
            f"{found[0]} is not a field of {kind}",
            f"Was this file meant for {option}?",
        )


def _request(wishes: dict[str, Any], there: set[str], names: set[NodeName]) -> Request:
    asked = Request.of(**wishes)
    known = {*there, *KNOWN}
    for resource in {name for choice in asked.choices() for name in choice.amounts} - known:
        raise UnknownResource(resource, nearest_name(resource, known), sorted(there))
    if asked.node is not None and asked.node not in names:
        raise UnknownNode(asked.node, nearest_name(asked.node, names, cutoff=0.5))
    return asked


# ---- openb


def _openb_nodes(fields: dict[str, Any], fallback: str) -> list[Node]:
    name = str(fields.get("sn") or fields.get("name") or fallback)
    device = {"model": fields.get("model", "")}
    gpus = [device] * whole(fields, "gpu", most=MOST_DEVICES)
    return [Node.of(name, _openb_amounts(fields), gpus=gpus)]


def _openb_amounts(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "cpu": f"{whole(fields, 'cpu_milli')}m",
        "memory": f"{whole(fields, 'memory_mib')}MiB",
    }


def _openb_task(fields: dict[str, Any]) -> tuple[float | None, dict[str, Any]]:
    wishes = _openb_amounts(fields)
    share = whole(fields, "gpu_milli", default=1000 if "num_gpu" in fields else 0, most=1000)
    count = whole(fields, "num_gpu", default=1 if share else 0, most=MOST_DEVICES)
    if count > 1 and share != 1000:
        raise InvalidRequest("gpu_milli", share, "1000 where num_gpu is above 1")
    if count and not share:
        raise InvalidRequest("gpu_milli", share, "1 to 1000 where num_gpu is above 0")
    if count:
        wishes["gpu"] = count if share == 1000 else f"{share}m"
        if "gpu_spec" in fields:
            wishes["gpu_model"] = fields["gpu_spec"]
    began, ended = (whole(fields, name) for name in ("creation_time", "deletion_time"))
    known = "creation_time" in fields and ended > began
    return (float(ended - began) if known else None), wishes


# ---- our own


def _own_nodes(fields: dict[str, Any], fallback: str) -> list[Node]:
    names = copies(fields, fallback)
    rest = {name: fields.pop(name) for name in ("price", "address") if name in fields}
    labels = pairs(fields.pop("labels", {}), "labels")
    gpus = fields.pop("gpus", None)
    kind = {
        name: fields.pop(f"gpu_{name}")
        for name in ("model", "capability")
        if f"gpu_{name}" in fields
    }
    has = Resources.of(fields)
    if kind:
        if gpus is not None:
            raise InvalidRequest("gpu_model", kind.get("model"), "the model of each device in gpus")
        gpus = [{**kind, "memory": f"{has['gpu_memory']}B"}] * _devices(has)
        has = has.without("gpu", "gpu_memory")
    gpus = _spelled_out(gpus) if isinstance(gpus, list) else gpus
    return [Node.of(name, has, gpus=gpus, labels=labels, **rest) for name in names]


def _devices(has: Resources) -> int:
    count, rest = divmod(has["gpu"], UNIT)
    if not 1 <= count <= MOST_DEVICES or rest:
        written = amount_text("gpu", has["gpu"])
        raise InvalidInput("gpu", written, f"a whole number from 1 to {MOST_DEVICES} with its kind")
    return count


def _spelled_out(gpus: list[Any]) -> list[Any]:
    """Return the devices one by one; `count` stands for so many equal ones."""
    devices: list[Any] = []
    for one in gpus:
        if isinstance(one, dict) and "count" in one:
            alike = {name: value for name, value in one.items() if name != "count"}
            devices += [alike] * whole(one, "count", most=MOST_DEVICES)
        else:
            devices.append(one)
    return devices


def _own_task(fields: dict[str, Any]) -> tuple[float | None, dict[str, Any]]:
    duration = _seconds(fields.pop("duration")) if "duration" in fields else None
    for name in ("prefer", "exclude"):
        if isinstance(fields.get(name), str):
            fields[name] = fields[name].replace("|", " ").replace(",", " ").split()
    if "labels" in fields:
        fields["labels"] = pairs(fields["labels"], "labels")
    return duration, fields


def _seconds(value: object) -> float:
    """Return a duration given as seconds, or as text such as `90s`, `15m`, `2h` or `1.5d`."""
    text = str(value) if type(value) in (str, int, float) else ""
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if seconds <= 0:
        raise InvalidInput("duration", value, "seconds above 0, or text such as 15m, 2h or 1.5d")
    return seconds
