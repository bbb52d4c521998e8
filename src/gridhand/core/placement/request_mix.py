"""The request mix: what typical requests ask for, learned from the requests so far.

Every request counts once, on arrival, and half as much after every `HALF_LIFE` further requests.
What follows from the mix is reviewed now and then, and adopted only when it has changed a lot:
every adoption invalidates all cached scores of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gridhand.core.model.requests import Request
from gridhand.core.model.resources import UNIT

HALF_LIFE = 2000
BIN = 100  # parts of a share that count as equal
FULL = 1000  # the weight of an idle share that every request for a share could use

_FIRST_REVIEWS = frozenset({8, 16, 32, 64, 128})
_EVERY = 256
_ENOUGH = 512
_MOVED = 0.3
_QUANTILES = (
    0.25,
    0.5,
)  # of the CPU and memory per device: some requests need less than the typical one
_RAMP = 0.1  # an idle share that this part of the small requests could use counts in full
_SOME = 0.001  # the part of the demand that makes it worth keeping so many devices whole
_GROWTH = 2 ** (1 / HALF_LIFE)
_LARGEST, _LEAST = 1e9, 1e-6
_MOST_CLASSES = 10_000


class ClusterTotals(NamedTuple):
    """The total capacity of the cluster. Devices are counted by model, in lower case."""

    models: Mapping[str, int]
    cpu: int = 0  # on nodes with devices, as is the memory
    memory: int = 0
    device_bytes: int = 0  # of the largest
    sizes: frozenset[int] = frozenset()  # the numbers of devices that nodes have

    @property
    def gpus(self) -> int:
        return sum(self.models.values())


class Learned(NamedTuple):
    """The consequences of a mix for placement.

    `cpu` and `memory` are what requests take along with a device, at each of `_QUANTILES`.
    `weights` is, for an idle share of so many bins, how much of it typical small requests can use;
    `levels` is the value of so many whole devices on one node; `prices` is the demand for a model
    by name.
    """

    cpu: tuple[float, ...]
    memory: tuple[float, ...]
    weights: tuple[int, ...]
    levels: tuple[float, ...]
    prices: Mapping[str, float]
    known: bool = False  # whether enough requests were seen to trust it

    def far_from(self, other: Learned) -> bool:
        """Return whether the difference is large enough to invalidate cached scores."""
        return (
            self.known != other.known
            or any(_moved(a, b) for a, b in zip(self.cpu, other.cpu, strict=True))
            or any(_moved(a, b) for a, b in zip(self.memory, other.memory, strict=True))
            or any(
                abs(a - b) * place * BIN > _MOVED * FULL * UNIT
                for place, (a, b) in enumerate(zip(self.weights, other.weights, strict=True))
            )
            or any(abs(self.level(k) - other.level(k)) > 0.5 for k in range(_most(self, other)))
            or any(
                _moved(self.prices.get(model, 0.0), other.prices.get(model, 0.0), least=0.1)
                for model in {*self.prices, *other.prices}
            )
        )

    def level(self, count: int) -> float:
        return self.levels[max(0, min(count, len(self.levels) - 1))]

    def usable(self, idle: int) -> int:
        """Return how much of an idle share of one device typical requests can use."""
        return idle * self.weights[idle // BIN] // FULL

    def served(self, usable: Any, cpu: Any, memory: Any, least: Any) -> Any:
        """Return how much of a node's devices they can use, given the CPU and memory they need.

        The arguments are numbers or arrays; `least` returns the smaller of two.
        """
        value = 0.0
        for per_cpu, per_memory in zip(self.cpu, self.memory, strict=True):
            bound = least(cpu * (UNIT / per_cpu), memory * (UNIT / per_memory))
            value = value + least(usable, bound)
        return value / len(self.cpu)


def _moved(now: float, was: float, *, least: float = 0.0) -> bool:
    return abs(now - was) > max(_MOVED * was, least)


def _most(one: Learned, other: Learned) -> int:
    return max(len(one.levels), len(other.levels))


class _Class:
    """A class of equal requests, and its weight."""

    __slots__ = ("cpu", "devices", "gpu", "memory", "models", "share", "weight")

    def __init__(self, asked: Request, device_bytes: int) -> None:
        gpu = asked.gpu
        assert gpu is not None
        self.share = gpu.share or _by_memory(gpu.memory_bytes or 0, device_bytes)
        self.devices = gpu.devices
        self.gpu = gpu.devices * self.share / UNIT
        self.cpu = asked.amounts["cpu"] / self.gpu
        self.memory = asked.amounts["memory"] / self.gpu
        self.models = gpu.models()
        self.weight = 0.0


def _by_memory(memory_bytes: int, device_bytes: int) -> int:
    """Return the share that an amount of memory is of the largest device."""
    if not device_bytes:
        return UNIT
    return max(1, min(UNIT, memory_bytes * UNIT // device_bytes))


class Mix:
    """Requests by class, and what was last learned. `version` counts the adoptions."""

    def __init__(self) -> None:
        self.version = 0
        self.learned = _at_first(ClusterTotals({}))
        self._cluster = ClusterTotals({})
        self._classes: dict[tuple[object, ...], _Class] = {}
        self._weight = 1.0
        self._seen = 0

    def describe(self, cluster: ClusterTotals) -> None:
        """Take the new totals of the cluster after nodes have come or gone."""
        if cluster != self._cluster:
            self._cluster = cluster
            if not self._classes:
                self.learned = _at_first(cluster)
                self.version += 1

    def learn(self, asked: Request) -> None:
        """Count a request. To be called once for each."""
        if asked.gpu is not None:
            key = (asked.amounts, asked.gpu)
            found = self._classes.get(key)
            if found is None:
                found = self._classes[key] = _Class(asked, self._cluster.device_bytes)
            found.weight += self._weight
        self._weight *= _GROWTH
        self._seen += 1
        if self._seen % _EVERY == 0 or self._seen in _FIRST_REVIEWS:
            self._review()

    def _review(self) -> None:
        if self._weight > _LARGEST or len(self._classes) > _MOST_CLASSES:
            self._forget()
        if self._classes:
            learned = _from(list(self._classes.values()), self._cluster, self._weight)
            learned = learned._replace(known=self._seen >= _ENOUGH)
            if learned.far_from(self.learned):
                self.learned = learned
                self.version += 1

    def _forget(self) -> None:
        """Scale the weights back to 1, and drop classes that no longer weigh anything."""
        for one in self._classes.values():
            one.weight /= self._weight
        self._weight = 1.0
        heaviest = sorted(self._classes.items(), key=lambda one: -one[1].weight)
        kept = heaviest[: _MOST_CLASSES // 2]
        self._classes = {key: one for key, one in kept if one.weight > _LEAST}


def _at_first(cluster: ClusterTotals) -> Learned:
    """Return what is assumed before any request: that requests resemble the cluster."""
    cpu = max(1.0, cluster.cpu / max(1, cluster.gpus))
    memory = max(1.0, cluster.memory / max(1, cluster.gpus))
    return Learned(
        cpu=(cpu,) * len(_QUANTILES),
        memory=(memory,) * len(_QUANTILES),
        weights=(FULL,) * (UNIT // BIN + 1),
        levels=(0.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0, 4.0),
        prices={},
    )


def _from(known: list[_Class], cluster: ClusterTotals, latest: float) -> Learned:
    """Derive it from these classes; `latest` is the weight of the latest request."""
    total = sum(one.weight * one.gpu for one in known)
    by_gpu = [(one, one.weight * one.gpu) for one in known]
    cpu = sorted((one.cpu, weight) for one, weight in by_gpu)
    memory = sorted((one.memory, weight) for one, weight in by_gpu)
    return Learned(
        cpu=tuple(max(100.0, _quantile(cpu, part)) for part in _QUANTILES),
        memory=tuple(max(1e7, _quantile(memory, part)) for part in _QUANTILES),
        weights=_weights(known),
        levels=_levels(by_gpu, total, cluster.sizes, latest),
        prices=_prices(by_gpu, total, cluster),
    )


def _quantile(ordered: Iterable[tuple[float, float]], part: float) -> float:
    """Return the lowest value up to which the weights sum to `part` of the total."""
    found = list(ordered)
    left = part * sum(weight for _, weight in found)
    for value, weight in found:
        left -= weight
        if left <= 0:
            return value
    return found[-1][0]


def _weights(known: list[_Class]) -> tuple[int, ...]:
    """Weigh an idle share by the part of small requests that it could still serve."""
    bins = [0.0] * (UNIT // BIN + 1)
    for one in known:
        if one.devices == 1 and one.share < UNIT:
            bins[one.share // BIN] += one.weight
    total, below, weights = sum(bins), 0.0, []
    for count in bins[:-1]:
        below += count
        weights.append(min(FULL, round(FULL * below / (_RAMP * total))) if total else 0)
    return (*weights, FULL)


def _levels(
    by_gpu: list[tuple[_Class, float]], total: float, sizes: frozenset[int], latest: float
) -> tuple[float, ...]:
    """Value whole devices: one more counts if requests ask for exactly so many.

    A request for all devices of a node may still come, so one of each size counts as seen.
    """
    demand = {size: size * latest for size in sizes}
    total += sum(demand.values())
    for one, weight in by_gpu:
        if one.share == UNIT:
            demand[one.devices] = demand.get(one.devices, 0.0) + weight
    levels = [0.0]
    for count in range(1, max(demand, default=0) + 1):
        levels.append(levels[-1] + min(1.0, demand.get(count, 0.0) / total / _SOME))
    return tuple(levels)


def _prices(
    by_gpu: list[tuple[_Class, float]], total: float, cluster: ClusterTotals
) -> dict[str, float]:
    """Return each model's part of the demand relative to its part of all devices."""
    prices: dict[str, float] = {}
    for one, weight in by_gpu:
        there = [model for model in one.models if model in cluster.models]
        room = sum(cluster.models[model] for model in there)
        for model in there:
            prices[model] = prices.get(model, 0.0) + weight / total * cluster.gpus / room
    return prices
