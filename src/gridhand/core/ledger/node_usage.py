"""NodeUsage: the sums of what is held on one node, and whether more fits.

The sums are an index over the live allocations of a node. Only `Ledger` changes them, and `audit`
recounts them. Deciding and applying a grant use the same two checks: the plain amounts fit, and
each device admits its hold.
"""

from __future__ import annotations

from collections.abc import Mapping

from gridhand.core.ledger.allocations import Allocation
from gridhand.core.ledger.devices import DeviceHold, DeviceUsage, pick_devices
from gridhand.core.model.gpus import GpuHealth
from gridhand.core.model.names import AllocationId
from gridhand.core.model.nodes import Health, Node
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import UNIT, Resources


class NodeUsage:
    """A node and the sum of what its live allocations hold."""

    __slots__ = (
        "_machine",
        "allocations",
        "chosen",
        "devices",
        "elsewhere",
        "has_leftovers",
        "held",
        "node",
        "open",
        "overcommitted",
        "total",
    )

    def __init__(self, node: Node, machine: str = "") -> None:
        """`machine` is the one of the controller, if machines share its store."""
        self._machine = machine
        self.held: dict[str, int] = {}
        self.allocations: dict[AllocationId, None] = {}
        self.has_leftovers = False  # processes of attempts that were given up
        self.chosen = 0  # number of the last allocation that was not pinned to this node
        self.devices: dict[str, DeviceUsage] = {}
        self.describe(node)

    def describe(self, node: Node) -> None:
        """Replace the description of the node and keep what is held on it."""
        before = self.devices
        self.node = node
        self.elsewhere = bool(self._machine) and node.machine not in ("", self._machine)
        self.total = node.capacity.parts()
        self.devices = {}
        for gpu in node.gpus:
            use = before.get(gpu.id) or DeviceUsage(gpu)
            use.gpu = gpu
            self.devices[gpu.id] = use
        self.update_flags()

    def empty(self) -> NodeUsage:
        """Return the same node with nothing held on it, to try out what would fit."""
        other = NodeUsage(self.node, self._machine)
        other.has_leftovers = self.has_leftovers
        other.update_flags()
        return other

    def update_flags(self) -> None:
        """Recompute whether the node is overcommitted and whether it accepts new work."""
        node = self.node
        self.overcommitted = any(
            amount > self.total.get(name, 0) for name, amount in self.held.items()
        ) or any(use.overcommitted() for use in self.devices.values())
        closed = node.draining or self.overcommitted or self.has_leftovers or self.elsewhere
        self.open = node.health is Health.UP and not closed

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
            self.update_flags()

    def amounts_fit(self, amounts: Resources) -> bool:
        total, held = self.total, self.held
        for name, amount in amounts.pairs:
            if amount > total.get(name, 0) - held.get(name, 0):
                return False
        return True

    def admits(
        self, amounts: Resources, devices: tuple[DeviceHold, ...], foreign: Mapping[str, int]
    ) -> bool:
        """Return whether these amounts and holds can be added now."""
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
        """Return the device holds that `asked` would get here now, or None if it does not fit."""
        if not self.open or not self.amounts_fit(asked.amounts):
            return None
        if asked.gpu is None:
            return ()
        return pick_devices(asked.gpu, self.devices.values(), foreign)

    def held_devices_except(self, kept: frozenset[str]) -> list[DeviceUsage]:
        """Return the devices with holds that are not among `kept`."""
        return [use for id, use in self.devices.items() if use.holds and id not in kept]

    def total_resources(self) -> Resources:
        """Return the capacity with devices added up. A failed device counts as its holds."""
        share = memory = 0
        for use in self.devices.values():
            healthy = use.gpu.health is GpuHealth.OK
            share += UNIT if healthy else use.share
            memory += use.gpu.memory_bytes if healthy else use.memory_bytes
        return self.node.capacity + Resources({"gpu": share, "gpu_memory": memory})

    def held_resources(self) -> Resources:
        share = sum(use.share for use in self.devices.values())
        memory = sum(use.memory_bytes for use in self.devices.values())
        return Resources({**self.held, "gpu": share, "gpu_memory": memory})

    def available(self) -> Resources:
        """Return the free amount of each resource, never below zero."""
        held = self.held_resources()
        total = self.total_resources()
        return Resources({name: max(0, total[name] - held[name]) for name in total})
