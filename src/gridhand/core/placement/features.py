"""The features of a node from which strategies compute its score.

`NodeFeatures` has those of one node, `ColumnFeatures` those of many under the same names: a
strategy is written once and gets numbers or arrays of numbers. A few nodes are cheaper one by one,
many are cheaper together; the scores are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Protocol

from gridhand.core.ledger.devices import DeviceHold
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.model.gpus import GpuRequest
from gridhand.core.model.host_use import NO_HOST_USE, HostUse
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import UNIT

if TYPE_CHECKING:
    from gridhand.core.placement.request_mix import Mix

# A number for one node, or an array with one for each of many.
Number = Any


class Features(Protocol):
    """A node before and after the request is placed on it. Amounts are in parts."""

    asked: Request
    mix: Mix

    @property
    def taken(self) -> Number:
        """How much of `idle` the request takes."""

    @property
    def opened(self) -> Number:
        """How many whole devices the request breaks or takes."""

    @property
    def price(self) -> Number: ...

    @property
    def chosen(self) -> Number:
        """When the node was last chosen where there was a choice: larger is later."""

    @property
    def gpus(self) -> Number:
        """How many devices the node has."""

    @property
    def idle(self) -> Number:
        """The sum of the shares of its devices that are still available."""

    @property
    def whole(self) -> Number:
        """How many devices are unused."""

    def free(self, name: str) -> Number:
        """Return how much of a resource is free before the request is placed."""

    def total(self, name: str) -> Number:
        """Return the capacity of a resource; 1 where there is none, to divide by."""

    def gpu_total(self) -> Number:
        """Return the shares of all devices; 1 where there are none, to divide by."""

    def served(self) -> tuple[Number, Number]:
        """Return how much of its devices typical requests can use, before and after."""

    def model_price(self) -> Number:
        """Return how much other requests want devices of this node's model."""

    def least(self, one: Number, other: Number) -> Number:
        """Return the smaller of two."""

    def floor(self, number: Number) -> Number: ...

    def level(self, count: Number) -> Number:
        """Return the value of `count` whole devices on one node, by the mix."""


def share_taken(asked: GpuRequest, largest_bytes: int) -> int:
    """Return how much of each device's share a request uses up, by share or by memory."""
    if not asked.memory_bytes or not largest_bytes:
        return asked.share
    by_memory = ceil(float(asked.memory_bytes) * UNIT / largest_bytes)
    return max(asked.share, min(by_memory, UNIT))


class NodeFeatures:
    """The features of one node, from the totals that the ledger keeps."""

    __slots__ = (
        "_idles", "_others", "_picked", "_use", "asked", "chosen", "gpus", "idle", "mix", "opened",
        "price", "taken", "whole",
    )  # fmt: skip

    def __init__(
        self,
        asked: Request,
        use: NodeUsage,
        holds: tuple[DeviceHold, ...],
        foreign: Mapping[str, int],
        mix: Mix,
        others: HostUse = NO_HOST_USE,
    ) -> None:
        self.asked, self.mix, self._use, self._others = asked, mix, use, others
        self.price, self.chosen = use.node.price, use.chosen
        self.gpus = len(use.devices)
        self.idle = self.whole = self.taken = self.opened = 0
        self._picked = -1
        if use.devices:
            self._read_devices(asked.gpu, use, holds, foreign)

    def _read_devices(
        self,
        asked: GpuRequest | None,
        use: NodeUsage,
        holds: tuple[DeviceHold, ...],
        foreign: Mapping[str, int],
    ) -> None:
        idles = []
        for id, device in use.devices.items():
            strangers = foreign.get(id, 0)
            idles.append(device.largest_share(strangers))
            self.whole += device.whole(strangers)
        self._idles = idles
        self.idle = sum(idles)
        if asked is None:
            return
        if asked.exclusive:
            self.taken, self.opened = asked.devices * UNIT, asked.devices
            return
        self.opened = sum(
            use.devices[hold.device].whole(foreign.get(hold.device, 0)) for hold in holds
        )
        largest = max(device.gpu.memory_bytes for device in use.devices.values())
        self.taken = asked.devices * share_taken(asked, largest)
        if asked.devices == 1:
            picked = use.devices[holds[0].device]
            self._picked = picked.largest_share(foreign.get(holds[0].device, 0))

    def free(self, name: str) -> Number:
        left = self._use.total.get(name, 0) - self._use.held.get(name, 0)
        return self._others.left_of(name, left)

    def total(self, name: str) -> Number:
        return self._use.total.get(name, 0) or 1

    def gpu_total(self) -> Number:
        return self.gpus * UNIT or 1

    def served(self) -> tuple[Number, Number]:
        if not self.gpus:
            return 0.0, 0.0
        learned, amounts = self.mix.learned, self.asked.amounts
        usable = sum([learned.usable(idle) for idle in self._idles])
        picked = self._picked
        if picked < 0:
            left = max(0, usable - self.taken)
        else:
            rest = max(0, picked - self.taken)
            left = usable - learned.usable(picked) + learned.usable(rest)
        cpu, memory = self.free("cpu"), self.free("memory")
        return (
            learned.served(usable, cpu, memory, min),
            learned.served(left, cpu - amounts["cpu"], memory - amounts["memory"], min),
        )

    def model_price(self) -> Number:
        gpus = self._use.node.gpus
        return self.mix.learned.prices.get(gpus[0].model.lower(), 0.0) if gpus else 0.0

    def least(self, one: Number, other: Number) -> Number:
        return min(one, other)

    def floor(self, number: Number) -> Number:
        return floor(number)

    def level(self, count: Number) -> Number:
        return self.mix.learned.level(count)
