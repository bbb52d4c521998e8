"""The SQLite store: one file in WAL mode, or memory.

One connection writes and checkpoints the WAL. `synchronous=FULL` syncs the WAL at every commit, so
that answered operations survive a power cut.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import RowMapping, Select, create_engine, event, select
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from gridhand.core.errors import (
    OutcomeUnknown,
    StoreDamaged,
    StoreError,
    StoreFenced,
    StoreFull,
    StoreInvalid,
    StoreRemoved,
    StoreUnavailable,
)
from gridhand.store.base import Batch, Opening
from gridhand.store.ownership import (
    NextEpoch,
    OwnerLock,
    Taking,
    fill_reserve,
    following_epoch,
    open_private,
)
from gridhand.store.sql import schema
from gridhand.store.sql.batches import Row
from gridhand.store.sql.call_store import COLUMNS, upsert
from gridhand.store.sql.sql_store import SqlStore
from gridhand.store.sql.sqlite_files import SqliteFiles
from gridhand.store.sql.statements import STATEMENTS

_Item = TypeVar("_Item")
_log = logging.getLogger("gridhand")

DEFAULT_TIMEOUT_S = 5.0
# Rows per statement: many at once are cheaper, and release the interpreter lock only once.
_SIZES = (32, 8, 1)
_CHECKED_AT_START = 256 * 2**20  # bytes: a larger file is checked only by `grid check`
_RESERVE = 512 * 1024  # bytes of disk space, so that releasing works when the disk is full
_REFILL_S = 10.0
_WAL_ALARM = 256 * 2**20
_BROKEN = ("file is not a database", "database disk image is malformed")


class _WrittenToRemoved(StoreRemoved):
    """The file was removed during the commit, so memory has to be compared with it."""


class SqliteStore(SqlStore):
    """A ledger in one file, or in memory if `path` is None."""

    def __init__(
        self,
        path: str | None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        taking: Taking | None = None,
    ) -> None:
        super().__init__(taking)
        self.url = f"sqlite:///{path}" if path else "sqlite://"
        self.address = path or self.url
        if path and timeout_s != DEFAULT_TIMEOUT_S:
            self.address = f"{self.url}?timeout={timeout_s}"
        self._path = path
        self._timeout_s = timeout_s
        self._owner_lock: OwnerLock | None = None
        self._engine: Engine | None = None
        self._files: SqliteFiles | None = None
        self._damage = ""
        self._next_care = 0.0
        self._relieved = False

    def open(self, next_epoch: NextEpoch = following_epoch) -> Opening:
        if self._path:
            self._look_first(self._path)
            self._owner_lock = OwnerLock(self._path, self.url, self._taking)
        return super().open(next_epoch)

    def _look_first(self, path: str) -> None:
        """Refuse a file that is not ours before even turning on the WAL changes it."""
        tables: set[str] = set()
        if os.path.exists(path):
            # If the file cannot be read, opening it later reports that.
            with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):
                reader = sqlite3.connect(f"file:{quote(path)}?immutable=1", uri=True)
                with contextlib.closing(reader):
                    found = reader.execute("SELECT name FROM sqlite_master")
                    tables = {row[0] for row in found}
        if tables and schema.meta.name not in tables:
            raise self._something_else()
        in_wal = os.path.exists(f"{path}-wal")
        if not tables and not in_wal and self._taking.must_exist:
            raise self._taking.missing(self.url)

    def commit(self, batch: Batch) -> None:
        self._refuse_if_damaged()
        if self._relieved:
            self._refill_first(more=any(change.before is None for change, _, _ in batch.entries))
        super().commit(batch)
        if self._path and time.monotonic() > self._next_care:
            self._next_care = time.monotonic() + _REFILL_S
            self._care(self._path)

    def _care(self, path: str) -> None:
        """Refill the disk reserve, and warn about a WAL that has grown too large."""
        fill_reserve(Path(f"{path}.reserve"), _RESERVE)
        with contextlib.suppress(OSError):
            size = os.path.getsize(f"{path}-wal")
            if size > _WAL_ALARM:
                _log.warning(
                    "the WAL of %s has grown to %d MB: another program reads it without end",
                    path,
                    size // 10**6,
                )

    def _refill_first(self, *, more: bool) -> None:
        """Refill the spent reserve; while that fails, raise `StoreFull` for anything new."""
        self._relieved = not fill_reserve(Path(f"{self._path}.reserve"), _RESERVE)
        if self._relieved and more:
            raise StoreFull("the disk is full, and its last space is kept for releasing")

    def relieve(self) -> bool:
        if self._relieved:
            return True  # the space is being used up, and nothing new has taken any of it
        if not self._path or not os.path.exists(f"{self._path}.reserve"):
            return False
        os.unlink(f"{self._path}.reserve")
        self._relieved = True
        with contextlib.suppress(sqlite3.Error):
            # Move the WAL into the database file, so that its space can be reused.
            self._raw.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        return True

    def lost_file(self) -> str:
        files = self._files  # once: other threads ask, too
        return "" if files is None else files.lost()

    def rewrite(self) -> bool:
        """Do as the base says; the open connection still reads the file that was removed."""
        if not self._path or not (lost := self.lost_file()):
            return False
        if os.path.exists(self._path) and lost == os.path.realpath(self._path):
            raise StoreInvalid(
                f"another file is at {self._path} now", hint="Move it away, then repeat this."
            )
        self._release_lock()  # its file was perhaps removed, too
        self._owner_lock = OwnerLock(self._path, self.url, Taking())
        assert self._files is not None
        try:
            self._files.write_anew(self._raw)
        except OSError as error:
            raise StoreUnavailable(f"{self._path}: {error.strerror}") from error
        except sqlite3.Error as error:
            raise self._translated(error) from error
        super()._reconnect()
        _log.warning("%s was removed, and was written anew", lost)
        return True

    def prune(self, *, before: int, most: int, answered_before: int | None = None) -> int:
        self._refuse_if_damaged()
        return super().prune(before=before, most=most, answered_before=answered_before)

    def _check_writable(self, *, more: bool) -> None:
        self._refuse_if_damaged()
        if self._relieved:
            self._refill_first(more=more)

    def close(self) -> None:
        self._disconnect()
        self._release_lock()

    def _release_lock(self) -> None:
        lock, self._owner_lock = self._owner_lock, None
        if lock is not None:
            lock.release()

    # ---- connection

    def _connect(self) -> None:
        if self._path:
            os.close(open_private(Path(self._path)))
        self._engine = create_engine(
            "sqlite://",
            creator=self._raw_connection,
            poolclass=StaticPool,
            isolation_level="AUTOCOMMIT",
        )
        event.listen(self._engine, "connect", _set_pragmas)
        try:
            self._connection = self._engine.connect()
        except (sqlite3.Error, DBAPIError, UnicodeDecodeError) as error:
            raise self._translated(error) from error
        if self._path:
            self._files = SqliteFiles(self._path)
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

    def reader(self) -> SqliteStore | None:
        if not self._path or self._damage:
            return None
        reading = SqliteStore(self._path)
        reading._engine = create_engine(
            "sqlite://", creator=lambda: connect_to_read(self.url), poolclass=StaticPool
        ).execution_options(isolation_level="AUTOCOMMIT")
        try:
            reading._connection = reading._engine.connect()
        except (sqlite3.Error, DBAPIError) as error:
            raise self._translated(error) from error
        return reading

    def _raw_connection(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self._path or ":memory:",
            timeout=self._timeout_s,
            check_same_thread=False,
            isolation_level=None,
            cached_statements=64,
        )

    def _reconnect(self) -> None:
        # To close the last connection to a removed file would lose it for good.
        if not self.lost_file():
            super()._reconnect()

    def _disconnect(self) -> None:
        self._files = None
        if self._engine is not None:
            with contextlib.suppress(sqlite3.Error, DBAPIError, AttributeError):
                self._connection.close()
            with contextlib.suppress(sqlite3.Error, DBAPIError):
                self._engine.dispose()
            self._engine = None

    def _make_durable(self) -> None:
        # A commit whose sync failed may be in the WAL, and counts only once it is synced.
        self._raw.execute("PRAGMA wal_checkpoint(FULL)").fetchall()

    def _begin_epoch(self, next_epoch: NextEpoch) -> Opening:
        self._damage = self._found_damage()
        if not self._damage:
            opening = self._begin_even_if_full(next_epoch)
            if self._owner_lock is not None:
                self._owner_lock.confirm()
            return opening
        # A damaged store can still be read, to save what is left.
        row = self._read(select(schema.meta))[0]
        return Opening(row["epoch"], row["high_water_ms"], row["cluster_id"], self._damage)

    def _begin_even_if_full(self, next_epoch: NextEpoch) -> Opening:
        try:
            return super()._begin_epoch(next_epoch)
        except StoreFull:
            if not self.relieve():
                raise
            return super()._begin_epoch(next_epoch)

    def _found_damage(self) -> str:
        if not self._path or os.path.getsize(self._path) > _CHECKED_AT_START:
            return ""
        try:
            found = self._raw.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.Error as error:
            raise self._translated(error) from error
        return "" if found == "ok" else " ".join(str(found).split())

    def _read_some(self, query: Select[Any]) -> Sequence[RowMapping]:
        if not self._damage:
            return self._read(query)
        rows: list[RowMapping] = []
        with contextlib.suppress(DBAPIError, sqlite3.Error):
            rows.extend(self._connection.execute(query).mappings())
        return rows

    def _refuse_if_damaged(self) -> None:
        if self._damage:
            raise StoreDamaged(self.url, self._damage)

    # ---- transactions

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        if lost := self.lost_file():
            raise StoreRemoved(lost)
        try:
            self._raw.execute("BEGIN IMMEDIATE")
            yield
            self._raw.execute("COMMIT")
            if lost := self.lost_file():
                raise _WrittenToRemoved(lost)
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

    def _translated(self, error: Exception) -> Exception:
        text = str(error.orig) if isinstance(error, DBAPIError) else str(error)
        if any(words in text for words in _BROKEN) or isinstance(error, UnicodeDecodeError):
            return StoreDamaged(self.url, text)
        if schema.FENCE in text:
            return StoreFenced(self._epoch)
        if "constraint failed" in text:
            return StoreError(f"the store refused a change: {text}")
        if "disk I/O error" in text:
            return OutcomeUnknown(text)
        if "disk is full" in text:
            return StoreFull(text)
        return StoreUnavailable(text)

    def _run(self, name: str, many: Sequence[Row]) -> int:
        if len(many) == 1:
            return self._raw.execute(self._compiled[name], many[0]).rowcount
        return self._raw.executemany(self._compiled[name], many).rowcount

    def _insert(self, name: str, many: Sequence[Row]) -> None:
        if len(many) == 1:
            self._raw.execute(self._compiled[name], many[0])
            return
        for some in _in_sizes(many):
            statement = self._compiled_many[name, len(some)]
            self._raw.execute(statement, tuple(chain.from_iterable(some)))

    def _put_calls(self, rows: Sequence[Row]) -> None:
        for some in _in_sizes(rows):
            self._raw.execute(_PUT_CALLS[len(some)], tuple(chain.from_iterable(some)))

    def _close(self, state: str, numbers: list[int]) -> int:
        closed = 0
        for some in _in_sizes(numbers):
            closed += self._raw.execute(_CLOSE[len(some)], (state, *some)).rowcount
        return closed


def connect_to_read(url: str) -> sqlite3.Connection:
    """Return a connection to a store in a file that cannot write."""
    path = url.removeprefix("sqlite:///")
    return sqlite3.connect(
        f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False, isolation_level=None
    )


def _for_many(insert_one: str, size: int) -> str:
    head, _, row = insert_one.partition(" VALUES ")
    return f"{head} VALUES {', '.join([row] * size)}"


def _in_sizes(many: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Split the items, in order, into the sizes for which there are statements."""
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

_ONE_CALL = f"({', '.join('?' * len(COLUMNS))})"
_PUT_CALLS = {size: upsert(f"VALUES {', '.join([_ONE_CALL] * size)}") for size in _SIZES}


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
