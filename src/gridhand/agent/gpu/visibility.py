"""Which devices a process sees: what we tell a job, and what we were told ourselves.

CUDA reads `CUDA_VISIBLE_DEVICES`. Numbers in it mean what `CUDA_DEVICE_ORDER` says, and by default
not what the driver counts; UUIDs always mean one device, also after a reboot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from gridhand.agent.problems import Problem
from gridhand.core.gpus import Gpu

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
_BY_BUS = "PCI_BUS_ID"
_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def is_uuid(id: str) -> bool:
    """Whether it means one device, on whatever machine and in whatever order."""
    return _UUID.fullmatch(id) is not None


def visible(devices: Iterable[Gpu]) -> str:
    """The devices as `CUDA_VISIBLE_DEVICES` has them, in the driver's order; empty for none.

    They are named by UUID if all have one, else by number: CUDA does not take a mixture.
    """
    ordered = sorted(devices, key=lambda gpu: gpu.index)
    if all(is_uuid(gpu.id) for gpu in ordered):
        return ",".join(gpu.id for gpu in ordered)
    return ",".join(str(gpu.index) for gpu in ordered)


def visible_environment(devices: Iterable[Gpu]) -> dict[str, str]:
    """What a job's environment must have to see these devices, no others, and in this order."""
    return {ORDER: _BY_BUS, VISIBLE: visible(devices)}


def offered(gpus: Sequence[Gpu], environ: Mapping[str, str], problems: list[Problem]) -> list[Gpu]:
    """Those of `gpus` that `environ` lets us see: the rest belongs to someone else.

    As in CUDA, a UUID may be cut short, and what comes after an entry that means nothing is lost.
    """
    mask = environ.get(VISIBLE)
    if mask is None:
        return list(gpus)
    entries = [entry.strip() for entry in mask.split(",") if entry.strip()]
    if entries in ([], ["-1"], ["NoDevFiles"]):
        return []
    chosen: list[Gpu] = []
    for entry in entries:
        meant = [gpu for gpu in gpus if _means(entry, gpu)]
        if len(meant) != 1:
            problems.append(_meaningless(entry, mask))
            break
        chosen += meant
    by_number = any(entry.isdecimal() for entry in entries)
    mixed = len({gpu.model for gpu in gpus}) > 1
    if by_number and mixed and environ.get(ORDER) != _BY_BUS:
        problems.append(_ambiguous(mask))
    return [gpu for gpu in gpus if gpu in chosen]


def _means(entry: str, gpu: Gpu) -> bool:
    if entry.isdecimal():
        return int(entry) == gpu.index
    return entry.startswith(("GPU-", "MIG-")) and gpu.id.lower().startswith(entry.lower())


def _meaningless(entry: str, mask: str) -> Problem:
    return Problem(
        f"{entry[:60]!r} in {VISIBLE}={mask[:200]} is not one device of this machine",
        "It and what follows is not offered. Start the agent with a list of its GPUs, or unset it.",
    )


def _ambiguous(mask: str) -> Problem:
    return Problem(
        f"{VISIBLE}={mask[:200]} names devices by number, which may mean others to CUDA than to"
        " the driver where the models differ",
        f"The driver's numbers are used. Set {ORDER}={_BY_BUS}, or name them by UUID.",
    )
