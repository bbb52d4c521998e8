"""Moves a ledger to another store: copies, verifies, then switches.

This process owns both stores meanwhile. The copy is one transaction in the target and is compared
with the source row by row before it is committed. Only then is the source marked as moved, after
which it cannot be opened. If the process is killed before, the source is unchanged, and the target
is empty, or complete and unused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, String, Table, func, insert, select, update

from gridhand.core.errors import StoreInvalid
from gridhand.store.sql import schema
from gridhand.store.sql.sql_store import SqlStore

Progress = Callable[[str, int, int], None]  # table, rows done, rows in total

_CHUNK = 2000
_TABLES = (
    schema.nodes,
    schema.allocations,
    schema.jobs,
    schema.calls,
    schema.events,
    schema.operations,
    schema.checkpoint,
    schema.clock_jumps,
    schema.event_tokens,
    schema.tokens,
    schema.owner_shares,
)


def move(source: SqlStore, target: SqlStore, progress: Progress = lambda *_: None) -> int:
    """Move everything and return the number of rows. Both stores are closed afterwards."""
    if source.url == target.url:
        raise StoreInvalid(
            f"{source.url} is both FROM and TO", hint="Give another place to move to."
        )
    source.open()
    try:
        target.open()
        try:
            rows = _copy(source, target, progress)
        finally:
            target.close()
        source.mark_moved(target.url)
        return rows
    finally:
        source.close()


def _copy(source: SqlStore, target: SqlStore, progress: Progress) -> int:
    if any(_count(target.connection, table) for table in _TABLES):
        raise StoreInvalid(
            f"{target.url} is not empty", hint="Give the address of a new store to move to."
        )
    rows = 0
    with target.writing():
        for table in _TABLES:
            rows += _copy_table(source.connection, target.connection, table, progress)
        for table in _TABLES:
            _compare(source.connection, target.connection, table)
        _copy_meta(source.connection, target.connection)
    return rows


def _copy_table(source: Connection, target: Connection, table: Table, progress: Progress) -> int:
    total, done = _count(source, table), 0
    for some in _pages(source, table):
        target.execute(insert(table), some)
        done += len(some)
        progress(table.name, done, total)
    return done


def _compare(source: Connection, target: Connection, table: Table) -> None:
    pages = zip(_pages(source, table), _pages(target, table), strict=True)
    if _count(source, table) != _count(target, table) or any(one != two for one, two in pages):
        raise StoreInvalid(
            f"the copy of {table.name} differs from the original",
            hint="Nothing was switched. Check the source with `grid check --store`.",
        )


def _pages(connection: Connection, table: Table) -> Any:
    """Yield the rows in the order of their keys, a page at a time."""
    key = [_by_bytes(connection, column) for column in table.primary_key.columns]
    last: tuple[Any, ...] | None = None
    while True:
        query = select(table).order_by(*key).limit(_CHUNK)
        if last is not None:
            query = query.where(_after(key, last))
        rows = [dict(row) for row in connection.execute(query).mappings()]
        if not rows:
            return
        yield rows
        last = tuple(rows[-1][column.name] for column in table.primary_key.columns)


def _by_bytes(connection: Connection, column: Any) -> Any:
    """Return the column with a byte order, which is the same in both databases."""
    if not isinstance(column.type, String):
        return column
    return column.collate("C" if connection.dialect.name == "postgresql" else "BINARY")


def _after(key: list[Any], last: tuple[Any, ...]) -> Any:
    if len(key) == 1:
        return key[0] > last[0]
    return (key[0] > last[0]) | ((key[0] == last[0]) & (key[1] > last[1]))


def _copy_meta(source: Connection, target: Connection) -> None:
    """Copy the identity and the counters of the cluster. The epoch continues the source's."""
    row = dict(source.execute(select(schema.meta)).mappings().one())
    kept = ("cluster_id", "high_water_ms", "next_number", "checkpoint_through", "next_job")
    same = {name: row[name] for name in kept}
    epoch = row["epoch"] + 1
    target.execute(update(schema.meta).values(**same, epoch=epoch, writer=epoch))


def _count(connection: Connection, table: Table) -> int:
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())
