"""The NVIDIA driver's library, as typed calls with one kind of error.

This is the only code that knows pynvml, which has no types. Drivers of the last years lack some
calls of the present one, so those fall back to what came before them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

LIBRARY = "libnvidia-ml.so.1"

# From nvml.h. They are part of the library's interface and never change.
NOT_SUPPORTED = 3
NO_PERMISSION = 4
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
BLOCKED_BY_SYSTEM = 17
VERSION_MISMATCH = 18
GPU_NOT_FOUND = 28
UNKNOWN = 999

_MISSING = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND})


class DriverError(Exception):
    """The driver refused a call. `code` is NVML's own."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def missing(self) -> bool:
        """Whether this device or driver merely does not support the call."""
        return self.code in _MISSING

    @property
    def lost(self) -> bool:
        return self.code in (GPU_IS_LOST, GPU_NOT_FOUND)


@dataclass(frozen=True, slots=True)
class Handle:
    """A device as the library knows it, for as long as it is open."""

    pointer: Any


class NvmlDriver:
    """An open session with the driver. Its methods raise `DriverError` and nothing else."""

    def __init__(self, pynvml: ModuleType) -> None:
        self._pynvml = pynvml

    @classmethod
    def open(cls, root: Path = Path("/")) -> NvmlDriver | None:
        """Open a session; return None on a machine without the driver."""
        try:
            ctypes.CDLL(LIBRARY)
        except OSError as error:
            # pynvml would call a library that cannot be loaded one that is not there.
            if not _is_absent(str(error)):
                raise DriverError(LIBRARY_NOT_FOUND, str(error)) from error
            if (root / "proc/driver/nvidia/version").exists():
                text = f"the kernel has the NVIDIA driver, but {LIBRARY} is not there"
                raise DriverError(LIBRARY_NOT_FOUND, text) from error
            return None
        import pynvml  # type: ignore[import-untyped]  # only where there is a driver: it is slow

        driver = cls(pynvml)
        driver._call("nvmlInit")
        return driver

    def close(self) -> None:
        self._call("nvmlShutdown")

    def count(self) -> int:
        return int(self._call("nvmlDeviceGetCount"))

    def device(self, index: int) -> Handle:
        return Handle(self._call("nvmlDeviceGetHandleByIndex", index))

    def uuid(self, device: Handle) -> str:
        return str(self._call("nvmlDeviceGetUUID", device.pointer))

    def model(self, device: Handle) -> str:
        return str(self._call("nvmlDeviceGetName", device.pointer))

    def capability(self, device: Handle) -> tuple[int, int]:
        major, minor = self._call("nvmlDeviceGetCudaComputeCapability", device.pointer)
        return int(major), int(minor)

    def memory_bytes(self, device: Handle) -> int:
        return int(self._call("nvmlDeviceGetMemoryInfo", device.pointer).total)

    def used_bytes(self, device: Handle) -> int:
        """Return the memory in use; older drivers count what they reserve themselves, too."""
        try:
            version = self._pynvml.nvmlMemory_v2
            return int(self._call("nvmlDeviceGetMemoryInfo", device.pointer, version).used)
        except DriverError as error:
            if error.code != FUNCTION_NOT_FOUND:
                raise
        return int(self._call("nvmlDeviceGetMemoryInfo", device.pointer).used)

    def utilization(self, device: Handle) -> float:
        """Return for how much of the last moments it computed, in percent."""
        return float(self._call("nvmlDeviceGetUtilizationRates", device.pointer).gpu)

    def temperature_c(self, device: Handle) -> float:
        chip = self._pynvml.NVML_TEMPERATURE_GPU
        return float(self._call("nvmlDeviceGetTemperature", device.pointer, chip))

    def power_w(self, device: Handle) -> float:
        return float(self._call("nvmlDeviceGetPowerUsage", device.pointer)) / 1000

    def is_partitioned(self, device: Handle) -> bool:
        """Return whether it is in MIG mode: cut into instances, and not usable as a whole."""
        return bool(self._call("nvmlDeviceGetMigMode", device.pointer)[0])

    def remapped(self, device: Handle) -> tuple[bool, bool]:
        """Return whether bad memory rows await a reset to be replaced, and whether that failed."""
        _, _, pending, failed = self._call("nvmlDeviceGetRemappedRows", device.pointer)
        return bool(pending), bool(failed)

    def processes(self, device: Handle) -> Mapping[int, int | None]:
        """Return the bytes by process id; None if the driver does not know them.

        A process that computes and draws is in both lists of the driver, with its total in each.
        """
        found: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            for process in self._running(kind, device):
                used, before = process.usedGpuMemory, found.get(process.pid, 0)
                unknown = used is None or before is None
                found[process.pid] = None if unknown else max(int(used), before or 0)
        return found

    def _running(self, kind: str, device: Handle) -> list[Any]:
        for version in (3, 3, 3, 2):
            try:
                name = f"nvmlDeviceGet{kind}RunningProcesses_v{version}"
                return list(self._call(name, device.pointer))
            except DriverError as error:
                # More processes came between asking how many there are and asking for them.
                if error.code not in (INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND):
                    raise
                last = error
        raise last

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._pynvml, name)(*arguments)
        except self._pynvml.NVMLError as error:
            raise DriverError(int(error.value), str(error)) from error
        except UnicodeDecodeError as error:  # a broken device may answer anything
            raise DriverError(UNKNOWN, f"{name} answered {error.object[:20]!r}") from error


def _is_absent(error: str) -> bool:
    """Return whether the loader found no file; an error about a broken file has its path."""
    return LIBRARY in error and "No such file" in error and f"/{LIBRARY}" not in error
