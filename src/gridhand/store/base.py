"""What a store is to the keeper: a place that takes a batch of changes as one, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from gridhand.core.allocations import Allocation
from gridhand.core.callrecords import CallRecord
from gridhand.core.jobs import Job
from gridhand.core.ledger import Change
from gridhand.core.nodes import Node

SCHEMA_VERSION = 3


# A change, the owner who asked for it, and the op id. The keeper's own doing has no owner.
Entry = tuple[Change, str, str | None]


class Operation(NamedTuple):
    """A call that was answered: the same id again gets the same reply."""

    owner: str
    op_id: str
    body: str
    reply: str


@dataclass(slots=True)
class Batch:
    """What is written in one transaction."""

    at: int
    entries: list[Entry] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


class Event(NamedTuple):
    """One change as it was written down. `row` is the new row, or None for a removed node.

    Of a job only `job.submitted` tells its work; the row of a later event goes on from it.
    """

    number: int
    at: int
    kind: str
    subject: str
    owner: str
    op_id: str | None
    why: str
    row: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Opening:
    """What a store says to its new owner."""

    epoch: int
    high_water_ms: int
    cluster_id: str


@dataclass(frozen=True, slots=True)
class Contents:
    """The present: nodes, live allocations, open jobs, and the first numbers never given."""

    nodes: list[Node]
    allocations: list[Allocation]
    next_number: int
    jobs: list[Job]  # in the order of their numbers
    next_job: int


class Store(Protocol):
    """One owner at a time; every method is called from one thread at a time."""

    url: str

    def open(self) -> Opening:
        """Take ownership: make or check the schema, begin a new epoch. `StoreOwned` if taken."""

    def load(self) -> Contents: ...

    def commit(self, batch: Batch) -> None:
        """Write all of it or nothing, durably.

        `StoreUnavailable`: nothing was written. `OutcomeUnknown`: it cannot be told yet; `recover`
        and `load` will. `StoreFenced`: another owner has taken over.
        """

    def recover(self) -> bool:
        """Make the store usable again, and say whether the batch of the last `commit` is in it.

        `StoreUnavailable`: not yet. `StoreFenced`: another owner has taken over meanwhile.
        """

    def relieve(self) -> bool:
        """Free the space that was kept back for when there is none; say whether there was any."""

    def find(self, numbers: Iterable[int]) -> list[Allocation]:
        """Allocations by number, closed ones included, as far back as they are kept."""

    def find_jobs(self, ids: Iterable[str]) -> list[Job]:
        """Jobs by id, ended ones included, as far back as they are kept."""

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        owner: str | None = None,
        array: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """Jobs, the newest first: in any of these states, of an owner, of an array.

        `before` is the number of the last one seen, to go on from there.
        """

    def operations(self, wanted: Sequence[tuple[str, str]]) -> list[Operation]:
        """The answered calls among these (owner, op id) pairs."""

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Events in order, the first one after number `after`."""

    def checkpoint(self) -> list[dict[str, Any]]:
        """The nodes, live allocations and open jobs as they were before the oldest event kept."""

    def prune(self, *, before: int, most: int, answered_before: int | None = None) -> int:
        """Forget events from before a time, at most so many; say how many are still to go.

        What they led to moves into the checkpoint first, so that what is kept can still be
        replayed. Closed allocations and ended jobs go with their last event; operations by their
        own age, which is that of the events unless `answered_before` says otherwise.
        """

    # ---- calls: beside the ledger, so no batch and no event has them

    def write_calls(self, calls: Sequence[CallRecord]) -> None:
        """Write all of them or none: new ones, and what is new of those that are open.

        One that has ended stays as it is. `NotYours` if a run is another owner's.
        """

    def lose_calls(self, owner: str, run: str, *, at: int, why: str, most: int) -> int:
        """End what is open of a run as lost, at most so many; say how many there were."""

    def find_call(self, run: str, number: int) -> CallRecord | None: ...

    def calls(
        self,
        *,
        states: Sequence[str] = (),
        name: str | None = None,
        run: str | None = None,
        owner: str | None = None,
        limit: int = 100,
    ) -> list[CallRecord]:
        """Those that are open, the newest first; then those that ended, the latest first."""

    def open_runs(self) -> list[tuple[str, str]]:
        """The owner and the run of all that have open calls."""

    def forget_calls(self, *, before: int, keep: int, most: int) -> bool:
        """Forget calls that ended before a time, and the oldest where there are more than `keep`.

        At most so many; says whether there may be more to forget.
        """

    def close(self) -> None: ...
