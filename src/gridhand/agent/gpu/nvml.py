"""The GPUs of this machine by the NVIDIA driver: which there are, their health, and their users.

A device that fails is marked and reported as a problem, and the others stay usable. A machine
without the driver has no GPUs and no problem; one whose driver is broken has no GPUs and a problem
that says how to mend it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gridhand.agent.gpu.nvml_driver import DriverError, Handle, NvmlDriver
from gridhand.agent.gpu.probe import broken, failed, look, vanished
from gridhand.agent.gpu.visibility import offered
from gridhand.agent.hardware.machine_problem import MachineProblem
from gridhand.core.model.gpus import Gpu, GpuHealth


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices in the driver's order, healthy or not, and what is wrong with any of them.

    `hidden` are the devices that `CUDA_VISIBLE_DEVICES` keeps from us.
    """

    gpus: tuple[Gpu, ...] = ()
    problems: tuple[MachineProblem, ...] = ()
    hidden: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory in use on one device: in all, by our own processes, and by foreign ones.

    `unexplained_bytes` belongs to no process that the driver lists: to processes outside of our
    container, or to some that ended without freeing it.
    """

    used_bytes: int
    own_bytes: int
    foreign_bytes: int
    by_pid: Mapping[int, int | None]

    @property
    def unexplained_bytes(self) -> int:
        return max(0, self.used_bytes - self.own_bytes - self.foreign_bytes)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory in use on each device that could be read."""

    devices: Mapping[str, DeviceMemory]
    problems: tuple[MachineProblem, ...] = ()

    @property
    def foreign(self) -> dict[str, int]:
        """The bytes that foreign processes use, of the devices that have any."""
        return {id: use.foreign_bytes for id, use in self.devices.items() if use.foreign_bytes}


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """How busy a device is; None for what it does not tell."""

    utilization: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


class Nvml:
    """The devices of this machine, over a session with the driver that is opened when needed.

    It remembers the devices it has seen, so one that vanishes is reported as lost under the id by
    which jobs hold it. After any failure the next reading starts a new session, so that a device
    or a driver that was mended is seen. Not safe for several threads.
    """

    def __init__(self, *, environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> None:
        self._environ = environ
        self._root = root
        self._driver: NvmlDriver | None = None
        self._doubtful = False
        self._handles: dict[str, Handle] = {}
        self._known: dict[str, Gpu] = {}
        self._hidden: set[str] = set()

    def close(self) -> None:
        """Close the session. The next reading opens a new one."""
        driver, self._driver = self._driver, None
        self._handles = {}
        if driver is not None:
            try:
                driver.close()
            except DriverError:
                self._doubtful = True  # the driver went away: the next reading reports it

    def devices(self, node: str) -> Devices:
        """Return the devices that there are now, and those that were here and are lost.

        If the driver itself fails, devices seen before are sick and not lost: jobs on them may
        well go on, but none should be added.
        """
        problems: list[MachineProblem] = []
        try:
            driver = self._session()
            count = driver.count() if driver is not None else 0
        except DriverError as error:
            self._doubtful = True
            sick = [replace(gpu, health=GpuHealth.SICK) for gpu in self._known.values()]
            return Devices(_in_order(sick), (broken(error),))
        if driver is None:
            return Devices()
        found: dict[str, Gpu] = {}
        handles: dict[str, Handle] = {}
        for index in range(count):
            gpu, handle = look(driver, node, index, self._known, found, problems)
            found[gpu.id] = gpu
            if handle is not None:
                handles[gpu.id] = handle
        # A hidden device stays hidden: when a device is lost, later ones may get other indexes.
        seen = [gpu for gpu in found.values() if gpu.id not in self._hidden]
        lost = self._vanished(node, found, problems)
        ours = _in_order([*offered(seen, self._environ, problems), *lost])
        self._known = {gpu.id: gpu for gpu in ours}
        self._hidden |= found.keys() - self._known.keys()
        self._handles = {id: handle for id, handle in handles.items() if id in self._known}
        self._doubtful = any(gpu.health is not GpuHealth.OK for gpu in ours)
        ours_only = [problem for problem in problems if problem.device not in self._hidden]
        return Devices(ours, tuple(ours_only), frozenset(self._hidden))

    def _vanished(
        self, node: str, found: Mapping[str, Gpu], problems: list[MachineProblem]
    ) -> list[Gpu]:
        """Return devices that were here, marked as lost.

        A device whose UUID could not be read has its index as id, and is found again by that.
        """
        indexes = {gpu.index for gpu in found.values()}
        lost = []
        for id, gpu in self._known.items():
            renamed = id == f"{node}/{gpu.index}" and gpu.index in indexes
            if id not in found and not renamed:
                lost.append(replace(gpu, health=GpuHealth.LOST))
                problems.append(vanished(id))
        return lost

    def memory(self, own_pids: Collection[int]) -> MemoryUse:
        """Return the memory in use on each device that `devices` returned last.

        A device that cannot be read counts as wholly used by others, so nothing is placed on it.
        """
        used: dict[str, DeviceMemory] = {}
        problems: list[MachineProblem] = []
        for id, handle in self._handles.items():
            assert self._driver is not None
            try:
                used[id] = _memory(self._driver, handle, own_pids)
            except DriverError as error:
                problems.append(failed(id, "tell who uses its memory", error))
                all_bytes = 0 if error.missing else max(1, self._known[id].memory_bytes)
                used[id] = DeviceMemory(all_bytes, 0, all_bytes, {})
                self._doubtful |= not error.missing
        return MemoryUse(used, tuple(problems))

    def loads(self) -> tuple[dict[str, DeviceLoad], tuple[MachineProblem, ...]]:
        """Return how busy each device is that `devices` returned last, and what cannot be told."""
        loads: dict[str, DeviceLoad] = {}
        problems: list[MachineProblem] = []
        for id, handle in self._handles.items():
            assert self._driver is not None
            loads[id] = _load(self._driver, id, handle, problems)
        return loads, tuple(problems)

    def _session(self) -> NvmlDriver | None:
        if self._doubtful:
            self.close()
        if self._driver is None:
            self._driver = NvmlDriver.open(self._root)
            self._doubtful = False
        return self._driver


def _memory(driver: NvmlDriver, handle: Handle, own_pids: Collection[int]) -> DeviceMemory:
    by_pid = driver.processes(handle)
    try:
        used = driver.used_bytes(handle)
    except DriverError as error:
        if not error.missing:
            raise
        used = sum(amount or 0 for amount in by_pid.values())
    own = sum(amount or 0 for pid, amount in by_pid.items() if pid in own_pids)
    others = [amount for pid, amount in by_pid.items() if pid not in own_pids]
    foreign = sum(amount or 0 for amount in others)
    if None in others:  # the amount of one is unknown, so it may be all that is not ours
        foreign = max(1, foreign, used - own)
    return DeviceMemory(used, own, foreign, by_pid)


def _load(
    driver: NvmlDriver, id: str, handle: Handle, problems: list[MachineProblem]
) -> DeviceLoad:
    """Read the load of a device; a problem is reported for the first reading that fails."""
    found: list[float | None] = []
    error: DriverError | None = None
    for read in (driver.utilization, driver.temperature_c, driver.power_w):
        try:
            found.append(read(handle))
        except DriverError as failure:
            error = error or (None if failure.missing else failure)
            found.append(None)
    if error is not None:
        problems.append(failed(id, "tell how busy it is", error))
    return DeviceLoad(*found)


def _in_order(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))
