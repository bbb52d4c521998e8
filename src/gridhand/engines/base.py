"""Engine: the protocol by which the controller runs attempts on nodes.

Every request may be repeated, and every report may come again: an attempt is known by its job, its
number and its fence, so nothing runs twice and no end counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from gridhand.agent.jobs.start_order import StartOrder
from gridhand.agent.messages import (
    AttemptReport,
    EndReport,
    JobUsage,
    Key,
    ProblemReport,
    UsageEvent,
)
from gridhand.core.model.names import NodeName
from gridhand.posix.unix_users import UnixUser

__all__ = [
    "AttemptReport",
    "EndReport",
    "Engine",
    "JobUsage",
    "Key",
    "Known",
    "ProblemReport",
    "Seen",
    "Sink",
    "StartOrder",
    "UsageEvent",
]


class Known(NamedTuple):
    """The attempts that the nodes of an engine know: those that run, and those that have ended."""

    running: list[AttemptReport]
    ended: list[AttemptReport]


class Seen(NamedTuple):
    """The memory of the nodes: the latest epoch they have seen, and the attempts that run."""

    epoch: int
    running: list[Key]


class Sink(Protocol):
    """The receiver of an engine's reports. Called in the event loop; its methods return at once."""

    def spawned(self, reports: Sequence[AttemptReport]) -> None:
        """Take note that these have a process now."""

    def ended(self, reports: Sequence[AttemptReport]) -> None:
        """Take note of ends; they are reported again until they are forgotten."""

    def node_changed(self, node: Mapping[str, Any], problems: Sequence[ProblemReport]) -> None:
        """Take note of what a node has, found out for the first time or anew."""

    def measured(self, node: NodeName, usage: UsageEvent) -> None:
        """Take note of what a node and the jobs on it really use."""

    def returned(self, known: Known, node: NodeName | None = None) -> None:
        """Take note of what a node knows that was out of reach and is back.

        Without a name it is all that the engine reaches.
        """

    async def settled(self, node: NodeName) -> None:
        """Return when the ledger has the node, and has been compared with what it knows."""

    def broken(self, error: BaseException) -> None:
        """Handle that the engine cannot go on: a fault, or another controller is in charge."""


class Engine(Protocol):
    """Starts and stops attempts. Nothing raises because a node is away: `returned` follows."""

    async def look(self) -> Seen:
        """Return what the nodes remember, without changing anything there."""

    async def open(self, epoch: int, sink: Sink) -> Known:
        """Reach the nodes, in the name of this epoch, and return what they know.

        Raises StoreInvalid if they have seen a later one: ours is not the store they belong to.
        """

    def place(self, key: Key, node: NodeName, engine: str = "") -> None:
        """Take note of the node of an attempt, before anything else is asked about the attempt.

        `engine` is that of the node, if its jobs run elsewhere.
        """

    async def start(self, orders: Sequence[StartOrder]) -> None: ...

    async def stop(self, key: Key, reason: str, grace_ms: int) -> None:
        """Stop an attempt for this reason. One that its node does not know is reported as ended."""

    async def signal(self, key: Key, signum: int) -> bool: ...

    async def note_reader(self, key: Key, offsets: Mapping[str, int]) -> None:
        """Tell the node how far an attached client has read each stream; {} if it is gone.

        What it has not read is kept, and the job pauses while that is much.
        """

    async def forget(self, keys: Sequence[Key]) -> None:
        """Have the nodes forget these: their ends are durable with us."""

    async def sample_every(self, every_ms: int, for_ms: int) -> None:
        """Have `measured` called at least this often for a while; it is every ten seconds else."""

    async def read_log(
        self, path: str, offset: int, limit: int, user: UnixUser | None = None
    ) -> list[tuple[int, bytes | int]]:
        """Return a job's output from an offset on: bytes, or how many of them were cut out.

        With `user`, the file is opened with that user's rights.
        """

    async def log_size(self, path: str, user: UnixUser | None = None) -> int:
        """Return how much a job has written to a file, including what was cut out."""

    def facts(self) -> Mapping[str, Any]:
        """Return facts about the engine's own processes, for `grid status`."""

    async def close(self, *, end: bool) -> None:
        """Disconnect. With `end` the processes on the nodes may end, too, if nothing runs there."""
