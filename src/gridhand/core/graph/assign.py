"""Which function goes to which node, decided in one call and held nowhere.

The ledger here is a scratch one: it lives as long as the call, and counts what the functions
before have taken. Functions that must go together are one thing, and go where all of them fit.

1. Pinned ones come before free ones; otherwise they come in the order given, and one that follows
   another comes with it.
2. `first_available` tries the nodes that it chose for free ones, the latest first, then the local
   node, then the others by name. Other strategies rank the nodes with room.
3. What fits nowhere takes nothing from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gridhand.core.collocation import merged, pick_together
from gridhand.core.errors import InvalidInput, NotAssigned, UnknownNode, UnknownResource
from gridhand.core.graphs import Function, Group, grouped, read_functions
from gridhand.core.ledger import Ledger, Placement, Terms
from gridhand.core.names import check_node_name
from gridhand.core.nodes import Node
from gridhand.core.placement import Snapshot, place
from gridhand.core.requests import Request
from gridhand.core.resources import Resources
from gridhand.core.strategies import strategy_named
from gridhand.core.usage import NodeUse

_TOLD = 100  # nodes whose reasons are told
_TERMS = Terms("assign")


class Assignment(dict[str, str]):
    """The node of each function. `forced` says of those that do not fit there why not."""

    def __init__(self, nodes: Mapping[str, str], forced: Mapping[str, str] | None = None) -> None:
        super().__init__(nodes)
        self.forced: dict[str, str] = dict(forced or {})

    def __str__(self) -> str:
        """A line for each function, with the reason against it where that one was forced."""
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

    Raises `NotAssigned`, which names all functions that fit nowhere. Unless `strict`: then each
    of those goes to its own node, or else to the one that would have been tried first, and
    `forced` says so.

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
    """The same on nodes where something is held already. What is chosen is held there, too."""
    bench = _Bench(ledger, strategy, local)
    groups = [Costed(group) for group in grouped(given)]
    for one in groups:
        bench.check_node(one.group)
    nodes: dict[str, str] = {}
    forced: dict[str, str] = {}
    left: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for one in sorted(groups, key=lambda one: one.group.node is None):
        node = bench.put(one)
        if node is None:
            if strict or not bench.ledger.names:
                left[one.group.ids] = bench.reasons(one)
                continue
            node = one.group.node or next(bench.order())
            forced |= dict.fromkeys(one.group.ids, bench.sentence(one, node))
        nodes |= dict.fromkeys(one.group.ids, node)
    if left:
        raise NotAssigned(left)
    ids = [one.id for one in given]
    return Assignment({id: nodes[id] for id in ids}, {id: forced[id] for id in ids if id in forced})


def _read_nodes(given: Mapping[str, Any] | Iterable[Node]) -> list[Node]:
    if isinstance(given, Mapping):
        return [_read_node(name, given[name]) for name in sorted(map(check_node_name, given))]
    if isinstance(given, str | bytes | Node) or not isinstance(given, Iterable):
        raise InvalidInput(
            "capacities", given, "a mapping of nodes to resources, or a list of Nodes"
        )
    nodes: dict[str, Node] = {}
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


class Costed:
    """A group, what each of its functions asks for, and what they ask for together."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.each = [replace(one.asked(), node=group.node) for one in group.functions]
        self.asks = [one.gpu for one in self.each if one.gpu is not None]
        self.together = Request(_sum(self.each), merged(self.asks), node=group.node)

    def placements(self, use: NodeUse) -> list[Placement] | None:
        """Every function on that node at once, or None. All of `together` is needed for that."""
        devices = use.room(self.together, {})
        if devices is None:
            return None
        picked = [devices] if len(self.asks) < 2 else pick_together(self.asks, use.devices.values())
        if picked is None:
            return None
        holds = iter(picked)
        return [
            Placement(one, use.node.name, next(holds) if one.gpu is not None else ())
            for one in self.each
        ]


