"""Device visibility: `CUDA_VISIBLE_DEVICES` for jobs, and as it was set for this process.

Indexes in it are in the order of `CUDA_DEVICE_ORDER`, which by default is not the driver's; a UUID
always means the same device, also after a reboot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from gridhand.agent.hardware.machine_problem import MachineProblem
from gridhand.core.model.gpus import Gpu

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
_BY_BUS = "PCI_BUS_ID"
_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def is_uuid(id: str) -> bool:
    """Return whether it is a UUID, which means the same device in any order."""
    return _UUID.fullmatch(id) is not None


def visible(devices: Iterable[Gpu]) -> str:
    """Return the devices for `CUDA_VISIBLE_DEVICES`, in the driver's order; "" for none.

    They are named by UUID if all have one, else by index: CUDA does not take a mixture.
    """
    ordered = sorted(devices, key=lambda gpu: gpu.index)
    if all(is_uuid(gpu.id) for gpu in ordered):
        return ",".join(gpu.id for gpu in ordered)
    return ",".join(str(gpu.index) for gpu in ordered)


def visible_environment(devices: Iterable[Gpu]) -> dict[str, str]:
    """Return the variables by which a job sees these devices, no others, and in this order."""
    return {ORDER: _BY_BUS, VISIBLE: visible(devices)}


def offered(
    gpus: Sequence[Gpu], environ: Mapping[str, str], problems: list[MachineProblem]
) -> list[Gpu]:
    """Return the GPUs that `environ` lets us see: the rest belongs to others.

    As in CUDA, a UUID may be shortened, and all entries after an invalid one are ignored.
    """
    mask = environ.get(VISIBLE)
    if mask is None:
        return list(gpus)
    entries = [entry.strip() for entry in mask.split(",") if entry.strip()]
    if entries in ([], ["-1"], ["NoDevFiles"]):
        return []
    chosen: list[Gpu] = []
    for entry in entries:
        matching = [gpu for gpu in gpus if _matches(entry, gpu)]
        if len(matching) != 1:
            problems.append(_invalid_entry(entry, mask))
            break
        chosen += matching
    by_number = any(entry.isdecimal() for entry in entries)
    mixed = len({gpu.model for gpu in gpus}) > 1
    if by_number and mixed and environ.get(ORDER) != _BY_BUS:
        problems.append(_ambiguous_mask(mask))
    return [gpu for gpu in gpus if gpu in chosen]


def _matches(entry: str, gpu: Gpu) -> bool:
    if entry.isdecimal():
        return int(entry) == gpu.index
    return entry.startswith(("GPU-", "MIG-")) and gpu.id.lower().startswith(entry.lower())


def _invalid_entry(entry: str, mask: str) -> MachineProblem:
    return MachineProblem(
        f"{entry[:60]!r} in {VISIBLE}={mask[:200]} is not one device of this machine",
        "It and all after it are not used. Start the agent with a list of its GPUs, or unset it.",
    )


def _ambiguous_mask(mask: str) -> MachineProblem:
    return MachineProblem(
        f"{VISIBLE}={mask[:200]} names devices by index, and CUDA may order devices of different"
        " models otherwise than the driver",
        f"The driver's indexes are used. Set {ORDER}={_BY_BUS}, or name them by UUID.",
    )
