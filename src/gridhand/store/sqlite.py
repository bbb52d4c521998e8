"""The embedded store: one SQLite file in WAL mode, or memory.

One connection writes and owns the checkpoints of the WAL. `synchronous=FULL` syncs the WAL at every
commit: what was answered survives a power cut.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import create_engine, event, func, insert, inspect, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from gridhand.core.errors import StoreInvalid, StoreOwned, StoreUnavailable
from gridhand.store import schema
from gridhand.store.base import SCHEMA_VERSION, Opening, OutcomeUnknown
from gridhand.store.sql import STATEMENTS, SqlStore

_Item = TypeVar("_Item")

DEFAULT_TIMEOUT_S = 5.0
# Rows to a statement: many at once are cheaper, and let go of the interpreter once for all.
_SIZES = (32, 8, 1)
_NO_OUTCOME = ("disk I/O error",)
_BROKEN = ("file is not a database", "database disk image is malformed")


class SqliteStore(SqlStore):
    """A ledger in one file. `path` of None keeps it in memory."""

    def __init__(self, path: str | None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.url = f"sqlite:///{path}" if path else "sqlite://"
        self._path = path
        self._timeout_s = timeout_s
        self._owner_lock: OwnerLock | None = None
        self._engine: Engine | None = None
        self._epoch = self._high_water_ms = 0
        self._next_event = self._next_number = 1

    def open(self) -> Opening:
        if self._path:
            self._owner_lock = OwnerLock(self._path, self.url)
        try:
            self._connect()
            return self._begin_epoch()
        except BaseException:
            self.close()
            raise

    def recover(self) -> None:
        """Open the file anew: SQLite then decides from the WAL what was committed."""
        try:
            self._disconnect()
            self._connect()
            self._raw.execute("PRAGMA wal_checkpoint(FULL)").fetchall()
            self._next_event = self._last_event() + 1
        except (sqlite3.Error, DBAPIError) as error:
            raise StoreUnavailable(str(error)) from error

    def close(self) -> None:
        self._disconnect()
        if self._owner_lock is not None:
            self._owner_lock.release()
            self._owner_lock = None

    # ---- connection

    def _connect(self) -> None:
        if self._path:
            os.close(_open_private(Path(self._path)))
        self._engine = create_engine(
            "sqlite://",
            creator=self._raw_connection,
            poolclass=StaticPool,
            isolation_level="AUTOCOMMIT",
        )
        event.listen(self._engine, "connect", _set_pragmas)
        try:
            self._connection = self._engine.connect()
        except (sqlite3.Error, DBAPIError) as error:
            raise self._translated(error) from error
        raw: Any = self._connection.connection.dbapi_connection
        self._raw: sqlite3.Connection = raw
        self._compiled = {
            name: str(statement.compile(dialect=self._engine.dialect))
            for name, statement in STATEMENTS.items()
        }
        self._compiled_many = {
            (name, size): _for_many(text, size)
            for name, text in self._compiled.items()
            for size in _SIZES
            if " VALUES " in text
        }

    def _raw_connection(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self._path or ":memory:",
            timeout=self._timeout_s,
            check_same_thread=False,
            isolation_level=None,
            cached_statements=64,
        )

    def _disconnect(self) -> None:
        if self._engine is not None:
            with contextlib.suppress(sqlite3.Error, DBAPIError):
                self._connection.close()
            with contextlib.suppress(sqlite3.Error, DBAPIError):
                self._engine.dispose()
            self._engine = None

    def _begin_epoch(self) -> Opening:
        try:
            with self._transaction():
                self._make_or_check_schema()
                self._connection.execute(update(schema.meta).values(epoch=schema.meta.c.epoch + 1))
                row = self._connection.execute(select(schema.meta)).mappings().one()
                self._next_event = self._last_event() + 1
        except DBAPIError as error:
            raise self._translated(error) from error
        self._epoch, self._high_water_ms = row["epoch"], row["high_water_ms"]
        return Opening(row["epoch"], row["high_water_ms"], row["cluster_id"])

    def _make_or_check_schema(self) -> None:
        connection = self._connection
        tables = set(inspect(connection).get_table_names())
        if not tables:
            schema.metadata.create_all(connection)
            connection.execute(
                insert(schema.meta).values(
                    id=1, schema_version=SCHEMA_VERSION, cluster_id=uuid.uuid4().hex, epoch=0,
                    high_water_ms=0, next_number=1, checkpoint_through=0,
                )
            )  # fmt: skip
            return
        if schema.meta.name not in tables:
            raise StoreInvalid(
                f"{self.url} holds tables of something else",
                hint="Give the path of a file that does not exist yet, or of a Gridhand store.",
            )
        version = connection.execute(select(schema.meta.c.schema_version)).scalar_one()
        if version != SCHEMA_VERSION:
            raise StoreInvalid(
                f"{self.url} has schema version {version}; this Gridhand knows {SCHEMA_VERSION}",
                hint="Use the version of Gridhand that wrote it, or a newer one.",
            )

    def _last_event(self) -> int:
        newest = self._connection.execute(select(func.max(schema.events.c.number))).scalar()
        through = self._connection.execute(select(schema.meta.c.checkpoint_through)).scalar_one()
        return max(newest or 0, int(through))

    # ---- transactions

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._raw.execute("BEGIN IMMEDIATE")
            yield
            self._raw.execute("COMMIT")
        except (sqlite3.Error, DBAPIError) as error:
            self._roll_back()
            raise self._translated(error) from error
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._raw.in_transaction:
                self._raw.execute("ROLLBACK")

    def _translated(self, error: sqlite3.Error | DBAPIError) -> Exception:
        text = str(error.orig) if isinstance(error, DBAPIError) else str(error)
        if any(words in text for words in _BROKEN):
            return StoreInvalid(f"{self.url}: {text}", hint="Restore a backup of the file.")
        if any(words in text for words in _NO_OUTCOME):
            return OutcomeUnknown(text)
        return StoreUnavailable(text)

    def _run(self, name: str, many: Sequence[tuple[Any, ...]]) -> int:
        if len(many) == 1:
            return self._raw.execute(self._compiled[name], many[0]).rowcount
        return self._raw.executemany(self._compiled[name], many).rowcount

    def _insert(self, name: str, many: Sequence[tuple[Any, ...]]) -> None:
        for some in _in_sizes(many):
            statement = self._compiled_many[name, len(some)]
            self._raw.execute(statement, tuple(chain.from_iterable(some)))

    def _close(self, state: str, numbers: list[int]) -> int:
        closed = 0
        for some in _in_sizes(numbers):
            closed += self._raw.execute(_CLOSE[len(some)], (state, *some)).rowcount
        return closed


def _for_many(insert_one: str, size: int) -> str:
    head, _, row = insert_one.partition(" VALUES ")
    return f"{head} VALUES {', '.join([row] * size)}"


def _in_sizes(many: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """The items in order, in pieces of the sizes there are statements for."""
    start = 0
    for size in _SIZES:
        while len(many) - start >= size:
            yield many[start : start + size]
            start += size


_CLOSE = {
    size: "UPDATE allocations SET state = ?, live_node = NULL"
    f" WHERE live_node IS NOT NULL AND number IN ({', '.join('?' * size)})"
    for size in _SIZES
}


def _set_pragmas(connection: sqlite3.Connection, _: object) -> None:
    for pragma in (
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
        "cache_size = -65536",
        "wal_autocheckpoint = 4000",
        "journal_size_limit = 67108864",
        "temp_store = MEMORY",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _open_private(path: Path) -> int:
    """Only the owner may read the file; SQLite gives its companions the same mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from error


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


class OwnerLock:
    """Ownership of a file, by a lock that the kernel drops when the process ends.

    A POSIX lock does not keep out the process that has it, so this process's own are listed, too.
    """

    _mine: set[tuple[int, int]] = set()  # noqa: RUF012 - the list is the process's

    def __init__(self, path: str, url: str) -> None:
        lock_path = Path(f"{path}.owner")
        # Opening and closing it once more would drop the lock this process has.
        if lock_path.exists() and _identity(lock_path.stat()) in self._mine:
            raise StoreOwned(url, os.getpid())
        self._fd = _open_private(lock_path)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = _read_pid(self._fd)
            os.close(self._fd)
            raise StoreOwned(url, pid) from None
        self._key = _identity(os.fstat(self._fd))
        self._mine.add(self._key)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        self._mine.discard(self._key)
        os.close(self._fd)


def _read_pid(fd: int) -> int | None:
    text = os.pread(fd, 20, 0).strip()
    return int(text) if text.isdigit() else None
