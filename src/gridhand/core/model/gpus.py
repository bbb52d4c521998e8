"""GPUs with an identity: what one is, what is asked of one, and what is held on one.

A node's GPUs are not a number: half a device here and half there are not a device. So every hold
names its device, and every question ("does it fit?") is asked of one device at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from gridhand.core.errors import InvalidInput, InvalidRequest
from gridhand.core.names import check_label
from gridhand.core.resources import MOST, UNIT, Resources, amount_text, read_amount

Capability = tuple[int, ...]

MOST_DEVICES = 1024
_CAPABILITY = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,4}))?(?:\.0)?", re.ASCII)
_MODEL = re.compile(r"[ -{}~]{1,100}")  # printable, and no bar: that stands between models
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
        """A device as people describe it: `{"model": "A100", "memory": "40GB", …}`."""
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
            model=_model(given.get("model") or "").strip(),
            memory_bytes=read_amount("gpu_memory", given.get("memory", 0)),
            capability=read_capability(given.get("capability")),
            health=_health(given.get("health", GpuHealth.OK)),
        )

    def _checked(self) -> Gpu:
        """The same, if it could have been read."""
        check_label(self.id, "gpu id")
        _model(self.model)
        if type(self.memory_bytes) is not int or not 0 <= self.memory_bytes <= MOST:
            raise InvalidInput("gpu memory", self.memory_bytes, "a number of bytes")
        if type(self.index) is not int or self.index < 0:
            raise InvalidInput("gpu index", self.index, "a number from 0")
        capability = self.capability
        if capability is not None:
            text = ".".join(map(str, capability)) if isinstance(capability, tuple) else capability
            if read_capability(text) != capability:
                raise InvalidInput("gpu_capability", capability, "a tuple such as (8, 6)")
        return replace(self, health=_health(self.health))


_FIELDS = {"id", "uuid", "model", "memory", "capability", "health"}


def anonymous_gpus(node: str, count: int, memory_bytes: int) -> tuple[Gpu, ...]:
    """Devices of which only the number is known, and perhaps the memory of each."""
    return tuple(
        Gpu(id=f"{node}/{index}", index=index, memory_bytes=memory_bytes) for index in range(count)
    )


def read_capability(value: object) -> Capability | None:
    """A compute capability as a version, so that 10.0 comes after 9.0.

    >>> read_capability("10.0") > read_capability("9.0")
    True
    """
    if value is None:
        return None
    text = str(value) if type(value) in (str, int, float) else ""
    found = _CAPABILITY.fullmatch(text)
    if found is None:
        raise InvalidInput("gpu_capability", value, 'a version such as "8.6"')
    return int(found[1]), int(found[2] or 0)


def _model(value: object) -> str:
    if value == "" or (isinstance(value, str) and _MODEL.fullmatch(value)):
        return str(value)
    raise InvalidInput("gpu_model", value, "at most 100 printable characters, without |")


def _models(value: object) -> str:
    """The models that will do, each once and in order: `A|B`, or a list of them.

    >>> _models(["V100", "A100", "v100"])
    'A100|V100'
    """
    given = value.split("|") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not 1 <= len(given) <= MOST_MODELS:
        raise InvalidInput("gpu_model", value, f"a model, or a list of 1 to {MOST_MODELS} models")
    found = {_model(one).strip().lower(): _model(one).strip() for one in reversed(given)}
    if "" in found:
        raise InvalidInput("gpu_model", value, "the name of a model")
    return "|".join(found[key] for key in sorted(found))


def _health(value: object) -> GpuHealth:
    try:
        return GpuHealth(str(value))
    except ValueError:
        raise InvalidInput("gpu health", value, "ok, sick or lost") from None


class DeviceHold(NamedTuple):
    """What one allocation holds of one device."""

    device: str
    share: int
    memory_bytes: int
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class GpuAsk:
    """How many devices are asked for, and what of each.

    `share` is `UNIT` for whole devices that nobody else may touch, less for a share of one, and 0
    where the device is shared by memory alone. `memory_bytes` of None means what the share brings.
    `model` may name several that will do, with bars between them.
    """

    devices: int
    share: int
    memory_bytes: int | None
    model: str | None = None
    capability: Capability | None = None
    _hash: int = field(init=False, compare=False, repr=False, default=0)

    def __post_init__(self) -> None:
        # Worked out once: placement looks up what it keeps by this, at every decision.
        fields = (self.devices, self.share, self.memory_bytes, self.model, self.capability)
        object.__setattr__(self, "_hash", hash(fields))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[GpuAsk], tuple[Any, ...]]:
        # Made anew, because the hash of a text differs from process to process.
        fields = (self.devices, self.share, self.memory_bytes, self.model, self.capability)
        return GpuAsk, fields

    @property
    def exclusive(self) -> bool:
        return self.share == UNIT

    def models(self) -> tuple[str, ...]:
        """The models that will do, in lower case; none if any will."""
        return _lower_models(self.model) if self.model is not None else ()

    def suits(self, gpu: Gpu) -> bool:
        """Whether this is a device of the kind asked for, whatever is held on it."""
        if self.model is not None and gpu.model.lower() not in self.models():
            return False
        return self.capability is None or (gpu.capability or (0,)) >= self.capability

    def hold_on(self, gpu: Gpu) -> DeviceHold:
        return DeviceHold(gpu.id, self.share, self.memory_on(gpu), self.exclusive)

    def memory_on(self, gpu: Gpu) -> int:
        """How much of its memory goes with what is asked for."""
        if self.memory_bytes is not None:
            return self.memory_bytes
        return gpu.memory_bytes * self.share // UNIT

    def scaled(self, memory_bytes: int) -> GpuAsk:
        return replace(self, memory_bytes=memory_bytes)

    def kind(self) -> str:
        """What narrows the devices, in words."""
        least = ".".join(map(str, self.capability or ()))
        models = " or ".join((self.model or "").split("|"))
        return ", ".join(filter(None, [models, least and f"capability {least}"]))

    def resources(self) -> Resources:
        """The ask in the words it was made in."""
        count = self.devices * UNIT if self.share in (0, UNIT) else self.share
        if self.memory_bytes is None:
            return Resources({"gpu": count})
        return Resources({"gpu": count, "gpu_memory": self.memory_bytes})


@lru_cache(maxsize=1000)
def _lower_models(models: str) -> tuple[str, ...]:
    return tuple(models.lower().split("|"))


def read_gpu_ask(gpu: int, gpu_memory: int, model: object, capability: object) -> GpuAsk | None:
    """What `gpu` (in parts) and `gpu_memory` (in bytes, on each device) together ask for."""
    kind = _models(model) if model is not None else None
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
        return GpuAsk(1, gpu, gpu_memory or None, kind, least)
    if not gpu_memory:
        return GpuAsk(gpu // UNIT, UNIT, None, kind, least)
    return GpuAsk(max(1, gpu // UNIT), 0, gpu_memory, kind, least)


class DeviceUse:
    """One device and the sum of what is held on it. `version` counts its changes."""

    __slots__ = ("exclusive", "gpu", "holds", "memory_bytes", "share", "version")

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.share = self.memory_bytes = self.holds = self.version = 0
        self.exclusive = False

    def add(self, hold: DeviceHold) -> None:
        self.share += hold.share
        self.memory_bytes += hold.memory_bytes
        self.holds += 1
        self.version += 1
        self.exclusive |= hold.exclusive

    def remove(self, hold: DeviceHold) -> None:
        self.share -= hold.share
        self.memory_bytes -= hold.memory_bytes
        self.holds -= 1
        self.version += 1
        # An exclusive hold is alone on its device, so its end is the end of exclusiveness.
        self.exclusive &= not hold.exclusive

    def admits(self, hold: DeviceHold, foreign_bytes: int) -> bool:
        """Whether `hold` may be added now. `foreign_bytes` is what strangers use."""
        if self.gpu.health is not GpuHealth.OK or self.exclusive:
            return False
        if hold.exclusive and (self.holds or foreign_bytes):
            return False
        if self.share + hold.share > UNIT:
            return False
        return self.memory_bytes + hold.memory_bytes + foreign_bytes <= self.gpu.memory_bytes

    def free_share(self) -> int:
        return 0 if self.exclusive or self.gpu.health is not GpuHealth.OK else UNIT - self.share

    def idle(self, foreign_bytes: int) -> int:
        """The largest share that may still be held here, with the memory that it brings."""
        memory = self.gpu.memory_bytes
        free = memory - self.memory_bytes - foreign_bytes
        if self.gpu.health is not GpuHealth.OK or self.exclusive or free < 0:
            return 0
        share = UNIT - self.share
        if memory:
            share = min(share, (UNIT * (free + 1) - 1) // memory)
        return max(share, 0)

    def whole(self, foreign_bytes: int) -> bool:
        """Whether nobody uses it, so that one may have all of it."""
        return self.gpu.health is GpuHealth.OK and not self.holds and not foreign_bytes

    def free_memory(self, foreign_bytes: int) -> int:
        if self.exclusive or self.gpu.health is not GpuHealth.OK:
            return 0
        return max(0, self.gpu.memory_bytes - self.memory_bytes - foreign_bytes)

    def over(self) -> bool:
        """Whether more is held than a healthy device has, as after it was registered smaller."""
        healthy = self.gpu.health is GpuHealth.OK
        return healthy and (self.share > UNIT or self.memory_bytes > self.gpu.memory_bytes)


def pick_devices(
    asked: GpuAsk, devices: Iterable[DeviceUse], foreign: Mapping[str, int]
) -> tuple[DeviceHold, ...] | None:
    """Holds on as many distinct devices as are asked for, or None.

    The fullest devices that will do are taken first, so that whole ones stay whole (one that
    strangers use is not whole); among equals the one with the lowest index.
    """
    fitting: list[tuple[int, int, int, Gpu]] = []
    share, exclusive = asked.share, asked.exclusive
    any_kind = asked.model is None and asked.capability is None
    for use in devices:
        gpu = use.gpu
        # As `admits`, in its own words: this is asked of every device at every decision.
        if use.exclusive or use.share + share > UNIT or gpu.health is not GpuHealth.OK:
            continue
        strangers = foreign.get(gpu.id, 0) if foreign else 0
        untouched = not use.holds and not strangers
        free = gpu.memory_bytes - use.memory_bytes - strangers
        if free < asked.memory_on(gpu) or (exclusive and not untouched):
            continue
        if any_kind or asked.suits(gpu):
            key = UNIT + 1 if untouched else UNIT - use.share
            fitting.append((key, free, gpu.index, gpu))
    if len(fitting) < asked.devices:
        return None
    fitting.sort(key=_by_fullness)
    return tuple([asked.hold_on(gpu) for _, _, _, gpu in fitting[: asked.devices]])


_by_fullness = itemgetter(0, 1, 2)
