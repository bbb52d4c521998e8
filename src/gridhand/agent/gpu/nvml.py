"""GPUs as the NVIDIA driver tells of them: which there are, how they are, and who uses them.

A device that fails is told as a problem and marked, and the others stay usable. A machine without
the driver has no GPUs and no problem; one whose driver is broken has no GPUs and a problem that
says how to mend it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gridhand.agent.driver import Driver, DriverError, Handle
from gridhand.agent.look import broken, failed, look, vanished
from gridhand.agent.problems import Problem
from gridhand.agent.visible import offered
from gridhand.core.gpus import Gpu, GpuHealth


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices in the driver's order, healthy or not, and what is wrong with any of them.

    `hidden` are there, but not for us.
    """

    gpus: tuple[Gpu, ...] = ()
    problems: tuple[Problem, ...] = ()
    hidden: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What is used of one device: in all, by our own processes, and by strangers.

    `unexplained_bytes` belongs to no process that the driver tells of: to processes outside of our
    container, or to some that ended without giving it back.
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
    """What is used of each device that could be asked."""

    devices: Mapping[str, DeviceMemory]
    problems: tuple[Problem, ...] = ()

    @property
    def foreign(self) -> dict[str, int]:
        """Bytes that strangers use, of the devices that have any."""
        return {id: use.foreign_bytes for id, use in self.devices.items() if use.foreign_bytes}


class Nvml:
    """The devices of this machine, over a session with the driver that is opened when needed.

    It remembers the devices it has seen, so one that vanishes is told as lost under the id by
    which others hold it. After any failure the next reading starts a new session, so that a device
    or a driver that was mended is seen. Not for use by several threads.
    """

    def __init__(self, *, environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> None:
        self._environ = environ
        self._root = root
        self._driver: Driver | None = None
        self._doubtful = False
        self._handles: dict[str, Handle] = {}
        self._known: dict[str, Gpu] = {}
        self._hidden: set[str] = set()

    def close(self) -> None:
        """Leave the driver. The next reading opens it again."""
        driver, self._driver = self._driver, None
        self._handles = {}
        if driver is not None:
            try:
                driver.close()
            except DriverError:
                self._doubtful = True  # a driver that went away: the next reading tells

    def devices(self, node: str) -> Devices:
        """The devices that there are now, and those that were here and are lost.

        If the driver itself fails, devices seen before are sick and not lost: what runs on them may
        well go on, but nothing should be added.
        """
        problems: list[Problem] = []
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
        # What was hidden stays so: when a device is lost, those after it may get other numbers.
        seen = [gpu for gpu in found.values() if gpu.id not in self._hidden]
        lost = self._vanished(node, found, problems)
        ours = _in_order([*offered(seen, self._environ, problems), *lost])
        self._known = {gpu.id: gpu for gpu in ours}
        self._hidden |= found.keys() - self._known.keys()
        self._handles = {id: handle for id, handle in handles.items() if id in self._known}
        self._doubtful = any(gpu.health is not GpuHealth.OK for gpu in ours)
        told = [problem for problem in problems if problem.device not in self._hidden]
        return Devices(ours, tuple(told), frozenset(self._hidden))

    def _vanished(self, node: str, found: Mapping[str, Gpu], problems: list[Problem]) -> list[Gpu]:
        """Devices that were here, marked as lost.

        One that had no id of its own, because it did not tell its UUID, is found again by number.
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
        """What is used of each device that `devices` last told of, by whom.

        A device that does not answer counts as wholly used by strangers, so nothing is put on it.
        """
        used: dict[str, DeviceMemory] = {}
        problems: list[Problem] = []
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

    def _session(self) -> Driver | None:
        if self._doubtful:
            self.close()
        if self._driver is None:
            self._driver = Driver.open(self._root)
            self._doubtful = False
        return self._driver


def _memory(driver: Driver, handle: Handle, own_pids: Collection[int]) -> DeviceMemory:
    by_pid = driver.processes(handle)
    try:
        used = driver.used_bytes(handle)
    except DriverError as error:
        if not error.missing:
            raise
        used = sum(amount or 0 for amount in by_pid.values())
    own = sum(amount or 0 for pid, amount in by_pid.items() if pid in own_pids)
    strangers = [amount for pid, amount in by_pid.items() if pid not in own_pids]
    foreign = sum(amount or 0 for amount in strangers)
    if None in strangers:  # one of them does not tell, so it may be all that is not ours
        foreign = max(1, foreign, used - own)
    return DeviceMemory(used, own, foreign, by_pid)


def _in_order(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))
