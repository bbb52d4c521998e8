"""`assign`: choose a node for every function in one call, without reserving anything.

A temporary ledger counts what the functions before have taken. Collocated functions form a group,
which goes to one node where all of them fit.

1. Pinned groups come before free ones, otherwise groups come in the order given; a collocated
   function comes with the function it follows.
2. `first_available` tries the nodes it chose for free groups, latest first, then the local node,
   then the others by name. Other strategies rank the nodes with room.
3. A group that fits nowhere takes nothing from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gridhand.core.errors import InvalidInput, NotAssigned, UnknownNode, UnknownResource
from gridhand.core.graph.function import Function, Group, grouped, read_functions
from gridhand.core.ledger.allocations import Terms
from gridhand.core.ledger.ledger import Ledger, Placement
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.model.names import NodeName, check_node_name
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources
from gridhand.core.placement.device_picks import merged, pick_together
from gridhand.core.placement.place import place
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import strategy_named

_MOST_REASONS = 100  # nodes for which an error lists reasons
_TERMS = Terms("assign")


class Assignment(dict[str, str]):
    """The node of each function. `forced` has the reason for each that does not fit there."""

    def __init__(self, nodes: Mapping[str, str], forced: Mapping[str, str] | None = None) -> None:
        super().__init__(nodes)
        self.forced: dict[str, str] = dict(forced or {})

    def __str__(self) -> str:
        """Return a line for each function, with the reason why a forced one does not fit."""
        lines = [
            f"{id} → {node}" + (f", although {self.forced[id]}" if id in self.forced else "")
            for id, node in self.items()
        ]
        return "\n".join(lines) or "no functions"


def assign(
    functions: Iterable[Function | Mapping[str, Any]] | Mapping[str, Any],
    capacities: Mapping[str, Any] | Iterable[Node],
    strategy: str | Callable[..., Sequence[float]] = "first_available",
    *,
    strict: bool = True,
    local: str | None = None,
) -> Assignment:
    """Choose a node for every function, so that no node is promised more than it has.

    With `strict`, raise NotAssigned, which names all functions that fit nowhere. Otherwise each
    of those goes to the node it is pinned to, or to the one that would be tried first, and is
    listed in `forced`.

    >>> assign({"f1": {"cpu": 2}, "f2": {"cpu": 3}}, {"a": {"cpu": 4}, "b": {"cpu": 4}})
    {'f1': 'a', 'f2': 'b'}
    """
    given = read_functions(functions)
    ledger = Ledger()
    for node in _read_nodes(capacities):
        ledger.register(node)
    return assign_on(ledger, given, strategy, strict=strict, local=local)


def assign_on(
    ledger: Ledger,
    given: Sequence[Function],
    strategy: str | Callable[..., Sequence[float]] = "first_available",
    *,
    strict: bool = True,
    local: str | None = None,
) -> Assignment:
    """Assign functions on the nodes of `ledger`, and hold in it what they need."""
    assigner = _Assigner(ledger, strategy, local)
    groups = [GroupRequest(group) for group in grouped(given)]
    for asked in groups:
        assigner.check_node(asked.group)
    nodes: dict[str, str] = {}
    forced: dict[str, str] = {}
    unassigned: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for asked in sorted(groups, key=lambda asked: asked.group.node is None):
        node = assigner.place(asked)
        if node is None:
            if strict or not assigner.ledger.names:
                unassigned[asked.group.ids] = assigner.reasons(asked)
                continue
            node = asked.group.node or next(assigner.order())
            forced |= dict.fromkeys(asked.group.ids, assigner.sentence(asked, node))
        nodes |= dict.fromkeys(asked.group.ids, node)
    if unassigned:
        raise NotAssigned(unassigned)
    ids = [function.id for function in given]
    return Assignment({id: nodes[id] for id in ids}, {id: forced[id] for id in ids if id in forced})


def _read_nodes(given: Mapping[str, Any] | Iterable[Node]) -> list[Node]:
    if isinstance(given, Mapping):
        return [_read_node(name, given[name]) for name in sorted(map(check_node_name, given))]
    if isinstance(given, str | bytes | Node) or not isinstance(given, Iterable):
        raise InvalidInput(
            "capacities", given, "a mapping of nodes to resources, or a list of Nodes"
        )
    nodes: dict[NodeName, Node] = {}
    for node in given:
        if not isinstance(node, Node):
            raise InvalidInput("capacities", node, "Nodes, where it is a list")
        if node.checked().name in nodes:
            raise InvalidInput("capacities", node.name, "each node once")
        nodes[node.name] = node.checked()
    return list(nodes.values())


def _read_node(name: str, has: Any) -> Node:
    if not isinstance(has, Node):
        try:
            return Node.of(name, has)
        except InvalidInput as fault:
            raise fault.about(f"node {name}") from None
    if has.checked().name != name:
        raise InvalidInput("capacities", name, f"{has.name}, as that node is named")
    return has.checked()


class GroupRequest:
    """The requests of the functions of a group, each and together."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.each = [replace(function.asked(), node=group.node) for function in group.functions]
        self.gpus = [asked.gpu for asked in self.each if asked.gpu is not None]
        self.together = Request(_sum(self.each), merged(self.gpus), node=group.node)

    def placements(self, use: NodeUsage) -> list[Placement] | None:
        """Return placements of all functions on that node at once, or None if they do not fit."""
        devices = use.room(self.together, {})
        if devices is None:
            return None
        picked = [devices] if len(self.gpus) < 2 else pick_together(self.gpus, use.devices.values())
        if picked is None:
            return None
        holds = iter(picked)
        return [
            Placement(asked, use.node.name, next(holds) if asked.gpu is not None else ())
            for asked in self.each
        ]


