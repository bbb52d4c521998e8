"""The interface of a store: it writes a batch of changes as a whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from gridhand.core.jobs.job import Job
from gridhand.core.ledger.allocations import Allocation
from gridhand.core.ledger.ledger import Change
from gridhand.core.model.call_record import CallRecord
from gridhand.core.model.nodes import Node
from gridhand.core.model.tokens import Token, TokenId
from gridhand.core.rows.ledger import Event
from gridhand.store.ownership import NextEpoch, following_epoch

SCHEMA_VERSION = 5


# A change, its owner and the op id. Changes that the keeper makes by itself have no owner.
Entry = tuple[Change, str, str | None]


class StoredOperation(NamedTuple):
    """An operation that was answered: the same id again gets the same reply."""

    owner: str
    op_id: str
    body: str
    reply: str


@dataclass(slots=True)
class Batch:
    """The changes and replies that are written in one transaction."""

    at: int
    entries: list[Entry] = field(default_factory=list)
    operations: list[StoredOperation] = field(default_factory=list)
    tokens: dict[int, str] = field(default_factory=dict)  # of entries, by their index
    shares: dict[str, float] = field(default_factory=dict)  # past shares of all owners, as of `at`


@dataclass(frozen=True, slots=True)
class Opening:
    """The epoch and identity that a new owner gets from opening a store."""

    epoch: int
    high_water_ms: int
    cluster_id: str
    damage: str = ""  # if there is any, the store can only be read


class PastShares(NamedTuple):
    """The shares that owners had on average, and the time for which that was said."""

    shares: dict[str, float]
    at: int


@dataclass(frozen=True, slots=True)
class Contents:
    """The current state: nodes, live allocations, open jobs, and the next unused numbers."""

    nodes: list[Node]
    allocations: list[Allocation]
    next_number: int
    jobs: list[Job]  # in the order of their numbers
    next_job: int
    tokens: list[Token] = field(default_factory=list)
    shares: PastShares = PastShares({}, 0)  # noqa: RUF009 - it is never changed


class Store(Protocol):
    """A store with one owner at a time; only one thread at a time may call it."""

    url: str  # without a password
    shared: bool  # whether several machines can reach it
    address: str  # with it: what `store_at` needs to open the same store

    def open(self, next_epoch: NextEpoch = following_epoch) -> Opening:
        """Take ownership, create or check the schema, and begin an epoch; raise `StoreOwned`.

        If `next_epoch` raises, the store stays as it was.
        """

    def load(self) -> Contents: ...

    def reader(self) -> Store | None:
        """Return a store on a connection of its own, for another thread, that can only read.

        None if there can be none: the store is in memory, or damaged.
        """

    def commit(self, batch: Batch) -> None:
        """Write all of it or nothing, durably.

        Raises `StoreUnavailable` if nothing was written, `OutcomeUnknown` if only `recover` and
        `load` can tell, and `StoreFenced` if another owner has taken over.
        """

    def recover(self) -> bool:
        """Make the store usable again; return whether the batch of the last `commit` is in it.

        Raises `StoreUnavailable` if it is not usable yet, `StoreFenced` if another owner took over.
        """

    def relieve(self) -> bool:
        """Free the reserved disk space; return whether there was any."""

    def lost_file(self) -> str:
        """Return the file that was removed or replaced while it was open; "" if none was."""

    def rewrite(self) -> bool:
        """Write everything anew if a file was lost; return whether one was."""

    def find(self, numbers: Iterable[int]) -> list[Allocation]:
        """Return allocations by number, including closed ones that are still kept."""

    def find_jobs(self, ids: Iterable[str]) -> list[Job]:
        """Return jobs by id, including ended ones that are still kept."""

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        owner: str | None = None,
        array: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """Return jobs, the newest first: in any of these states, of an owner, of an array.

        `before` is the number of the last job of the previous page.
        """

    def operations(self, wanted: Sequence[tuple[str, str]]) -> list[StoredOperation]:
        """Return the answered operations among these (owner, op id) pairs."""

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return events in order, from the first one after number `after`."""

    def newest_event(self) -> int:
        """Return the number of the last event; 0 if there was none yet."""

    def checkpoint(self) -> list[dict[str, Any]]:
        """Return nodes, live allocations and open jobs as of before the oldest event kept."""

    def prune(self, *, before: int, most: int, answered_before: int | None = None) -> int:
        """Delete at most `most` events older than a time; return how many remain to be deleted.

        Their result moves into the checkpoint first, so that the remaining events can still be
        replayed. Closed allocations and ended jobs are deleted with their last event, operations
        by their own age: `answered_before`, or `before` if it is not given.
        """

    def note_start(self, now: int) -> None:
        """Record how far time has stepped ahead since the last write, if that is a jump."""

    def time_ago(self, age_ms: int, now: int) -> int:
        """Return the moment whose age is `age_ms` now; jumps of the clock do not count as age."""

    def note_token_use(self, used: Mapping[TokenId, int]) -> None:
        """Write when tokens were last used. It is no change of the ledger, and has no event."""

    # ---- calls: not part of the ledger, so no batch and no event has them

    def write_calls(self, calls: Sequence[CallRecord]) -> None:
        """Write all of them or none: insert new calls and update open ones.

        Calls that have ended stay unchanged. Raises `NotYours` if a run has another owner.
        """

    def lose_calls(self, owner: str, run: str, *, at: int, why: str, most: int) -> int:
        """End at most `most` open calls of a run as lost; return how many there were."""

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
        """Return open calls, the newest first, then ended calls, the latest first."""

    def open_runs(self) -> list[tuple[str, str]]:
        """Return the owner and the run of every run with open calls."""

    def forget_calls(self, *, before: int, keep: int, most: int) -> bool:
        """Delete calls that ended before a time, and the oldest beyond `keep`; at most `most`.

        Returns whether there may be more to delete.
        """

    def close(self) -> None: ...
