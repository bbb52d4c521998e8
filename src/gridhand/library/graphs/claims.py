"""What the functions of a graph hold: each its own while it runs, or all of it from the beginning.

Functions that go together are sent to one node. By step, that node is chosen when the first of
them may start: one with room for all of them, if there is one. It is chosen anew if it is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gridhand.core.allocations import Move
from gridhand.core.errors import InvalidInput, NeverFits, NoRoom
from gridhand.core.graphs import Collocated, Function, Group, grouped
from gridhand.library.calls import MOST_IN_A_GROUP
from gridhand.library.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridhand.core.allocations import Allocation
    from gridhand.core.graphnodes import Cluster
    from gridhand.core.graphrun import GraphRun
    from gridhand.core.requests import Request
    from gridhand.core.views import Status
    from gridhand.library.backend import Backend
    from gridhand.library.calls import Calls

_LONGEST_WAIT_S = 600.0
_PLAN_S = 2.0  # how long a plan of where to put all is held on to


class Claim(NamedTuple):
    """What a call is to ask for, and the id of what is held for it already."""

    request: Request
    held: str = ""


class Claims(Protocol):
    """How a run comes by what its functions need."""

    def open(self) -> Steps[None]:
        """Before anything runs: refuse what can never run, and hold what is held throughout."""

    def claims(self, ids: Sequence[str]) -> Steps[dict[str, Claim]]:
        """For functions that are about to start."""

    def lost(self, id: str, claim: Claim, *, placed: bool) -> bool:
        """It was lost, or could not be placed. Whether it was our choice that it went there."""

    def stranded(self) -> Steps[list[str]]:
        """Those that were sent to a node that is down by now, and are to be sent elsewhere."""

    def close(self) -> Steps[None]:
        """Give back what is held throughout."""


def looked(backend: Backend) -> Steps[Cluster]:
    """The nodes and what is held on them, as of now."""
    from gridhand.core.graphnodes import Cluster  # with numpy, which not everybody needs

    status: Status = yield backend.status()
    held: list[Allocation] = yield backend.allocations()
    return Cluster((one.node for one in status.nodes), held)


class ByStep:
    """Each function holds its own from when it may start to when it has ended."""

    def __init__(self, run: GraphRun, calls: Calls) -> None:
        self._run = run
        self._backend = calls.backend
        self._requests = {id: run.functions[id].asked() for id in run.plans}
        self._groups = _groups(run)
        self._of = {id: group for group in self._groups for id in group.ids}
        self._chosen: dict[str, str] = {}  # the node of a group, by its first function

    def open(self) -> Steps[None]:
        from gridhand.core.graphnodes import Cluster

        status: Status = yield self._backend.status()
        Cluster(one.node for one in status.nodes).check(self._groups)

    def claims(self, ids: Sequence[str]) -> Steps[dict[str, Claim]]:
        new = {self._of[id].ids[0]: self._of[id] for id in ids if self._to_choose(self._of[id])}
        if new:
            cluster = yield from looked(self._backend)
            self._choose(new.values(), cluster)
        return {id: Claim(self._placed(id)) for id in ids}

    def _to_choose(self, group: Group) -> bool:
        return _goes_along(group) and group.ids[0] not in self._chosen

    def _choose(self, groups: Iterable[Group], cluster: Cluster) -> None:
        run = self._run
        for first, node in self._chosen.items():
            for one in self._of[first].functions:
                if one.id not in run.done and one.id not in run.running:
                    cluster.promise(one, node)
        for group in groups:
            left = tuple(one for one in group.functions if one.id not in run.done)
            chosen = cluster.choose(Group(left, None))
            if chosen is not None:
                self._chosen[group.ids[0]] = chosen

    def _placed(self, id: str) -> Request:
        group = self._of[id]
        return replace(self._requests[id], node=group.node or self._chosen.get(group.ids[0]))

    def lost(self, id: str, claim: Claim, *, placed: bool) -> bool:
        group = self._of[id]
        if not placed and self._chosen.get(group.ids[0]) == claim.request.node:
            self._chosen.pop(group.ids[0], None)
        return _goes_along(group)

    def stranded(self) -> Steps[list[str]]:
        left = {first: node for first, node in self._chosen.items() if self._is_left(first)}
        if not left:
            return []
        cluster = yield from looked(self._backend)
        down = [first for first, node in left.items() if cluster.is_down(node)]
        for first in down:
            del self._chosen[first]
        return [id for first in down for id in self._of[first].ids if id in self._run.running]

    def _is_left(self, first: str) -> bool:
        return any(id not in self._run.done for id in self._of[first].ids)

    def close(self) -> Steps[None]:
        yield from ()


class AsAWhole:
    """Everything is held from before the first function starts to after the last has ended.

    Where they go is chosen as Handoff does, on what is free now; and all of it is granted in one
    step, or none. If it does not fit now, it is waited for.
    """

    def __init__(
        self, run: GraphRun, calls: Calls, run_id: str, left_s: Callable[[], float | None]
    ) -> None:
        """`left_s` tells how much time is left, and raises when there is none."""
        self._run = run
        self._run_id = run_id
        self._calls = calls
        self._backend = calls.backend
        self._left_s = left_s
        self._together = any(len(one.functions) > 1 for one in _groups(run))
        self._claims: dict[str, Claim] = {}
        self._holding: list[str] = []  # one of each group that was granted
        self._holder = ""  # under whose name something may be held that we do not know of
        self._asked = 0
        self._doubtful = False

    def open(self) -> Steps[None]:
        yield from self._claim(list(self._run.plans))

    def claims(self, ids: Sequence[str]) -> Steps[dict[str, Claim]]:
        if self._doubtful:
            self._doubtful = False
            gone = yield from self._gone(dict.fromkeys((*ids, *self._run.left())))
            if gone:
                yield from self._claim(gone)
        return {id: self._claims[id] for id in ids}

    def lost(self, id: str, claim: Claim, *, placed: bool) -> bool:
        self._doubtful = True
        return True

    def stranded(self) -> Steps[list[str]]:
        gone = yield from self._gone(self._run.running)
        self._doubtful |= bool(gone)
        return gone

    def _gone(self, ids: Iterable[str]) -> Steps[list[str]]:
        """Those of which what was held for them is held no more."""
        live: list[Allocation] = yield self._backend.allocations()
        there = {one.id for one in live}
        claims = [(id, self._claims[id].held) for id in ids if id in self._claims]
        return [id for id, held in claims if held and held not in there]

    def close(self) -> Steps[None]:
        if self._holder:  # it was interrupted, perhaps between the grant and our hearing of it
            live: list[Allocation] = yield self._backend.allocations()
            names = (self._holder, f"{self._holder}#0")
            mine = [one for one in live if one.owner == self._calls.owner]
            self._holding += [one.id for one in mine if one.holder in names]
        while self._holding:
            yield self._calls.move(self._holding.pop(), Move.RELEASE, None, None)

    # ---- claiming

    def _claim(self, ids: Sequence[str]) -> Steps[None]:
        functions = _among(self._run, ids)
        costly = [id for id in ids if _asks(self._run.functions[id].asked())]
        if len(costly) > MOST_IN_A_GROUP:
            raise InvalidInput(
                "claim", "whole", f"step: at most {MOST_IN_A_GROUP} functions are held as a whole"
            )
        while True:
            cluster = yield from looked(self._backend)
            planned = cluster.assign(functions)
            if planned is not None:
                if (yield from self._granted(ids, costly, planned, 0.0)):
                    return
            else:
                from gridhand.core.assignment import assign_on

                planned = assign_on(cluster.emptied().ledger, functions)  # or it never fits
            most_s = _PLAN_S if self._together else _LONGEST_WAIT_S
            left_s = self._left_s()
            wait_s = most_s if left_s is None else max(0.001, min(left_s, most_s))
            free = not self._together
            if (yield from self._granted(ids, costly, planned, wait_s, anywhere=free)):
                return

    def _granted(
        self,
        ids: Sequence[str],
        costly: Sequence[str],
        planned: dict[str, str],
        wait_s: float,
        *,
        anywhere: bool = False,
    ) -> Steps[bool]:
        """Whether all of it is held now: where it was planned, or wherever there was room."""
        asked = {id: replace(self._run.functions[id].asked(), node=planned[id]) for id in ids}
        made: list[Allocation] = []
        if costly:
            wanted = [
                replace(asked[id], node=_pin(self._run, id)) if anywhere else asked[id]
                for id in costly
            ]
            self._asked += 1
            self._holder = f"{self._run_id}.{self._asked}"
            try:
                made = yield self._calls.group(wanted, self._holder, None, None, wait=wait_s)
            except NoRoom as error:
                self._holder = ""
                if isinstance(error, NeverFits):
                    raise
                return False
            self._holding.append(made[0].id)
            self._holder = ""
        self._claims |= {id: Claim(request) for id, request in asked.items()}
        for id, held in zip(costly, made, strict=True):
            self._claims[id] = Claim(replace(asked[id], node=held.node), held.id)
        return True


def _groups(run: GraphRun) -> list[Group]:
    return grouped([run.functions[id] for id in run.plans])


def _goes_along(group: Group) -> bool:
    """Whether it is for us to choose where they go: several, and none of them is pinned."""
    return group.node is None and len(group.functions) > 1


def _among(run: GraphRun, ids: Sequence[str]) -> list[Function]:
    """These functions alone: those that go together follow the first of them that is here."""
    wanted = set(ids)
    found: dict[str, Function] = {}
    for group in _groups(run):
        here = [one for one in group.functions if one.id in wanted]
        for one in here:
            first = one is here[0]
            found[one.id] = replace(one, node=group.node if first else Collocated(here[0].id))
    return [found[id] for id in ids]


def _pin(run: GraphRun, id: str) -> str | None:
    node = run.functions[id].node
    return node if isinstance(node, str) else None


def _asks(request: Request) -> bool:
    return bool(request.amounts) or request.gpu is not None
