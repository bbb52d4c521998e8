"""GraphRun: one run of a graph, told what happens and asked what to do next.

1. A function may start when all that it takes has a value; those that may start do so in the order
   of the graph, as many at a time as are allowed.
2. One that fails is tried again as often as it may: its own number of retries beats the run's. One
   that was lost with its worker or node had no part in that; losses are counted apart. What has
   a value is never run again.
3. The first function that fails for good fails the run: nothing more is started, and what runs is
   to be stopped.
4. A value that is not to be kept is given up when nothing is left to start that takes it.

It runs nothing itself, and knows neither values nor nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from gridhand.core.errors import InvalidInput
from gridhand.core.graph import Graph
from gridhand.core.graphs import MOST_RETRIES, check_count
from gridhand.core.inline import Plan, plan
from gridhand.core.resources import nearest_name

DEFAULT_LOSSES = 5


class Failure(NamedTuple):
    """The function that failed the run, and how the last of its attempts did."""

    function: str
    error: BaseException
    attempts: int


class GraphRun:
    """The state of one run. Inputs count as having a value from the beginning."""

    def __init__(
        self,
        graph: Graph,
        *,
        max_retries: int = 3,
        max_concurrency: int | None = None,
        max_losses: int = DEFAULT_LOSSES,
        keep: Iterable[str] | None = None,
    ) -> None:
        """`keep` are the ids whose values are wanted at the end; None wants all."""
        self._retries = check_count("max_retries", max_retries, 0, MOST_RETRIES)
        self._losses = check_count("max_losses", max_losses, 0, MOST_RETRIES)
        if max_concurrency is not None:
            check_count("max_concurrency", max_concurrency, 1, 1_000_000)
        self._most = max_concurrency
        graph.validate()
        self.functions = dict(graph.functions)
        regular = [id for id in graph.order() if self.functions[id].type == "regular"]
        self.kept = _read_kept(keep, graph, regular)
        self.plans: dict[str, Plan] = {
            id: plan(self.functions[id], self.functions) for id in regular
        }
        self._places = {id: place for place, id in enumerate(regular)}
        self._takers: dict[str, list[str]] = {id: [] for id in regular}
        self._missing: dict[str, int] = {}  # how many values each still waits for
        for id in regular:
            taken = [one for one in dict.fromkeys(self.plans[id].needs) if one in self._takers]
            self._missing[id] = len(taken)
            for one in taken:
                self._takers[one].append(id)
        self._wanted = {id: len(takers) for id, takers in self._takers.items()}
        self._ready = [place for id, place in self._places.items() if not self._missing[id]]
        self._ids = regular
        self.running: dict[str, None] = {}  # in the order they were started
        self.done: dict[str, None] = {}  # in the order they ended
        self.attempts: dict[str, int] = dict.fromkeys(regular, 0)
        self._failed: dict[str, int] = {}
        self._lost: dict[str, int] = {}
        self.failure: Failure | None = None

    # ---- what is so

    @property
    def total(self) -> int:
        return len(self._ids)

    @property
    def over(self) -> bool:
        """Whether it has failed, or everything has a value."""
        return self.failure is not None or len(self.done) == len(self._ids)

    @property
    def retried(self) -> int:
        """How many attempts were in vain so far."""
        return sum(self._failed.values()) + sum(self._lost.values())

    def left(self) -> list[str]:
        """Those that have no value and do not run, in the order of the graph."""
        return [id for id in self._ids if id not in self.done and id not in self.running]

    # ---- what to do

    def start(self) -> list[str]:
        """Those to start now; from here on they count as running."""
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
        """Those that run and are to be stopped, as the run is over or is to be given up."""
        stopped = list(self.running)
        self.running.clear()
        return stopped

    # ---- what happened

    def succeeded(self, id: str) -> list[str]:
        """It has a value. Tells whose values nobody will need any more."""
        self._ended(id)
        self.done[id] = None
        for taker in self._takers[id]:
            self._missing[taker] -= 1
            if not self._missing[taker]:
                heapq.heappush(self._ready, self._places[taker])
        for one in dict.fromkeys(self.plans[id].needs):
            if one in self._wanted:
                self._wanted[one] -= 1
        used = [one for one in dict.fromkeys((*self.plans[id].needs, id)) if one in self._wanted]
        return [one for one in used if not self._wanted[one] and one not in self.kept]

    def failed(self, id: str, error: BaseException) -> bool:
        """It failed by itself. Tells whether it will be tried again."""
        own = self.functions[id].max_retries
        self._failed[id] = self._failed.get(id, 0) + 1
        return self._again(id, error, self._failed[id], self._retries if own is None else own)

    def lost(self, id: str, error: BaseException) -> bool:
        """What ran it went away under it. Tells whether it will be tried again."""
        self._lost[id] = self._lost.get(id, 0) + 1
        return self._again(id, error, self._lost[id], self._losses)

    def refused(self, id: str, error: BaseException) -> None:
        """It cannot be run at all, so trying again is of no use."""
        self._ended(id)
        self.failure = Failure(id, error, self.attempts[id])

    def put_back(self, id: str) -> None:
        """It was taken back before it came to anything: it is to start again, as if for the
        first time.
        """
        self._ended(id)
        self.attempts[id] -= 1
        heapq.heappush(self._ready, self._places[id])

    def _again(self, id: str, error: BaseException, times: int, most: int) -> bool:
        self._ended(id)
        if times > most:
            self.failure = Failure(id, error, self.attempts[id])
            return False
        heapq.heappush(self._ready, self._places[id])
        return True

    def _ended(self, id: str) -> None:
        if id not in self.running:
            raise ValueError(f"{id} does not run")
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
