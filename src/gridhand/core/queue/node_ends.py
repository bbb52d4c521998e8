"""NodeEnds: when what is held on each node should end, kept until something changes there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gridhand.core.ledger.allocations import Allocation
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.model.names import AllocationId, NodeName

End = tuple[int, AllocationId]
ExpectedEnd = Callable[[Allocation, Ledger, int], int | None]


class NodeEnds:
    """The expected ends on the nodes of one ledger, the first ones first."""

    def __init__(self, expected_end: ExpectedEnd) -> None:
        self._expected_end = expected_end
        self._ends: dict[NodeName, Sequence[End]] = {}
        self._ledger: Ledger | None = None
        self._seen = -1

    def sync(self, ledger: Ledger) -> None:
        """Forget the ends on nodes that have changed."""
        changed = ledger.touched.since(self._seen) if self._ledger is ledger else None
        if changed is None:
            self._ends.clear()
        for name in changed or ():
            self._ends.pop(name, None)
        self._ledger, self._seen = ledger, ledger.touched.end

    def forget(self, node: NodeName) -> None:
        self._ends.pop(node, None)

    def on(self, use: NodeUsage, ledger: Ledger, now: int) -> Sequence[End]:
        """Return the ends on a node, all of them later than now; what has none is left out."""
        self.sync(ledger)
        known = self._ends.get(use.node.name)
        if known is None or (known and known[0][0] <= now):
            held = (
                (self._expected_end(ledger.live[id], ledger, now), id) for id in use.allocations
            )
            known = self._ends[use.node.name] = sorted(
                (end, id) for end, id in held if end is not None
            )
        return known
