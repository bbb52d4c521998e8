"""GraphRun: the state machine of one run of a graph.

1. A function may start when all its arguments have values. Functions start in the order of the
   graph, at most `max_concurrency` at a time.
2. A failed function is retried up to its own `max_retries`, or the run's. Losses of its worker or
   node are not its fault and are counted separately. A function with a value never runs again.
3. The first function that fails for good fails the run: nothing more is started, and running
   functions must be stopped.
4. A value that is not kept is dropped when no function that takes it is left to run.

It runs nothing itself, and knows neither values nor nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from gridhand.core.errors import InvalidInput
from gridhand.core.graph.call_plan import CallPlan, plan
from gridhand.core.graph.function import MOST_RETRIES, check_count
from gridhand.core.graph.graph import Graph
from gridhand.core.model.resources import nearest_name

DEFAULT_LOSSES = 5


class Failure(NamedTuple):
    """The function that failed the run, and the error of its last attempt."""

    function: str
    error: BaseException
    attempts: int


class GraphRun:
    """The state of one run. Inputs have a value from the beginning."""

    def __init__(
        self,
        graph: Graph,
        *,
        max_retries: int = 3,
        max_concurrency: int | None = None,
        max_losses: int = DEFAULT_LOSSES,
        keep: Iterable[str] | None = None,
    ) -> None:
        """Start a run. `keep` are the ids whose values are wanted at the end; None for all."""
        self._retries = check_count("max_retries", max_retries, 0, MOST_RETRIES)
        self._losses = check_count("max_losses", max_losses, 0, MOST_RETRIES)
        if max_concurrency is not None:
            check_count("max_concurrency", max_concurrency, 1, 1_000_000)
        self._most = max_concurrency
        graph.validate()
        self.functions = dict(graph.functions)
        regular = [id for id in graph.order() if self.functions[id].type == "regular"]
        self.kept = _read_kept(keep, graph, regular)
        self.plans: dict[str, CallPlan] = {
            id: plan(self.functions[id], self.functions) for id in regular
        }
        self._places = {id: place for place, id in enumerate(regular)}
        self._takers: dict[str, list[str]] = {id: [] for id in regular}
        self._missing: dict[str, int] = {}  # number of values each function still waits for
        for id in regular:
            needs = [need for need in dict.fromkeys(self.plans[id].needs) if need in self._takers]
            self._missing[id] = len(needs)
            for need in needs:
                self._takers[need].append(id)
        self._wanted = {id: len(takers) for id, takers in self._takers.items()}
        self._ready = [place for id, place in self._places.items() if not self._missing[id]]
        self._ids = regular
        self.running: dict[str, None] = {}  # in the order of their starts
        self.done: dict[str, None] = {}  # in the order of their ends
        self.attempts: dict[str, int] = dict.fromkeys(regular, 0)
        self._failed: dict[str, int] = {}
        self._lost: dict[str, int] = {}
        self.failure: Failure | None = None

    # ---- state

    @property
    def total(self) -> int:
        return len(self._ids)

    @property
    def over(self) -> bool:
        """Whether the run has failed, or every function has a value."""
        return self.failure is not None or len(self.done) == len(self._ids)

    @property
    def retried(self) -> int:
        """The number of attempts that failed or were lost so far."""
        return sum(self._failed.values()) + sum(self._lost.values())

    def left(self) -> list[str]:
        """Return the functions that have no value and do not run, in the order of the graph."""
        return [id for id in self._ids if id not in self.done and id not in self.running]

    # ---- actions

    def start(self) -> list[str]:
        """Return the functions to start now, and mark them as running."""
        started: list[str] = []
        while self._ready and not self.over and not self._full():
            id = self._ids[heapq.heappop(self._ready)]
            self.running[id] = None
            self.attempts[id] += 1
            started.append(id)
        return started

    def _full(self) -> bool:
        return self._most is not None and len(self.running) >= self._most

    def stop(self) -> list[str]:
        """Return the running functions, which must be stopped, and mark them as not running."""
        stopped = list(self.running)
        self.running.clear()
        return stopped

    # ---- events

    def succeeded(self, id: str) -> list[str]:
        """Record a value. Return the functions whose values are no longer needed."""
        self._ended(id)
        self.done[id] = None
        for taker in self._takers[id]:
            self._missing[taker] -= 1
            if not self._missing[taker]:
                heapq.heappush(self._ready, self._places[taker])
        needs = self.plans[id].needs
        for need in dict.fromkeys(needs):
            if need in self._wanted:
                self._wanted[need] -= 1
        used = [need for need in dict.fromkeys((*needs, id)) if need in self._wanted]
        return [need for need in used if not self._wanted[need] and need not in self.kept]

    def failed(self, id: str, error: BaseException) -> bool:
        """Record a failure of the function. Return whether it is retried."""
        own = self.functions[id].max_retries
        self._failed[id] = self._failed.get(id, 0) + 1
        return self._retry(id, error, self._failed[id], self._retries if own is None else own)

    def lost(self, id: str, error: BaseException) -> bool:
        """Record a lost worker or node. Return whether the function is retried."""
        self._lost[id] = self._lost.get(id, 0) + 1
        return self._retry(id, error, self._lost[id], self._losses)

    def refused(self, id: str, error: BaseException) -> None:
        """Fail the run, because the function can never run."""
        self._ended(id)
        self.failure = Failure(id, error, self.attempts[id])

    def put_back(self, id: str) -> None:
        """Make a function ready again that was withdrawn before it ran; it costs no attempt."""
        self._ended(id)
        self.attempts[id] -= 1
        heapq.heappush(self._ready, self._places[id])

    def _retry(self, id: str, error: BaseException, times: int, most: int) -> bool:
        self._ended(id)
        if times > most:
            self.failure = Failure(id, error, self.attempts[id])
            return False
        heapq.heappush(self._ready, self._places[id])
        return True

    def _ended(self, id: str) -> None:
        if id not in self.running:
            raise ValueError(f"{id} is not running")
        del self.running[id]


def _read_kept(keep: Iterable[str] | None, graph: Graph, regular: Iterable[str]) -> frozenset[str]:
    if keep is None:
        return frozenset(regular)
    if isinstance(keep, bytes) or not isinstance(keep, Iterable):
        raise InvalidInput("keep", keep, "ids of functions, or None for all")
    ids = [keep] if isinstance(keep, str) else list(keep)
    for id in ids:
        if not isinstance(id, str) or id not in graph:
            close = nearest_name(id, graph.functions) if isinstance(id, str) else None
            meant = f" (did you mean {close}?)" if close else ""
            raise InvalidInput("keep", id, f"ids of functions of the graph{meant}")
        if graph[id].type != "regular":
            raise InvalidInput("keep", id, f"functions with a value; {id} is {graph[id].type}")
    return frozenset(ids)
