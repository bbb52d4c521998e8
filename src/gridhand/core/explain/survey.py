"""Surveys: how near every permitted node comes to a request, and what most would fit.

A survey is made only when somebody asks why, or was refused. `NodeSurvey` goes from node to node,
`rowsurvey.RowSurvey` does the same with arrays where there are many; they answer alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gridhand.core.gpus import DeviceUse, GpuAsk, GpuHealth
from gridhand.core.lacks import lacks
from gridhand.core.nodes import Node
from gridhand.core.requests import Request
from gridhand.core.usage import NodeUse

if TYPE_CHECKING:
    from gridhand.core.placement import Snapshot

MOST_NEAREST = 5
MOST_GROUPS = 50


class Miss(NamedTuple):
    """A node that takes work but is short of something: how far away it is, and of what."""

    lacking: int  # of how many things
    shortfall: float  # how much of each is missing, as a part of what is asked, added up
    row: int


@dataclass(frozen=True, slots=True)
class Alike:
    """Nodes that are short of the same, and the first of them, the nearest before the others."""

    lacking: tuple[str, ...]
    count: int
    rows: tuple[int, ...]


class Misses(NamedTuple):
    """Where it fits, and where it does not: nearest first, and those alike together."""

    fitting: int
    nearest: tuple[Miss, ...]
    groups: tuple[Alike, ...]
    ungrouped: int  # nodes in more groups than anybody reads


class Most(NamedTuple):
    """The most of something that fits somewhere, and the first row where it does."""

    amount: int
    row: int


class Survey(Protocol):
    """What the permitted nodes say to one request, its alternatives aside."""

    def permitted(self) -> Sequence[int]:
        """The rows it may go to, whatever their state."""

    def misses(self) -> Misses:
        """How near each permitted node that takes work comes."""

    def most(self, name: str) -> Most | None:
        """The most of a plain resource that fits with all else as asked; None if nothing helps."""

    def most_devices(self) -> Most | None:
        """The most devices like those asked for that fit on one node with all else as asked."""

    def most_share(self) -> Most | None:
        """The largest share of one device, the memory as asked or what the share brings."""

    def most_memory(self) -> Most | None:
        """The most memory on as many devices as are asked for, the share as asked."""

    def could_hold(self) -> bool:
        """Whether a permitted node would hold it if all were empty and well."""


def survey(asked: Request, snapshot: Snapshot) -> Survey:
    """By arrays where there are many nodes to look at, else one by one and without numpy."""
    from gridhand.core.placement import SMALL_CLUSTER

    if asked.node is not None or len(snapshot.ledger.names) <= SMALL_CLUSTER:
        return NodeSurvey(asked, snapshot)
    from gridhand.core.rowsurvey import RowSurvey

    return RowSurvey(asked, snapshot)


def could_hold(asked: Request, node: Node) -> bool:
    """Whether the node would hold it if it were empty and all its devices were well."""
    if not asked.amounts.fits_in(node.capacity):
        return False
    gpu = asked.gpu
    if gpu is None:
        return True
    needed = gpu.memory_bytes or 0  # a share brings no more memory than there is
    return sum(one.memory_bytes >= needed and gpu.suits(one) for one in node.gpus) >= gpu.devices


class _Room(NamedTuple):
    """What is left of a device of the kind asked for."""

    share: int
    idle: int
    memory: int  # -1 if nothing may be held by memory
    whole: bool


class NodeSurvey:
    """A survey that looks at one node after the other."""

    def __init__(self, asked: Request, snapshot: Snapshot) -> None:
        self._asked, self._foreign = asked, snapshot.foreign
        self._rows = list(snapshot.rows(asked))
        self._uses = [(row, snapshot.use(row)) for row in self._rows]
        self._there = [(row, use) for row, use in self._uses if use.open]

    def permitted(self) -> Sequence[int]:
        return self._rows

    def misses(self) -> Misses:
        found = [
            (Miss(len(short), self._shortfall(use, short), row), short)
            for row, use in self._there
            if (short := tuple(lack.resource for lack in lacks(self._asked, use, self._foreign)))
        ]
        found.sort(key=lambda one: one[0])
        alike: dict[tuple[str, ...], list[int]] = {}
        for miss, short in found:
            alike.setdefault(short, []).append(miss.row)
        groups = [
            Alike(short, len(rows), tuple(rows[:MOST_NEAREST])) for short, rows in alike.items()
        ]
        return Misses(
            len(self._there) - len(found),
            tuple(miss for miss, _ in found[:MOST_NEAREST]),
            tuple(groups[:MOST_GROUPS]),
            sum(group.count for group in groups[MOST_GROUPS:]),
        )

    def _shortfall(self, use: NodeUse, short: Iterable[str]) -> float:
        total, missing = 0.0, set(short)
        for name, amount in self._asked.amounts.pairs:
            if name in missing:
                total += (amount - max(0, _free(use, name))) / amount
        if self._asked.gpu is not None and missing & {"gpu", "gpu_memory"}:
            by_memory = "gpu_memory" in missing
            total += _device_shortfall(self._asked.gpu, self._rooms(use), by_memory)
        return total

    def most(self, name: str) -> Most | None:
        rest = replace(self._asked, amounts=self._asked.amounts.without(name))
        return _first_most(
            (_free(use, name), row)
            for row, use in self._there
            if use.room(rest, self._foreign) is not None
        )

    def most_devices(self) -> Most | None:
        gpu = self._asked.gpu
        assert gpu is not None
        return _first_most(
            (sum(_able(gpu, room) for room in self._rooms(use)), row)
            for row, use in self._with_amounts()
        )

    def most_share(self) -> Most | None:
        gpu = self._asked.gpu
        assert gpu is not None
        least = gpu.memory_bytes
        return _first_most(
            (room.idle if least is None else room.share, row)
            for row, use in self._with_amounts()
            for room in self._rooms(use)
            if least is None or room.memory >= least
        )

    def most_memory(self) -> Most | None:
        gpu = self._asked.gpu
        assert gpu is not None
        found = []
        for row, use in self._with_amounts():
            roomy = [room.memory for room in self._rooms(use) if room.share >= gpu.share]
            if len(roomy) >= gpu.devices:
                found.append((sorted(roomy, reverse=True)[gpu.devices - 1], row))
        return _first_most(found)

    def could_hold(self) -> bool:
        return any(could_hold(self._asked, use.node) for _, use in self._uses)

    def _with_amounts(self) -> list[tuple[int, NodeUse]]:
        amounts = self._asked.amounts
        return [(row, use) for row, use in self._there if use.amounts_fit(amounts)]

    def _rooms(self, use: NodeUse) -> list[_Room]:
        gpu = self._asked.gpu
        assert gpu is not None
        return [
            _room(device, self._foreign) for device in use.devices.values() if gpu.suits(device.gpu)
        ]


def _free(use: NodeUse, name: str) -> int:
    return use.total.get(name, 0) - use.held.get(name, 0)


def _room(device: DeviceUse, foreign: Mapping[str, int]) -> _Room:
    used = foreign.get(device.gpu.id, 0)
    closed = device.exclusive or device.gpu.health is not GpuHealth.OK
    left = -1 if closed else device.gpu.memory_bytes - device.memory_bytes - used
    return _Room(device.free_share(), device.idle(used), left, device.whole(used))


def _able(gpu: GpuAsk, room: _Room) -> bool:
    if gpu.exclusive:
        return room.whole
    if gpu.memory_bytes is None:
        return room.idle >= gpu.share
    return room.memory >= gpu.memory_bytes and room.share >= gpu.share


def _device_shortfall(gpu: GpuAsk, rooms: list[_Room], by_memory: bool) -> float:
    """The part of what is asked of devices that is missing, by what `lacks` names."""
    if gpu.exclusive:
        return (gpu.devices - sum(room.whole for room in rooms)) / gpu.devices
    if gpu.memory_bytes is None:
        return (gpu.share - max((room.idle for room in rooms), default=0)) / gpu.share
    if by_memory:
        roomy = sorted(room.memory for room in rooms if room.share >= gpu.share)
        return (gpu.memory_bytes - max(0, roomy[-gpu.devices])) / gpu.memory_bytes
    if gpu.share:
        return (gpu.share - max((room.share for room in rooms), default=0)) / gpu.share
    return (gpu.devices - sum(room.memory != -1 for room in rooms)) / gpu.devices


def _first_most(found: Iterable[tuple[int, int]]) -> Most | None:
    best: Most | None = None
    for amount, row in found:
        if best is None or amount > best.amount:
            best = Most(amount, row)
    return best
