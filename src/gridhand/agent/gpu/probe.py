"""Probe one GPU: what it is, whether it works, and the problems it has."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from gridhand.agent.gpu import nvml_driver as codes
from gridhand.agent.gpu.nvml_driver import DriverError, Handle, NvmlDriver
from gridhand.agent.hardware.machine_problem import MachineProblem
from gridhand.core.errors import InvalidName
from gridhand.core.model.gpus import Gpu, GpuHealth
from gridhand.core.model.names import check_label
from gridhand.core.model.resources import MOST

_MAKERS = frozenset({"nvidia", "geforce", "tesla", "quadro"})
# Words of a device name for its memory size and its form factor.
_FORM = re.compile(r"[0-9]+GB|HBM.*|SXM.*|PCIe|NVL", re.IGNORECASE)
_LONGEST_MODEL = 100
_T = TypeVar("_T")
_U = TypeVar("_U")

_LOOK = "Look for Xid errors in `dmesg`; reset the device with `nvidia-smi --gpu-reset`, or reboot."
_ANY = "See what `nvidia-smi` says. Install the driver again, and reboot, if it says the same."
_HINTS: Mapping[int, str] = {
    codes.NO_PERMISSION: "Let this user read and write /dev/nvidiactl and /dev/nvidia*.",
    codes.DRIVER_NOT_LOADED: "Load it with `modprobe nvidia`, or remove its packages if this"
    " machine has no GPU.",
    codes.LIBRARY_NOT_FOUND: "Install the driver's library again; a container needs the"
    " capability `utility`.",
    codes.FUNCTION_NOT_FOUND: "Update the driver: it is older than the calls we need.",
    codes.GPU_IS_LOST: _LOOK,
    codes.GPU_NOT_FOUND: _LOOK,
    codes.RESET_REQUIRED: _LOOK,
    codes.BLOCKED_BY_SYSTEM: "Give the container or service access to the GPU devices.",
    codes.VERSION_MISMATCH: "The driver was updated under the running kernel: reboot, or load its"
    " modules again.",
}


def look(
    driver: NvmlDriver,
    node: str,
    index: int,
    known: Mapping[str, Gpu],
    found: Mapping[str, Gpu],
    problems: list[MachineProblem],
) -> tuple[Gpu, Handle | None]:
    """Return the device with this index, and its handle unless it cannot be opened.

    What cannot be read stays as it is `known` from before. Its id is not one of `found`.
    """
    before = [gpu for gpu in known.values() if gpu.index == index and gpu.id not in found]
    before.sort(key=lambda gpu: gpu.health is GpuHealth.LOST)
    gpu = before[0] if before else Gpu(f"{node}/{index}", index)
    return _Look(driver, gpu, found, problems).result()


class _Look:
    """One probe of one device: the first call that fails makes it sick, and is reported."""

    def __init__(
        self, driver: NvmlDriver, gpu: Gpu, found: Mapping[str, Gpu], problems: list[MachineProblem]
    ) -> None:
        self._driver = driver
        self._gpu = gpu
        self._found = found
        self._problems = problems
        self._health = GpuHealth.OK

    def result(self) -> tuple[Gpu, Handle | None]:
        driver, gpu = self._driver, self._gpu
        try:
            handle = driver.device(gpu.index)
        except DriverError as error:
            self._fail("be opened", error)
            return replace(gpu, health=self._health), None
        self._identify(handle)  # first, so that the problems from here on name it
        gpu = replace(self._gpu, model=self._model(handle, gpu.model))
        capability = self._ask("tell its capability", driver.capability, handle, gpu.capability)
        memory = self._ask("tell its memory", driver.memory_bytes, handle, None)
        if memory is None and self._health is GpuHealth.OK:
            self._add_problem(
                f"the memory of GPU {gpu.id} is not known", "Ask for it whole or by share."
            )
        self._check(handle)
        return replace(
            gpu,
            capability=capability,
            memory_bytes=gpu.memory_bytes if memory is None else min(memory, MOST),
            health=self._health,
        ), handle

    def _identify(self, handle: Handle) -> None:
        """Use its UUID as its id, if that is a valid id and no other device has it."""
        id, index = self._gpu.id, self._gpu.index
        uuid = self._ask("tell its UUID", self._driver.uuid, handle, "")
        try:
            id = check_label(uuid, "gpu id") if uuid else id
        except InvalidName:
            self._add_problem(f"GPU {id} has the UUID {uuid[:60]!r}, which cannot be its id", _LOOK)
        taken = id in self._found
        self._gpu = replace(self._gpu, id=f"{id}:{index}" if taken else id)
        if taken:
            self._health = GpuHealth.SICK
            self._add_problem(f"GPU {index} has the UUID {id}, as another one has", _LOOK)

    def _model(self, handle: Handle, otherwise: str) -> str:
        name = self._ask("tell its model", self._driver.model, handle, otherwise)
        printable = "".join(c if " " <= c <= "~" and c != "|" else "?" for c in name)
        return short_name(printable)[:_LONGEST_MODEL]

    def _check(self, handle: Handle) -> None:
        driver, id = self._driver, self._gpu.id
        if self._ask("tell its MIG mode", driver.is_partitioned, handle, False):
            self._health = GpuHealth.SICK
            hint = "Turn that off with `nvidia-smi --multi-instance-gpu 0` to use it as a whole."
            self._add_problem(f"GPU {id} is cut into MIG instances, which are not used", hint)
        pending, failed = self._ask("tell its memory rows", driver.remapped, handle, (False, False))
        if failed:
            self._health = GpuHealth.SICK
            self._add_problem(
                f"GPU {id} has bad memory that it could not replace", "Have it exchanged."
            )
        elif pending:
            self._add_problem(f"GPU {id} has bad memory to be replaced at its next reset", _LOOK)

    def _ask(
        self, what: str, call: Callable[[Handle], _T], handle: Handle, otherwise: _U
    ) -> _T | _U:
        try:
            return call(handle)
        except DriverError as error:
            if not error.missing:
                self._fail(what, error)
            return otherwise

    def _fail(self, what: str, error: DriverError) -> None:
        """Mark the device and report the problem, once for a lost device: it fails every call."""
        if self._health is GpuHealth.LOST:
            return
        self._health = GpuHealth.LOST if error.lost else GpuHealth.SICK
        self._problems.append(failed(self._gpu.id, what, error))

    def _add_problem(self, what: str, hint: str) -> None:
        self._problems.append(MachineProblem(what, hint, self._gpu.id))


def failed(id: str, what: str, error: DriverError) -> MachineProblem:
    return MachineProblem(f"GPU {id} cannot {what}: {error}", _HINTS.get(error.code, _LOOK), id)


def broken(error: DriverError) -> MachineProblem:
    return MachineProblem(
        f"the NVIDIA driver is there but does not work, so no GPU is offered: {error}",
        _HINTS.get(error.code, _ANY),
    )


def vanished(id: str) -> MachineProblem:
    return MachineProblem(f"GPU {id} has vanished", _LOOK, id)


def short_name(name: str) -> str:
    """Return the short name that people use for a device, from the driver's longer one.

    >>> names = "NVIDIA A100-SXM4-40GB", "Tesla T4", "NVIDIA H100 80GB HBM3"
    >>> [short_name(name) for name in names]
    ['A100', 'T4', 'H100']
    >>> short_name("NVIDIA GeForce RTX 3090 Ti")
    'RTX 3090 Ti'
    """
    words = name.split()
    while words and words[0].lower() in _MAKERS:
        words.pop(0)
    kept = list(itertools.takewhile(lambda word: not _FORM.fullmatch(word), words))
    return " ".join(word.partition("-")[0] for word in kept) or name.strip()
