"""Gangs: places for several requests at once, all of them or none.

Each is placed with the ones before it taken. Where that leaves one of them without a place, those
with the fewest places and the largest go first; where that fails too, other places are tried for a
while, and at last more modest alternatives. For pieces that are all alike and have no alternatives,
the usual gang, the first attempt decides. To lay a gang is hard in general: one so contrived that
these tries do not settle it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gridhand.core.collocation import merged, pick_together
from gridhand.core.errors import InvalidRequest
from gridhand.core.gpus import GpuAsk
from gridhand.core.ledger import Placement, Terms
from gridhand.core.placement import (
    SMALL_CLUSTER,
    Snapshot,
    count_fitting,
    permits,
    place,
    ranked,
)
from gridhand.core.refusals import Refusal
from gridhand.core.requests import Layout, Request
from gridhand.core.resources import UNIT, Resources
from gridhand.core.strategies import OwnStrategy
from gridhand.core.usage import NodeUse

MOST_TRIES = 300
MOST_KINDS = 100
MOST_NODES_TRIED = 100  # of those whose sums would do for a gang that is to be together
MOST_NODES_PACKED = 10
_NOBODY = Terms("")


def place_group(
    asks: Sequence[Request],
    snapshot: Snapshot,
    strategy: OwnStrategy | None,
    *,
    now: int,
    layout: Layout = Layout.ANY,
) -> list[Placement] | Refusal:
    """Places for all of `asks`, in their order, or why one of them has none.

    The ledger is as before when this returns: granting them is another step.
    """
    search = _Search(asks, snapshot, strategy, now, layout)
    order = list(range(len(asks)))
    if layout is Layout.TOGETHER:
        found, refusal = search.together()
    else:
        found, refusal = search.greedily(asks, order)
        if found is None and search.could_lie_otherwise():
            hardest = _hardest_first(asks, snapshot)
            found = (
                search.greedily(asks, hardest)[0]
                or search.thoroughly(hardest)
                or search.with_less(hardest)
            )
    if found is None:
        assert refusal is not None
        return refusal
    return [found[index] for index in order]


_Found = dict[int, Placement]


class _Search:
    """Tries places on the ledger itself, and takes them back."""

    def __init__(
        self,
        asks: Sequence[Request],
        snapshot: Snapshot,
        strategy: OwnStrategy | None,
        now: int,
        layout: Layout,
    ) -> None:
        self.asks, self.snapshot, self.strategy = asks, snapshot, strategy
        self.now, self.layout = now, layout
        small = len(snapshot.ledger.names) <= SMALL_CLUSTER
        self.tries = MOST_TRIES if small else MOST_TRIES // 10  # each looks at all nodes

    def could_lie_otherwise(self) -> bool:
        """Whether another try may help: not if all are alike, or one fits nowhere even alone."""
        nodes = self.snapshot.ledger.nodes
        return any(one != self.asks[0] or one.alternatives for one in self.asks) and all(
            (one.node is None or one.node in nodes)
            and isinstance(place(one, self.snapshot, self.strategy), Placement)
            for one in self.asks
        )

    def greedily(
        self, asks: Sequence[Request], order: Sequence[int]
    ) -> tuple[_Found | None, Refusal | None]:
        """The best place for one after another."""
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

    def thoroughly(self, order: Sequence[int]) -> _Found | None:
        """Any places that will do: other nodes are tried for the earlier ones, best first."""
        found = _Found()
        mark = self.snapshot.ledger.mark()
        try:
            return found if self._deeper(order, found) else None
        finally:
            self.snapshot.ledger.rollback(mark)

    def _deeper(self, order: Sequence[int], found: _Found) -> bool:
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
                if self._deeper(order[1:], found):
                    return True
                self.snapshot.ledger.rollback(mark)
                del found[index]
        return False

    def with_less(self, order: Sequence[int]) -> _Found | None:
        """The first wishes of some may leave too little for others: all try their later ones."""
        for skipped in range(1, 1 + max(len(one.alternatives) for one in self.asks)):
            found = self.greedily([_from_choice(one, skipped) for one in self.asks], order)[0]
            if found is not None:
                return found
        return None

    def together(self) -> tuple[_Found | None, Refusal | None]:
        """All on one node: what they need adds up, and its devices must do for each."""
        total = _together(self.asks)
        order = _hardest_first(self.asks, self.snapshot)
        nodes, needed = self.snapshot.ledger.nodes, _shares_of_all(self.asks)
        roomy = [
            name
            for name in ranked(total, self.snapshot, self.strategy)
            if not needed or needed <= _shares_left(nodes[name])
        ]
        for number, name in enumerate(roomy[:MOST_NODES_TRIED]):
            found = self._on(name, order, pack=number < MOST_NODES_PACKED)
            if found is not None:
                return found, None
        return None, Refusal(total, self.snapshot).settled()

    def _on(self, name: str, order: Sequence[int], *, pack: bool) -> _Found | None:
        """All of them on that node: one after another, with less, or with devices for all."""
        most = max(len(one.alternatives) for one in self.asks)
        for skipped in range(most + 1):
            pinned = [_from_choice(one, skipped).pinned(name) for one in self.asks]
            found, _ = self.greedily(pinned, order)
            if found is not None:
                return found
        return self._packed(name) if pack else None

    def _packed(self, name: str) -> _Found | None:
        """All on that node, with their devices picked together. The plain amounts fit there."""
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
        if self.layout is not Layout.APART or not found:
            return asked
        return asked.avoiding(placed.node for placed in found.values())

    def _take(self, index: int, placed: Placement, found: _Found) -> None:
        whole = self.asks[index]
        self.snapshot.ledger.grant([placed], _NOBODY, now=self.now)
        free = replace(placed.asked, node=whole.node, exclude=whole.exclude)
        found[index] = placed._replace(asked=free, whole=whole)


def _together(asks: Sequence[Request]) -> Request:
    """One request for the least that all of them need, and where they may go."""
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
        alternatives=(),
    )


def _devices_of_all(asks: Sequence[Request]) -> GpuAsk | None:
    """The devices that are needed in any case: of all, where they are whole and of one kind."""
    return merged([one.gpu for one in asks if one.gpu is not None and not one.alternatives])


def _shares_of_all(asks: Sequence[Request]) -> int:
    """The shares of devices that are needed in any case, added up."""
    gpus = [one.gpu for one in asks if one.gpu is not None and not one.alternatives]
    return sum(gpu.devices * gpu.share for gpu in gpus)


def _shares_left(use: NodeUse) -> int:
    return sum([device.free_share() for device in use.devices.values()])


def _from_choice(asked: Request, skipped: int) -> Request:
    """The request without its first so many choices; the last one stays."""
    choices = list(asked.choices())
    choices = choices[min(skipped, len(choices) - 1) :]
    return replace(choices[0], alternatives=tuple(choices[1:]))


def _hardest_first(asks: Sequence[Request], snapshot: Snapshot) -> list[int]:
    """Those with the fewest places first, then those that want a kind of device, the largest."""
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
    """How much of the largest node it takes, of whatever it takes most."""
    gpu = asked.gpu
    devices = gpu.devices * (gpu.share or UNIT) / UNIT if gpu is not None else 0.0
    largest = snapshot.largest()
    parts = [amount / largest.get(name, amount) for name, amount in asked.amounts.pairs]
    return max([devices, *parts])
