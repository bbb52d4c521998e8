"""The mix of requests: what is usually asked for, learned from what was asked for so far.

Every request counts once, when it arrives, and for half as much each time `HALF_LIFE` others have
come. What follows from the mix is reviewed now and then, and taken on in steps, when something has
moved far: every step makes all scores that are kept of nodes wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gridhand.core.requests import Request
from gridhand.core.resources import UNIT

HALF_LIFE = 2000
BIN = 100  # parts of a share that count as alike
FULL = 1000  # the weight of a share that every request for a share could use

_FIRST_REVIEWS = frozenset({8, 16, 32, 64, 128})
_EVERY = 256
_ENOUGH = 512
_MOVED = 0.3
_QUANTILES = (0.25, 0.5)  # of what goes with a device: some requests need less than the usual
_RAMP = 0.1  # a rest that this part of the small requests could use counts in full
_SOME = 0.001  # the part of the demand from which on a number of devices is worth keeping whole
_GROWTH = 2 ** (1 / HALF_LIFE)
_LARGEST, _LEAST = 1e9, 1e-6
_MOST_CLASSES = 10_000


class Cluster(NamedTuple):
    """What there is in all. Devices are counted by their model, in lower case."""

    models: Mapping[str, int]
    cpu: int = 0  # on nodes with devices, as is the memory
    memory: int = 0
    device_bytes: int = 0  # of the largest
    sizes: frozenset[int] = frozenset()  # how many devices nodes have

    @property
    def gpus(self) -> int:
        return sum(self.models.values())


class Learned(NamedTuple):
    """What follows from a mix for placing.

    `cpu` and `memory` are what goes with a device, each for some of the requests; `weights` tell,
    for an idle share of so many bins, how much of it the usual small requests can use; `levels`
    what so many whole devices on one node are worth; `prices` how much a model is wanted by name.
    """

    cpu: tuple[float, ...]
    memory: tuple[float, ...]
    weights: tuple[int, ...]
    levels: tuple[float, ...]
    prices: Mapping[str, float]
    known: bool = False  # whether enough was seen to trust it

    def far_from(self, other: Learned) -> bool:
        """Whether anything differs by enough to start anew from here."""
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
        """How much of an idle share of one device the usual requests can use."""
        return idle * self.weights[idle // BIN] // FULL

    def served(self, usable: Any, cpu: Any, memory: Any, least: Any) -> Any:
        """How much of a node's devices they can use, given what else they need.

        Of numbers or of arrays: `least` gives the smaller of two.
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
    """One kind of request, and how much it weighs."""

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
    """The share that memory alone comes to, on the largest device there is."""
    if not device_bytes:
        return UNIT
    return max(1, min(UNIT, memory_bytes * UNIT // device_bytes))


class Mix:
    """Requests by kind, and what was last learned from them. `version` counts the steps."""

    def __init__(self) -> None:
        self.version = 0
        self.learned = _at_first(Cluster({}))
        self._cluster = Cluster({})
        self._classes: dict[tuple[object, ...], _Class] = {}
        self._weight = 1.0
        self._seen = 0

    def describe(self, cluster: Cluster) -> None:
        """Take on what there is in all; nodes have come or gone."""
        if cluster != self._cluster:
            self._cluster = cluster
            if not self._classes:
                self.learned = _at_first(cluster)
                self.version += 1

    def learn(self, asked: Request) -> None:
        """Take note of a request, once."""
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
        """Count from 1 again, without what no longer weighs anything."""
        for one in self._classes.values():
            one.weight /= self._weight
        self._weight = 1.0
        heaviest = sorted(self._classes.items(), key=lambda one: -one[1].weight)
        kept = heaviest[: _MOST_CLASSES // 2]
        self._classes = {key: one for key, one in kept if one.weight > _LEAST}


def _at_first(cluster: Cluster) -> Learned:
    """Before anything is known, requests are taken to be like the cluster."""
    cpu = max(1.0, cluster.cpu / max(1, cluster.gpus))
    memory = max(1.0, cluster.memory / max(1, cluster.gpus))
    return Learned(
        cpu=(cpu,) * len(_QUANTILES),
        memory=(memory,) * len(_QUANTILES),
        weights=(FULL,) * (UNIT // BIN + 1),
        levels=(0.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0, 4.0),
        prices={},
    )


def _from(known: list[_Class], cluster: Cluster, latest: float) -> Learned:
    """What follows from these classes; `latest` is what the latest request weighs."""
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
    """The lowest value up to which there is `part` of the weight."""
    found = list(ordered)
    left = part * sum(weight for _, weight in found)
    for value, weight in found:
        left -= weight
        if left <= 0:
            return value
    return found[-1][0]


def _weights(known: list[_Class]) -> tuple[int, ...]:
    """A rest counts for as much as there are small requests that it could still serve."""
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
    """One more device on a node is worth keeping whole if requests ask for just so many.

    Somebody may want all of a node, though nobody has yet: of each size there is, one request
    counts as seen.
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


def _prices(by_gpu: list[tuple[_Class, float]], total: float, cluster: Cluster) -> dict[str, float]:
    """What part of the demand is bound to a model, against the part of all devices it is."""
    prices: dict[str, float] = {}
    for one, weight in by_gpu:
        there = [model for model in one.models if model in cluster.models]
        room = sum(cluster.models[model] for model in there)
        for model in there:
            prices[model] = prices.get(model, 0.0) + weight / total * cluster.gpus / room
    return prices
