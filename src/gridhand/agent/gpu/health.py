"""The health of a node's GPUs over time, so that a device does not come and go with each reading.

A device that fails is out at once. A device that is well again must stay so for a while before it
gets work. A device whose memory was not freed when a job ended is out until it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from gridhand.agent.gpu.nvml import DeviceMemory, Devices, MemoryUse
from gridhand.agent.gpu.visibility import is_uuid
from gridhand.agent.hardware.machine_problem import MachineProblem
from gridhand.core.model.gpus import Gpu, GpuHealth
from gridhand.posix import procfs

HOLD_DOWN_MS = 10_000
_TOLERANCE_BYTES = 64 << 20


class DeviceHealth:
    """The devices as the rest of the grid should see them, from all readings so far."""

    def __init__(self, found: Iterable[Gpu], problems: Iterable[MachineProblem] = ()) -> None:
        self.gpus = {gpu.id: gpu for gpu in found}
        self.problems = tuple(problems)
        self.foreign: dict[str, int] = {}
        self._well_since: dict[str, int] = {}
        self._quarantined: dict[str, MachineProblem] = {}
        self._hidden: frozenset[str] = frozenset()
        self._usual: dict[str, int] = {}  # the bytes that the driver itself keeps of each device

    def take(self, found: Devices, use: MemoryUse, *, now: int) -> bool:
        """Take a reading; return whether it changes the devices or their problems."""
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
        before = self.gpus.get(gpu.id)
        if health is not GpuHealth.OK or before is None:
            self._well_since.pop(gpu.id, None)
            return max(health, gpu.health, key=_WORSE.index)
        if before.health is GpuHealth.OK:
            return health
        since = self._well_since.setdefault(gpu.id, now)
        return health if now - since >= HOLD_DOWN_MS else before.health

    def unfreed(self, id: str, memory: DeviceMemory) -> int:
        """Return the bytes in use that no living process has; 0 if they are few."""
        dead = sum(used or 0 for pid, used in memory.by_pid.items() if not procfs.pid_exists(pid))
        left = memory.unexplained_bytes - self._usual.get(id, 0) + dead
        gpu = self.gpus.get(id)
        tolerance = max(_TOLERANCE_BYTES, (gpu.memory_bytes if gpu else 0) // 100)
        return left if left > tolerance else 0

    def left_behind(self, ids: Collection[str], use: MemoryUse) -> list[str]:
        """Return those of these devices whose memory should be free, and is not."""
        return [id for id in ids if id in use.devices and self.unfreed(id, use.devices[id])]

    def quarantine(self, ids: Iterable[str], use: MemoryUse) -> None:
        """Mark devices as sick until their memory is free."""
        for id in ids:
            left = self.unfreed(id, use.devices[id])
            self._quarantined[id] = MachineProblem(
                f"GPU {id} has {left >> 20} MiB in use that no process has",
                "It gets no work until that is free. See `nvidia-smi`; reset it if it stays.",
                id,
            )
            if id in self.gpus and self.gpus[id].health is GpuHealth.OK:
                self.gpus[id] = replace(self.gpus[id], health=GpuHealth.SICK)
        self.problems = (
            *(problem for problem in self.problems if problem.device not in self._quarantined),
            *self._quarantined.values(),
        )

    def lost(self, held: Iterable[str]) -> set[str]:
        """Return those of the held devices that are lost.

        A device that was lost while no agent ran is not listed, or listed without its UUID. It
        does not count as lost if it may be a device that is only sick, or hidden from us.
        """
        nameless = [gpu.health for gpu in self.gpus.values() if not is_uuid(gpu.id)]
        known = bool(self.gpus) and all(health is GpuHealth.LOST for health in nameless)
        missing = {id for id in held if id not in self.gpus and id not in self._hidden}
        lost = {id for id in held if id in self.gpus and self.gpus[id].health is GpuHealth.LOST}
        return lost | {id for id in missing if known and is_uuid(id)}


_WORSE = [GpuHealth.OK, GpuHealth.SICK, GpuHealth.LOST]
