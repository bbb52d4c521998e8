"""Every operation that the keeper of a ledger can run, as plain data with the type of its reply.

A backend runs them: a keeper in this process decides them, a client sends them to a controller,
which reads them back. There are three kinds:

- a `Command` changes the ledger and is durable before it is answered;
- a `Question` changes nothing;
- an `Observation` changes what is known in memory only, such as a measurement.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, dataclass_transform

from gridhand.core.explain.explanation import Explanation
from gridhand.core.jobs.attempt import Reason
from gridhand.core.jobs.job import After, AttemptEnd
from gridhand.core.jobs.spec import JobSpec, Priority
from gridhand.core.ledger.allocations import Allocation, AllocationMove, Terms
from gridhand.core.ledger.status import NodeStatus, Status
from gridhand.core.model.names import AllocationId, JobId, NodeName
from gridhand.core.model.nodes import Health, Node
from gridhand.core.model.requests import Request
from gridhand.core.queue.job_view import JobView
from gridhand.core.rows.jobs import work_row
from gridhand.core.rows.ledger import (
    Event,
    allocation_from_row,
    allocation_row,
    node_from_row,
    node_row,
)

if TYPE_CHECKING:
    from gridhand.audit import Violation

Reply = TypeVar("Reply")
_Class = TypeVar("_Class")

_NO_TERMS = Terms("")


@dataclass_transform(frozen_default=True)
def operation(cls: type[_Class]) -> type[_Class]:
    """Make a dataclass that type checkers take for frozen.

    It is not frozen when it runs: making a frozen one takes a microsecond longer, and a keeper
    runs tens of thousands of operations per second.
    """
    return dataclass(slots=True)(cls)


class Operation(Generic[Reply]):
    """Something asked of whatever keeps the ledger."""

    __slots__ = ()


@operation
class Command(Operation[Reply]):
    """A change that somebody asks for. An `op_id` makes it safe to ask again."""

    owner: str
    op_id: str | None = None

    def frees_resources(self) -> bool:
        """Return whether it frees something, and so must work even when the disk is full."""
        return False

    def named_jobs(self) -> Iterable[str]:
        """Return the jobs and arrays that must be looked up even if they have ended."""
        return ()

    def body(self) -> str:
        """Return a text that is equal for equal operations, to detect a reused op id."""
        raise NotImplementedError

    def encode_reply(self, reply: Reply) -> str:
        """Return the reply as text, to be stored for a repeat of the operation."""
        raise NotImplementedError

    def decode_reply(self, text: str) -> Reply:
        """Read what `encode_reply` wrote, as the reply to a repeat."""
        raise NotImplementedError


class Question(Operation[Reply]):
    """A question, answered from the state after the batch it came with is durable."""

    __slots__ = ()


class Observation(Operation[Reply]):
    """Something that was observed: it changes what is in memory, and is never stored."""

    __slots__ = ()


# ---- allocations


class Granted(NamedTuple):
    """Allocations that were asked for; `fresh` if this very operation made them.

    They are older if the holder had them already, or if the operation was repeated.
    """

    allocations: list[Allocation]
    fresh: bool


@operation
class Allocate(Command[Granted]):
    """Hold resources: all of the requests as one group, or nothing."""

    requests: tuple[Request, ...] = ()
    terms: Terms = _NO_TERMS
    wait_ms: int = 0  # for room; not part of the body, so a repeat may wait for another time
    priority: Priority = Priority.MEDIUM  # while it waits

    def body(self) -> str:
        text = f"allocate {[request.key() for request in self.requests]} {self.terms.key()}"
        # Earlier versions had no priority, and the hash of the text is stored with an op id.
        return text if self.priority is Priority.MEDIUM else f"{text} {self.priority}"

    def encode_reply(self, reply: Granted) -> str:
        return _encode_allocations(reply.allocations)

    def decode_reply(self, text: str) -> Granted:
        return Granted(_decode_allocations(text), fresh=False)


@operation
class MoveAllocation(Command[list[Allocation]]):
    """Confirm, renew or release an allocation and the group it belongs to."""

    id: str = ""
    move: AllocationMove = AllocationMove.RELEASE
    ttl_ms: int | None = None

    def frees_resources(self) -> bool:
        return self.move is AllocationMove.RELEASE

    def body(self) -> str:
        return f"{self.move} {self.id} {self.ttl_ms}"

    def encode_reply(self, reply: list[Allocation]) -> str:
        return _encode_allocations(reply)

    def decode_reply(self, text: str) -> list[Allocation]:
        return _decode_allocations(text)


@operation
class EndWithSession(Command[list[Allocation]]):
    """Release an allocation of a session, unless it has ended or has become a lease."""

    id: AllocationId = AllocationId("")

    def frees_resources(self) -> bool:
        return True


def _encode_allocations(allocations: list[Allocation]) -> str:
    return json.dumps([allocation_row(allocation) for allocation in allocations])


def _decode_allocations(text: str) -> list[Allocation]:
    return [allocation_from_row(row) for row in json.loads(text)]


@operation
class Fits(Question[bool]):
    """Ask whether a request would be granted now."""

    owner: str
    request: Request


@operation
class Explain(Question[Explanation]):
    """Ask where a request would go, or why nowhere; `lower` is it at lower quality levels."""

    owner: str
    request: Request
    lower: tuple[Request, ...] = ()


@operation
class ListAllocations(Question[list[Allocation]]):
    """Ask for all live allocations."""


# ---- nodes


@operation
class NodeCommand(Command[list[Node]]):
    """A change to the inventory; the reply has the nodes it changed."""

    def encode_reply(self, reply: list[Node]) -> str:
        return json.dumps([node_row(node) for node in reply])

    def decode_reply(self, text: str) -> list[Node]:
        return [node_from_row(row) for row in json.loads(text)]


@operation
class Register(NodeCommand):
    """Add nodes, or describe known ones again.

    `found` are reports of the nodes themselves, with which descriptions are merged; not part of
    the body, so a repeat may find something else.
    """

    nodes: tuple[Node, ...] = ()
    found: tuple[Node, ...] = ()

    def body(self) -> str:
        return f"register {json.dumps([node_row(node) for node in self.nodes], sort_keys=True)}"


@operation
class SetDraining(NodeCommand):
    """Give a node no new work, or give it work again."""

    name: NodeName = NodeName("")
    draining: bool = True

    def body(self) -> str:
        return f"draining {self.name} {self.draining}"


@operation
class SetHealth(NodeCommand):
    """Mark a node as up, suspect or down."""

    name: NodeName = NodeName("")
    health: Health = Health.UP
    why: str = ""

    def body(self) -> str:
        return f"health {self.name} {self.health} {self.why}"


@operation
class ReportHealth(NodeCommand):
    """Record what the heartbeats of a remote node say, if its health is still what it `was`.

    Otherwise, or if an administrator lets the node be no better than it is, nothing changes.
    """

    name: NodeName = NodeName("")
    was: Health = Health.UP
    health: Health = Health.UP
    why: str = ""
    boot_id: str = ""

    def frees_resources(self) -> bool:
        return self.health is Health.DOWN

    def body(self) -> str:
        return f"report {self.name} {self.was} {self.health} {self.why} {self.boot_id}"


@operation
class Unregister(NodeCommand):
    """Remove a node."""

    name: NodeName = NodeName("")
    force: bool = False

    def body(self) -> str:
        return f"unregister {self.name} {self.force}"


@operation
class GetNode(Question[NodeStatus]):
    """Ask for one node and what is held there."""

    name: NodeName


@operation
class GetStatus(Question[Status]):
    """Ask for the whole cluster, added up and node by node."""


# ---- jobs


class Submitted(NamedTuple):
    """The ids of submitted jobs; `fresh` if this very operation submitted them.

    The keeper adds the views of the first of them once they are durable and, where there is room,
    started. A repeat has none.
    """

    ids: list[JobId]
    fresh: bool
    views: list[JobView]


@operation
class Submit(Command[Submitted]):
    """Queue a job, or an array of jobs: all of them, or none.

    `left_open` names what its named queue decides, because the submission does not: `priority`
    and `cpu`. A repeat is recognized without it.
    """

    work: JobSpec | None = None
    indices: tuple[int, ...] = ()  # of an array's tasks; empty for a single job
    after: tuple[After, ...] = ()
    left_open: frozenset[str] = frozenset()

    def named_jobs(self) -> Iterable[str]:
        return [dependency.id for dependency in self.after]

    def body(self) -> str:
        assert self.work is not None
        # As earlier versions wrote it, with fields that are gone: its hash is stored with an op id.
        row = work_row(self.work) | {"pieces": 1, "layout": "any"}
        work = json.dumps(row, sort_keys=True)  # the same in every process
        return f"submit {work} {self.indices} {self.after}"

    def encode_reply(self, reply: Submitted) -> str:
        return json.dumps(reply.ids)

    def decode_reply(self, text: str) -> Submitted:
        return Submitted(list(json.loads(text)), fresh=False, views=[])


@operation
class JobsCommand(Command[list[JobId]]):
    """A change to jobs; the reply has the ids of those it changed."""

    def encode_reply(self, reply: list[JobId]) -> str:
        return json.dumps(reply)

    def decode_reply(self, text: str) -> list[JobId]:
        return list(json.loads(text))


@operation
class Cancel(JobsCommand):
    """Cancel jobs: at once if they are queued, once they have stopped if they run.

    The id of an array stands for its tasks. Jobs that have ended stay as they are.
    """

    ids: tuple[str, ...] = ()
    reason: Reason = Reason.CANCELLED
    any_owner: bool = False  # an administrator cancels; `owner` says which one in the events

    def frees_resources(self) -> bool:
        return True

    def named_jobs(self) -> Iterable[str]:
        return self.ids

    def body(self) -> str:
        return f"cancel {self.ids} {self.reason}"


@operation
class SetHeld(JobsCommand):
    """Keep queued jobs from starting, or let held ones start; the id of an array is its tasks."""

    ids: tuple[str, ...] = ()
    held: bool = True
    any_owner: bool = False

    def named_jobs(self) -> Iterable[str]:
        return self.ids

    def body(self) -> str:
        return f"held {self.ids} {self.held}"


class Ended(NamedTuple):
    """How an attempt of a job ended, as reported by its node."""

    job: JobId
    how: AttemptEnd


@operation
class EndAttempts(JobsCommand):
    """Record how attempts ended and release what they held; the reply has those it was new of.

    A report that is repeated, late, or of an attempt that never ran changes nothing.
    """

    ended: tuple[Ended, ...] = ()
    jitter: float = 0.0

    def frees_resources(self) -> bool:
        return True


# ---- the ledger as a whole


@operation
class DumpLedger(Question[dict[str, Any]]):
    """Ask for the state as plain data, as the checker reads it."""


@operation
class CheckLedger(Question[list["Violation"]]):
    """Ask which invariants do not hold."""


@operation
class ListEvents(Question[list[Event]]):
    """Ask for the events after a number, in order."""

    after: int
    limit: int


@operation
class Prune(Question[int]):
    """Delete a step of the history that is older than so long; the reply is how much is left.

    Only history is deleted, so this changes nothing that the ledger says.
    """

    age_ms: int
    most: int
