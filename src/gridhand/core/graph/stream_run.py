"""StreamRun: the state machine of one run of a stream.

An item is pushed under a number of its own and goes through the functions of the graph. It is done
when all the last functions have returned, when one function has failed, or when nobody wants it any
more. Items may overtake each other: every outcome comes with the number of its item.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gridhand.core.errors import InvalidInput, NotAssigned
from gridhand.core.graph.call_plan import CallPlan, plan
from gridhand.core.graph.graph import Graph
from gridhand.core.model.names import NodeName
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources, nearest_name


class ReadyItem(NamedTuple):
    """A function (`stage`) to call for an item, with these values."""

    stage: str
    item: int
    values: tuple[Any, ...]


class Outcome(NamedTuple):
    """The result of an item: a value or an error."""

    value: Any
    error: BaseException | None = None


class _Item:
    __slots__ = ("joining", "parts", "results")

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, Any]] = {}  # values so far for functions that wait for more
        self.joining: dict[str, float] = {}  # since when they wait
        self.results: dict[str, Any] = {}


class StreamRun:
    """The state of one run. Times are in seconds of a monotonic clock."""

    def __init__(self, graph: Graph, *, join_timeout_s: float | None = None) -> None:
        graph.validate()
        functions = dict(graph.functions)
        self.inputs = [function.id for function in graph if function.type == "input"]
        if not self.inputs:
            raise InvalidInput("graph", graph, 'a function of type "input" for what is pushed')
        regular = [id for id in graph.order() if functions[id].type == "regular"]
        if not regular:
            raise InvalidInput("graph", graph, "functions that take what is pushed")
        self.functions = {id: functions[id] for id in regular}
        self.plans: dict[str, CallPlan] = {id: plan(functions[id], functions) for id in regular}
        self._takers: dict[str, list[str]] = {id: [] for id in (*self.inputs, *regular)}
        for id, call in self.plans.items():
            for need in dict.fromkeys(call.needs):
                self._takers[need].append(id)
        self.last = [id for id in regular if not self._takers[id]]
        self._join_timeout_s = join_timeout_s
        self._items: dict[int, _Item] = {}
        self._over: list[tuple[int, Outcome]] = []
        self._joins: deque[tuple[float, int, str]] = deque()  # deadline, item, stage

    @property
    def open(self) -> int:
        """The number of items that are not done."""
        return len(self._items)

    def is_open(self, item: int) -> bool:
        return item in self._items

    def read(self, values: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return pushed values by input: one value if there is one input, else named by id."""
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

    # ---- events

    def push(self, number: int, values: Mapping[str, Any], now: float) -> list[ReadyItem]:
        """Add an item under a number of its own; return the calls to make for it."""
        item = self._items[number] = _Item()
        ready = [ReadyItem(id, number, ()) for id, call in self.plans.items() if not call.needs]
        for id, value in values.items():
            ready += self._pass_on(number, item, id, value, now)
        return ready

    def done(self, stage: str, number: int, value: Any, now: float) -> list[ReadyItem]:
        """Record a returned value; return the calls to make. Ignored if the item is done."""
        item = self._items.get(number)
        if item is None:
            return []
        if self._takers[stage]:
            return self._pass_on(number, item, stage, value, now)
        item.results[stage] = value
        if len(item.results) == len(self.last):
            single = len(self.last) == 1
            self._end(number, Outcome(value if single else dict(item.results)))
        return []

    def failed(self, number: int, error: BaseException) -> None:
        """End an item with an error."""
        if number in self._items:
            self._end(number, Outcome(None, error))

    def drop(self, number: int) -> None:
        """Forget an item that nobody wants any more: it has no outcome. Ignored if it is done."""
        self._items.pop(number, None)

    def late(self, now: float) -> list[tuple[int, str]]:
        """Return the items, with the stage, that have waited too long to be joined."""
        late = []
        while self._joins and self._joins[0][0] <= now:
            _, number, stage = self._joins.popleft()
            item = self._items.get(number)
            if item is not None and stage in item.joining:
                late.append((number, stage))
        return late

    def next_late(self) -> float | None:
        return self._joins[0][0] if self._joins else None

    def take(self) -> list[tuple[int, Outcome]]:
        """Return the items that have ended since the last time, with their outcomes."""
        ended, self._over = self._over, []
        return ended

    def _end(self, number: int, outcome: Outcome) -> None:
        del self._items[number]
        self._over.append((number, outcome))

    def _pass_on(
        self, number: int, item: _Item, id: str, value: Any, now: float
    ) -> list[ReadyItem]:
        ready = []
        for stage in self._takers[id]:
            needs = self.plans[stage].needs
            parts = item.parts.setdefault(stage, {})
            parts[id] = value
            if len(parts) == len(set(needs)):
                ready.append(ReadyItem(stage, number, tuple(parts[need] for need in needs)))
                del item.parts[stage]
                item.joining.pop(stage, None)
            elif stage not in item.joining:
                item.joining[stage] = now
                if self._join_timeout_s is not None:
                    self._joins.append((now + self._join_timeout_s, number, stage))
        return ready


# ---- room for the workers


class StageWorkers(NamedTuple):
    """The number of workers of a stage, and the request of each."""

    asked: Request
    number: int


def check_room(stages: Mapping[str, StageWorkers], nodes: Mapping[NodeName, Resources]) -> None:
    """Raise NotAssigned if the workers could not all run at once even on empty nodes.

    Only sums are checked, by stage, by pinned node and in total: a stream that passes may still
    have to wait.
    """
    stages = {id: workers for id, workers in stages.items() if workers.asked.resources}
    sets = [[id] for id in stages]
    sets += [[id for id in stages if stages[id].asked.node == name] for name in nodes]
    sets.append(list(stages))
    for ids in sets:
        pinned = {stages[id].asked.node for id in ids}
        (only,) = pinned if len(pinned) == 1 else (None,)
        permitted = nodes if only is None else {only: nodes[only]}
        members = [stages[id] for id in ids]
        needed = _sum((workers.asked.resources, workers.number) for workers in members)
        total = _sum((resources, 1) for resources in permitted.values())
        if needed.fits_in(total) and (len(ids) > 1 or all(_fit(m, permitted) for m in members)):
            continue
        count = sum(workers.number for workers in members)
        subject = f"{count} workers need" if count > 1 else "a worker needs"
        why: dict[str, list[str]] = {
            name: [f"{subject} {needed}, and it has {_only(resources, needed)}"]
            for name, resources in permitted.items()
        }
        error = NotAssigned({tuple(ids): why})
        error.hint = "Give its functions less cost or parallelism, or add nodes."
        raise error


def _fit(workers: StageWorkers, nodes: Mapping[NodeName, Resources]) -> bool:
    """Return whether the nodes could hold that many workers, each on one node."""
    asked = workers.asked.resources.parts()
    most = [min(total[name] // asked[name] for name in asked) for total in nodes.values()]
    return sum(most) >= workers.number


def _sum(given: Iterable[tuple[Resources, int]]) -> Resources:
    parts: dict[str, int] = {}
    for resources, count in given:
        for name, amount in resources.pairs:
            parts[name] = parts.get(name, 0) + amount * count
    return Resources(parts)


def _only(resources: Resources, names: Resources) -> Resources:
    return Resources({name: resources[name] for name in names})
