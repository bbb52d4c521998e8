"""Placement: which node and which devices a request gets, or why it gets none.

Pure: the answer depends on the arguments alone. Rows are in name order, so ties do, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gridhand.core.errors import GridError, NeverFits, NoRoom, UnknownResource
from gridhand.core.gpus import DeviceHold, DeviceUse, GpuAsk, GpuHealth, pick_devices
from gridhand.core.ledger import Ledger, Placement
from gridhand.core.nodes import Health
from gridhand.core.requests import Request
from gridhand.core.resources import BYTES, KNOWN, UNIT, nearest_name
from gridhand.core.strategies import Strategy, first_available
from gridhand.core.usage import NodeUse


class Snapshot:
    """The ledger as placement sees it, with what strangers were measured to use on each device."""

    def __init__(self, ledger: Ledger, foreign: Mapping[str, int] | None = None) -> None:
        self.ledger = ledger
        self.foreign: dict[str, int] = dict(foreign or {})

    def use(self, row: int) -> NodeUse:
        return self.ledger.nodes[self.ledger.names[row]]

    def rows(self, asked: Request) -> Sequence[int]:
        """The rows that `asked` may go to, whether or not it fits there."""
        names = self.ledger.names
        candidates = range(len(names))
        if asked.node is not None:
            self.ledger.node(asked.node)  # it must be known
            row = bisect_left(names, asked.node)
            candidates = range(row, row + 1)
        if not asked.exclude and not asked.labels:
            return candidates
        return [
            row
            for row in candidates
            if names[row] not in asked.exclude and _has_labels(asked, self.use(row))
        ]


def _has_labels(asked: Request, use: NodeUse) -> bool:
    return all(use.node.labels.get(key) == value for key, value in asked.labels.items())


def place(asked: Request, snapshot: Snapshot, strategy: Strategy) -> Placement | Refusal:
    """Choose a node for `asked` or the first of its alternatives that fits, or tell why not."""
    placed = _place_one(asked, snapshot, strategy)
    for other in asked.alternatives if placed is None else ():
        placed = placed or _place_one(other, snapshot, strategy)
    return placed or Refusal(asked, snapshot)


def _place_one(asked: Request, snapshot: Snapshot, strategy: Strategy) -> Placement | None:
    in_order = strategy is first_available
    fitting = _fitting(asked, snapshot, first=in_order and not asked.prefer)
    if not fitting:
        return None
    rows = list(fitting)
    if asked.prefer:
        rows = [row for row in rows if snapshot.ledger.names[row] in asked.prefer] or rows
    best = rows[0]
    if len(rows) > 1 and not in_order:
        scores = strategy(asked, snapshot, rows)
        best = max(zip(scores, (-row for row in rows), rows, strict=True))[2]
    return Placement(asked, snapshot.ledger.names[best], fitting[best])


def _fitting(
    asked: Request, snapshot: Snapshot, *, first: bool
) -> dict[int, tuple[DeviceHold, ...]]:
    """The rows with room, and the devices there; only the first of them where that will do."""
    found: dict[int, tuple[DeviceHold, ...]] = {}
    names, nodes, foreign = snapshot.ledger.names, snapshot.ledger.nodes, snapshot.foreign
    for row in snapshot.rows(asked):
        devices = nodes[names[row]].room(asked, foreign)
        if devices is not None:
            found[row] = devices
            if first:
                break
    return found


class Lack(NamedTuple):
    """One thing that a node is short of, in parts. `kind` is what narrows the devices, if any."""

    resource: str
    available: int
    required: int
    kind: str = ""

    def __str__(self) -> str:
        """In the words of the seed, with as many decimals as it takes to tell the two apart."""
        unit, scale = (" GB", 10**9) if self.resource in BYTES else ("", UNIT)
        for decimals in range(2, 10):
            has = _fixed(self.available, scale, decimals)
            needs = _fixed(self.required, scale, decimals)
            if has != needs:
                break
        title = _TITLES.get(self.resource, self.resource) + (f" ({self.kind})" if self.kind else "")
        one = " on one device" if self.resource == "gpu_memory" else ""
        return (
            f"Insufficient {title}: worker has {has}{unit} available{one}, "
            f"task requires {needs}{unit}"
        )


def _fixed(amount: int, scale: int, decimals: int) -> str:
    """The quotient to so many decimals, worked out in integers."""
    units = 10**decimals
    rounded = (2 * amount * units + scale) // (2 * scale)
    return f"{rounded // units}.{rounded % units:0{decimals}}"


_TITLES = {
    "cpu": "CPU", "memory": "Memory", "disk": "Storage", "gpu": "GPU", "gpu_memory": "GPU Memory",
    "bandwidth": "Bandwidth",
}  # fmt: skip
_ORDER = {"cpu": 0, "memory": 1, "disk": 2, "gpu": 3, "gpu_memory": 4}


class Refusal:
    """No permitted node has room now. A normal answer, not an error: it may have room later.

    The reasons are worked out when they are asked for, from the ledger as it is then. `settled`
    works them out and lets go of the ledger, for those who look later or elsewhere.
    """

    def __init__(self, asked: Request, snapshot: Snapshot) -> None:
        self.asked = asked
        self._snapshot: Snapshot | None = snapshot
        self._known: tuple[dict[str, list[str]], int, bool, bool] | None = None

    def settled(self) -> Refusal:
        if self._known is None and self._snapshot is not None:
            self._known = _explained(self.asked, self._snapshot)
            self._snapshot = None
        return self

    def reasons(self) -> dict[str, list[str]]:
        """For every permitted node, all that speaks against it, in the seed's order.

        In a large cluster only the first nodes are told; `unnamed` counts the others.
        """
        return self._explanation()[0]

    @property
    def unnamed(self) -> int:
        return self._explanation()[1]

    @property
    def ever(self) -> bool:
        """Whether some permitted node could hold it if nothing else were there."""
        return self._explanation()[2]

    def _explanation(self) -> tuple[dict[str, list[str]], int, bool, bool]:
        if self._known is not None:
            return self._known
        assert self._snapshot is not None
        return _explained(self.asked, self._snapshot)

    def sentence(self) -> str:
        reasons, unnamed, _, any_nodes = self._explanation()
        wanted = f"no room for {self.asked.resources}"
        if not reasons:
            return f"{wanted}: {'no node is permitted' if any_nodes else 'there are no nodes'}"
        shown = [f"{name}: {found[0]}" for name, found in list(reasons.items())[:_SHOWN]]
        more = unnamed + max(0, len(reasons) - _SHOWN)
        return f"{wanted}: {'; '.join(shown)}{f'; and {more} more nodes' if more else ''}"

    def hint(self) -> str:
        _, _, ever, any_nodes = self._explanation()
        if not any_nodes:
            return "Register a node first."
        if not ever:
            return (
                "Waiting will not help: ask for less, permit other nodes, or register a larger one."
            )
        return "Ask for less, permit other nodes, or try again when one has room or is up again."

    def error(self) -> GridError:
        """The refusal as an error, its reasons as of now."""
        if self._snapshot is not None:
            unknown = _unknown_resource(self.asked, self._snapshot.ledger)
            if unknown is not None:
                return unknown
        settled = self.settled()
        return NoRoom(settled) if settled.ever else NeverFits(settled)


def _unknown_resource(asked: Request, ledger: Ledger) -> UnknownResource | None:
    names = {name for choice in asked.choices() for name in choice.amounts if name not in KNOWN}
    names -= {name for use in ledger.nodes.values() for name in use.total} if names else set()
    if not names or not ledger.names:
        return None
    there = {name for use in ledger.nodes.values() for name in use.total}
    if any(use.devices for use in ledger.nodes.values()):
        there |= {"gpu", "gpu_memory"}
    name = min(names)
    return UnknownResource(name, nearest_name(name, {*KNOWN, *there}), sorted(there))


def _explained(asked: Request, snapshot: Snapshot) -> tuple[dict[str, list[str]], int, bool, bool]:
    rows = snapshot.rows(asked)
    reasons = {
        snapshot.ledger.names[row]: _reasons(asked, snapshot, snapshot.use(row))
        for row in rows[:_TOLD]
    }
    ever = any(_could_hold(choice, snapshot.use(row)) for choice in asked.choices() for row in rows)
    return reasons, max(0, len(rows) - _TOLD), ever, bool(snapshot.ledger.names)


_TOLD = 100
_SHOWN = 5


def _reasons(asked: Request, snapshot: Snapshot, use: NodeUse) -> list[str]:
    node = use.node
    if node.health is not Health.UP:
        return [f"the node is {node.health}"]
    if node.draining:
        return ["the node is draining"]
    if use.overcommitted:
        return ["the node is overcommitted: more is held on it than it has"]
    return [str(lack) for lack in lacks(asked, use, snapshot.foreign)] + _strangers(
        asked, snapshot, use
    )


def lacks(asked: Request, use: NodeUse, foreign: Mapping[str, int]) -> list[Lack]:
    """All that the node is short of: CPU, memory, storage, GPU, then others by name."""
    found = [
        Lack(name, max(0, use.total.get(name, 0) - use.held.get(name, 0)), amount)
        for name, amount in asked.amounts.pairs
        if amount > use.total.get(name, 0) - use.held.get(name, 0)
    ]
    if asked.gpu is not None and pick_devices(asked.gpu, use.devices.values(), foreign) is None:
        found.append(_device_lack(asked.gpu, list(use.devices.values()), foreign))
    return sorted(found, key=lambda lack: (_ORDER.get(lack.resource, 9), lack.resource))


def _device_lack(asked: GpuAsk, devices: list[DeviceUse], foreign: Mapping[str, int]) -> Lack:
    """The first of number, share and memory that the devices of the kind asked for are short of."""
    suited = [use for use in devices if asked.suits(use.gpu) and use.gpu.health is GpuHealth.OK]
    required, kind = asked.resources()["gpu"], asked.kind()
    if asked.exclusive:
        whole = [
            use for use in suited if use.admits(asked.hold_on(use.gpu), foreign.get(use.gpu.id, 0))
        ]
        return Lack("gpu", len(whole) * UNIT, required, kind)
    roomy = [use for use in suited if not use.exclusive and use.free_share() >= asked.share]
    if len(roomy) < asked.devices:
        share = max((use.free_share() for use in suited), default=0) if asked.share else 0
        return Lack("gpu", share or len(roomy) * UNIT, required, kind)
    # Of each device, what it has and what it would need; those that lack least come first.
    memory = sorted(
        (needed - free, free, needed)
        for use in roomy
        for free in [use.free_memory(foreign.get(use.gpu.id, 0))]
        for needed in [asked.hold_on(use.gpu).memory_bytes]
    )
    _, free, needed = memory[asked.devices - 1]
    return Lack("gpu_memory", free, needed, kind)


def _strangers(asked: Request, snapshot: Snapshot, use: NodeUse) -> list[str]:
    if asked.gpu is None:
        return []
    return [
        f"processes that are not ours use {_fixed(amount, 10**9, 2)} GB of device {id}"
        for id in use.devices
        if (amount := snapshot.foreign.get(id, 0))
    ]


def _could_hold(asked: Request, use: NodeUse) -> bool:
    """Whether the node would hold it if it were empty and all its devices were well."""
    well = tuple(replace(gpu, health=GpuHealth.OK) for gpu in use.node.gpus)
    empty = NodeUse(replace(use.node, gpus=well))
    empty.open = True
    return empty.room(asked, {}) is not None
