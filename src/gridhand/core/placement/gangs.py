"""Gang placement: nodes for several requests at once, for all of them or for none.

First each request is placed on what the ones before it leave. If that fails, the requests with the
fewest possible nodes and the largest go first; then other nodes are tried for a limited number of
times, and at last the more modest alternatives. For equal requests without alternatives, the usual
gang, the first attempt is final. The problem is NP-hard in general: a gang that these attempts do
not settle is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gridhand.core.errors import InvalidRequest
from gridhand.core.explain.refusal import Refusal
from gridhand.core.ledger.allocations import Terms
from gridhand.core.ledger.ledger import Placement
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.model.gpus import GpuRequest
from gridhand.core.model.names import NodeName
from gridhand.core.model.requests import GangLayout, Request
from gridhand.core.model.resources import UNIT, Resources
from gridhand.core.placement.device_picks import merged, pick_together
from gridhand.core.placement.place import count_fitting, place, ranked
from gridhand.core.placement.snapshot import SMALL_CLUSTER, Snapshot, permits
from gridhand.core.placement.strategies import OwnStrategy

MOST_TRIES = 300
MOST_KINDS = 100
MOST_NODES_TRIED = 100  # of those with enough in total for a gang that has to be on one node
MOST_NODES_PACKED = 10
_NOBODY = Terms("")


def place_group(
    asks: Sequence[Request],
    snapshot: Snapshot,
    strategy: OwnStrategy | None,
    *,
    now: int,
    layout: GangLayout = GangLayout.ANY,
) -> list[Placement] | Refusal:
    """Return placements for all of `asks`, in their order, or the refusal of one of them.

    The ledger is unchanged when this returns: granting the placements is a separate step.
    """
    search = _Search(asks, snapshot, strategy, now, layout)
    order = list(range(len(asks)))
    if layout is GangLayout.TOGETHER:
        found, refusal = search.together()
    else:
        found, refusal = search.place_in_order(asks, order)
        if found is None and search.can_retry():
            hardest = _hardest_first(asks, snapshot)
            found = (
                search.place_in_order(asks, hardest)[0]
                or search.backtrack(hardest)
                or search.with_alternatives(hardest)
            )
    if found is None:
        assert refusal is not None
        return refusal
    return [found[index] for index in order]


_Found = dict[int, Placement]


class _Search:
    """A search that grants placements in the ledger itself and rolls them back."""

    def __init__(
        self,
        asks: Sequence[Request],
        snapshot: Snapshot,
        strategy: OwnStrategy | None,
        now: int,
        layout: GangLayout,
    ) -> None:
        self.asks, self.snapshot, self.strategy = asks, snapshot, strategy
        self.now, self.layout = now, layout
        small = len(snapshot.ledger.names) <= SMALL_CLUSTER
        self.tries = MOST_TRIES if small else MOST_TRIES // 10  # each try examines all nodes

    def can_retry(self) -> bool:
        """Return whether another attempt may help: no if all are equal or one alone has no room."""
        nodes = self.snapshot.ledger.nodes
        return any(one != self.asks[0] or one.alternatives for one in self.asks) and all(
            (one.node is None or one.node in nodes)
            and isinstance(place(one, self.snapshot, self.strategy), Placement)
            for one in self.asks
        )

    def place_in_order(
        self, asks: Sequence[Request], order: Sequence[int]
    ) -> tuple[_Found | None, Refusal | None]:
        """Place one after another, each on its best node."""
        ledger, found = self.snapshot.ledger, _Found()
        mark = ledger.mark()
        try:
            for index in order:
                placed = place(self._narrowed(asks[index], found), self.snapshot, self.strategy)
                if isinstance(placed, Refusal):
                    return None, placed.settled()
                self._take(index, placed, found)
        finally:
            ledger.rollback(mark)
        return found, None

    def backtrack(self, order: Sequence[int]) -> _Found | None:
        """Try other nodes for earlier requests, best first, until all fit."""
        found = _Found()
        mark = self.snapshot.ledger.mark()
        try:
            return found if self._backtrack(order, found) else None
        finally:
            self.snapshot.ledger.rollback(mark)

    def _backtrack(self, order: Sequence[int], found: _Found) -> bool:
        if not order:
            return True
        index = order[0]
        narrowed = self._narrowed(self.asks[index], found)
        mark = self.snapshot.ledger.mark()
        for choice in narrowed.choices():
            for name in ranked(choice, self.snapshot, self.strategy):
                self.tries -= 1
                if self.tries < 0:
                    return False
                placed = place(replace(choice, node=name), self.snapshot)
                assert isinstance(placed, Placement)
                self._take(index, placed, found)
                if self._backtrack(order[1:], found):
                    return True
                self.snapshot.ledger.rollback(mark)
                del found[index]
        return False

    def with_alternatives(self, order: Sequence[int]) -> _Found | None:
        """Place all by later alternatives: the first choices may leave too little for others."""
        for skipped in range(1, 1 + max(len(one.alternatives) for one in self.asks)):
            found = self.place_in_order([_from_choice(one, skipped) for one in self.asks], order)[0]
            if found is not None:
                return found
        return None

    def together(self) -> tuple[_Found | None, Refusal | None]:
        """Place all on one node, with enough in total and suitable devices for each."""
        total = _together(self.asks)
        order = _hardest_first(self.asks, self.snapshot)
        nodes, needed = self.snapshot.ledger.nodes, _shares_of_all(self.asks)
        roomy = [
            name
            for name in ranked(total, self.snapshot, self.strategy)
            if not needed or needed <= _shares_left(nodes[name])
        ]
        for number, name in enumerate(roomy[:MOST_NODES_TRIED]):
            found = self._place_on(name, order, pack=number < MOST_NODES_PACKED)
            if found is not None:
                return found, None
        return None, Refusal(total, self.snapshot).settled()

    def _place_on(self, name: NodeName, order: Sequence[int], *, pack: bool) -> _Found | None:
        """Place all on that node: in order, by alternatives, or with devices picked together."""
        most = max(len(one.alternatives) for one in self.asks)
        for skipped in range(most + 1):
            pinned = [_from_choice(one, skipped).pinned(name) for one in self.asks]
            found, _ = self.place_in_order(pinned, order)
            if found is not None:
                return found
        return self._pick_together(name) if pack else None

    def _pick_together(self, name: NodeName) -> _Found | None:
        """Place all on that node and pick their devices together. The other amounts fit there."""
        use, foreign = self.snapshot.ledger.nodes[name], self.snapshot.foreign
        asks = [one.gpu for one in self.asks if one.gpu is not None]
        permitted = all(permits(one, use) and not one.alternatives for one in self.asks)
        picked = pick_together(asks, use.devices.values(), foreign) if permitted and asks else None
        if picked is None:
            return None
        holds = iter(picked)
        return {
            index: Placement(one, name, next(holds) if one.gpu is not None else (), one)
            for index, one in enumerate(self.asks)
        }

    def _narrowed(self, asked: Request, found: _Found) -> Request:
        if self.layout is not GangLayout.APART or not found:
            return asked
        return asked.avoiding(placed.node for placed in found.values())

    def _take(self, index: int, placed: Placement, found: _Found) -> None:
        whole = self.asks[index]
        self.snapshot.ledger.grant([placed], _NOBODY, now=self.now)
        free = replace(placed.asked, node=whole.node, exclude=whole.exclude)
        found[index] = placed._replace(asked=free, whole=whole)


def _together(asks: Sequence[Request]) -> Request:
    """Return one request for the least that all of them need, with all their constraints."""
    amounts = Resources()
    for one in asks:
        choices = [choice.amounts for choice in one.choices()]
        names = {name for choice in choices for name in choice}
        amounts += Resources({name: min(choice[name] for choice in choices) for name in names})
    pins = sorted({one.node for one in asks if one.node is not None})
    if len(pins) > 1:
        raise InvalidRequest("node", pins[1], f"{pins[0]}, as the others that belong together")
    return replace(
        asks[0],
        amounts=amounts,
        gpu=_devices_of_all(asks),
        node=pins[0] if pins else None,
        exclude=frozenset(name for one in asks for name in one.exclude),
        tied_to=next((one.tied_to for one in asks if one.tied_to is not None), None),
        alternatives=(),
    )


def _devices_of_all(asks: Sequence[Request]) -> GpuRequest | None:
    """Return the devices needed in any case: all, if they are whole and of one kind."""
    return merged([one.gpu for one in asks if one.gpu is not None and not one.alternatives])


def _shares_of_all(asks: Sequence[Request]) -> int:
    """Return the sum of the shares of devices that are needed in any case."""
    gpus = [one.gpu for one in asks if one.gpu is not None and not one.alternatives]
    return sum(gpu.devices * gpu.share for gpu in gpus)


def _shares_left(use: NodeUsage) -> int:
    return sum([device.free_share() for device in use.devices.values()])


def _from_choice(asked: Request, skipped: int) -> Request:
    """Return the request without its first `skipped` choices; at least one stays."""
    choices = list(asked.choices())
    choices = choices[min(skipped, len(choices) - 1) :]
    return replace(choices[0], alternatives=tuple(choices[1:]))


def _hardest_first(asks: Sequence[Request], snapshot: Snapshot) -> list[int]:
    """Return the order: fewest fitting nodes first, then a kind of device, then the largest."""
    places: dict[str, int] = {}
    keys = [one.key() for one in asks]
    if len(set(keys)) <= MOST_KINDS:
        for key, one in zip(keys, asks, strict=True):
            if key not in places:
                places[key] = sum(count_fitting(choice, snapshot) for choice in one.choices())
    return sorted(
        range(len(asks)),
        key=lambda index: (
            places.get(keys[index], 0),
            not _narrow(asks[index]),
            -_size(asks[index], snapshot),
            index,
        ),
    )


def _narrow(asked: Request) -> bool:
    gpu = asked.gpu
    return gpu is not None and (gpu.model is not None or gpu.capability is not None)


def _size(asked: Request, snapshot: Snapshot) -> float:
    """Return the largest part of the largest node that the request takes of any resource."""
    gpu = asked.gpu
    devices = gpu.devices * (gpu.share or UNIT) / UNIT if gpu is not None else 0.0
    largest = snapshot.largest()
    parts = [amount / largest.get(name, amount) for name, amount in asked.amounts.pairs]
    return max([devices, *parts])
