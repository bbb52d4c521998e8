"""GPU devices and requests for them.

The GPUs of a node are devices with ids, not a number: two halves of different devices do not make
one device. So a request is checked against one device at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from gridhand.core.errors import InvalidInput, InvalidRequest
from gridhand.core.model.names import check_label
from gridhand.core.model.resources import MOST, UNIT, Resources, amount_text, read_amount

Capability = tuple[int, ...]

MOST_DEVICES = 1024
_CAPABILITY = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,4}))?(?:\.0)?", re.ASCII)
_MODEL = re.compile(r"[ -{}~]{1,100}")  # printable, without the bar that separates models
MOST_MODELS = 32


class GpuHealth(StrEnum):
    OK = "ok"
    SICK = "sick"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device. Its id is its UUID where it has one, else `node/index`."""

    id: str
    index: int = 0
    model: str = ""
    memory_bytes: int = 0
    capability: Capability | None = None
    health: GpuHealth = GpuHealth.OK

    @classmethod
    def read(cls, given: Gpu | Mapping[str, Any], *, node: str, index: int) -> Gpu:
        """Read a device as users describe it: `{"model": "A100", "memory": "40GB", …}`."""
        if isinstance(given, Gpu):
            return given._checked()
        if not isinstance(given, Mapping):
            raise InvalidInput(
                "gpus", given, "mappings such as {'model': 'A100', 'memory': '40GB'}"
            )
        unknown = sorted(map(str, set(given) - _FIELDS))
        if unknown:
            raise InvalidInput("gpus", unknown[0], f"any of {', '.join(sorted(_FIELDS))}")
        return cls(
            id=check_label(given.get("id") or given.get("uuid") or f"{node}/{index}", "gpu id"),
            index=index,
            model=_read_model(given.get("model") or "").strip(),
            memory_bytes=read_amount("gpu_memory", given.get("memory", 0)),
            capability=read_capability(given.get("capability")),
            health=_read_health(given.get("health", GpuHealth.OK)),
        )

    def _checked(self) -> Gpu:
        """Return this device, or raise InvalidInput if `read` would not accept it."""
        check_label(self.id, "gpu id")
        _read_model(self.model)
        if type(self.memory_bytes) is not int or not 0 <= self.memory_bytes <= MOST:
            raise InvalidInput("gpu memory", self.memory_bytes, "a number of bytes")
        if type(self.index) is not int or self.index < 0:
            raise InvalidInput("gpu index", self.index, "a number from 0")
        _check_capability(self.capability)
        return replace(self, health=_read_health(self.health))


_FIELDS = {"id", "uuid", "model", "memory", "capability", "health"}


def anonymous_gpus(node: str, count: int, memory_bytes: int) -> tuple[Gpu, ...]:
    """Make `count` devices of which nothing is known but the memory of each."""
    return tuple(
        Gpu(id=f"{node}/{index}", index=index, memory_bytes=memory_bytes) for index in range(count)
    )


def read_capability(value: object) -> Capability | None:
    """Read a compute capability as a version, so that 10.0 comes after 9.0.

    >>> read_capability("10.0") > read_capability("9.0")
    True
    """
    if value is None:
        return None
    text = str(value) if type(value) in (str, int, float) else ""
    match = _CAPABILITY.fullmatch(text)
    if match is None:
        raise InvalidInput("gpu_capability", value, 'a version such as "8.6"')
    return int(match[1]), int(match[2] or 0)


def _read_model(value: object) -> str:
    if value == "" or (isinstance(value, str) and _MODEL.fullmatch(value)):
        return str(value)
    raise InvalidInput("gpu_model", value, "at most 100 printable characters, without |")


def _read_models(value: object) -> str:
    """Read accepted models, written `A|B` or as a list, into sorted text without repeats.

    >>> _read_models(["V100", "A100", "v100"])
    'A100|V100'
    """
    given = value.split("|") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not 1 <= len(given) <= MOST_MODELS:
        raise InvalidInput("gpu_model", value, f"a model, or a list of 1 to {MOST_MODELS} models")
    names = [_read_model(name).strip() for name in given]
    models = {name.lower(): name for name in reversed(names)}
    if "" in models:
        raise InvalidInput("gpu_model", value, "the name of a model")
    return "|".join(models[key] for key in sorted(models))


