"""The PostgreSQL store: a schema of its own in a database, for several machines.

Ownership is an advisory lock of the session, so it ends with the process or its connection. The
lock alone is not enough, as a session can end without its process knowing: every transaction also
states its epoch, and the database refuses an old one.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg import errors
from sqlalchemy import String, create_engine, make_url
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import Engine
from sqlalchemy.exc import ArgumentError, DBAPIError, PendingRollbackError
from sqlalchemy.pool import StaticPool

from gridhand.core.errors import (
    InvalidInput,
    OutcomeUnknown,
    StoreDamaged,
    StoreError,
    StoreFenced,
    StoreOwned,
    StoreUnavailable,
)
from gridhand.store.base import Batch, Opening
from gridhand.store.ownership import NextEpoch, Taking, following_epoch
from gridhand.store.sql import schema
from gridhand.store.sql.batches import Row
from gridhand.store.sql.call_store import upsert
from gridhand.store.sql.sql_store import SqlStore
from gridhand.store.sql.statements import STATEMENTS
from gridhand.store.urls import hide_password

SCHEMA = "gridhand"
_LOCK = 0x6772_6964_6861_6E64  # "gridhand": advisory locks are numbers, per database
_TRIES = 6
_CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected)
_SETTINGS = (
    f"SET search_path TO {SCHEMA}",
    "SET synchronous_commit TO on",
    "SET lock_timeout TO '10s'",
    "SET statement_timeout TO '60s'",
    "SET idle_in_transaction_session_timeout TO '60s'",
)
_COPY = {
    name: f"COPY {table.name} FROM STDIN"
    for name, table in (
        ("insert", schema.allocations),
        ("event", schema.events),
        ("operation", schema.operations),
        ("insert_node", schema.nodes),
        ("insert_job", schema.jobs),
        ("event_token", schema.event_tokens),
        ("insert_token", schema.tokens),
        ("insert_share", schema.owner_shares),
    )
}


class PostgresStore(SqlStore):
    """A ledger in a PostgreSQL database: `postgresql://user@host/database`."""

    shared = True

    def __init__(self, url: str, *, taking: Taking | None = None) -> None:
        super().__init__(taking)
        try:
            self._address = make_url(url).set(drivername="postgresql")
        except (ArgumentError, ValueError) as error:
            shown = hide_password(url)
            raise InvalidInput("store", shown, "postgresql://user@host/database") from error
        self.address = self._address.render_as_string(hide_password=False)
        self.url = hide_password(self.address)
        self._engine: Engine | None = None
        dialect = PGDialect_psycopg(paramstyle="format")  # type: ignore[no-untyped-call]
        self._compiled = {
            name: str(statement.compile(dialect=dialect)) for name, statement in STATEMENTS.items()
        }

    def open(self, next_epoch: NextEpoch = following_epoch) -> Opening:
        self._owner_wanted = self._taking
        opening = super().open(next_epoch)
        self._owner_wanted = Taking()  # after a lost connection, ownership is not taken over
        return opening

    def close(self) -> None:
        # The server ends a closed session with a delay; unlocking now spares the next owner that.
        with contextlib.suppress(psycopg.Error, AttributeError):
            if not self._raw.closed:
                self._raw.execute("SELECT pg_advisory_unlock_all()")
        self._disconnect()

    def commit(self, batch: Batch) -> None:
        """Commit as every store does; retry after a conflict with another session."""
        for attempt in range(_TRIES):
            try:
                super().commit(batch)
                return
            except StoreUnavailable as error:
                conflict = isinstance(_cause(error), _CONFLICTS)
                if not conflict or attempt == _TRIES - 1:
                    raise
                time.sleep(random.uniform(0, 0.01 * 2**attempt))

    # ---- connection

    def _connect(self) -> None:
        self._engine = create_engine(
            "postgresql+psycopg://",
            creator=self._raw_connection,
            poolclass=StaticPool,
            isolation_level="AUTOCOMMIT",
        )
        try:
            self._connection = self._engine.connect()
            raw: Any = self._connection.connection.dbapi_connection
            self._raw: psycopg.Connection[Any] = raw
            self._lock()
        except (psycopg.Error, DBAPIError) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise StoreUnavailable(" ".join(str(cause).split())) from error

    def reader(self) -> PostgresStore:
        reading = PostgresStore(self.address)
        reading._engine = create_engine(
            "postgresql+psycopg://",
            creator=self.reading_connection,
            poolclass=StaticPool,
            isolation_level="AUTOCOMMIT",
        )
        try:
            reading._connection = reading._engine.connect()
        except (psycopg.Error, DBAPIError) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise StoreUnavailable(" ".join(str(cause).split())) from error
        raw: Any = reading._connection.connection.dbapi_connection
        reading._raw = raw
        return reading

    def reading_connection(self) -> psycopg.Connection[Any]:
        """Return a read-only connection that does not need ownership."""
        raw = self._plain_connection()
        raw.execute(f"SET search_path TO {SCHEMA}")
        raw.execute("SET default_transaction_read_only TO on")
        raw.autocommit = False
        return raw

    def _plain_connection(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self.address,
            autocommit=True,
            connect_timeout=5,
            application_name=f"gridhand {socket.gethostname()} {os.getpid()}"[:63],
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=25_000,
        )

    def _raw_connection(self) -> psycopg.Connection[Any]:
        raw = self._plain_connection()
        try:
            if self._taking.must_exist and not _has_schema(raw):
                raise self._taking.missing(self.url)
            if not _has_schema(raw):
                # Even IF NOT EXISTS fails if another session creates it at the same moment.
                with contextlib.suppress(errors.UniqueViolation, errors.DuplicateSchema):
                    raw.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            for setting in _SETTINGS:
                raw.execute(setting)
        except BaseException:
            raw.close()
            raise
        return raw

    def _lock(self) -> None:
        taking = self._owner_wanted
        for last in taking.tries():
            if self._try_lock():
                return
            if last and not taking.take_over:
                raise self._not_mine()
        self._raw.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE" + _HOLDS_IT, (_LOCK,)
        )
        if not self._try_lock():
            raise StoreOwned(self.url, self._owner_pid())

    def _not_mine(self) -> StoreError:
        """Return why we cannot lock: another owner from the start, or one that took over since."""
        if not self._epoch:
            return StoreOwned(self.url, self._owner_pid())
        row = self._raw.execute("SELECT epoch FROM gridhand_meta").fetchone()
        if row and row[0] != self._epoch:
            return StoreFenced(self._epoch)
        return StoreUnavailable("the session that was lost still has the lock")

    def _try_lock(self) -> bool:
        row = self._raw.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK,)).fetchone()
        return bool(row and row[0])

    def _owner_pid(self) -> int | None:
        """Return the pid of the owner, on its own machine, as it states it itself."""
        row = self._raw.execute(
            "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE"
            + _HOLDS_IT,
            (_LOCK,),
        ).fetchone()
        found = re.fullmatch(r"gridhand \S+ (\d+)", row[0]) if row else None
        return int(found[1]) if found else None

    def _disconnect(self) -> None:
        if self._engine is not None:
            with contextlib.suppress(psycopg.Error, DBAPIError, AttributeError):
                self._raw.close()
            with contextlib.suppress(psycopg.Error, DBAPIError):
                self._engine.dispose()
            self._engine = None

    # ---- transactions

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._raw.execute("BEGIN")
            yield
            self._raw.execute("COMMIT")
        except (psycopg.Error, DBAPIError) as error:
            self._roll_back()
            raise self._translated(error) from error
        except PendingRollbackError as error:
            raise OutcomeUnknown("the connection was lost") from error
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        with contextlib.suppress(psycopg.Error):
            if not self._raw.closed and self._raw.info.transaction_status:
                self._raw.execute("ROLLBACK")

    def _translated(self, error: Exception) -> Exception:
        cause = error.orig if isinstance(error, DBAPIError) else error
        text = " ".join(str(cause).split())
        if isinstance(cause, errors.CheckViolation) and cause.diag.constraint_name == schema.FENCE:
            return StoreFenced(self._epoch)
        if isinstance(cause, errors.DataCorrupted | errors.IndexCorrupted):
            return StoreDamaged(self.url, text)
        if isinstance(cause, psycopg.IntegrityError):
            return StoreError(f"the store refused a change: {text}")
        lost = self._engine is None or not hasattr(self, "_raw") or self._raw.closed
        if lost or isinstance(cause, errors.AdminShutdown | errors.CrashShutdown):
            return OutcomeUnknown(text)
        return StoreUnavailable(text)

    def _run(self, name: str, many: Sequence[Row]) -> int:
        statement: Any = self._compiled[name]
        if len(many) == 1:
            return self._raw.execute(statement, many[0]).rowcount
        with self._raw.cursor() as cursor:
            cursor.executemany(statement, many)
            return cursor.rowcount

    def _insert(self, name: str, many: Sequence[Row]) -> None:
        if len(many) == 1:
            self._run(name, many)
            return
        copying: Any = _COPY[name]
        with self._raw.cursor() as cursor, cursor.copy(copying) as copy:
            for row in many:
                copy.write_row(row)

    def _put_calls(self, rows: Sequence[Row]) -> None:
        if rows:
            self._raw.execute(_PUT_CALLS, [list(column) for column in zip(*rows, strict=True)])

    def _close(self, state: str, numbers: list[int]) -> int:
        return self._raw.execute(
            "UPDATE allocations SET state = %s, live_node = NULL"
            " WHERE live_node IS NOT NULL AND number = ANY(%s)",
            (state, numbers),
        ).rowcount


# COPY cannot skip calls that have ended; arrays are as fast.
_PUT_CALLS: Any = upsert(
    "SELECT * FROM unnest("
    + ", ".join(
        "%s::text[]" if isinstance(column.type, String) else "%s::bigint[]"
        for column in schema.calls.c
    )
    + ")"
)
_HOLDS_IT = (
    " locktype = 'advisory' AND granted AND database ="
    " (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND (classid::bigint << 32) | objid::bigint = %s"
)


def _has_schema(raw: psycopg.Connection[Any]) -> bool:
    query = "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s"
    return raw.execute(query, (SCHEMA,)).fetchone() is not None


def _cause(error: BaseException) -> BaseException | None:
    cause = error.__cause__
    return cause.orig if isinstance(cause, DBAPIError) else cause