def _sum(requests: Sequence[Request]) -> Resources:
    if len(requests) == 1:
        return requests[0].amounts
    parts: dict[str, int] = {}
    for request in requests:
        for name, amount in request.amounts.pairs:
            parts[name] = parts.get(name, 0) + amount
    return Resources(parts)


class _Assigner:
    """The nodes of one call to `assign`, as they fill up."""

    def __init__(self, ledger: Ledger, strategy: Any, local: str | None) -> None:
        self.ledger = ledger
        self.snapshot = Snapshot(self.ledger)
        self.strategy = strategy_named(strategy)
        self.in_order = self.strategy is strategy_named("first_available")
        self.local = None if local is None else self.ledger.node(NodeName(local)).node.name
        self.recent: list[NodeName] = []  # nodes chosen for free groups, latest first

    def check_node(self, group: Group) -> None:
        try:
            if group.node is not None:
                self.ledger.node(group.node)
        except UnknownNode as unknown:
            raise unknown.about(f"function {group.ids[0]}") from None

    def place(self, asked: GroupRequest) -> NodeName | None:
        """Hold what the group needs on the first node with room; return the node, or None."""
        for name in self._candidates(asked.together):
            placements = asked.placements(self.ledger.nodes[name])
            if placements is not None:
                self.ledger.grant(placements, _TERMS, now=0)
                if asked.group.node is None:
                    self.recent = [name, *(other for other in self.recent if other != name)]
                return name
        return None

    def _candidates(self, asked: Request) -> Iterator[NodeName]:
        """Yield the nodes to try, best first."""
        if asked.node is not None:
            return iter([asked.node])
        return self.order() if self.in_order else self._ranked(asked)

    def order(self) -> Iterator[NodeName]:
        first = dict.fromkeys([*self.recent, *([self.local] if self.local else [])])
        yield from first
        yield from (name for name in self.ledger.names if name not in first)

    def _ranked(self, asked: Request) -> Iterator[NodeName]:
        """Yield the strategy's choice, then its choice among the remaining nodes, and so on."""
        tried: frozenset[NodeName] = frozenset()
        while True:
            placed = place(replace(asked, exclude=tried), self.snapshot, self.strategy)
            if not isinstance(placed, Placement):
                return
            tried |= {placed.node}
            yield placed.node

    def reasons(self, asked: GroupRequest) -> dict[str, list[str]]:
        """Return why each permitted node was refused; raise if no node has a resource at all."""
        refused = place(asked.together, self.snapshot, self.strategy)
        error = None if isinstance(refused, Placement) else refused.error()
        if isinstance(error, UnknownResource):
            functions = asked.group.functions
            asking = (each.id for each in functions if error.name in each.asked().amounts)
            raise error.about(f"function {next(asking)}")
        names = (
            self.ledger.names[:_MOST_REASONS] if asked.group.node is None else [asked.group.node]
        )
        return {name: self._lacking(asked, name) for name in names}

    def sentence(self, asked: GroupRequest, name: str) -> str:
        ids = " with ".join(asked.group.ids)
        return f"{ids} does not fit on {name}: {self._lacking(asked, name)[0]}"

    def _lacking(self, asked: GroupRequest, name: str) -> list[str]:
        refused = place(asked.together.pinned(name), self.snapshot, self.strategy)
        if isinstance(refused, Placement):
            return self._lacking_in_turn(asked, name)
        return refused.reasons()[name]

    def _lacking_in_turn(self, asked: GroupRequest, name: str) -> list[str]:
        """Place the functions one by one; return the reasons of the first that does not fit."""
        mark = self.ledger.mark()
        try:
            for function, request in zip(asked.group.functions, asked.each, strict=True):
                placed = place(request.pinned(name), self.snapshot, self.strategy)
                if not isinstance(placed, Placement):
                    reasons = placed.reasons()[name]
                    return [f"{why} (for {function.id}, beside the others)" for why in reasons]
                self.ledger.grant([placed], _TERMS, now=0)
        finally:
            self.ledger.rollback(mark)
        return ["the devices asked for do not fit there together"]
