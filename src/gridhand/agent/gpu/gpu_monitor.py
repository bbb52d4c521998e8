"""The agent's access to the GPU driver, in a thread of its own: a call may be slow, or hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from gridhand.agent.gpu.health import DeviceHealth
from gridhand.agent.gpu.nvml import DeviceLoad, DeviceMemory, MemoryUse, Nvml
from gridhand.agent.hardware.discovery import Discovery
from gridhand.posix import boot_clock

_PAUSES_S = (0.0, 0.1, 0.3, 0.6)
_STALE_MS = 15_000
_A = TypeVar("_A")
_T = TypeVar("_T")


class GpuMonitor:
    """Reads the devices, one call at a time; `health` has what the readings add up to."""

    def __init__(self, nvml: Nvml, found: Discovery) -> None:
        self.health = DeviceHealth(found.node.gpus, found.gpu_problems)
        self._nvml, self._node = nvml, found.node.name
        self._thread = ThreadPoolExecutor(1, "nvml")
        self._loads: dict[str, tuple[DeviceLoad, DeviceMemory]] = {}
        self._read_ms = 0

    async def look(self, own_pids: Callable[[], Collection[int]]) -> bool:
        """Take a reading; return whether it changes the devices or their problems."""
        devices = await self._call(self._nvml.devices, self._node)
        use = await self._call(self._nvml.memory, own_pids())
        loads, unread = await self._call(lambda nvml: nvml.loads(), self._nvml)
        self._loads = {
            id: (load, use.devices[id]) for id, load in loads.items() if id in use.devices
        }
        self._read_ms = boot_clock.boot_ms()
        use = replace(use, problems=(*use.problems, *unread))
        return self.health.take(devices, use, now=self._read_ms)

    def loads(self) -> dict[str, tuple[DeviceLoad, DeviceMemory]]:
        """Return the latest readings; none if they are old because the driver does not answer."""
        fresh = boot_clock.boot_ms() - self._read_ms < _STALE_MS
        return self._loads if fresh else {}

    async def all_free(
        self, ids: Callable[[], Collection[str]], own_pids: Callable[[], Collection[int]]
    ) -> bool:
        """Return whether the memory of these devices is free; quarantine those where it is not."""
        left: list[str] = []
        use = MemoryUse({})
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            use = await self._call(self._nvml.memory, own_pids())
            left = self.health.left_behind(ids(), use)
            if not left:
                return True
        self.health.quarantine(left, use)
        return False

    async def _call(self, function: Callable[[_A], _T], argument: _A) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, argument)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
