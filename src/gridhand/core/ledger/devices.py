"""Holds on GPUs: what is held on each device, what still fits, and which devices to take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import NamedTuple

from gridhand.core.model.gpus import Gpu, GpuHealth, GpuRequest
from gridhand.core.model.resources import UNIT


class DeviceHold(NamedTuple):
    """The part of one device that one allocation holds."""

    device: str
    share: int
    memory_bytes: int
    exclusive: bool = False

    @staticmethod
    def of(asked: GpuRequest, gpu: Gpu) -> DeviceHold:
        """Return the hold that `asked` takes on `gpu`."""
        return DeviceHold(gpu.id, asked.share, asked.memory_on(gpu), asked.exclusive)


class DeviceUsage:
    """One device and the sum of what is held on it. `version` counts its changes.

    `foreign_bytes` in its methods is the device memory used by processes that are not ours.
    """

    __slots__ = ("exclusive", "gpu", "holds", "memory_bytes", "share", "version")

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.share = self.memory_bytes = self.holds = self.version = 0
        self.exclusive = False

    def add(self, hold: DeviceHold) -> None:
        self.share += hold.share
        self.memory_bytes += hold.memory_bytes
        self.holds += 1
        self.version += 1
        self.exclusive |= hold.exclusive

    def remove(self, hold: DeviceHold) -> None:
        self.share -= hold.share
        self.memory_bytes -= hold.memory_bytes
        self.holds -= 1
        self.version += 1
        # An exclusive hold is the only one on its device, so no other exclusive hold can remain.
        self.exclusive &= not hold.exclusive

    def admits(self, hold: DeviceHold, foreign_bytes: int) -> bool:
        """Return whether `hold` may be added now."""
        if self.gpu.health is not GpuHealth.OK or self.exclusive:
            return False
        if hold.exclusive and (self.holds or foreign_bytes):
            return False
        if self.share + hold.share > UNIT:
            return False
        return self.memory_bytes + hold.memory_bytes + foreign_bytes <= self.gpu.memory_bytes

    def free_share(self) -> int:
        return 0 if self.exclusive or self.gpu.health is not GpuHealth.OK else UNIT - self.share

    def largest_share(self, foreign_bytes: int) -> int:
        """Return the largest share that fits together with the memory that goes with it."""
        memory = self.gpu.memory_bytes
        free = memory - self.memory_bytes - foreign_bytes
        if self.gpu.health is not GpuHealth.OK or self.exclusive or free < 0:
            return 0
        share = UNIT - self.share
        if memory:
            share = min(share, (UNIT * (free + 1) - 1) // memory)
        return max(share, 0)

    def whole(self, foreign_bytes: int) -> bool:
        """Return whether the device is healthy and unused, so that all of it can be held."""
        return self.gpu.health is GpuHealth.OK and not self.holds and not foreign_bytes

    def free_memory(self, foreign_bytes: int) -> int:
        if self.exclusive or self.gpu.health is not GpuHealth.OK:
            return 0
        return max(0, self.gpu.memory_bytes - self.memory_bytes - foreign_bytes)

    def overcommitted(self) -> bool:
        """Return whether more is held than a healthy device has.

        This happens when a device is registered again with less memory.
        """
        healthy = self.gpu.health is GpuHealth.OK
        return healthy and (self.share > UNIT or self.memory_bytes > self.gpu.memory_bytes)


def pick_devices(
    asked: GpuRequest, devices: Iterable[DeviceUsage], foreign: Mapping[str, int]
) -> tuple[DeviceHold, ...] | None:
    """Return holds on as many distinct devices as are asked for, or None if too few fit.

    The fullest devices that fit are taken first, so that whole devices stay whole; a device with
    foreign processes does not count as whole. Ties go to the lowest index.
    """
    fitting: list[tuple[int, int, int, Gpu]] = []
    share, exclusive = asked.share, asked.exclusive
    any_kind = asked.model is None and asked.capability is None
    for use in devices:
        gpu = use.gpu
        # The same test as `admits`, inlined: it runs for every device at every decision.
        if use.exclusive or use.share + share > UNIT or gpu.health is not GpuHealth.OK:
            continue
        foreign_bytes = foreign.get(gpu.id, 0) if foreign else 0
        untouched = not use.holds and not foreign_bytes
        free = gpu.memory_bytes - use.memory_bytes - foreign_bytes
        if free < asked.memory_on(gpu) or (exclusive and not untouched):
            continue
        if any_kind or asked.suits(gpu):
            key = UNIT + 1 if untouched else UNIT - use.share
            fitting.append((key, free, gpu.index, gpu))
    if len(fitting) < asked.devices:
        return None
    fitting.sort(key=_by_fullness)
    return tuple([DeviceHold.of(asked, gpu) for _, _, _, gpu in fitting[: asked.devices]])


_by_fullness = itemgetter(0, 1, 2)
