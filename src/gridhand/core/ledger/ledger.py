"""Ledger: the one record of nodes, of what is held on them, and of the jobs that hold it.

Every change goes through `_apply` and is kept as a pair of before and after, so that the keeper can
write it down, and undo it in reverse where it could not be written. What is free is never stored:
it is a node's capacity less what its live allocations hold.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from gridhand.core.allocations import Allocation, Lifetime, Move, State, advance
from gridhand.core.errors import (
    HolderBusy,
    InvalidInput,
    NodeInUse,
    UnknownAllocation,
    UnknownNode,
)
from gridhand.core.gpus import DeviceHold, GpuHealth
from gridhand.core.jobbook import JobBook
from gridhand.core.jobs import Job
from gridhand.core.nodes import Health, Node
from gridhand.core.requests import Layout, Request
from gridhand.core.resources import nearest_name
from gridhand.core.touched import Touched
from gridhand.core.usage import NodeUse

_NO_FOREIGN: Mapping[str, int] = MappingProxyType({})


class Change(NamedTuple):
    """One row before and after. Of a new row there is no before, of a removed node no after."""

    kind: str
    subject: str
    before: Any
    after: Any
    why: str


class Terms(NamedTuple):
    """For whom something is held, and for how long."""

    owner: str
    holder: str | None = None
    state: State = State.ACTIVE
    lifetime: Lifetime = Lifetime.UNTIL_RELEASED
    ttl_ms: int | None = None
    layout: Layout = Layout.ANY  # of a group


class Placement(NamedTuple):
    """A decision to be applied: this request, on this node, on these devices.

    `whole` is the request as it was made, where `asked` is one of its alternatives.
    """

    asked: Request
    node: str
    devices: tuple[DeviceHold, ...]
    whole: Request | None = None


class Ledger:
    """Nodes, live allocations, open jobs, and the changes made since they were last taken."""

    def __init__(self, *, epoch: int = 1, next_number: int = 1, next_job: int = 1) -> None:
        self.epoch = epoch
        self.next_number = next_number
        self.jobs = JobBook(next_job)
        self.nodes: dict[str, NodeUse] = {}
        self.names: list[str] = []  # of the nodes, in order
        self.live: dict[str, Allocation] = {}
        self.changes: list[Change] = []
        self.closed: dict[str, Allocation] = {}  # by these changes
        self.touched = Touched()
        # Since the last settling: ids, where they went, and what was chosen there before.
        self._chosen: list[tuple[str, str, int]] = []
        self._chosen_at: dict[str, int] = {}  # of each node, though it may be gone for now
        self._holders: dict[tuple[str, str], str] = {}
        self._groups: dict[str, list[str]] = {}
        self._device_nodes: dict[str, str] = {}
        self._deadlines: list[tuple[int, int, str]] = []

    @property
    def last_chosen(self) -> str | None:
        """The node on which something was last granted that could have gone elsewhere."""
        return self._chosen[-1][1] if self._chosen else None

    # ---- nodes

    def node(self, name: str) -> NodeUse:
        found = self.nodes.get(name)
        if found is None:
            raise UnknownNode(name, nearest_name(name, self.names, cutoff=0.5))
        return found

    def register(self, node: Node) -> Node:
        """Add a node, or describe again one that is there; what is held there stays held.

        A device that is no longer described, but on which something is held, stays as lost.
        """
        for gpu in node.gpus:
            if self._device_nodes.get(gpu.id, node.name) != node.name:
                raise InvalidInput("gpu id", gpu.id, f"ids not on {self._device_nodes[gpu.id]}")
        known = self.nodes.get(node.name)
        if known is None:
            self._record("node.registered", node.name, None, node)
            return node
        gone = known.lost_with_holds(frozenset(gpu.id for gpu in node.gpus))
        node = node.keeping(replace(use.gpu, health=GpuHealth.LOST) for use in gone)
        node = replace(node, draining=known.node.draining)
        if node != known.node:
            self._record("node.registered", node.name, known.node, node)
        return node

    def set_draining(self, name: str, draining: bool) -> Node:
        return self._describe(
            name, "node.drained" if draining else "node.resumed", "", draining=draining
        )

    def set_health(self, name: str, health: Health, *, now: int, why: str = "") -> Node:
        """Mark a node. What was held on a node that is down is lost, and free for others."""
        node = self._describe(name, f"node.{health}", why, health=health)
        if health is Health.DOWN:
            self._lose_all(name, now=now, why=why or f"node {name} is down")
        return node

    def unregister(self, name: str, *, now: int, force: bool = False) -> None:
        """Remove a node. With something held on it this is refused, or, by force, loses that."""
        use = self.node(name)
        if use.allocations and not force:
            raise NodeInUse(name, len(use.allocations))
        self._lose_all(name, now=now, why=f"node {name} was removed")
        self._record("node.removed", name, use.node, None)

    def _describe(self, name: str, kind: str, why: str, **fields: Any) -> Node:
        before = self.node(name).node
        after = replace(before, **fields)
        if after != before:
            self._record(kind, name, before, after, why)
        return after

    def _lose_all(self, name: str, *, now: int, why: str) -> None:
        for id in list(self.node(name).allocations):
            if id in self.live:  # not gone yet with another of its group
                self.move(id, Move.LOSE, now=now, why=why)

    # ---- allocations

    def get(self, id: str) -> Allocation:
        found = self.live.get(id)
        if found is None:
            raise UnknownAllocation(id)
        return found

    def held_by(self, terms: Terms, asked: Sequence[Request]) -> list[Allocation]:
        """What the holder has already, if it asks for that again; `HolderBusy` if for another."""
        if terms.holder is None:
            return []
        names = _holders(terms.holder, len(asked))
        ids = [self._holders.get((terms.owner, name)) for name in names]
        other = [self._holders.get((terms.owner, name)) for name in _clashing(terms.holder)]
        taken = [id for id in (*ids, *other) if id is not None]
        if not taken:
            return []
        held = [self.live[id] for id in ids if id is not None]
        same = len(held) == len(asked) and all(
            has.asked == _asked(one, terms) for has, one in zip(held, asked, strict=True)
        )
        if not same or len(self._members(held[0])) != len(held):
            raise HolderBusy(terms.holder, taken[0])
        return held

    def held_under(self, owner: str, name: str) -> Allocation | None:
        """What an owner holds under that name, if it is one thing."""
        return self.live.get(self._holders.get((owner, name), ""))

    def nodes_of(self, owner: str, name: str) -> list[str]:
        """Where an owner's allocation with that id is, or all that is held under that name."""
        held = self.live.get(name)
        if held is not None and held.owner == owner:
            return [held.node]
        ids = [self._holders.get((owner, one)) for one in _clashing(name)]
        return [one.node for id in ids if id is not None for one in self._members(self.live[id])]

    def grant(self, grants: Sequence[Placement], terms: Terms, *, now: int) -> list[Allocation]:
        """Hold all of `grants` as one, or nothing: each is checked again as it is applied."""
        if len(grants) == 1:
            return [self._grant(grants[0], terms.holder, None, terms, now)]
        holders: Sequence[str | None] = [None] * len(grants)
        if terms.holder is not None:
            holders = _holders(terms.holder, len(grants))
        group = f"g{self.epoch}-{self.next_number}"
        mark = self.mark()
        try:
            return [
                self._grant(one, holder, group, terms, now)
                for one, holder in zip(grants, holders, strict=True)
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
        id = f"a{self.epoch}-{number}"
        self.next_number = number + 1
        ttl_ms = terms.ttl_ms
        allocation = Allocation(
            id, number, self.epoch, terms.owner, holder or f"#{id}", node, asked.amounts, devices,
            terms.state, terms.lifetime, None if ttl_ms is None else now + ttl_ms, ttl_ms, group,
            None if holder is None else _asked(whole or asked, terms), asked.quality, now,
        )  # fmt: skip
        self._record(f"allocation.{terms.state}", id, None, allocation)
        if asked.node is None:
            use = self.nodes[node]
            self._chosen.append((id, node, use.chosen))
            use.chosen = self._chosen_at[node] = number
        return allocation

    def move(
        self, id: str, move: Move, *, now: int, ttl_ms: int | None = None, why: str = ""
    ) -> Allocation:
        """Move a live allocation, and with it the whole group it was granted with.

        What a job runs in is not free before that has ended, though its holder gives it up.
        """
        asked_for = self.get(id)
        place = asked_for.node
        for held in self._members(asked_for):
            after = advance(held, move, now=now, ttl_ms=ttl_ms)
            kind = _KINDS[move, after.state]
            gone = move is Move.LOSE and held.node == place
            by_hand = held.lifetime is not Lifetime.JOB
            if by_hand and not after.live and not gone and self.jobs.lined_up(held.id):
                kind, after = "allocation.left", held.left_to_jobs()
            if held.id == id:
                asked_for = after
            self._record(kind, held.id, held, after, why)
        return asked_for

    def expire_due(self, now: int) -> list[Allocation]:
        """Expire what is due by `now`."""
        expired: list[Allocation] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, _, id = heapq.heappop(self._deadlines)
            held = self.live.get(id)
            if held is not None and held.deadline == deadline:
                expired.append(self.move(id, Move.EXPIRE, now=now, why="its time was over"))
        return expired

    def next_deadline(self) -> int | None:
        """When the next reservation or lease is due."""
        while self._deadlines:
            deadline, _, id = self._deadlines[0]
            held = self.live.get(id)
            if held is not None and held.deadline == deadline:
                return deadline
            heapq.heappop(self._deadlines)
        return None

    def _members(self, held: Allocation) -> list[Allocation]:
        if held.group is None:
            return [held]
        return [self.live[id] for id in self._groups[held.group]]

    # ---- jobs

    def put_job(self, kind: str, job: Job, why: str = "") -> Job:
        """Write down a job as it is after a move, or a new one."""
        self._record(kind, job.id, self.jobs.open.get(job.id), job, why)
        return job

    # ---- changes

    def mark(self) -> int:
        """Where the list of changes stands; `rollback` returns there."""
        return len(self.changes)

    def settle(self) -> None:
        """The changes so far are durable: they can no longer be undone."""
        self.changes.clear()
        self.closed.clear()
        self.jobs.over.clear()
        del self._chosen[:-1]

    def rollback(self, mark: int = 0) -> None:
        """Undo every change since `mark`, the last one first."""
        while len(self.changes) > mark:
            _, subject, before, after, _ = self.changes.pop()
            self._apply(after, before)
            if before is None and type(after) is Allocation:
                self._unchoose(subject)
            if type(before) is Allocation and before.live:
                self.nodes[before.node].judge()

    def _unchoose(self, id: str) -> None:
        """A grant is undone, and with it that its node was chosen for it, if it was."""
        if self._chosen and self._chosen[-1][0] == id:
            _, node, chosen = self._chosen.pop()
            self.nodes[node].chosen = self._chosen_at[node] = chosen

    def load(
        self,
        nodes: Iterable[Node],
        allocations: Iterable[Allocation],
        jobs: Iterable[Job] = (),
    ) -> None:
        """Take over rows that were written before. They are facts: nothing is checked again."""
        for node in nodes:
            self._apply(None, node)
        for allocation in allocations:
            self._apply(None, allocation)
        for job in jobs:
            self.jobs.apply(None, job)
        for held in self.live.values():  # the best that can be known of it
            use = self.nodes[held.node]
            use.chosen = self._chosen_at[held.node] = max(use.chosen, held.number)
        newest = max(self.live.values(), key=lambda held: held.number, default=None)
        if newest is not None:
            self._chosen = [(newest.id, newest.node, 0)]
        for use in self.nodes.values():
            use.judge()

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
        if before is not None and before.live:
            self._leave(before)
            if after is not None and not after.live:
                self.closed[after.id] = after
        if after is not None and after.live:
            self._enter(after)
            if before is not None and before.live:
                self.nodes[after.node].judge()  # for a moment it was not counted
            elif before is not None:
                del self.closed[before.id]

    def _enter(self, held: Allocation) -> None:
        self.touched.add(held.node)
        self.live[held.id] = held
        self._holders[held.owner, held.holder] = held.id
        self.nodes[held.node].add(held)
        if held.group is not None:
            insort(self._groups.setdefault(held.group, []), held.id, key=_number)
        if held.deadline is not None:
            heapq.heappush(self._deadlines, (held.deadline, held.number, held.id))
            if len(self._deadlines) > 1000 + 2 * len(self.live):
                self._compact_deadlines()

    def _compact_deadlines(self) -> None:
        """Renewing leaves the old deadline behind; drop those before they pile up."""
        self._deadlines = [
            (held.deadline, held.number, held.id)
            for held in self.live.values()
            if held.deadline is not None
        ]
        heapq.heapify(self._deadlines)

    def _leave(self, held: Allocation) -> None:
        self.touched.add(held.node)
        del self.live[held.id]
        del self._holders[held.owner, held.holder]
        self.nodes[held.node].remove(held)
        if held.group is not None:
            members = self._groups[held.group]
            members.remove(held.id)
            if not members:
                del self._groups[held.group]

    def _apply_node(self, before: Node | None, after: Node | None) -> None:
        for gpu in before.gpus if before else ():
            self._device_nodes.pop(gpu.id, None)
        for gpu in after.gpus if after else ():
            self._device_nodes[gpu.id] = after.name if after else ""
        if after is None:
            name = before.name if before else ""
            del self.nodes[name]
            del self.names[bisect_left(self.names, name)]
            self.touched.shape += 1
        elif before is None and after.name not in self.nodes:
            self.nodes[after.name] = use = NodeUse(after)
            use.chosen = self._chosen_at.get(after.name, 0)
            insort(self.names, after.name)
            self.touched.shape += 1
        else:
            self.nodes[after.name].describe(after)
            if before is None or (before.capacity, before.gpus) != (after.capacity, after.gpus):
                self.touched.shape += 1
        self.touched.add(after.name if after else before.name if before else "")


_KINDS = {
    (Move.CONFIRM, State.ACTIVE): "allocation.confirmed",
    (Move.RENEW, State.ACTIVE): "allocation.renewed",
    (Move.RELEASE, State.RELEASED): "allocation.released",
    (Move.RELEASE, State.EXPIRED): "allocation.expired",
    (Move.EXPIRE, State.EXPIRED): "allocation.expired",
    (Move.LOSE, State.LOST): "allocation.lost",
}


def _asked(asked: Request, terms: Terms) -> str:
    kind = "allocate" if terms.state is State.ACTIVE else "reserve"
    layout = "" if terms.layout is Layout.ANY else f" {terms.layout}"
    return f"{kind} {terms.ttl_ms} {asked.key()}{layout}"


def _holders(holder: str, count: int) -> list[str]:
    """The members of a group hold under numbered names, since a name holds one thing.

    No name that a caller gives has a `#`: neither these nor those made up for nobody can clash.
    """
    return [holder] if count == 1 else [f"{holder}#{index}" for index in range(count)]


def _clashing(holder: str) -> tuple[str, str]:
    """Under a holder there is one allocation or one group, not both."""
    return holder, f"{holder}#0"


def _number(id: str) -> int:
    return int(id.rpartition("-")[2])
