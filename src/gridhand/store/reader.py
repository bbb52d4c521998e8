"""Reads a store without owning it, to check it.

Everything is read in one transaction, so it is the state of one moment even while the owner writes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Table,
    create_engine,
    func,
    inspect,
    or_,
    select,
    tuple_,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from gridhand.audit import (
    Violation,
    check_call,
    check_ended_job,
    check_history,
    check_state,
    replay,
    same_state,
)
from gridhand.core.errors import StoreError, StoreInvalid
from gridhand.store.ownership import Taking
from gridhand.store.sql import schema
from gridhand.store.sql.sql_store import refuse_newer
from gridhand.store.sql.sqlite import SqliteStore, connect_to_read
from gridhand.store.urls import store_at

Progress = Callable[[int, int], None]  # rows done, rows in total

_CHUNK = 5000
_JSON = {"amounts", "capacity", "devices", "labels", "work", "request", "after", "attempts"}


@dataclass(frozen=True, slots=True)
class Audit:
    """The counts of what a store contains, and the violations that were found."""

    url: str
    cluster_id: str
    epoch: int
    nodes: int
    live: int
    closed: int
    open_jobs: int
    ended_jobs: int
    events: int
    violations: list[Violation]
    moved_to: str | None = None
    open_calls: int = 0
    ended_calls: int = 0


def audit(url: str, progress: Progress = lambda done, all: None) -> Audit:
    """Recount the tables, replay the events, and compare the two."""
    with reading(url) as (shown, connection):
        damage = _damage(connection)
        try:
            return _audit(shown, connection, progress, damage)
        except DBAPIError:
            if not damage:
                raise
            return _count_damaged(shown, connection, damage)


def _count_damaged(url: str, connection: Connection, damage: list[Violation]) -> Audit:
    """Report the damage, and count what can still be counted."""

    def count(table: Table, *conditions: ColumnElement[bool]) -> int:
        query = select(func.count()).select_from(table).where(*conditions)
        with contextlib.suppress(DBAPIError):
            return int(connection.execute(query).scalar_one())
        return 0

    live, open_jobs = schema.allocations.c.live_node, schema.jobs.c.open
    return Audit(
        url=url,
        cluster_id="",
        epoch=0,
        nodes=count(schema.nodes),
        live=count(schema.allocations, live.is_not(None)),
        closed=count(schema.allocations, live.is_(None)),
        open_jobs=count(schema.jobs, open_jobs.is_not(None)),
        ended_jobs=count(schema.jobs, open_jobs.is_(None)),
        events=count(schema.events),
        violations=damage,
    )


def _audit(url: str, connection: Connection, progress: Progress, found: list[Violation]) -> Audit:
    columns = schema.meta.c
    query = select(columns.cluster_id, columns.epoch, columns.high_water_ms, columns.moved_to)
    meta = connection.execute(query).mappings().one()
    state = _state(connection, meta["high_water_ms"])
    jobs = len(state["jobs"])
    ended = _count(connection, schema.jobs) - jobs if _has_jobs(connection) else 0
    total = _count(connection, schema.events)
    initial = _checkpoint(connection)
    found = found + check_state(state) + _misplaced(state)
    found += check_history(_events(connection, progress, total), initial)
    found += same_state(replay(_events(connection, progress, total), initial), state)
    if _has_jobs(connection):
        found += _check_ended(connection, ended)
    open_calls, ended_calls = _check_calls(connection, found)
    live = len(state["allocations"])
    return Audit(
        url=url,
        cluster_id=meta["cluster_id"],
        epoch=meta["epoch"],
        nodes=len(state["nodes"]),
        live=live,
        closed=_count(connection, schema.allocations) - live,
        open_jobs=jobs,
        ended_jobs=ended,
        events=total,
        violations=found,
        moved_to=meta["moved_to"],
        open_calls=open_calls,
        ended_calls=ended_calls,
    )


@contextlib.contextmanager
def reading(url: str) -> Iterator[tuple[str, Connection]]:
    """Yield the store's address without its password, and a read-only connection."""
    store = store_at(url)
    if isinstance(store, SqliteStore):
        if not Path(store.url.removeprefix("sqlite:///")).exists():
            raise Taking().missing(store.url)
        engine = create_engine(
            "sqlite://", creator=lambda: connect_to_read(store.url), poolclass=StaticPool
        )
    else:
        from gridhand.store.sql.postgres import PostgresStore

        assert isinstance(store, PostgresStore)
        engine = create_engine(
            "postgresql+psycopg://",
            creator=store.reading_connection,
            isolation_level="REPEATABLE READ",
            poolclass=StaticPool,
        )
    try:
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                # The driver begins a transaction only to write; this one gives a consistent view.
                connection.exec_driver_sql("BEGIN")
            if schema.meta.name not in inspect(connection).get_table_names():
                raise StoreInvalid(
                    f"{store.url} is not a Gridhand store", hint="Check the address of the store."
                )
            refuse_newer(store.url, _version(connection))
            yield store.url, connection
    except DBAPIError as error:
        raise StoreError(
            f"{store.url} cannot be read: {' '.join(str(error.orig).split())}",
            hint="Check the address of the store, and that it may be read.",
        ) from error
    finally:
        engine.dispose()


