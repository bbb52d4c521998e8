"""Readings of the whole machine besides CPU and memory: load, network and disks.

A machine where one of them cannot be read has a problem that says so, and the others are read.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gridhand.agent.hardware.machine_problem import MachineProblem
from gridhand.agent.messages import NodeLoad
from gridhand.posix import host_counters
from gridhand.posix.host_counters import Traffic

_T = TypeVar("_T")


class HostReadings:
    """Takes readings; rates are those since the previous one. Not safe for several threads."""

    def __init__(
        self,
        folder: Path,
        *,
        root: Path = Path("/"),
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        """`folder` is on the disk whose use is measured."""
        self._folder, self._root, self._clock = folder, root, clock
        self._before: dict[str, tuple[float, Traffic]] = {}
        self._unread: dict[str, MachineProblem] = {}

    @property
    def problems(self) -> tuple[MachineProblem, ...]:
        """Problems with the readings that failed the last time."""
        return tuple(self._unread.values())

    def read(self) -> NodeLoad:
        load: NodeLoad = {}
        averages = self._try("load", lambda: host_counters.load_averages(self._root))
        if averages is not None:
            load["load"] = list(averages)
        if (disk := self._try("disk", lambda: shutil.disk_usage(self._folder))) is not None:
            load["disk_bytes"], load["disk_total_bytes"] = disk.used, disk.total
        if (network := self._rates("network", host_counters.network_bytes)) is not None:
            load["network_received_per_s"], load["network_sent_per_s"] = network
        if (disks := self._rates("disk traffic", host_counters.disk_bytes)) is not None:
            load["disk_read_per_s"], load["disk_written_per_s"] = disks
        return load

    def _rates(self, what: str, read: Callable[[Path], Traffic]) -> tuple[int, int] | None:
        """Return bytes per second; None at first, and when a card or a disk was removed."""
        counted = self._try(what, lambda: read(self._root))
        if counted is None:
            return None
        now = self._clock()
        at, before = self._before.get(what, (now, counted))
        self._before[what] = now, counted
        if now <= at or counted.received < before.received or counted.sent < before.sent:
            return None
        passed = now - at
        return (
            round((counted.received - before.received) / passed),
            round((counted.sent - before.sent) / passed),
        )

    def _try(self, what: str, read: Callable[[], _T]) -> _T | None:
        try:
            found = read()
        except (OSError, ValueError, IndexError) as error:
            self._unread[what] = MachineProblem(
                f"the {what} of this machine cannot be read: {error}",
                "It is missing from what is shown; everything else goes on.",
            )
            return None
        self._unread.pop(what, None)
        return found
