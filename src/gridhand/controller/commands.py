"""What can be asked of the keeper. Each command decides on the ledger in memory, and nothing else.

A command that raises leaves the ledger as it found it: the keeper rolls back to where it began.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gridhand.core.allocations import Allocation, Move, advance
from gridhand.core.calls import Call, Reply
from gridhand.core.errors import InvalidInput, NotYours, UnknownAllocation
from gridhand.core.ledger import Ledger, Placement, Terms
from gridhand.core.nodes import Health, Node
from gridhand.core.placement import Refusal, Snapshot, place
from gridhand.core.requests import Request
from gridhand.core.strategies import Strategy
from gridhand.core.views import allocation_row, node_row
from gridhand.store.base import Store
from gridhand.store.rows import allocation_from_row, node_from_row

_NO_TERMS = Terms("")


@dataclass(slots=True)
class Desk:
    """What a command has before it: the ledger, the time, and what the store was asked for it."""

    ledger: Ledger
    snapshot: Snapshot
    strategy: Strategy
    now: int = 0
    past: dict[str, Allocation] = field(default_factory=dict)

    def find(self, id: str, owner: str) -> Allocation:
        """An allocation of `owner`, live or closed."""
        ledger = self.ledger
        found = ledger.live.get(id) or ledger.closed.get(id) or self.past.get(id)
        if found is None:
            raise UnknownAllocation(id)
        if found.owner != owner:
            raise NotYours(id, owner)
        return found


@dataclass(slots=True)
class Command(Call[Reply]):
    """A change somebody asks for. `op_id` makes it safe to ask again."""

    owner: str
    op_id: str | None = None

    def decide(self, desk: Desk) -> Reply:
        raise NotImplementedError

    def gives_back(self) -> bool:
        """Whether it frees something, and so must work even when the disk is full."""
        return False

    def body(self) -> str:
        """The same text for the same call."""
        raise NotImplementedError

    def encode(self, reply: Reply) -> str:
        """The reply as text, for those who ask again."""
        raise NotImplementedError

    def decode(self, text: str) -> Reply:
        raise NotImplementedError


@dataclass(slots=True)
class HoldingCommand(Command[list[Allocation]]):
    """A change to allocations; replies with those it is about."""

    def encode(self, reply: list[Allocation]) -> str:
        return json.dumps([allocation_row(held) for held in reply])

    def decode(self, text: str) -> list[Allocation]:
        return [allocation_from_row(row) for row in json.loads(text)]


@dataclass(slots=True)
class Allocate(HoldingCommand):
    """Hold resources: all of the requests as one group, or nothing."""

    requests: tuple[Request, ...] = ()
    terms: Terms = _NO_TERMS
    fresh: bool = False  # whether the reply was made for this call, and is not an older one

    def decide(self, desk: Desk) -> list[Allocation]:
        ledger, terms = desk.ledger, self.terms
        if terms.holder is not None:
            held = ledger.held_by(terms, self.requests)
            if held:
                return held
        self.fresh = True
        if len(self.requests) == 1:
            placed = place(self.requests[0], desk.snapshot, desk.strategy)
            if isinstance(placed, Refusal):
                raise placed.error()
            return ledger.grant([placed], terms, now=desk.now)
        return ledger.grant(self._place_all(desk), terms, now=desk.now)

    def _place_all(self, desk: Desk) -> list[Placement]:
        """Places for every member, each decided with the ones before it taken."""
        mark = desk.ledger.mark()
        placements: list[Placement] = []
        try:
            for request in self.requests:
                placed = place(request, desk.snapshot, desk.strategy)
                if isinstance(placed, Refusal):
                    raise placed.error()
                desk.ledger.grant([placed], Terms(self.owner), now=desk.now)
                placements.append(placed)
        finally:
            desk.ledger.rollback(mark)
        return placements

    def body(self) -> str:
        return f"allocate {[one.key() for one in self.requests]} {self.terms}"


@dataclass(slots=True)
class MoveOne(HoldingCommand):
    """Confirm, renew or release an allocation, and the group it belongs to."""

    id: str = ""
    move: Move = Move.RELEASE
    ttl_ms: int | None = None

    def decide(self, desk: Desk) -> list[Allocation]:
        found = desk.find(self.id, self.owner)
        if not found.live:
            return [advance(found, self.move, now=desk.now)]
        return [desk.ledger.move(self.id, self.move, now=desk.now, ttl_ms=self.ttl_ms)]

    def gives_back(self) -> bool:
        return self.move is Move.RELEASE

    def body(self) -> str:
        return f"{self.move} {self.id} {self.ttl_ms}"


@dataclass(slots=True)
class NodeCommand(Command[list[Node]]):
    """A change to the inventory; replies with the nodes it changed."""

    def encode(self, reply: list[Node]) -> str:
        return json.dumps([node_row(node) for node in reply])

    def decode(self, text: str) -> list[Node]:
        return [node_from_row(row) for row in json.loads(text)]


@dataclass(slots=True)
class Register(NodeCommand):
    """Add nodes, or describe again ones that are there."""

    nodes: tuple[Node, ...] = ()

    def decide(self, desk: Desk) -> list[Node]:
        return [desk.ledger.register(node) for node in self.nodes]

    def body(self) -> str:
        return f"register {json.dumps([node_row(node) for node in self.nodes], sort_keys=True)}"


@dataclass(slots=True)
class SetDraining(NodeCommand):
    """Give a node no new work, or give it work again."""

    name: str = ""
    draining: bool = True

    def decide(self, desk: Desk) -> list[Node]:
        return [desk.ledger.set_draining(self.name, self.draining)]

    def body(self) -> str:
        return f"draining {self.name} {self.draining}"


@dataclass(slots=True)
class SetHealth(NodeCommand):
    """Mark a node as up, suspect or down."""

    name: str = ""
    health: Health = Health.UP
    why: str = ""

    def decide(self, desk: Desk) -> list[Node]:
        return [desk.ledger.set_health(self.name, self.health, now=desk.now, why=self.why)]

    def body(self) -> str:
        return f"health {self.name} {self.health} {self.why}"


@dataclass(slots=True)
class Unregister(NodeCommand):
    """Remove a node."""

    name: str = ""
    force: bool = False

    def decide(self, desk: Desk) -> list[Node]:
        devices = list(desk.ledger.node(self.name).devices)
        desk.ledger.unregister(self.name, now=desk.now, force=self.force)
        for id in devices:  # measured on a node that is gone
            desk.snapshot.foreign.pop(id, None)
        return []

    def body(self) -> str:
        return f"unregister {self.name} {self.force}"


class Read(Call[Reply]):
    """A question: answered after the batch it came with is durable, from what is then true."""

    __slots__ = ("answer",)

    def __init__(self, answer: Callable[[Desk], Reply]) -> None:
        self.answer = answer


class AskStore(Call[Reply]):
    """A question to the store itself, or maintenance of it; answered from the store's thread."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[Store, int], Reply]) -> None:
        self.call = call


def set_foreign(node: str, used: Mapping[str, int]) -> Read[None]:
    """Take on what strangers were measured to use. Measured, so not in the ledger nor the store."""

    def answer(desk: Desk) -> None:
        devices = desk.ledger.node(node).devices
        for id in used:
            if id not in devices:
                raise InvalidInput("gpu id", id, f"a device of {node}")
        for id in devices:
            desk.snapshot.foreign.pop(id, None)
        desk.snapshot.foreign.update({id: amount for id, amount in used.items() if amount})

    return Read(answer)