def _read_health(value: object) -> GpuHealth:
    try:
        return GpuHealth(str(value))
    except ValueError:
        raise InvalidInput("gpu health", value, "ok, sick or lost") from None


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """A number of devices, and how much of each.

    `share` is `UNIT` for whole, exclusive devices, less for a share of one device, and 0 if the
    device is shared by memory alone. `memory_bytes` is None for the part of the device's memory
    that goes with the share. `model` may name several accepted models, separated by bars.
    """

    devices: int
    share: int
    memory_bytes: int | None
    model: str | None = None
    capability: Capability | None = None
    _hash: int = field(init=False, compare=False, repr=False, default=0)

    def __post_init__(self) -> None:
        # Computed once: placement looks up its caches by this hash at every decision.
        fields = (self.devices, self.share, self.memory_bytes, self.model, self.capability)
        object.__setattr__(self, "_hash", hash(fields))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[GpuRequest], tuple[Any, ...]]:
        # Rebuilt on unpickling, because the hash of a string differs between processes.
        fields = (self.devices, self.share, self.memory_bytes, self.model, self.capability)
        return GpuRequest, fields

    @property
    def exclusive(self) -> bool:
        return self.share == UNIT

    def models(self) -> tuple[str, ...]:
        """Return the accepted models in lower case; empty if any model is accepted."""
        return _lower_models(self.model) if self.model is not None else ()

    def suits(self, gpu: Gpu) -> bool:
        """Return whether the device has an accepted model and capability; holds do not matter."""
        if self.model is not None and gpu.model.lower() not in self.models():
            return False
        return self.capability is None or (gpu.capability or (0,)) >= self.capability

    def memory_on(self, gpu: Gpu) -> int:
        """Return how much memory of the device the request takes."""
        if self.memory_bytes is not None:
            return self.memory_bytes
        return gpu.memory_bytes * self.share // UNIT

    def with_memory(self, memory_bytes: int) -> GpuRequest:
        return replace(self, memory_bytes=memory_bytes)

    def kind(self) -> str:
        """Describe the accepted models and capability in words."""
        least = ".".join(map(str, self.capability or ()))
        models = " or ".join((self.model or "").split("|"))
        return ", ".join(filter(None, [models, least and f"capability {least}"]))

    def key(self) -> str:
        """Return a text that is equal for equal requests.

        It is stored with allocations, so it must stay as earlier versions wrote it.
        """
        return (
            f"GpuAsk(devices={self.devices}, share={self.share}, memory_bytes={self.memory_bytes}, "
            f"model={self.model!r}, capability={self.capability})"
        )

    def resources(self) -> Resources:
        """Return the amounts as the user wrote them."""
        count = self.devices * UNIT if self.share in (0, UNIT) else self.share
        if self.memory_bytes is None:
            return Resources({"gpu": count})
        return Resources({"gpu": count, "gpu_memory": self.memory_bytes})


@lru_cache(maxsize=1000)
def _lower_models(models: str) -> tuple[str, ...]:
    return tuple(models.lower().split("|"))


def read_gpu_request(
    gpu: int, gpu_memory: int, model: object, capability: object
) -> GpuRequest | None:
    """Combine `gpu` (in parts) and `gpu_memory` (bytes on each device) into a request."""
    kind = _read_models(model) if model is not None else None
    least = read_capability(capability)
    if not gpu and not gpu_memory:
        if kind is not None or least is not None:
            given = model if kind is not None else capability
            raise InvalidRequest("gpu_model or gpu_capability", given, "it with gpu or gpu_memory")
        return None
    if gpu > UNIT and gpu % UNIT:
        raise InvalidRequest("gpu", amount_text("gpu", gpu), "a share below 1, or a whole number")
    if gpu // UNIT > MOST_DEVICES:
        raise InvalidRequest("gpu", amount_text("gpu", gpu), f"at most {MOST_DEVICES}")
    if 0 < gpu < UNIT:
        return GpuRequest(1, gpu, gpu_memory or None, kind, least)
    if not gpu_memory:
        return GpuRequest(gpu // UNIT, UNIT, None, kind, least)
    return GpuRequest(max(1, gpu // UNIT), 0, gpu_memory, kind, least)


def check_gpu_request(asked: GpuRequest) -> None:
    """Raise InvalidInput, which names the field, unless `read_gpu_request` could have made it."""
    devices, share, memory = asked.devices, asked.share, asked.memory_bytes
    if type(devices) is not int or not 1 <= devices <= MOST_DEVICES:
        raise InvalidRequest("gpu.devices", devices, f"a whole number from 1 to {MOST_DEVICES}")
    if type(share) is not int or not 0 <= share <= UNIT:
        raise InvalidRequest("gpu.share", share, f"a whole number of parts from 0 to {UNIT}")
    if devices > 1 and 0 < share < UNIT:
        raise InvalidRequest("gpu.share", share, f"0 or {UNIT} of several devices")
    if memory is not None and (type(memory) is not int or not 1 <= memory <= MOST):
        raise InvalidRequest("gpu.memory_bytes", memory, f"a number of bytes from 1 to {MOST}")
    if memory is None and share == 0:
        raise InvalidRequest("gpu.share", share, "a share above 0, or memory_bytes")
    if asked.model is not None:
        _read_models(asked.model)
    _check_capability(asked.capability)


def _check_capability(capability: object) -> None:
    if capability is None:
        return
    text = ".".join(map(str, capability)) if isinstance(capability, tuple) else capability
    if read_capability(text) != capability:
        raise InvalidInput("gpu_capability", capability, "a tuple such as (8, 6)")