def _sum(requests: Sequence[Request]) -> Resources:
    if len(requests) == 1:
        return requests[0].amounts
    parts: dict[str, int] = {}
    for one in requests:
        for name, amount in one.amounts.pairs:
            parts[name] = parts.get(name, 0) + amount
    return Resources(parts)


class _Bench:
    """The nodes of one call, as they fill up."""

    def __init__(self, ledger: Ledger, strategy: Any, local: str | None) -> None:
        self.ledger = ledger
        self.snapshot = Snapshot(self.ledger)
        self.strategy = strategy_named(strategy)
        self.in_order = self.strategy is strategy_named("first_available")
        self.local = None if local is None else self.ledger.node(local).node.name
        self.recent: list[str] = []  # chosen for free ones, the latest first

    def check_node(self, group: Group) -> None:
        try:
            if group.node is not None:
                self.ledger.node(group.node)
        except UnknownNode as unknown:
            raise unknown.about(f"function {group.ids[0]}") from None

    def put(self, costed: Costed) -> str | None:
        """Hold what the group costs on the node that it gets, if there is one."""
        for name in self._candidates(costed.together):
            placements = costed.placements(self.ledger.nodes[name])
            if placements is not None:
                self.ledger.grant(placements, _TERMS, now=0)
                if costed.group.node is None:
                    self.recent = [name, *(one for one in self.recent if one != name)]
                return name
        return None

    def _candidates(self, asked: Request) -> Iterator[str]:
        """The nodes to try, best first."""
        if asked.node is not None:
            return iter([asked.node])
        return self.order() if self.in_order else self._ranked(asked)

    def order(self) -> Iterator[str]:
        first = dict.fromkeys([*self.recent, *([self.local] if self.local else [])])
        yield from first
        yield from (name for name in self.ledger.names if name not in first)

    def _ranked(self, asked: Request) -> Iterator[str]:
        """The strategy's choice, and its choice among the others as long as one is wanted."""
        tried: frozenset[str] = frozenset()
        while True:
            placed = place(replace(asked, exclude=tried), self.snapshot, self.strategy)
            if not isinstance(placed, Placement):
                return
            tried |= {placed.node}
            yield placed.node

    def reasons(self, costed: Costed) -> dict[str, list[str]]:
        """What speaks against each permitted node. Raises where no node could ever have it."""
        refused = place(costed.together, self.snapshot, self.strategy)
        error = None if isinstance(refused, Placement) else refused.error()
        if isinstance(error, UnknownResource):
            asking = (one.id for one in costed.group.functions if error.name in one.asked().amounts)
            raise error.about(f"function {next(asking)}")
        names = self.ledger.names[:_TOLD] if costed.group.node is None else [costed.group.node]
        return {name: self._lacking(costed, name) for name in names}

    def sentence(self, costed: Costed, name: str) -> str:
        ids = " with ".join(costed.group.ids)
        return f"{ids} does not fit on {name}: {self._lacking(costed, name)[0]}"

    def _lacking(self, costed: Costed, name: str) -> list[str]:
        refused = place(costed.together.pinned(name), self.snapshot, self.strategy)
        if isinstance(refused, Placement):
            return self._lacking_in_turn(costed, name)
        return refused.reasons()[name]

    def _lacking_in_turn(self, costed: Costed, name: str) -> list[str]:
        """Where no single ask is too much: the first that is, once those before it are there."""
        mark = self.ledger.mark()
        try:
            for one, asked in zip(costed.group.functions, costed.each, strict=True):
                placed = place(asked.pinned(name), self.snapshot, self.strategy)
                if not isinstance(placed, Placement):
                    found = placed.reasons()[name]
                    return [f"{reason} (for {one.id}, beside the others)" for reason in found]
                self.ledger.grant([placed], _TERMS, now=0)
        finally:
            self.ledger.rollback(mark)
        return ["the devices asked for do not fit there together"]
