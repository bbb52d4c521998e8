"""Claim the resources of a graph's functions: each as it runs, or all before the first starts.

Collocated functions go to one node. Claimed by step, that node is chosen when the first of them is
ready: a node with room for all of them, if there is one. It is chosen again if the node is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gridhand.core.errors import InvalidInput, NeverFits, NoRoom
from gridhand.core.graph.function import Collocated, Function, Group, grouped
from gridhand.core.ledger.allocations import AllocationMove
from gridhand.core.model.names import NodeName
from gridhand.core.model.requests import Request, Tie
from gridhand.core.operations import GetStatus, ListAllocations
from gridhand.library.graphs.steps import Steps
from gridhand.library.ledger_methods import MOST_IN_A_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridhand.core.graph.cluster import GraphCluster
    from gridhand.core.graph.graph_run import GraphRun
    from gridhand.core.ledger.allocations import Allocation
    from gridhand.core.ledger.status import Status
    from gridhand.library.ledger_methods import LedgerMethods

_LONGEST_WAIT_S = 600.0
_PLAN_S = 2.0  # how long to wait for one assignment before making another


class Claim(NamedTuple):
    """The request of a call, and the id of the allocation it runs in, if one is held already."""

    request: Request
    held: str = ""


class Claims(Protocol):
    """How a run obtains the resources of its functions."""

    def open(self) -> Steps[None]:
        """Refuse what can never run, and claim what is held for the whole run."""

    def claims(self, ids: Sequence[str]) -> Steps[dict[str, Claim]]:
        """Return the claims of functions that are about to start."""

    def lost(self, id: str, claim: Claim, *, placed: bool) -> bool:
        """Note that a call was lost or not placed; return whether it may go to another node."""

    def stranded(self) -> Steps[list[str]]:
        """Return the calls that were sent to a node that is down now."""

    def close(self) -> Steps[None]:
        """Release what is held for the whole run."""


def read_cluster() -> Steps[GraphCluster]:
    """Return the nodes that can run functions, those of this machine, and what is held there."""
    from gridhand.core.graph.cluster import GraphCluster  # imports numpy

    status: Status = yield GetStatus()
    held: list[Allocation] = yield ListAllocations()
    return GraphCluster((one.node for one in status.nodes if not one.node.remote), held)


class ByStep:
    """Each function holds its resources from when it starts to when it ends."""

    def __init__(self, run: GraphRun, calls: LedgerMethods) -> None:
        self._run = run
        self._requests = {id: run.functions[id].asked() for id in run.plans}
        self._groups = _groups(run)
        self._of = {id: group for group in self._groups for id in group.ids}
        self._chosen: dict[str, NodeName] = {}  # the node of a group, by its first function

    def open(self) -> Steps[None]:
        from gridhand.core.graph.cluster import GraphCluster

        status: Status = yield GetStatus()
        GraphCluster(one.node for one in status.nodes).check(self._groups)

    def claims(self, ids: Sequence[str]) -> Steps[dict[str, Claim]]:
        new = {self._of[id].ids[0]: self._of[id] for id in ids if self._to_choose(self._of[id])}
        if new:
            cluster = yield from read_cluster()
            self._choose(new.values(), cluster)
        return {id: Claim(self._placed(id)) for id in ids}

    def _to_choose(self, group: Group) -> bool:
        return _is_movable(group) and group.ids[0] not in self._chosen

    def _choose(self, groups: Iterable[Group], cluster: GraphCluster) -> None:
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
        return _is_movable(group)

    def stranded(self) -> Steps[list[str]]:
        left = {first: node for first, node in self._chosen.items() if self._is_left(first)}
        if not left:
            return []
        cluster = yield from read_cluster()
        down = [first for first, node in left.items() if cluster.is_down(node)]
        for first in down:
            del self._chosen[first]
        return [id for first in down for id in self._of[first].ids if id in self._run.running]

    def _is_left(self, first: str) -> bool:
        return any(id not in self._run.done for id in self._of[first].ids)

    def close(self) -> Steps[None]:
        yield from ()


class WholeGraph:
    """All resources are held from before the first function starts until the last has ended.

    Nodes are assigned as Handoff does, from what is free now, and everything is granted in one
    transaction or not at all. If it does not fit now, the run waits.
    """

    def __init__(
        self, run: GraphRun, calls: LedgerMethods, run_id: str, left_s: Callable[[], float | None]
    ) -> None:
        """`left_s` returns the seconds left and raises when there are none."""
        self._run = run
        self._run_id = run_id
        self._calls = calls
        self._left_s = left_s
        self._together = any(len(one.functions) > 1 for one in _groups(run))
        self._claims: dict[str, Claim] = {}
        self._holding: list[str] = []  # one allocation of each granted group
        self._holder = ""  # the holder of a group whose grant is still unknown
        self._asked = 0
        self._doubtful = False

    def open(self) -> Steps[None]:
        yield from self._claim(list(self._run.plans))

    def claims(self, ids: Sequence[str]) -> Steps[dict[str, Claim]]:
        if self._doubtful:
            self._doubtful = False
            gone = yield from self._no_longer_held(dict.fromkeys((*ids, *self._run.left())))
            if gone:
                yield from self._claim(gone)
        return {id: self._claims[id] for id in ids}

    def lost(self, id: str, claim: Claim, *, placed: bool) -> bool:
        self._doubtful = True
        return True

    def stranded(self) -> Steps[list[str]]:
        gone = yield from self._no_longer_held(self._run.running)
        self._doubtful |= bool(gone)
        return gone

    def _no_longer_held(self, ids: Iterable[str]) -> Steps[list[str]]:
        """Return the functions whose allocation is no longer held."""
        live: list[Allocation] = yield ListAllocations()
        there = {one.id for one in live}
        claims = [(id, self._claims[id].held) for id in ids if id in self._claims]
        return [id for id, held in claims if held and held not in there]

    def close(self) -> Steps[None]:
        if self._holder:  # interrupted, perhaps between the grant and its answer
            live: list[Allocation] = yield ListAllocations()
            names = (self._holder, f"{self._holder}#0")
            mine = [one for one in live if one.owner == self._calls.owner]
            self._holding += [one.id for one in mine if one.holder in names]
        while self._holding:
            yield self._calls.move(self._holding.pop(), AllocationMove.RELEASE, None, None)

    # ---- claiming

    def _claim(self, ids: Sequence[str]) -> Steps[None]:
        functions = _among(self._run, ids)
        costly = [id for id in ids if _asks(self._run.functions[id].asked())]
        if len(costly) > MOST_IN_A_GROUP:
            raise InvalidInput(
                "claim",
                "whole",
                f'"step" for more than {MOST_IN_A_GROUP} functions with a cost',
            )
        while True:
            cluster = yield from read_cluster()
            planned = cluster.assign(functions)
            if planned is not None:
                if (yield from self._grant(ids, costly, planned, 0.0)):
                    return
            else:
                from gridhand.core.graph.assign import assign_on

                planned = assign_on(cluster.emptied().ledger, functions)  # raises if it never fits
            most_s = _PLAN_S if self._together else _LONGEST_WAIT_S
            left_s = self._left_s()
            wait_s = most_s if left_s is None else max(0.001, min(left_s, most_s))
            free = not self._together
            if (yield from self._grant(ids, costly, planned, wait_s, anywhere=free)):
                return

    def _grant(
        self,
        ids: Sequence[str],
        costly: Sequence[str],
        planned: dict[str, str],
        wait_s: float,
        *,
        anywhere: bool = False,
    ) -> Steps[bool]:
        """Claim everything on the planned nodes, or anywhere; return whether it was granted."""
        asked = {
            id: replace(self._run.functions[id].asked(), node=NodeName(planned[id])) for id in ids
        }
        made: list[Allocation] = []
        if costly:
            wanted = [
                replace(one, node=_pin(self._run, id)) if anywhere else one
                for id in costly
                for one in (asked[id].tied(Tie.CALLER),)
            ]
            self._asked += 1
            self._holder = f"{self._run_id}.{self._asked}"
            try:
                operation = self._calls.group(wanted, self._holder, None, None, wait=wait_s)
                granted = yield operation
                made = granted.allocations
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


def _is_movable(group: Group) -> bool:
    """Return whether the run chooses the node of this group: collocated and not pinned."""
    return group.node is None and len(group.functions) > 1


def _among(run: GraphRun, ids: Sequence[str]) -> list[Function]:
    """Return these functions alone; collocated ones follow the first of their group among them."""
    wanted = set(ids)
    found: dict[str, Function] = {}
    for group in _groups(run):
        here = [one for one in group.functions if one.id in wanted]
        for one in here:
            first = one is here[0]
            found[one.id] = replace(one, node=group.node if first else Collocated(here[0].id))
    return [found[id] for id in ids]


def _pin(run: GraphRun, id: str) -> NodeName | None:
    node = run.functions[id].node
    return NodeName(node) if isinstance(node, str) else None


def _asks(request: Request) -> bool:
    return bool(request.amounts) or request.gpu is not None