def _version(connection: Connection) -> int:
    return int(connection.execute(select(schema.meta.c.schema_version)).scalar_one())


def _has_jobs(connection: Connection) -> bool:
    """Return whether the schema has jobs; an older one has none to check."""
    return _version(connection) >= 2


def _damage(connection: Connection) -> list[Violation]:
    if connection.dialect.name != "sqlite":
        return []
    try:
        answers = [row[0] for row in connection.exec_driver_sql("PRAGMA integrity_check(5)")]
    except DBAPIError as error:
        answers = [str(error.orig)]
    return [Violation("I7", "file", " ".join(text.split())) for text in answers if text != "ok"]


def _state(connection: Connection, now: int) -> dict[str, Any]:
    """Return the current state as plain rows, unchecked: finding faults is up to the audit."""
    table = schema.allocations
    live = or_(table.c.live_node.is_not(None), table.c.state.in_(("reserved", "active")))
    return {
        "now": now,
        "nodes": [_parsed(row) for row in connection.execute(select(schema.nodes)).mappings()],
        "allocations": [
            {"id": f"a{row['epoch']}-{row['number']}", **_parsed(row)}
            for row in connection.execute(select(table).where(live)).mappings()
        ],
        "jobs": _open_jobs(connection) if _has_jobs(connection) else [],
    }


def _open_jobs(connection: Connection) -> list[dict[str, Any]]:
    table = schema.jobs
    still = or_(table.c.open.is_not(None), table.c.state.in_(("queued", "running")))
    return [_parsed(row) for row in connection.execute(select(table).where(still)).mappings()]


def _check_ended(connection: Connection, ended: int) -> list[Violation]:
    """Check each ended job, and that there is an event for the end of each."""
    table, after = schema.jobs, 0
    found: list[Violation] = []
    while True:
        query = select(table).where(table.c.open.is_(None), table.c.number > after)
        some = connection.execute(query.order_by(table.c.number).limit(_CHUNK)).mappings().all()
        if not some:
            break
        for row in some:
            found += check_ended_job(_parsed(row))
        after = some[-1]["number"]
    events = schema.events
    query = select(func.count()).select_from(events).where(events.c.kind == "job.ended")
    told = int(connection.execute(query).scalar_one())
    if told != ended:
        found.append(Violation("I7", "jobs", f"{ended} have ended, but {told} events say so"))
    return found


def _check_calls(connection: Connection, found: list[Violation]) -> tuple[int, int]:
    """Return how many calls are open and ended; add violations to `found`."""
    if _version(connection) < 3:  # an older schema has no calls
        return 0, 0
    table, still, over = schema.calls, 0, 0
    key = tuple_(table.c.run, table.c.number)
    query = select(table).order_by(table.c.run, table.c.number).limit(_CHUNK)
    some = connection.execute(query).mappings().all()
    while some:
        for row in some:
            found += check_call(dict(row))
            still, over = still + (row["open"] is not None), over + (row["open"] is None)
        last = tuple_(some[-1]["run"], some[-1]["number"])
        some = connection.execute(query.where(key > last)).mappings().all()
    return still, over


def _parsed(row: RowMapping) -> dict[str, Any]:
    found = dict(row)
    for name in _JSON & found.keys():
        found[name] = None if found[name] is None else _json(found[name])
    if "draining" in found:
        found["draining"] = bool(found["draining"])
    return found


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def _misplaced(state: dict[str, Any]) -> list[Violation]:
    """Find rows whose state contradicts `live_node`, or `open`."""
    found = [
        Violation("I2", row["id"], f"is {row['state']}, but live on {row['live_node']}")
        for row in state["allocations"]
        if row["live_node"] != (row["node"] if row["state"] in ("reserved", "active") else None)
    ]
    return found + [
        Violation("I6", str(row["id"]), f"is {row['state']}, but open is {row['open']}")
        for row in state["jobs"]
        if row["open"] != (1 if row["state"] in ("queued", "running") else None)
    ]


def _checkpoint(connection: Connection) -> list[dict[str, Any]]:
    texts = connection.execute(select(schema.checkpoint.c.row)).scalars()
    return [_json(text) for text in texts]


def _events(connection: Connection, progress: Progress, total: int) -> Iterator[dict[str, Any]]:
    table, after, done = schema.events, 0, 0
    while True:
        query = select(table).where(table.c.number > after).order_by(table.c.number).limit(_CHUNK)
        some = connection.execute(query).mappings().all()
        if not some:
            return
        for row in some:
            yield {**dict(row), "row": _json(row["row"])}
        after = some[-1]["number"]
        done += len(some)
        progress(done, total)


def _count(connection: Connection, table: Any) -> int:
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())
