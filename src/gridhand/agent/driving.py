"""Driving: the agent's dealings with the GPU driver, which may be slow, or hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gridhand.agent import processes
from gridhand.agent.devices import DeviceWatch
from gridhand.agent.hardware import Discovery
from gridhand.agent.nvml import MemoryUse, Nvml

_PAUSES_S = (0.0, 0.1, 0.3, 0.6)
_A = TypeVar("_A")
_T = TypeVar("_T")


class Driving:
    """Asks the driver in a thread of its own, one question at a time."""

    def __init__(self, nvml: Nvml, found: Discovery) -> None:
        self.watch = DeviceWatch(found.node.gpus, found.gpu_problems)
        self._nvml, self._name = nvml, found.node.name
        self._thread = ThreadPoolExecutor(1, "nvml")

    async def look(self, own: Callable[[], Collection[int]]) -> bool:
        """Take a reading; whether it changes what is told of the devices."""
        found = await self._ask(self._nvml.devices, self._name)
        use = await self._ask(self._nvml.memory, own())
        return self.watch.take(found, use, now=processes.boot_ms())

    async def all_free(
        self, ids: Callable[[], Collection[str]], own: Callable[[], Collection[int]]
    ) -> bool:
        """Whether the memory of these devices is given back; if not, they are out until it is."""
        left: list[str] = []
        use = MemoryUse({})
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            use = await self._ask(self._nvml.memory, own())
            left = self.watch.left_behind(ids(), use)
            if not left:
                return True
        self.watch.quarantine(left, use)
        return False

    async def _ask(self, call: Callable[[_A], _T], argument: _A) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, argument)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
