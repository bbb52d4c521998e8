"""What a node lacks to hold a request, in words.

Nothing here is worked out on the way to a decision, only when somebody asks or is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gridhand.core.gpus import DeviceUse, GpuAsk, GpuHealth, pick_devices
from gridhand.core.nodes import Health
from gridhand.core.requests import Request
from gridhand.core.resources import BYTES, UNIT
from gridhand.core.usage import NodeUse

if TYPE_CHECKING:
    from gridhand.core.placement import Snapshot


class Lack(NamedTuple):
    """One thing that a node is short of, in parts. `kind` is what narrows the devices, if any."""

    resource: str
    available: int
    required: int
    kind: str = ""

    def __str__(self) -> str:
        """In the words of the seed, with as many decimals as it takes to tell the two apart.

        What is available is rounded down: whoever asks for what was read gets it.
        """
        unit, scale = (" GB", 10**9) if self.resource in BYTES else ("", UNIT)
        for decimals in range(2, 10):
            has = _fixed(self.available, scale, decimals, down=True)
            needs = _fixed(self.required, scale, decimals)
            if has != needs:
                break
        title = _TITLES.get(self.resource, self.resource) + (f" ({self.kind})" if self.kind else "")
        one = " on one device" if self.resource == "gpu_memory" else ""
        return (
            f"Insufficient {title}: worker has {has}{unit} available{one}, "
            f"task requires {needs}{unit}"
        )


def _fixed(amount: int, scale: int, decimals: int, *, down: bool = False) -> str:
    """The quotient to so many decimals, worked out in integers."""
    units = 10**decimals
    rounded = (2 * amount * units + (0 if down else scale)) // (2 * scale)
    return f"{rounded // units}.{rounded % units:0{decimals}}"


_TITLES = {
    "cpu": "CPU", "memory": "Memory", "disk": "Storage", "gpu": "GPU", "gpu_memory": "GPU Memory",
    "bandwidth": "Bandwidth",
}  # fmt: skip
_ORDER = {"cpu": 0, "memory": 1, "disk": 2, "gpu": 3, "gpu_memory": 4}


def reasons_of(asked: Request, snapshot: Snapshot, use: NodeUse) -> list[str]:
    """All that speaks against the node now; nothing, if it fits."""
    node = use.node
    if node.health is not Health.UP:
        return [f"the node is {node.health}"]
    if node.draining:
        return ["the node is draining"]
    if use.overcommitted:
        return ["the node is overcommitted: more is held on it than it has"]
    found = [str(lack) for lack in lacks(asked, use, snapshot.foreign)]
    return found + _strangers(asked, snapshot, use) if found else []


def lacks(asked: Request, use: NodeUse, foreign: Mapping[str, int]) -> list[Lack]:
    """All that the node is short of: CPU, memory, storage, GPU, then others by name."""
    found = [
        Lack(name, max(0, use.total.get(name, 0) - use.held.get(name, 0)), amount)
        for name, amount in asked.amounts.pairs
        if amount > use.total.get(name, 0) - use.held.get(name, 0)
    ]
    if asked.gpu is not None and pick_devices(asked.gpu, use.devices.values(), foreign) is None:
        found.append(_device_lack(asked.gpu, list(use.devices.values()), foreign))
    return sorted(found, key=lambda lack: _place(lack.resource))


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names of resources in the order in which `lacks` tells of them."""
    return tuple(sorted(names, key=_place))


def _place(name: str) -> tuple[int, str]:
    return _ORDER.get(name, 9), name


def _device_lack(asked: GpuAsk, devices: list[DeviceUse], foreign: Mapping[str, int]) -> Lack:
    """The first of number, share and memory that the devices of the kind asked for are short of."""
    suited = [use for use in devices if asked.suits(use.gpu) and use.gpu.health is GpuHealth.OK]
    required, kind = asked.resources()["gpu"], asked.kind()
    if asked.exclusive:
        whole = [
            use for use in suited if use.admits(asked.hold_on(use.gpu), foreign.get(use.gpu.id, 0))
        ]
        return Lack("gpu", len(whole) * UNIT, required, kind)
    roomy = [use for use in suited if not use.exclusive and use.free_share() >= asked.share]
    if len(roomy) < asked.devices:
        share = max((use.free_share() for use in suited), default=0) if asked.share else 0
        return Lack("gpu", share or len(roomy) * UNIT, required, kind)
    # Of each device, what it has and what it would need; those that lack least come first.
    memory = sorted(
        (needed - free, free, needed)
        for use in roomy
        for free in [use.free_memory(foreign.get(use.gpu.id, 0))]
        for needed in [asked.hold_on(use.gpu).memory_bytes]
    )
    _, free, needed = memory[asked.devices - 1]
    return Lack("gpu_memory", free, needed, kind)


def _strangers(asked: Request, snapshot: Snapshot, use: NodeUse) -> list[str]:
    if asked.gpu is None:
        return []
    return [
        f"processes that are not ours use {_fixed(amount, 10**9, 2)} GB of device {id}"
        for id in use.devices
        if (amount := snapshot.foreign.get(id, 0))
    ]
