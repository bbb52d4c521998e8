"""What is held on one node, and whether something more fits.

The sums here are an index over the live allocations of a node, kept by `Ledger` alone and
recounted by `core.check`. Deciding and applying ask the same two questions: do the plain amounts
fit, and does each device admit its hold?
"""

from __future__ import annotations

from collections.abc import Mapping

from gridhand.core.allocations import Allocation
from gridhand.core.gpus import DeviceHold, DeviceUse, GpuHealth, pick_devices
from gridhand.core.nodes import Health, Node
from gridhand.core.requests import Request
from gridhand.core.resources import UNIT, Resources


class NodeUse:
    """A node and the sum of what its live allocations hold."""

    __slots__ = (
        "allocations",
        "chosen",
        "devices",
        "held",
        "node",
        "open",
        "overcommitted",
        "total",
    )

    def __init__(self, node: Node) -> None:
        self.held: dict[str, int] = {}
        self.allocations: dict[str, None] = {}  # ids in the order they came
        self.chosen = 0  # the number of what last came here and could have gone elsewhere
        self.devices: dict[str, DeviceUse] = {}
        self.describe(node)

    def describe(self, node: Node) -> None:
        """Take on another description of the node, keeping what is held on it."""
        before = self.devices
        self.node = node
        self.total = node.capacity.parts()
        self.devices = {}
        for gpu in node.gpus:
            use = before.get(gpu.id) or DeviceUse(gpu)
            use.gpu = gpu
            self.devices[gpu.id] = use
        self.judge()

    def judge(self) -> None:
        """Decide again whether more is held than there is, and whether new work may come."""
        node = self.node
        self.overcommitted = any(
            amount > self.total.get(name, 0) for name, amount in self.held.items()
        ) or any(use.over() for use in self.devices.values())
        self.open = node.health is Health.UP and not node.draining and not self.overcommitted

    def add(self, allocation: Allocation) -> None:
        held = self.held
        for name, amount in allocation.amounts.pairs:
            held[name] = held.get(name, 0) + amount
        for hold in allocation.devices:
            self.devices[hold.device].add(hold)
        self.allocations[allocation.id] = None

    def remove(self, allocation: Allocation) -> None:
        held = self.held
        for name, amount in allocation.amounts.pairs:
            left = held[name] - amount
            if left:
                held[name] = left
            else:
                del held[name]
        for hold in allocation.devices:
            self.devices[hold.device].remove(hold)
        del self.allocations[allocation.id]
        if self.overcommitted:
            self.judge()

    def amounts_fit(self, amounts: Resources) -> bool:
        total, held = self.total, self.held
        for name, amount in amounts.pairs:
            if amount > total.get(name, 0) - held.get(name, 0):
                return False
        return True

    def admits(
        self, amounts: Resources, devices: tuple[DeviceHold, ...], foreign: Mapping[str, int]
    ) -> bool:
        """Whether exactly this may be held here now, in addition to what is."""
        if not self.open or not self.amounts_fit(amounts):
            return False
        if not devices:
            return True
        if len({hold.device for hold in devices}) < len(devices):
            return False
        return all(
            hold.device in self.devices
            and self.devices[hold.device].admits(hold, foreign.get(hold.device, 0))
            for hold in devices
        )

    def room(self, asked: Request, foreign: Mapping[str, int]) -> tuple[DeviceHold, ...] | None:
        """The devices `asked` would get here now (none if it asks for none), or None."""
        if not self.open or not self.amounts_fit(asked.amounts):
            return None
        if asked.gpu is None:
            return ()
        return pick_devices(asked.gpu, self.devices.values(), foreign)

    def lost_with_holds(self, kept: frozenset[str]) -> list[DeviceUse]:
        """Devices on which something is held, and that are not among `kept`."""
        return [use for id, use in self.devices.items() if use.holds and id not in kept]

    def total_resources(self) -> Resources:
        """Capacity, devices added up. One that is not well counts for what is held on it."""
        share = memory = 0
        for use in self.devices.values():
            well = use.gpu.health is GpuHealth.OK
            share += UNIT if well else use.share
            memory += use.gpu.memory_bytes if well else use.memory_bytes
        return self.node.capacity + Resources({"gpu": share, "gpu_memory": memory})

    def held_resources(self) -> Resources:
        share = sum(use.share for use in self.devices.values())
        memory = sum(use.memory_bytes for use in self.devices.values())
        return Resources({**self.held, "gpu": share, "gpu_memory": memory})

    def available(self) -> Resources:
        """What is left of each resource, never below zero."""
        held = self.held_resources()
        total = self.total_resources()
        return Resources({name: max(0, total[name] - held[name]) for name in total})
