"""What an engine is to the controller: something that runs attempts on nodes, and tells their end.

Everything may be asked again, and everything may be told again: an attempt is known by its job,
its number and its fence, so nothing is run twice and no end counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Order = dict[str, Any]  # a command to start, as agents take it
Fact = Mapping[str, Any]  # what is known of an attempt, as agents tell it
Key = tuple[str, int]  # a job and the number of its attempt


class Known(NamedTuple):
    """What the nodes of an engine know of: what runs there, and what has ended and how."""

    running: list[Fact]
    ended: list[Fact]


class Sink(Protocol):
    """Who hears from an engine. Called in the event loop, and answers at once."""

    def spawned(self, facts: Sequence[Fact]) -> None:
        """These have a process now."""

    def ended(self, facts: Sequence[Fact]) -> None:
        """These are over; they are told again until they are forgotten."""

    def node_changed(self, node: Mapping[str, Any], problems: Sequence[Mapping[str, Any]]) -> None:
        """What a node has was found out, for the first time or anew."""

    def measured(self, node: str, usage: Mapping[str, Any]) -> None:
        """What a node and the jobs on it really use."""

    def returned(self, known: Known) -> None:
        """A node is back after nothing was heard of it: what it knows now."""

    def broken(self, error: BaseException) -> None:
        """The engine cannot go on: another controller is in charge, or it has a fault."""


class Engine(Protocol):
    """Starts and stops attempts. No call raises because a node is away: `returned` follows."""

    async def epoch_seen(self) -> int:
        """The latest epoch in whose name nodes were asked for anything; 0 if none was."""

    async def open(self, epoch: int, sink: Sink) -> Known:
        """Reach the nodes, in the name of this epoch, and say what they know of.

        Raises `StoreInvalid` if they have seen a later one: ours is not the store they belong to.
        """

    async def start(self, orders: Sequence[Order]) -> None: ...

    async def stop(self, key: Key, reason: str, grace_ms: int) -> None:
        """Have it end for this reason. What its node does not know is told to have ended so."""

    async def signal(self, key: Key, signum: int) -> bool: ...

    async def forget(self, keys: Sequence[Key]) -> None:
        """Their ends are durable with us."""

    async def read_log(self, path: str, offset: int, limit: int) -> list[tuple[int, bytes | int]]:
        """What a job has written, from an offset on: bytes, or how many of them were cut out."""

    async def log_size(self, path: str) -> int:
        """How much a job has written to a file, what was cut out included."""

    def facts(self) -> Mapping[str, Any]:
        """What is to be told of the engine's own processes, for those who look after them."""

    async def close(self, *, end: bool) -> None:
        """Let go. With `end` what stands on the nodes may end, too, if nothing runs there."""
