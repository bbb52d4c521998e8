"""Which nodes a graph can use: a copy of the ledger as of a moment ago, to decide on.

What is decided here may be outdated when it is asked for: then it is refused, and decided again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gridhand.core.allocations import Allocation
from gridhand.core.assignment import Assignment, Costed, assign_on
from gridhand.core.errors import ImpossibleCollocation, NotAssigned, UnknownNode
from gridhand.core.graphs import Function, Group
from gridhand.core.ledger import Ledger, Terms
from gridhand.core.nodes import Health, Node
from gridhand.core.placement import Snapshot
from gridhand.core.refusals import Refusal, could_ever
from gridhand.core.requests import Request
from gridhand.core.survey import could_hold

_TERMS = Terms("graph")


class Cluster:
    """Nodes, and what is held on them."""

    def __init__(self, nodes: Iterable[Node], held: Iterable[Allocation] = ()) -> None:
        self.ledger = Ledger()
        there = {node.name: node for node in nodes}
        devices = {(node.name, gpu.id) for node in there.values() for gpu in node.gpus}
        # Nodes and allocations were asked for one after the other; they may not quite match.
        known = [
            one
            for one in held
            if one.node in there and all((one.node, hold.device) in devices for hold in one.devices)
        ]
        self.ledger.load(there.values(), known)
        self._promised: Counter[str] = Counter()

    def emptied(self) -> Cluster:
        """The same nodes with nothing on them, and all of them well."""
        uses = self.ledger.nodes.values()
        return Cluster(replace(use.node, health=Health.UP, draining=False) for use in uses)

    def is_down(self, name: str) -> bool:
        """Whether the node is gone, or as good as."""
        use = self.ledger.nodes.get(name)
        return use is None or use.node.health is Health.DOWN

    # ---- could it ever run

    def check(self, groups: Iterable[Group]) -> None:
        """Raise for what no node there is could run, even if it were empty."""
        snapshot = Snapshot(self.ledger)
        known: dict[Request, bool] = {}
        for group in groups:
            asks = self._asked(group)
            for one, asked in zip(group.functions, asks, strict=True):
                if not _is_nothing(asked) and asked not in known:
                    known[asked] = could_ever(asked, snapshot)
                if not known.get(asked, True):
                    raise Refusal(asked, snapshot).error().about(f"function {one.id}")
            if len(asks) > 1 and not all(map(_is_nothing, asks)) and not self._able(group):
                raise ImpossibleCollocation(
                    group.ids, "no node could hold what each of them needs, one after another"
                )

    def _asked(self, group: Group) -> list[Request]:
        try:
            if group.node is not None:
                self.ledger.node(group.node)
        except UnknownNode as unknown:
            raise unknown.about(f"function {group.ids[0]}") from None
        return [replace(one.asked(), node=group.node) for one in group.functions]

    def _able(self, group: Group) -> list[str]:
        """The nodes that could hold each of them, if not all at once."""
        asks = {asked for asked in self._asked(group) if not _is_nothing(asked)}
        nodes = self.ledger.nodes
        return [
            name
            for name in self.ledger.names
            if all(could_hold(asked, nodes[name].node) for asked in asks)
        ]

    # ---- where to

    def choose(self, group: Group) -> str | None:
        """A node for functions that go together; None if none of those there are will do.

        One with room for all of them at once, if there is one: what they need adds up. It counts
        as taken for those that are chosen for next.
        """
        able = self._able(group)
        nodes = self.ledger.nodes
        costed = Costed(group)
        for name in able:
            placements = costed.placements(nodes[name])
            if placements is not None:
                self.ledger.grant(placements, _TERMS, now=0)
                return name
        able = [name for name in able if nodes[name].open] or able
        chosen = min(able, key=self._load, default=None)
        if chosen is not None:
            self._promised[chosen] += len(group.functions)
        return chosen

    def _load(self, name: str) -> int:
        return len(self.ledger.nodes[name].allocations) + self._promised[name]

    def promise(self, one: Function, name: str) -> None:
        """Count something as taken that is to run there, and does not hold anything yet."""
        use = self.ledger.nodes.get(name)
        placements = None if use is None else Costed(Group((one,), name)).placements(use)
        if placements is not None:
            self.ledger.grant(placements, _TERMS, now=0)
        else:
            self._promised[name] += 1

    def assign(self, functions: Sequence[Function]) -> Assignment | None:
        """A node for every function, all of them at once, as Handoff chooses; None if not now."""
        try:
            return assign_on(self.ledger, functions)
        except NotAssigned:
            return None


def _is_nothing(asked: Request) -> bool:
    return not asked.amounts and asked.gpu is None
