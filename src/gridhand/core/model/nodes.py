"""Node: a machine with its capacity, devices, labels, price and health."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from gridhand.core.errors import InvalidInput, InvalidName, InvalidRequest
from gridhand.core.model.gpus import MOST_DEVICES, Gpu, anonymous_gpus
from gridhand.core.model.names import NodeName, check_label, check_node_name
from gridhand.core.model.resources import MOST, UNIT, Resources, amount_text, read_amount

MOST_LABELS = 64
MACHINE_LABEL = "gridhand.machine"  # of nodes in a store that machines share
ENGINE_LABEL = "gridhand.engine"  # of nodes whose jobs run elsewhere: one of REMOTE_ENGINES
CEILING_LABEL = "gridhand.health"  # the best health that an administrator lets a remote node have
BOOT_LABEL = "gridhand.boot"  # the boot id that a remote node had when its health was last recorded
REMOTE_ENGINES = ("external", "ray")

# Custom names are allowed, so a misspelt one would silently give a node without that resource.
_MISSPELT = {
    "cpus": "cpu", "cores": "cpu", "ncpus": "cpu", "mem": "memory", "ram": "memory",
    "memory_mb": "memory", "mem_gb": "memory_gb", "gpus": "gpu", "ngpus": "gpu",
    "gpu_mem": "gpu_memory", "vram": "gpu_memory",
}  # fmt: skip


class Health(StrEnum):
    UP = "up"
    SUSPECT = "suspect"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with a capacity. GPUs are devices and not part of `capacity`.

    >>> Node.of("gpu1", cpu=8, memory="16GB", gpu=2).total
    Resources('cpu=8 gpu=2 memory=16GB')
    """

    name: NodeName
    capacity: Resources
    gpus: tuple[Gpu, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    price: int = 0
    address: str = ""
    health: Health = Health.UP
    draining: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        resources: Resources | Mapping[str, Any] | str | None = None,
        *,
        gpus: Sequence[Gpu | Mapping[str, Any]] | None = None,
        labels: Mapping[str, str] | None = None,
        price: float | str = 0,
        address: str = "",
        **named: Any,
    ) -> Node:
        """Read a node as users describe it. `gpu: 2` without `gpus` makes two anonymous devices."""
        checked_name = check_node_name(name)
        has = Resources.of(resources, **named)
        for spelled in has:
            if spelled in _MISSPELT:
                raise InvalidName(
                    "resource name", spelled, f"{_MISSPELT[spelled]}, which was meant"
                )
        return cls(
            name=checked_name,
            capacity=has.without("gpu", "gpu_memory"),
            gpus=_devices(name, has, gpus),
            labels=check_labels(labels or {}),
            price=read_amount("price", price),
            address=check_label(address, "address") if address else "",
        )

    def checked(self) -> Node:
        """Return this node, or raise an error if `of` would not accept it.

        For nodes that were constructed directly.
        """
        check_node_name(self.name)
        if not isinstance(self.capacity, Resources):
            raise InvalidInput("capacity", self.capacity, "Resources")
        if not isinstance(self.gpus, tuple):
            raise InvalidInput("gpus", self.gpus, "a tuple of devices")
        for gpu in self.gpus:
            if not isinstance(gpu, Gpu):
                raise InvalidInput("gpus", gpu, "devices made with Gpu")
        if type(self.price) is not int or not 0 <= self.price <= MOST:
            raise InvalidInput("price", self.price, "ten-thousandths, not negative")
        if self.health not in list(Health) or not isinstance(self.draining, bool):
            raise InvalidInput("health or draining", self.health, "up, suspect or down, and a bool")
        _devices(self.name, Resources(), self.gpus)
        if self.address:
            check_label(self.address, "address")
        return replace(self, labels=check_labels(self.labels), health=Health(self.health))

    @property
    def machine(self) -> str:
        """The machine that runs the node's jobs; "" if that is always the controller's."""
        return self.labels.get(MACHINE_LABEL, "")

    @property
    def remote(self) -> bool:
        """Whether an agent or worker elsewhere serves the node, so that heartbeats decide on it."""
        return ENGINE_LABEL in self.labels

    @property
    def ceiling(self) -> Health:
        """The best health that an administrator lets a remote node have."""
        set_by_hand = self.labels.get(CEILING_LABEL)
        return Health.UP if set_by_hand is None else Health(set_by_hand)

    @property
    def total(self) -> Resources:
        """The whole capacity, with the devices added up."""
        memory = sum(gpu.memory_bytes for gpu in self.gpus)
        return self.capacity + Resources({"gpu": UNIT * len(self.gpus), "gpu_memory": memory})

    def with_lost_gpus(self, lost: Iterable[Gpu]) -> Node:
        """Add devices that are no longer reported but on which something is still held."""
        return replace(self, gpus=(*self.gpus, *lost))


def _devices(
    name: str, has: Resources, gpus: Sequence[Gpu | Mapping[str, Any]] | None
) -> tuple[Gpu, ...]:
    count = has["gpu"]
    if count % UNIT or count > MOST_DEVICES * UNIT:
        raise InvalidInput(
            "gpu", amount_text("gpu", count), f"a whole number of devices, at most {MOST_DEVICES}"
        )
    if gpus is None:
        if has["gpu_memory"] and not count:
            raise InvalidRequest("gpu_memory", "without gpu", "how many devices have it: gpu=…")
        return anonymous_gpus(name, count // UNIT, has["gpu_memory"])
    if isinstance(gpus, str | Mapping) or not isinstance(gpus, Sequence):
        raise InvalidInput("gpus", gpus, "a list of devices")
    if len(gpus) > MOST_DEVICES:
        raise InvalidInput("gpus", f"{len(gpus)} devices", f"at most {MOST_DEVICES}")
    if count and count != UNIT * len(gpus):
        raise InvalidRequest("gpu", amount_text("gpu", count), f"{len(gpus)}, as gpus lists")
    if has["gpu_memory"]:
        raise InvalidRequest("gpu_memory", "with gpus", "the memory of each device in gpus")
    devices = tuple(Gpu.read(gpu, node=name, index=index) for index, gpu in enumerate(gpus))
    if len({gpu.id for gpu in devices}) < len(devices):
        raise InvalidInput("gpus", [gpu.id for gpu in devices], "each device id once")
    return devices


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels in name order, or raise an error that names the invalid one."""
    if not isinstance(labels, Mapping) or len(labels) > MOST_LABELS:
        raise InvalidInput("labels", labels, f"a mapping of at most {MOST_LABELS} names to values")
    for key, value in labels.items():
        check_label(key, "label")
        check_label(value, f"label {key}")
    _check_own_labels(labels)
    return dict(sorted(labels.items()))


def _check_own_labels(labels: Mapping[str, str]) -> None:
    """Raise InvalidInput if a label that means something to us has a value that does not."""
    for key, allowed in ((ENGINE_LABEL, REMOTE_ENGINES), (CEILING_LABEL, list(Health))):
        if key in labels and labels[key] not in allowed:
            raise InvalidInput(f"label {key}", labels[key], " or ".join(allowed))
