"""The common part of the SQL stores, and the order of writing a batch.

A batch runs compiled statements on the driver's own cursor, many rows at a time. Reading, which is
rare, goes through SQLAlchemy.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import (
    Connection,
    RowMapping,
    Select,
    delete,
    func,
    insert,
    inspect,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import DBAPIError, PendingRollbackError

from gridhand.clock import ClockJump, jump_between, time_ago
from gridhand.core.errors import OutcomeUnknown, StoreError, StoreFenced, StoreInvalid
from gridhand.core.jobs.job import Job
from gridhand.core.ledger.allocations import Allocation
from gridhand.core.model.nodes import Node
from gridhand.core.model.tokens import Token, TokenId
from gridhand.core.rows.ledger import Event
from gridhand.store.base import SCHEMA_VERSION, Batch, Contents, Opening, StoredOperation
from gridhand.store.ownership import (
    NextEpoch,
    StoreIdentity,
    StoreState,
    Taking,
    following_epoch,
)
from gridhand.store.sql import ledger_rows, schema
from gridhand.store.sql.batches import FinalRows, Row, event_rows, final_rows, past_shares
from gridhand.store.sql.call_store import CallStore
from gridhand.store.sql.job_queries import by_ids, newest
from gridhand.store.sql.job_rows import Jobs
from gridhand.store.sql.prune import chunks, forget, left_to_forget

_allocations, _calls, _events, _jobs, _meta, _nodes = (
    schema.allocations, schema.calls, schema.events, schema.jobs, schema.meta, schema.nodes
)  # fmt: skip

_jumps = schema.clock_jumps
_MOST_JUMPS = 100  # each has a day or more between it and the next, which do count


class SqlStore(CallStore):
    """A store on an SQLAlchemy connection. Abstract methods differ between databases."""

    url: str
    address: str
    shared = False
    _connection: Connection

    def __init__(self, taking: Taking | None) -> None:
        self._taking = taking or Taking()
        self._epoch = self._high_water_ms = 0
        self._next_event = self._next_number = self._next_job = 1
        self._jumps: list[ClockJump] = []
        self._last_batch = Batch(0)  # its outcome may be unknown
        self._last_event_of_it = 0

    @abstractmethod
    def _connect(self) -> None:
        """Connect, or reconnect, as the owner; raise `StoreOwned` if there is another."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the connection, whatever state it is in. Ownership may remain."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def reader(self) -> SqlStore | None:
        """Return a store that only reads, on a connection of its own."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[None]:
        """Begin a transaction, then commit or roll back; raise failures as our own errors."""

    @abstractmethod
    def _run(self, name: str, many: Sequence[Row]) -> int:
        """Run a statement once for each row of parameters; return how many rows it changed."""

    @abstractmethod
    def _insert(self, name: str, many: Sequence[Row]) -> None:
        """Run an INSERT for all of these rows."""

    @abstractmethod
    def _close(self, state: str, numbers: list[int]) -> int:
        """End the live allocations with these numbers; return how many there were."""

    @abstractmethod
    def _translated(self, error: Exception) -> Exception:
        """Return an error of the driver as one of our own."""

    # ---- opening and recovery

    def open(self, next_epoch: NextEpoch = following_epoch) -> Opening:
        try:
            self._connect()
            return self._begin_epoch(next_epoch)
        except BaseException:
            self.close()
            raise

    def recover(self) -> bool:
        try:
            self._reconnect()
            row = self._connection.execute(select(_meta)).mappings().one()
            if row["epoch"] != self._epoch:
                raise StoreFenced(self._epoch)
            self._make_durable()
            self._go_on_from(row)
        except DBAPIError as error:
            raise self._translated(error) from error
        if self._last_batch.entries:
            return self._next_event > self._last_event_of_it
        return bool(self.operations([op[:2] for op in self._last_batch.operations]))

    def _reconnect(self) -> None:
        self._disconnect()
        self._connect()

    def relieve(self) -> bool:
        return False

    def lost_file(self) -> str:
        return ""

    def rewrite(self) -> bool:
        return False

    def _make_durable(self) -> None:
        """Sync what a failed commit may have left unsynced, if reconnecting does not."""

    def _begin_epoch(self, next_epoch: NextEpoch) -> Opening:
        """Begin a new epoch; from then on the database refuses writers of earlier ones."""
        try:
            with self._transaction():
                self._make_or_migrate()
                before = self._connection.execute(select(_meta)).mappings().one()
                self._taking.check(self.url, StoreIdentity(before["cluster_id"], before["epoch"]))
                found = StoreState(before["cluster_id"], before["epoch"], before["next_job"])
                epoch = next_epoch(found)
                self._connection.execute(update(_meta).values(epoch=epoch, writer=epoch))
                row = self._connection.execute(select(_meta)).mappings().one()
                self._go_on_from(row)
        except DBAPIError as error:
            raise self._translated(error) from error
        self._epoch = row["epoch"]
        return Opening(row["epoch"], row["high_water_ms"], row["cluster_id"])

    def _go_on_from(self, row: RowMapping) -> None:
        """Continue the counters where the last writer left them."""
        self._high_water_ms = row["high_water_ms"]
        self._next_number, self._next_job = row["next_number"], row["next_job"]
        self._next_event = self.newest_event() + 1
        self._jumps = [ClockJump(*row) for row in self._connection.execute(select(_jumps))]

    def _make_or_migrate(self) -> None:
        tables = set(inspect(self._connection).get_table_names())
        if tables and _meta.name not in tables:
            raise self._something_else()
        if not tables and self._taking.must_exist:
            raise self._taking.missing(self.url)
        if not tables:
            self._make()
            return
        version = self._connection.execute(select(_meta.c.schema_version)).scalar_one()
        refuse_newer(self.url, version)
        if version < SCHEMA_VERSION:
            self._migrate(version)
        moved_to = self._connection.execute(select(_meta.c.moved_to)).scalar_one()
        if moved_to is not None:
            raise StoreInvalid(
                f"{self.url} was moved to {moved_to}",
                hint="Open the store it was moved to. `grid serve --store URL` serves it.",
            )

    def _something_else(self) -> StoreInvalid:
        return StoreInvalid(
            f"{self.url} contains tables of another program",
            hint="Give the address of an empty place, or of a Gridhand store.",
        )

    def _make(self) -> None:
        """Make the tables as declared, which is what all migrations together give."""
        schema.metadata.create_all(self._connection, checkfirst=False)
        self._first_row()

    def _migrate(self, version: int) -> None:
        from gridhand.store.sql.migrations import migrate  # imported here because it loads Alembic

        migrate(self._connection, version, SCHEMA_VERSION)
        self._connection.execute(update(_meta).values(schema_version=SCHEMA_VERSION))

    def _first_row(self) -> None:
        self._connection.execute(
            insert(_meta).values(
                id=1, schema_version=SCHEMA_VERSION, cluster_id=uuid.uuid4().hex, epoch=0,
                writer=0, high_water_ms=0, next_number=1, checkpoint_through=0, next_job=1,
            )
        )  # fmt: skip

    # ---- writing

    def commit(self, batch: Batch) -> None:
        final = final_rows(batch)
        first = self._next_event
        events = event_rows(batch, first)
        high = max(batch.at, self._high_water_ms)
        next_number = max(final.next_number, self._next_number)
        next_job = max(final.next_job, self._next_job)
        next_event = self._next_event + len(events)
        self._last_batch, self._last_event_of_it = batch, next_event - 1
        with self._transaction():
            self._hold_epoch(high, next_number, next_job)
            self._write(final)
            if events:
                self._insert("event", events)
            if batch.tokens:
                of = [(first + index, token) for index, token in batch.tokens.items()]
                self._insert("event_token", of)
            if batch.operations:
                self._insert(
                    "operation",
                    [(op.owner, op.op_id, batch.at, op.body, op.reply) for op in batch.operations],
                )
            if batch.shares:
                self._run("drop_share", [(owner,) for owner in batch.shares])
                rows = [(owner, share, batch.at) for owner, share in batch.shares.items()]
                self._insert("insert_share", rows)
        self._high_water_ms, self._next_event = high, next_event
        self._next_number, self._next_job = next_number, next_job

    def _hold_epoch(self, high_water_ms: int, next_number: int, next_job: int) -> None:
        """State our epoch, as every transaction does: the database refuses an old one."""
        self._run("fence", [(self._epoch, high_water_ms, next_number, next_job)])

    def _write(self, final: FinalRows) -> None:
        # Ends come first: the same batch may reuse what they free, a holder's name or a node.
        for state, numbers in final.closed.items():
            _expect(len(numbers), self._close(state, numbers))
        if final.finished:
            _expect(len(final.finished), self._run("finish", final.finished))
        if final.dropped_nodes:
            self._run("drop_node", final.dropped_nodes)
        if final.nodes:
            self._replace_nodes(final.nodes)
        if final.changed:
            _expect(len(final.changed), self._run("change", final.changed))
        if final.inserted:
            self._insert("insert", final.inserted)
        self._write_jobs(final)
        if final.tokens:
            self._run("drop_token", [(id,) for id in final.tokens])
            self._insert("insert_token", list(final.tokens.values()))

    def _write_jobs(self, final: FinalRows) -> None:
        if final.ended_jobs:
            _expect(len(final.ended_jobs), self._run("end_job", final.ended_jobs))
        if final.changed_jobs:
            _expect(len(final.changed_jobs), self._run("change_job", final.changed_jobs))
        if final.new_jobs:
            self._insert("insert_job", final.new_jobs)

    def _replace_nodes(self, nodes: list[Node]) -> None:
        known: set[str] = set()
        for some in chunks([node.name for node in nodes]):
            query = select(_nodes.c.name).where(_nodes.c.name.in_(some))
            known.update(self._connection.execute(query).scalars())
        new = []
        for node in nodes:
            columns = ledger_rows.node_columns(node)
            if node.name in known:
                same = update(_nodes).where(_nodes.c.name == node.name)
                self._connection.execute(same.values(columns))
            else:
                new.append(tuple(columns[column.name] for column in _nodes.c))
        if new:
            self._insert("insert_node", new)

    # ---- moving elsewhere

    @property
    def connection(self) -> Connection:
        return self._connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Run a transaction in our epoch."""
        with self._transaction():
            self._hold_epoch(self._high_water_ms, self._next_number, self._next_job)
            yield

    def mark_moved(self, url: str) -> None:
        """Close the store for good: opening it raises an error that names the new address."""
        with self.writing():
            self._connection.execute(update(_meta).values(moved_to=url))

    # ---- reading

    def load(self) -> Contents:
        # Not sorted by the database, which would then also read all that have ended.
        live = self._read(select(_allocations).where(_allocations.c.live_node.is_not(None)))
        allocations = [ledger_rows.allocation_from_columns(row) for row in live]
        jobs = Jobs().read(self._read(select(_jobs).where(_jobs.c.open.is_not(None))))
        following = self._read(select(_meta.c.next_number, _meta.c.next_job))[0]
        return Contents(
            nodes=[ledger_rows.node_from_columns(row) for row in self._read(select(_nodes))],
            allocations=sorted(allocations, key=lambda held: held.number),
            next_number=following["next_number"],
            jobs=sorted(jobs, key=lambda job: job.number),
            next_job=following["next_job"],
            tokens=self._tokens(),
            shares=past_shares(self._read(select(schema.owner_shares))),
        )

    def _tokens(self) -> list[Token]:
        table = schema.tokens
        rows = self._read(select(table).order_by(table.c.made_at, table.c.id))
        return [Token(**dict(row)) for row in rows]

    def note_token_use(self, used: Mapping[TokenId, int]) -> None:
        with self.writing():
            self._run("use_token", [(at, id) for id, at in used.items()])

    def find(self, numbers: Iterable[int]) -> list[Allocation]:
        found: list[Allocation] = []
        for some in chunks(list(numbers)):
            query = select(_allocations).where(_allocations.c.number.in_(some))
            found += map(ledger_rows.allocation_from_columns, self._read(query))
        return found

    def find_jobs(self, ids: Iterable[str]) -> list[Job]:
        jobs = Jobs()
        return [job for some in chunks(list(ids)) for job in jobs.read(self._read(by_ids(some)))]

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        owner: str | None = None,
        array: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[Job]:
        queries = newest(states=states, owner=owner, array=array, before=before, limit=limit)
        found = [row for query in queries for row in self._read_some(query)]
        found.sort(key=lambda row: -row["number"])
        return Jobs().read(found[:limit])

    def operations(self, wanted: Sequence[tuple[str, str]]) -> list[StoredOperation]:
        table = schema.operations
        found: list[StoredOperation] = []
        for some in chunks(list(wanted)):
            query = select(table.c.owner, table.c.op_id, table.c.body, table.c.reply).where(
                tuple_(table.c.owner, table.c.op_id).in_(some)
            )
            found += (StoredOperation(**dict(row)) for row in self._read(query))
        return found

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        of = schema.event_tokens
        both = _events.outerjoin(of, of.c.number == _events.c.number)
        query = select(_events, of.c.token).select_from(both)
        query = query.where(_events.c.number > after).order_by(_events.c.number)
        return [
            Event(**{**row, "row": None if row["row"] is None else json.loads(row["row"])})
            for row in map(dict, self._read(query.limit(limit)))
        ]

    def newest_event(self) -> int:
        newest = self._read(select(func.max(_events.c.number).label("newest")))[0]["newest"]
        through = self._read(select(_meta.c.checkpoint_through))[0]["checkpoint_through"]
        return max(newest or 0, int(through))

    def checkpoint(self) -> list[dict[str, Any]]:
        return [json.loads(row["row"]) for row in self._read(select(schema.checkpoint.c.row))]

    def _read(self, query: Select[Any]) -> Sequence[RowMapping]:
        try:
            return self._connection.execute(query).mappings().all()
        except DBAPIError as error:
            raise self._translated(error) from error
        except PendingRollbackError as error:  # the connection was lost earlier
            raise OutcomeUnknown("the connection was lost") from error

    def _read_some(self, query: Select[Any]) -> Sequence[RowMapping]:
        """Return all rows; of a damaged store, which can only be read, those before the damage."""
        return self._read(query)

    # ---- pruning

    def prune(self, *, before: int, most: int, answered_before: int | None = None) -> int:
        answered = before if answered_before is None else answered_before
        with self.writing():
            forget(self._connection, before, answered, most)
            return left_to_forget(self._connection, before, answered)

    def note_start(self, now: int) -> None:
        jump = jump_between(self._high_water_ms, now)
        if jump is None:
            return
        self._jumps = [*self._jumps, jump][-_MOST_JUMPS:]
        # If it cannot be written, as the disk is full, it counts at least until the next start.
        with contextlib.suppress(StoreError):
            self._check_writable(more=False)
            self._high_water_ms = now
            with self.writing():
                self._connection.execute(insert(_jumps).values(jump._asdict()))
                self._connection.execute(delete(_jumps).where(_jumps.c.at < self._jumps[0].at))

    def time_ago(self, age_ms: int, now: int) -> int:
        return time_ago(age_ms, now, self._jumps)


def refuse_newer(url: str, version: int) -> None:
    """Raise `StoreInvalid` for a schema of a later version, which we may misread."""
    if version > SCHEMA_VERSION:
        raise StoreInvalid(
            f"{url} has schema version {version}; this Gridhand knows {SCHEMA_VERSION}",
            hint="Use the version of Gridhand that wrote it, or a newer one.",
        )


def _expect(wanted: int, touched: int) -> None:
    if touched != wanted:
        raise StoreError(
            f"the store changed {touched} of {wanted} rows that memory has",
            hint="Something else wrote to it. It is read again before the next change.",
        )
