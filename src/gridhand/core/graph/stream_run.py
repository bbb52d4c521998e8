"""StreamRun: where each item of a stream is, and what comes of it. Pure.

An item is pushed, goes to every function that takes what has come, and is over when all the last
functions have had it, or one has failed with it. What comes of items is told in the order in which
they were pushed, however they overtook each other on the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gridhand.core.errors import InvalidInput, NotAssigned
from gridhand.core.graph import Graph
from gridhand.core.inline import Plan, plan
from gridhand.core.requests import Request
from gridhand.core.resources import Resources, nearest_name


class Ready(NamedTuple):
    """This function is to be called for this item, with these values."""

    stage: str
    item: int
    values: tuple[Any, ...]


class Outcome(NamedTuple):
    """What came of an item: its value, or the error in its place."""

    value: Any
    error: BaseException | None = None


class _Item:
    __slots__ = ("joining", "parts", "results")

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, Any]] = {}  # what has come for functions that wait
        self.joining: dict[str, float] = {}  # and since when
        self.results: dict[str, Any] = {}


class StreamRun:
    """Times are in seconds, of a clock that only goes on."""

    def __init__(self, graph: Graph, *, join_timeout_s: float | None = None) -> None:
        graph.validate()
        functions = dict(graph.functions)
        self.inputs = [one.id for one in graph if one.type == "input"]
        if not self.inputs:
            raise InvalidInput("graph", graph, 'a function of type "input", for what is pushed')
        regular = [id for id in graph.order() if functions[id].type == "regular"]
        if not regular:
            raise InvalidInput("graph", graph, "functions that take what is pushed")
        self.functions = {id: functions[id] for id in regular}
        self.plans: dict[str, Plan] = {id: plan(functions[id], functions) for id in regular}
        self._takers: dict[str, list[str]] = {id: [] for id in (*self.inputs, *regular)}
        for id, one in self.plans.items():
            for need in dict.fromkeys(one.needs):
                self._takers[need].append(id)
        self.last = [id for id in regular if not self._takers[id]]
        self._join_timeout_s = join_timeout_s
        self._items: dict[int, _Item] = {}
        self._over: dict[int, Outcome] = {}
        self._count = 0  # were pushed
        self._told = 0
        self._joins: deque[tuple[float, int, str]] = deque()  # until when, of which item, where

    @property
    def open(self) -> int:
        """How many items are on their way."""
        return len(self._items)

    def is_open(self, item: int) -> bool:
        return item in self._items

    def read(self, values: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """What was pushed, by input: one value if there is one input, else each by its id."""
        if len(values) == 1 and not named and len(self.inputs) == 1:
            return {self.inputs[0]: values[0]}
        wanted = ", ".join(self.inputs)
        if values or named.keys() != set(self.inputs):
            wrong = next((id for id in named if id not in self.inputs), None)
            close = nearest_name(wrong, self.inputs) if wrong is not None else None
            meant = f" (did you mean {close}?)" if close else ""
            given = values or list(named)
            raise InvalidInput("push", given, f"a value for each of {wanted}{meant}")
        return dict(named)

    # ---- what happens

    def push(self, values: Mapping[str, Any], now: float) -> list[Ready]:
        """A new item, and what is to be called for it."""
        number, self._count = self._count, self._count + 1
        item = self._items[number] = _Item()
        ready = [Ready(id, number, ()) for id, one in self.plans.items() if not one.needs]
        for id, value in values.items():
            ready += self._pass_on(number, item, id, value, now)
        return ready

    def done(self, stage: str, number: int, value: Any, now: float) -> list[Ready]:
        """The function has returned; of an item that is over already it does not matter."""
        item = self._items.get(number)
        if item is None:
            return []
        if self._takers[stage]:
            return self._pass_on(number, item, stage, value, now)
        item.results[stage] = value
        if len(item.results) == len(self.last):
            one = len(self.last) == 1
            self._end(number, Outcome(value if one else dict(item.results)))
        return []

    def failed(self, number: int, error: BaseException) -> None:
        """It has an error in its place from now on."""
        if number in self._items:
            self._end(number, Outcome(None, error))

    def late(self, now: float) -> list[tuple[int, str]]:
        """Items that have waited for too long to be joined, and where."""
        found = []
        while self._joins and self._joins[0][0] <= now:
            _, number, stage = self._joins.popleft()
            item = self._items.get(number)
            if item is not None and stage in item.joining:
                found.append((number, stage))
        return found

    def next_late(self) -> float | None:
        return self._joins[0][0] if self._joins else None

    def take(self) -> list[Outcome]:
        """What came of the items that are over, in order, up to the first that is not."""
        found = []
        while self._told in self._over:
            found.append(self._over.pop(self._told))
            self._told += 1
        return found

    def _end(self, number: int, outcome: Outcome) -> None:
        del self._items[number]
        self._over[number] = outcome

    def _pass_on(self, number: int, item: _Item, id: str, value: Any, now: float) -> list[Ready]:
        ready = []
        for stage in self._takers[id]:
            needs = self.plans[stage].needs
            parts = item.parts.setdefault(stage, {})
            parts[id] = value
            if len(parts) == len(set(needs)):
                ready.append(Ready(stage, number, tuple(parts[need] for need in needs)))
                del item.parts[stage]
                item.joining.pop(stage, None)
            elif stage not in item.joining:
                item.joining[stage] = now
                if self._join_timeout_s is not None:
                    self._joins.append((now + self._join_timeout_s, number, stage))
        return ready


# ---- whether there could ever be room for it


class Workers(NamedTuple):
    """So many workers of a stage, and what each of them holds."""

    asked: Request
    number: int


def check_room(stages: Mapping[str, Workers], nodes: Mapping[str, Resources]) -> None:
    """Raise if not all workers could be there at once, even if all nodes were empty.

    Only what adds up is looked at, stage by stage and in sum: who passes may still have to wait.
    """
    stages = {id: one for id, one in stages.items() if one.asked.resources}
    crowds = [[id] for id in stages]
    crowds += [[id for id, one in stages.items() if one.asked.node == name] for name in nodes]
    crowds.append(list(stages))
    for ids in crowds:
        there = {stages[id].asked.node for id in ids}
        (only,) = there if len(there) == 1 else (None,)
        permitted = nodes if only is None else {only: nodes[only]}
        crowd = [stages[id] for id in ids]
        needed = _summed((one.asked.resources, one.number) for one in crowd)
        has = _summed((one, 1) for one in permitted.values())
        if needed.fits_in(has) and (len(ids) > 1 or all(_fit(one, permitted) for one in crowd)):
            continue
        count = sum(one.number for one in crowd)
        workers = f"{count} workers need" if count > 1 else "a worker needs"
        why = {
            name: [f"{workers} {needed}, and it has {_of(total, needed)}"]
            for name, total in permitted.items()
        }
        error = NotAssigned({tuple(ids): why})
        error.hint = "Give its functions less cost or parallelism, or add nodes."
        raise error


def _fit(workers: Workers, nodes: Mapping[str, Resources]) -> bool:
    """Whether the nodes could hold that many of them, when each is on one node."""
    asked = workers.asked.resources.parts()
    most = [min(total[name] // asked[name] for name in asked) for total in nodes.values()]
    return sum(most) >= workers.number


def _summed(given: Iterable[tuple[Resources, int]]) -> Resources:
    parts: dict[str, int] = {}
    for one, count in given:
        for name, amount in one.parts().items():
            parts[name] = parts.get(name, 0) + amount * count
    return Resources(parts)


def _of(total: Resources, names: Resources) -> str:
    return str(Resources({name: total[name] for name in names}))
