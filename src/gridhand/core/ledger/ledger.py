"""Ledger: the one record of nodes, allocations and open jobs.

Every change goes through `_apply` and is kept as a pair of rows, before and after, so that the
keeper can store it, or undo it if it cannot be stored. Free capacity is never stored: it is the
capacity of a node minus what its live allocations hold.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from gridhand.core.errors import (
    HolderBusy,
    InvalidInput,
    NodeInUse,
    UnknownAllocation,
    UnknownNode,
)
from gridhand.core.jobs.job import Job
from gridhand.core.ledger.allocations import (
    EVENT_KINDS,
    Allocation,
    AllocationMove,
    Lifetime,
    Terms,
    advance,
    grant_number,
)
from gridhand.core.ledger.change_log import ChangeLog
from gridhand.core.ledger.deadlines import Deadlines
from gridhand.core.ledger.devices import DeviceHold
from gridhand.core.ledger.holder_names import numbered_holders, stored_names
from gridhand.core.ledger.job_index import JobIndex
from gridhand.core.ledger.leftovers import Leftovers
from gridhand.core.ledger.node_usage import NodeUsage
from gridhand.core.ledger.owner_totals import OwnerTotals
from gridhand.core.ledger.token_index import TokenIndex
from gridhand.core.model.gpus import GpuHealth
from gridhand.core.model.names import AllocationId, AttemptKey, NodeName
from gridhand.core.model.nodes import Health, Node
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import nearest_name
from gridhand.core.model.tokens import Token

_NO_FOREIGN: Mapping[str, int] = MappingProxyType({})


class Change(NamedTuple):
    """One row before and after. A new row has no before, a removed node no after."""

    kind: str
    subject: str
    before: Any
    after: Any
    why: str


class Placement(NamedTuple):
    """A decision to apply: this request, on this node, on these devices.

    `whole` is the request as the caller made it, if `asked` is one of its alternatives.
    """

    asked: Request
    node: NodeName
    devices: tuple[DeviceHold, ...]
    whole: Request | None = None


class Ledger:
    """Nodes, live allocations, open jobs, and the changes that are not yet durable."""

    def __init__(self, *, epoch: int = 1, next_number: int = 1, next_job: int = 1) -> None:
        self.epoch = epoch
        self.machine = ""  # ours, if several share the store: nodes of the others are closed
        self.next_number = next_number
        self.jobs = JobIndex(next_job)
        self.tokens = TokenIndex()
        self.owners = OwnerTotals()
        self.nodes: dict[NodeName, NodeUsage] = {}
        self.names: list[NodeName] = []  # sorted names of the nodes
        self.live: dict[AllocationId, Allocation] = {}
        self.changes: list[Change] = []
        self.closed: dict[AllocationId, Allocation] = {}  # closed by these changes
        self.touched = ChangeLog()
        self.leftovers = Leftovers()
        # Grants since `settle`: allocation id, node, and the node's previous `chosen`.
        self._chosen: list[tuple[AllocationId, NodeName, int]] = []
        self._chosen_at: dict[NodeName, int] = {}  # kept for removed nodes, too
        self._holders: dict[tuple[str, str], AllocationId] = {}
        self._groups: dict[str, list[AllocationId]] = {}
        self._device_nodes: dict[str, NodeName] = {}
        self._deadlines = Deadlines(self.live)

    @property
    def last_chosen(self) -> NodeName | None:
        """The node of the last grant that was not pinned to a node."""
        return self._chosen[-1][1] if self._chosen else None

    # ---- nodes

    def node(self, name: NodeName) -> NodeUsage:
        use = self.nodes.get(name)
        if use is None:
            raise UnknownNode(name, nearest_name(name, self.names, cutoff=0.5))
        return use

    def register(self, node: Node) -> Node:
        """Add a node, or replace its description and keep what is held on it.

        A device that is no longer described but still has holds stays, marked as lost.
        """
        for gpu in node.gpus:
            if self._device_nodes.get(gpu.id, node.name) != node.name:
                raise InvalidInput("gpu id", gpu.id, f"ids not on {self._device_nodes[gpu.id]}")
        known = self.nodes.get(node.name)
        if known is None:
            self._record("node.registered", node.name, None, node)
            return node
        gone = known.held_devices_except(frozenset(gpu.id for gpu in node.gpus))
        node = node.with_lost_gpus(replace(use.gpu, health=GpuHealth.LOST) for use in gone)
        node = replace(node, draining=known.node.draining)
        if node != known.node:
            self._record("node.registered", node.name, known.node, node)
        return node

    def set_draining(self, name: NodeName, draining: bool) -> Node:
        return self._describe(
            name, "node.drained" if draining else "node.resumed", "", draining=draining
        )

    def set_health(
        self, name: NodeName, health: Health, *, now: int, why: str = "", **fields: Any
    ) -> Node:
        """Set the health of a node. When it goes down, all its allocations are lost."""
        node = self._describe(name, f"node.{health}", why, health=health, **fields)
        if health is Health.DOWN:
            self._lose_all(name, now=now, why=why or f"node {name} is down")
        return node

    def unregister(self, name: NodeName, *, now: int, force: bool = False) -> None:
        """Remove a node. Raise NodeInUse if it has allocations; with `force`, lose them."""
        use = self.node(name)
        if use.allocations and not force:
            raise NodeInUse(name, len(use.allocations))
        self._lose_all(name, now=now, why=f"node {name} was removed")
        self._record("node.removed", name, use.node, None)

    def await_exit(self, name: NodeName, attempts: Iterable[AttemptKey]) -> None:
        """Close a node to new work until these attempts, which were given up, have no process."""
        self.leftovers.add(name, attempts)
        self._note_leftovers(name)

    def note_exit(self, attempts: Iterable[AttemptKey]) -> bool:
        """Record that these attempts have no process left; return whether a node opens by it."""
        opened = self.leftovers.remove(attempts)
        for name in opened:
            self._note_leftovers(name)
        return bool(opened)

    def _note_leftovers(self, name: NodeName) -> None:
        use = self.nodes.get(name)
        if use is not None and use.has_leftovers is not (name in self.leftovers):
            use.has_leftovers = name in self.leftovers
            use.update_flags()
            self.touched.add(name)

    def _describe(self, name: NodeName, kind: str, why: str, **fields: Any) -> Node:
        before = self.node(name).node
        after = replace(before, **fields)
        if after != before:
            self._record(kind, name, before, after, why)
        return after

    def _lose_all(self, name: NodeName, *, now: int, why: str) -> None:
        for id in list(self.node(name).allocations):
            if id in self.live:  # it may have been lost with another member of its group
                self.move(id, AllocationMove.LOSE, now=now, why=why)

    # ---- allocations

    def get(self, id: AllocationId) -> Allocation:
        allocation = self.live.get(id)
        if allocation is None:
            raise UnknownAllocation(id)
        return allocation

    def held_by(self, terms: Terms, asked: Sequence[Request]) -> list[Allocation]:
        """Return what the holder already has for the same request; raise HolderBusy for another."""
        if terms.holder is None:
            return []
        names = numbered_holders(terms.holder, len(asked))
        ids = [self._holders.get((terms.owner, name)) for name in names]
        other = [self._holders.get((terms.owner, name)) for name in stored_names(terms.holder)]
        taken = [id for id in (*ids, *other) if id is not None]
        if not taken:
            return []
        held = [self.live[id] for id in ids if id is not None]
        same = len(held) == len(asked) and all(
            old.asked == terms.request_key(new) for old, new in zip(held, asked, strict=True)
        )
        if not same or len(self._members(held[0])) != len(held):
            raise HolderBusy(terms.holder, taken[0])
        return held

    def held_under(self, owner: str, name: str) -> Allocation | None:
        """Return the allocation with this holder, if it is not a group."""
        id = self._holders.get((owner, name))
        return None if id is None else self.live[id]

    def nodes_of(self, owner: str, name: str) -> list[NodeName]:
        """Return the nodes of an owner's allocation, given its id or its holder."""
        held = self.live.get(AllocationId(name))
        if held is not None and held.owner == owner:
            return [held.node]
        ids = [self._holders.get((owner, holder)) for holder in stored_names(name)]
        return [held.node for id in ids if id is not None for held in self._members(self.live[id])]

    def grant(self, grants: Sequence[Placement], terms: Terms, *, now: int) -> list[Allocation]:
        """Grant all of `grants` or nothing; each is checked again as it is applied."""
        if len(grants) == 1:
            return [self._grant(grants[0], terms.holder, None, terms, now)]
        holders: Sequence[str | None] = [None] * len(grants)
        if terms.holder is not None:
            holders = numbered_holders(terms.holder, len(grants))
        group = f"g{self.epoch}-{self.next_number}"
        mark = self.mark()
        try:
            return [
                self._grant(placement, holder, group, terms, now)
                for placement, holder in zip(grants, holders, strict=True)
            ]
        except BaseException:
            self.rollback(mark)
            raise

    def _grant(
        self, placement: Placement, holder: str | None, group: str | None, terms: Terms, now: int
    ) -> Allocation:
        asked, node, devices, whole = placement
        if not self.nodes[node].admits(asked.amounts, devices, _NO_FOREIGN):
            raise ValueError(f"{asked.resources} was granted on {node}, where it does not fit")
        number = self.next_number
        id = AllocationId(f"a{self.epoch}-{number}")
        self.next_number = number + 1
        ttl_ms = terms.ttl_ms
        allocation = Allocation(
            id, number, self.epoch, terms.owner, holder or f"#{id}", node, asked.amounts, devices,
            terms.state, terms.lifetime, None if ttl_ms is None else now + ttl_ms, ttl_ms, group,
            None if holder is None else terms.request_key(whole or asked), asked.quality, now,
        )  # fmt: skip
        self._record(f"allocation.{terms.state}", id, None, allocation)
        if asked.node is None:
            use = self.nodes[node]
            self._chosen.append((id, node, use.chosen))
            use.chosen = self._chosen_at[node] = number
        return allocation

    def move(
        self,
        id: AllocationId,
        move: AllocationMove,
        *,
        now: int,
        ttl_ms: int | None = None,
        why: str = "",
    ) -> Allocation:
        """Apply a move to a live allocation and to the whole group it was granted with.

        An allocation in which a job runs stays until the job ends, even if its holder releases it.
        """
        moved = self.get(id)
        place = moved.node
        for held in self._members(moved):
            if move is AllocationMove.LOSE:
                self.await_exit(held.node, self.jobs.attempts_in(held.id))
            after = advance(held, move, now=now, ttl_ms=ttl_ms)
            kind = EVENT_KINDS[move, after.state]
            gone = move is AllocationMove.LOSE and held.node == place
            by_hand = held.lifetime is not Lifetime.JOB
            if by_hand and not after.live and not gone and self.jobs.count(held.id):
                kind, after = "allocation.left", held.left_to_jobs()
            if held.id == id:
                moved = after
            self._record(kind, held.id, held, after, why)
        return moved

    def expire_due(self, now: int) -> list[Allocation]:
        """Expire all allocations with a deadline of `now` or earlier, and return them."""
        expired: list[Allocation] = []
        while (due := self._deadlines.first()) is not None and due[0] <= now:
            ended = self.move(due[1], AllocationMove.EXPIRE, now=now, why="its deadline passed")
            expired.append(ended)
        return expired

    def next_deadline(self) -> int | None:
        """Return the deadline of the next reservation or lease."""
        due = self._deadlines.first()
        return None if due is None else due[0]

    def _members(self, held: Allocation) -> list[Allocation]:
        if held.group is None:
            return [held]
        return [self.live[id] for id in self._groups[held.group]]

    # ---- jobs

    def put_job(self, kind: str, job: Job, why: str = "") -> Job:
        """Record a new job, or a job after a move."""
        self._record(kind, job.id, self.jobs.open.get(job.id), job, why)
        return job

    def put_token(self, kind: str, token: Token, why: str) -> Token:
        """Record a new token, or a token after a change."""
        self._record(kind, token.id, self.tokens.by_id.get(token.id), token, why)
        return token

    # ---- changes

    def mark(self) -> int:
        """Return the position in the list of changes to which `rollback` can return."""
        return len(self.changes)

    def settle(self) -> None:
        """Forget the changes so far: they are durable and can no longer be undone."""
        self.changes.clear()
        self.closed.clear()
        self.jobs.over.clear()
        del self._chosen[:-1]

    def rollback(self, mark: int = 0) -> None:
        """Undo all changes since `mark`, last one first."""
        while len(self.changes) > mark:
            _, subject, before, after, _ = self.changes.pop()
            self._apply(after, before)
            if before is None and type(after) is Allocation:
                self._undo_choice(subject)
            if type(before) is Allocation and before.live:
                self.note_exit(self.jobs.attempts_in(before.id))  # it was not given up
                self.nodes[before.node].update_flags()

    def _undo_choice(self, id: str) -> None:
        """Restore the previous `chosen` of the node when its last grant is undone."""
        if self._chosen and self._chosen[-1][0] == id:
            _, node, chosen = self._chosen.pop()
            self.nodes[node].chosen = self._chosen_at[node] = chosen

    def load(
        self, nodes: Iterable[Node], allocations: Iterable[Allocation], jobs: Iterable[Job] = ()
    ) -> None:
        """Load stored rows. They are facts: nothing is checked again."""
        for node in nodes:
            self._apply(None, node)
        for allocation in allocations:
            self._apply(None, allocation)
        for job in jobs:
            self.jobs.apply(None, job)
        for held in self.live.values():  # an estimate: which grants were pinned is not stored
            use = self.nodes[held.node]
            use.chosen = self._chosen_at[held.node] = max(use.chosen, held.number)
        newest = max(self.live.values(), key=lambda held: held.number, default=None)
        if newest is not None:
            self._chosen = [(newest.id, newest.node, 0)]
        for use in self.nodes.values():
            use.update_flags()

    def _record(self, kind: str, subject: str, before: Any, after: Any, why: str = "") -> None:
        self._apply(before, after)
        self.changes.append(Change(kind, subject, before, after, why))

    def _apply(self, before: Any, after: Any) -> None:
        if type(after) is Node or type(before) is Node:
            self._apply_node(before, after)
            return
        if type(after) is Job or type(before) is Job:
            self.jobs.apply(before, after)
            return
        if type(after) is Token or type(before) is Token:
            self.tokens.apply(before, after)
            return
        if before is not None and before.live:
            self._leave(before)
            if after is not None and not after.live:
                self.closed[after.id] = after
        if after is not None and after.live:
            self._enter(after)
            if before is not None and before.live:
                self.nodes[after.node].update_flags()  # `_leave` saw it without this allocation
            elif before is not None:
                del self.closed[before.id]

    def _enter(self, held: Allocation) -> None:
        self.touched.add(held.node)
        self.live[held.id] = held
        self._holders[held.owner, held.holder] = held.id
        self.nodes[held.node].add(held)
        self.owners.add(held)
        if held.group is not None:
            insort(self._groups.setdefault(held.group, []), held.id, key=grant_number)
        self._deadlines.add(held)

    def _leave(self, held: Allocation) -> None:
        self.touched.add(held.node)
        del self.live[held.id]
        del self._holders[held.owner, held.holder]
        self.nodes[held.node].remove(held)
        self.owners.remove(held)
        if held.group is not None:
            members = self._groups[held.group]
            members.remove(held.id)
            if not members:
                del self._groups[held.group]

    def _apply_node(self, before: Node | None, after: Node | None) -> None:
        for gpu in before.gpus if before else ():
            self._device_nodes.pop(gpu.id, None)
        node = after or before
        assert node is not None
        name = node.name
        for gpu in after.gpus if after else ():
            self._device_nodes[gpu.id] = name
        if after is None:
            del self.nodes[name]
            del self.names[bisect_left(self.names, name)]
            self.touched.shape += 1
        elif before is None and name not in self.nodes:
            self.nodes[name] = use = NodeUsage(after, self.machine)
            use.chosen = self._chosen_at.get(name, 0)
            self._note_leftovers(name)
            insort(self.names, name)
            self.touched.shape += 1
        else:
            self.nodes[name].describe(after)
            if before is None or (before.capacity, before.gpus) != (after.capacity, after.gpus):
                self.touched.shape += 1
        self.touched.add(name)
