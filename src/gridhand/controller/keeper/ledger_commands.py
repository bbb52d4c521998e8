"""What can be asked of the keeper. Each command decides on the ledger in memory, and nothing else.

A command that raises leaves the ledger as it found it: the keeper rolls back to where it began.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gridhand.core.allocations import Allocation, Lifetime, Move, advance
from gridhand.core.calls import Call, Reply
from gridhand.core.errors import (
    InvalidInput,
    InvalidRequest,
    MoveRefused,
    NotYours,
    UnknownAllocation,
)
from gridhand.core.groups import place_group
from gridhand.core.jobs import Job
from gridhand.core.ledger import Ledger, Placement, Terms
from gridhand.core.nodes import Health, Node
from gridhand.core.placement import Snapshot, place
from gridhand.core.refusals import Refusal
from gridhand.core.requests import Request
from gridhand.core.strategies import OwnStrategy
from gridhand.core.views import allocation_row, node_row
from gridhand.store.base import Store
from gridhand.store.rows import allocation_from_row, node_from_row

_NO_TERMS = Terms("")
_ID = re.compile(r"a\d+-\d+")


@dataclass(slots=True)
class Desk:
    """What a command has before it: the ledger, the time, and what the store was asked for it."""

    ledger: Ledger
    snapshot: Snapshot
    strategy: OwnStrategy | None
    now: int = 0
    past: dict[str, Allocation] = field(default_factory=dict)
    past_jobs: dict[str, Job] = field(default_factory=dict)
    freed: bool = False  # by something that is not in the ledger: strangers left a device

    def find(self, id: str, owner: str) -> Allocation:
        """An allocation of `owner`, live or closed; or what it holds under a name."""
        ledger = self.ledger
        found = ledger.live.get(id) or ledger.closed.get(id) or self.past.get(id)
        if found is None and not _ID.fullmatch(id):  # an id that is over is never another's name
            found = ledger.held_under(owner, id)
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

    def past_jobs(self) -> Iterable[str]:
        """The jobs it names, or arrays of them, that it must know of though they have ended."""
        return ()

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
    wait_ms: int = 0  # for room; not part of what is asked, so a repeat may wait otherwise
    fresh: bool = False  # whether the reply was made for this call, and is not an older one
    until: int | None = None  # when it began to wait: until when it does

    def decide(self, desk: Desk) -> list[Allocation]:
        ledger, terms = desk.ledger, self.terms
        if terms.holder is not None:
            held = ledger.held_by(terms, self.requests)
            if held:
                return held
        self.fresh = True
        snapshot = desk.snapshot
        asked = [near(request, self.owner, ledger) for request in self.requests]
        for request in asked:
            snapshot.learn(request)
        placed: Placement | list[Placement] | Refusal
        if len(asked) == 1:
            placed = place(asked[0], snapshot, desk.strategy)
        else:
            placed = place_group(asked, snapshot, desk.strategy, now=desk.now, layout=terms.layout)
        if isinstance(placed, Refusal):
            raise placed.error()
        grants = [placed] if isinstance(placed, Placement) else placed
        if len(grants) > 1 or asked[0] is not self.requests[0]:
            both = zip(grants, self.requests, strict=True)
            grants = [one._replace(whole=request) for one, request in both]
        return ledger.grant(grants, terms, now=desk.now)

    def body(self) -> str:
        return f"allocate {[one.key() for one in self.requests]} {self.terms}"


def near(asked: Request, owner: str, ledger: Ledger) -> Request:
    """The request with what it is to be near to, or apart from, as names of nodes."""
    if asked.apart_from:
        asked = asked.avoiding(
            node for name in asked.apart_from for node in ledger.nodes_of(owner, name)
        )
    if asked.together_with is None:
        return asked
    nodes = sorted(set(ledger.nodes_of(owner, asked.together_with)))
    if len(nodes) != 1:
        held = "nothing is held under it" if not nodes else f"it is on {', '.join(nodes)}"
        raise InvalidRequest(
            "together_with", asked.together_with, f"what is held on one node: {held}"
        )
    if asked.node not in (None, nodes[0]):
        raise InvalidRequest("node", asked.node, f"{nodes[0]}, where together_with is")
    return asked.pinned(nodes[0])


@dataclass(slots=True)
class MoveOne(HoldingCommand):
    """Confirm, renew or release an allocation, and the group it belongs to."""

    id: str = ""
    move: Move = Move.RELEASE
    ttl_ms: int | None = None

    def decide(self, desk: Desk) -> list[Allocation]:
        found = desk.find(self.id, self.owner)
        if found.lifetime is Lifetime.JOB and found.live:
            jobs = desk.ledger.jobs.holding(found.id)
            if self.move is Move.RELEASE and any(job.work.within == found.id for job in jobs):
                return [found]  # it was given up already, and ends with the job that runs in it
            raise MoveRefused(self.move, found.id, f"job {jobs[0].id if jobs else '?'} holds it")
        if not found.live:
            return [advance(found, self.move, now=desk.now)]
        return [desk.ledger.move(found.id, self.move, now=desk.now, ttl_ms=self.ttl_ms)]

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
        return [self._register(node, desk) for node in self.nodes]

    def _register(self, node: Node, desk: Desk) -> Node:
        """Add a node, without what was measured on its devices when they were here before.

        That is forgotten now and not when they went: had their going failed to be written, they
        would be here still, and in use.
        """
        known = desk.ledger.nodes.get(node.name)
        before = set(known.devices) if known is not None else set()
        registered = desk.ledger.register(node)
        for gpu in node.gpus:
            if gpu.id not in before:
                desk.snapshot.foreign.pop(gpu.id, None)
        return registered

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
        desk.ledger.unregister(self.name, now=desk.now, force=self.force)
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
        before = {id: desk.snapshot.foreign.get(id, 0) for id in devices}
        desk.snapshot.set_foreign(node, used)
        desk.freed |= any(used.get(id, 0) < amount for id, amount in before.items())

    return Read(answer)
