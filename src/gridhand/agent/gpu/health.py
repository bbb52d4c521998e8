"""What is told of a node's GPUs over time: one reading alone would make a device come and go.

A device that fails is out at once. One that is well again must stay so for a while before it is
given work, and one whose memory was not given back when a job ended is out until it is.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import replace

from gridhand.agent.nvml import DeviceMemory, Devices, MemoryUse
from gridhand.agent.problems import Problem
from gridhand.agent.visible import is_uuid
from gridhand.core.gpus import Gpu, GpuHealth

HOLD_DOWN_MS = 10_000
_TOLERANCE_BYTES = 64 << 20


class DeviceWatch:
    """Takes readings, and has what the rest of the grid should know of the devices."""

    def __init__(self, found: Iterable[Gpu], problems: Iterable[Problem] = ()) -> None:
        self.gpus = {gpu.id: gpu for gpu in found}
        self.problems = tuple(problems)
        self.foreign: dict[str, int] = {}
        self._well_since: dict[str, int] = {}
        self._quarantined: dict[str, Problem] = {}
        self._hidden: frozenset[str] = frozenset()
        self._usual: dict[str, int] = {}  # what the driver itself keeps of each

    def take(self, found: Devices, use: MemoryUse, *, now: int) -> bool:
        """Whether this reading changes what is told."""
        self._learn(use)
        before = self.gpus, self.problems
        for id in list(self._quarantined):
            if id in use.devices and not self.unfreed(id, use.devices[id]):
                del self._quarantined[id]
        self.gpus = {gpu.id: replace(gpu, health=self._health(gpu, now)) for gpu in found.gpus}
        self.problems = (*found.problems, *use.problems, *self._quarantined.values())
        self.foreign = use.foreign
        self._hidden = found.hidden
        return before != (self.gpus, self.problems)

    def _learn(self, use: MemoryUse) -> None:
        for id, memory in use.devices.items():
            usual = self._usual.get(id, memory.unexplained_bytes)
            self._usual[id] = min(usual, memory.unexplained_bytes)

    def _health(self, gpu: Gpu, now: int) -> GpuHealth:
        health = GpuHealth.SICK if gpu.id in self._quarantined else gpu.health
        told = self.gpus.get(gpu.id)
        if health is not GpuHealth.OK or told is None:
            self._well_since.pop(gpu.id, None)
            return max(health, gpu.health, key=_WORSE.index)
        if told.health is GpuHealth.OK:
            return health
        since = self._well_since.setdefault(gpu.id, now)
        return health if now - since >= HOLD_DOWN_MS else told.health

    def unfreed(self, id: str, memory: DeviceMemory) -> int:
        """Bytes that are in use and that nobody has who lives."""
        dead = sum(used or 0 for pid, used in memory.by_pid.items() if not _lives(pid))
        left = memory.unexplained_bytes - self._usual.get(id, 0) + dead
        gpu = self.gpus.get(id)
        tolerance = max(_TOLERANCE_BYTES, (gpu.memory_bytes if gpu else 0) // 100)
        return left if left > tolerance else 0

    def left_behind(self, ids: Collection[str], use: MemoryUse) -> list[str]:
        """Those of these devices whose memory should be free, and is not."""
        return [id for id in ids if id in use.devices and self.unfreed(id, use.devices[id])]

    def quarantine(self, ids: Iterable[str], use: MemoryUse) -> None:
        for id in ids:
            left = self.unfreed(id, use.devices[id])
            self._quarantined[id] = Problem(
                f"GPU {id} has {left >> 20} MiB in use that no process has",
                "It is given no work until that is free. See `nvidia-smi`; reset it if it stays.",
                id,
            )
            if id in self.gpus and self.gpus[id].health is GpuHealth.OK:
                self.gpus[id] = replace(self.gpus[id], health=GpuHealth.SICK)
        self.problems = (
            *(one for one in self.problems if one.device not in self._quarantined),
            *self._quarantined.values(),
        )

    def lost(self, held: Iterable[str]) -> set[str]:
        """Those of the devices that jobs hold that are lost.

        One that was lost while no agent stood here is not listed, or listed without its UUID. It
        is not taken for lost where it may be a device that is only sick, or hidden from us.
        """
        nameless = [gpu.health for gpu in self.gpus.values() if not is_uuid(gpu.id)]
        known = bool(self.gpus) and all(health is GpuHealth.LOST for health in nameless)
        missing = {id for id in held if id not in self.gpus and id not in self._hidden}
        lost = {id for id in held if id in self.gpus and self.gpus[id].health is GpuHealth.LOST}
        return lost | {id for id in missing if known and is_uuid(id)}


_WORSE = [GpuHealth.OK, GpuHealth.SICK, GpuHealth.LOST]


def _lives(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
