"""Shortfalls: what a node lacks to hold a request, as data and in words.

They are computed only for a refusal or a question, never to make a decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gridhand.core.ledger.devices import DeviceHold, DeviceUsage, pick_devices
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.model.gpus import GpuHealth, GpuRequest
from gridhand.core.model.nodes import Health
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import BYTES, UNIT

if TYPE_CHECKING:
    from gridhand.core.placement.snapshot import Snapshot


class Shortfall(NamedTuple):
    """A resource that a node lacks, in parts. `kind` is the requested kind of device, if any."""

    resource: str
    available: int
    required: int
    kind: str = ""

    def __str__(self) -> str:
        """Return the message, with enough decimals to tell the two amounts apart.

        The available amount is rounded down: a request for what the message says fits.
        """
        unit, scale = (" GB", 10**9) if self.resource in BYTES else ("", UNIT)
        for decimals in range(2, 10):
            has = _fixed(self.available, scale, decimals, down=True)
            needs = _fixed(self.required, scale, decimals)
            if has != needs:
                break
        title = _TITLES.get(self.resource, self.resource) + (f" ({self.kind})" if self.kind else "")
        one = " on one device" if self.resource == "gpu_memory" else ""
        return (
            f"Insufficient {title}: worker has {has}{unit} available{one}, "
            f"task requires {needs}{unit}"
        )


def _fixed(amount: int, scale: int, decimals: int, *, down: bool = False) -> str:
    """Return the quotient with so many decimals, computed with integers."""
    units = 10**decimals
    rounded = (2 * amount * units + (0 if down else scale)) // (2 * scale)
    return f"{rounded // units}.{rounded % units:0{decimals}}"


_TITLES = {
    "cpu": "CPU", "memory": "Memory", "disk": "Storage", "gpu": "GPU", "gpu_memory": "GPU Memory",
    "bandwidth": "Bandwidth",
}  # fmt: skip
_ORDER = {"cpu": 0, "memory": 1, "disk": 2, "gpu": 3, "gpu_memory": 4}


def reasons_of(asked: Request, snapshot: Snapshot, use: NodeUsage) -> list[str]:
    """Return all reasons why the node cannot take the request now; none if it fits."""
    node = use.node
    if node.health is not Health.UP:
        return [f"the node is {node.health}"]
    if use.elsewhere:
        return ["the node is suspect: its machine is not connected to this controller"]
    if use.has_leftovers:
        return ["the node is suspect: processes of jobs that were given up are still there"]
    if node.draining:
        return ["the node is draining"]
    if use.overcommitted:
        return ["the node is overcommitted: more is allocated than it has"]
    found = [
        _reason(shortfall, snapshot, use) for shortfall in find_shortfalls(asked, use, snapshot)
    ]
    return found + _foreign_use(asked, snapshot, use) if found else []


def _reason(shortfall: Shortfall, snapshot: Snapshot, use: NodeUsage) -> str:
    """Return the message, with the processes outside of the grid that use what is missing."""
    others = snapshot.host_use.get(use.node.name)
    who = others.sentence(shortfall.resource) if others is not None else ""
    return f"{shortfall}; {who}" if who else str(shortfall)


def find_shortfalls(asked: Request, use: NodeUsage, snapshot: Snapshot) -> list[Shortfall]:
    """Return all that the node lacks: CPU, memory, storage, GPU, then others by name."""
    found = [
        Shortfall(name, max(0, free), amount)
        for name, amount in asked.amounts.pairs
        if amount > (free := snapshot.free(use, name))
    ]
    foreign = snapshot.foreign
    if asked.gpu is not None and pick_devices(asked.gpu, use.devices.values(), foreign) is None:
        found.append(_device_shortfall(asked.gpu, list(use.devices.values()), foreign))
    return sorted(found, key=lambda shortfall: _place(shortfall.resource))


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of resources in the order of `find_shortfalls`."""
    return tuple(sorted(names, key=_place))


def _place(name: str) -> tuple[int, str]:
    return _ORDER.get(name, 9), name


def _device_shortfall(
    asked: GpuRequest, devices: list[DeviceUsage], foreign: Mapping[str, int]
) -> Shortfall:
    """Return what devices of the requested kind lack first: number, share, or memory."""
    suited = [use for use in devices if asked.suits(use.gpu) and use.gpu.health is GpuHealth.OK]
    required, kind = asked.resources()["gpu"], asked.kind()
    if asked.exclusive:
        whole = [
            use
            for use in suited
            if use.admits(DeviceHold.of(asked, use.gpu), foreign.get(use.gpu.id, 0))
        ]
        return Shortfall("gpu", len(whole) * UNIT, required, kind)
    roomy = [use for use in suited if not use.exclusive and use.free_share() >= asked.share]
    if len(roomy) < asked.devices:
        share = max((use.free_share() for use in suited), default=0) if asked.share else 0
        return Shortfall("gpu", share or len(roomy) * UNIT, required, kind)
    # For each device, what is free and what it would need; those that lack least come first.
    memory = sorted(
        (needed - free, free, needed)
        for use in roomy
        for free in [use.free_memory(foreign.get(use.gpu.id, 0))]
        for needed in [DeviceHold.of(asked, use.gpu).memory_bytes]
    )
    _, free, needed = memory[asked.devices - 1]
    return Shortfall("gpu_memory", free, needed, kind)


def _foreign_use(asked: Request, snapshot: Snapshot, use: NodeUsage) -> list[str]:
    if asked.gpu is None:
        return []
    return [
        f"processes outside the grid use {_fixed(amount, 10**9, 2)} GB of device {id}"
        for id in use.devices
        if (amount := snapshot.foreign.get(id, 0))
    ]
