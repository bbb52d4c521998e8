"""GraphCluster: a recent copy of the ledger, on which the nodes of a graph are chosen.

A decision may be outdated when the resources are requested: then it is refused and made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gridhand.core.errors import ImpossibleCollocation, NotAssigned, UnknownNode
from gridhand.core.explain.refusal import Refusal, could_ever
from gridhand.core.explain.survey import could_hold
from gridhand.core.graph.assign import Assignment, GroupRequest, assign_on
from gridhand.core.graph.function import Function, Group
from gridhand.core.ledger.allocations import Allocation, Terms
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.model.names import NodeName
from gridhand.core.model.nodes import Health, Node
from gridhand.core.model.requests import Request
from gridhand.core.placement.snapshot import Snapshot

_TERMS = Terms("graph")


class GraphCluster:
    """Nodes and what is held on them."""

    def __init__(self, nodes: Iterable[Node], held: Iterable[Allocation] = ()) -> None:
        self.ledger = Ledger()
        known = {node.name: node for node in nodes}
        devices = {(node.name, gpu.id) for node in known.values() for gpu in node.gpus}
        # Nodes and allocations are fetched one after the other, so they may not quite match.
        matching = [
            one
            for one in held
            if one.node in known and all((one.node, hold.device) in devices for hold in one.devices)
        ]
        self.ledger.load(known.values(), matching)
        self._promised: Counter[NodeName] = Counter()

    def emptied(self) -> GraphCluster:
        """Return the same nodes with nothing held on them, all of them up and not draining."""
        uses = self.ledger.nodes.values()
        return GraphCluster(replace(use.node, health=Health.UP, draining=False) for use in uses)

    def is_down(self, name: NodeName) -> bool:
        """Return whether the node is removed or down."""
        use = self.ledger.nodes.get(name)
        return use is None or use.node.health is Health.DOWN

    # ---- can it ever run

    def check(self, groups: Iterable[Group]) -> None:
        """Raise an error for a function or group that no node could run even if it were empty."""
        snapshot = Snapshot(self.ledger)
        known: dict[Request, bool] = {}
        for group in groups:
            asks = self._asked(group)
            for function, asked in zip(group.functions, asks, strict=True):
                if not _is_empty(asked) and asked not in known:
                    known[asked] = could_ever(asked, snapshot)
                if not known.get(asked, True):
                    raise Refusal(asked, snapshot).error().about(f"function {function.id}")
            if len(asks) > 1 and not all(map(_is_empty, asks)) and not self._able(group):
                raise ImpossibleCollocation(
                    group.ids, "no node could hold each of them, even one after another"
                )

    def _asked(self, group: Group) -> list[Request]:
        try:
            if group.node is not None:
                self.ledger.node(group.node)
        except UnknownNode as unknown:
            raise unknown.about(f"function {group.ids[0]}") from None
        return [replace(one.asked(), node=group.node) for one in group.functions]

    def _able(self, group: Group) -> list[NodeName]:
        """Return the nodes that could hold each function of the group, if not all at once."""
        asks = {asked for asked in self._asked(group) if not _is_empty(asked)}
        nodes = self.ledger.nodes
        return [
            name
            for name in self.ledger.names
            if all(could_hold(asked, nodes[name].node) for asked in asks)
        ]

    # ---- choose nodes

    def choose(self, group: Group) -> NodeName | None:
        """Choose a node for collocated functions; None if no node could ever hold them.

        A node with room for all of them at once is preferred. What they need counts as taken for
        the next choice.
        """
        able = self._able(group)
        nodes = self.ledger.nodes
        asked = GroupRequest(group)
        for name in able:
            placements = asked.placements(nodes[name])
            if placements is not None:
                self.ledger.grant(placements, _TERMS, now=0)
                return name
        able = [name for name in able if nodes[name].open] or able
        chosen = min(able, key=self._load, default=None)
        if chosen is not None:
            self._promised[chosen] += len(group.functions)
        return chosen

    def _load(self, name: NodeName) -> int:
        return len(self.ledger.nodes[name].allocations) + self._promised[name]

    def promise(self, function: Function, name: NodeName) -> None:
        """Count a function as running on that node before it holds anything."""
        use = self.ledger.nodes.get(name)
        placements = None
        if use is not None:
            placements = GroupRequest(Group((function,), name)).placements(use)
        if placements is not None:
            self.ledger.grant(placements, _TERMS, now=0)
        else:
            self._promised[name] += 1

    def assign(self, functions: Sequence[Function]) -> Assignment | None:
        """Assign all functions at once, as `assign` does; None if they do not fit now."""
        try:
            return assign_on(self.ledger, functions)
        except NotAssigned:
            return None


def _is_empty(asked: Request) -> bool:
    return not asked.amounts and asked.gpu is None
