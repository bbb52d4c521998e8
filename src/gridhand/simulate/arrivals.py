"""The order in which tasks arrive, and how much of a cluster they request together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gridhand.core.errors import InvalidInput
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import UNIT
from gridhand.simulate.inputs import SimulatedTask
from gridhand.simulate.tally import Tally

MOST_ARRIVALS = 5_000_000
LEAST_TURNOVER = 1000
_MEDIAN_S, _SIGMA = 8.188, 1.0  # of the logarithm of drawn durations: about an hour


class Demand:
    """How much each task requests of the one resource in which the load is measured.

    That is GPUs if tasks request some and nodes have some; otherwise the resource of which the
    tasks together request the largest part of the capacity.
    """

    def __init__(self, tally: Tally, tasks: Sequence[SimulatedTask]) -> None:
        self._tally = tally
        self._known: dict[int, int] = {}
        counts: dict[int, tuple[Request, int]] = {}
        for task in tasks:
            counts[id(task.asked)] = task.asked, counts.get(id(task.asked), (task.asked, 0))[1] + 1
        asked = {
            name: sum(count * self._amount(name, one) for one, count in counts.values())
            for name, capacity in tally.capacity.items()
            if capacity
        }
        if not any(asked.values()):
            raise InvalidInput(
                "tasks", f"{len(tasks)} of them", "tasks that ask for something the nodes have"
            )
        scarcest = max(asked, key=lambda name: (asked[name] / tally.capacity[name], name))
        self.resource = "gpu" if asked.get("gpu") else scarcest
        self.capacity = tally.capacity[self.resource]
        self.total = asked[self.resource]
        self._known = {key: self._amount(self.resource, one) for key, (one, _) in counts.items()}

    def of(self, task: SimulatedTask) -> int:
        """Return the demand of a task, in parts, like `capacity`."""
        return self._known[id(task.asked)]

    def _amount(self, name: str, asked: Request) -> int:
        if name != "gpu":
            return asked.amounts[name]
        gpu = asked.gpu
        if gpu is None:
            return 0
        if gpu.share:
            return gpu.devices * gpu.share
        whole = self._tally.mean_memory(gpu)
        part = min(UNIT, (gpu.memory_bytes or 0) * UNIT // whole) if whole else UNIT
        return gpu.devices * part


def arrivals(
    tasks: Sequence[SimulatedTask], demand: Demand, load: float, seed: int
) -> list[SimulatedTask]:
    """Return every task once, in an order that depends on the seed, then more up to the load.

    Tasks are sorted by name and shuffled. If they request less than `load` times the capacity,
    tasks drawn with replacement follow until they do. If they request more, the last ones are left
    out as long as the others request that much.
    """
    chance = random.Random(seed)
    by_name = sorted(tasks, key=lambda task: task.name)
    arriving = by_name.copy()
    chance.shuffle(arriving)
    target = load * demand.capacity
    total = demand.total
    _check_number(target / demand.total * len(tasks))
    if total <= target:
        while total < target:
            arriving.append(chance.choice(by_name))
            total += demand.of(arriving[-1])
        return arriving
    while total - demand.of(arriving[-1]) >= target:
        total -= demand.of(arriving.pop())
    return arriving


def _check_number(expected: float) -> None:
    if expected > MOST_ARRIVALS:
        raise InvalidInput(
            "load", f"about {expected:.0f} tasks", f"a load of at most {MOST_ARRIVALS} tasks"
        )


class Arrival(NamedTuple):
    """A task with its arrival time and how long it stays if it is placed, in seconds."""

    at_s: float
    task: SimulatedTask
    stays_s: float


class ArrivalStream:
    """Tasks that arrive and leave at random times, such that `load` is offered constantly.

    Filling an empty cluster would take long and show little, in particular if some tasks stay for
    months. So at time 0 as many tasks as such a stream has running on average arrive at once, in
    random order, each with the rest of its stay. Then tasks drawn from the list arrive at random
    (Poisson). Measuring begins when as many have arrived as run on average, and lasts until twice
    as many more have arrived.
    """

    def __init__(self, tasks: Sequence[SimulatedTask], demand: Demand, load: float) -> None:
        chance = random.Random(0)  # the same for all seeds: they differ in arrivals, not in tasks
        self.tasks = sorted(tasks, key=lambda task: task.name)
        self.stays_s = [
            task.duration_s or chance.lognormvariate(_MEDIAN_S, _SIGMA) for task in self.tasks
        ]
        pairs = zip(self.tasks, self.stays_s, strict=True)
        work = sum(demand.of(task) * stay for task, stay in pairs)
        self.rate = load * demand.capacity * len(self.tasks) / work  # arrivals per second
        self.under_way = self.rate * sum(self.stays_s) / len(self.tasks)
        turnover = max(self.under_way, LEAST_TURNOVER)
        _check_number(self.under_way + 3 * turnover)
        self.expected = round(self.under_way + 3 * turnover)
        self.warm_up_s = turnover / self.rate
        self.end_s = 3 * self.warm_up_s

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        chance = random.Random(seed)
        numbers = range(len(self.tasks))
        for number in chance.choices(numbers, self.stays_s, k=_poisson(chance, self.under_way)):
            yield Arrival(0.0, self.tasks[number], chance.random() * self.stays_s[number])
        now_s = chance.expovariate(self.rate)
        while now_s < self.end_s:
            number = chance.choice(numbers)
            yield Arrival(now_s, self.tasks[number], self.stays_s[number])
            now_s += chance.expovariate(self.rate)


def _poisson(chance: random.Random, mean: float) -> int:
    count, reached = 0, chance.expovariate(1.0)
    while reached < mean:
        count += 1
        reached += chance.expovariate(1.0)
    return count
