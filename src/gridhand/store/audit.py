"""Reading a store from outside, whoever owns it: to prove it, and to copy it.

Everything is read in one transaction, so it is the state of one moment, even while the owner goes
on writing.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, create_engine, func, inspect, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from gridhand.core.check import Violation, check_history, check_state, replay, same_state
from gridhand.core.errors import StoreInvalid, StoreUnavailable
from gridhand.core.ledger import Ledger
from gridhand.core.views import dump
from gridhand.store import rows, schema
from gridhand.store.ownership import Taking
from gridhand.store.sqlite import SqliteStore
from gridhand.store.urls import store_at

Progress = Callable[[int, int], None]  # how many are done, of how many

_CHUNK = 5000


@dataclass(frozen=True, slots=True)
class Audit:
    """What a store holds, and what is wrong with it: nothing, if all is well."""

    url: str
    cluster_id: str
    epoch: int
    nodes: int
    live: int
    closed: int
    events: int
    violations: list[Violation]


def audit(url: str, progress: Progress = lambda done, all: None) -> Audit:
    """Recount the tables, replay the events, and compare the two."""
    with reading(url) as (shown, connection):
        found = _damage(connection)
        meta = connection.execute(select(schema.meta)).mappings().one()
        state = _state(connection, meta["high_water_ms"])
        total = _count(connection, schema.events)
        found += check_state(state)
        if not any(violation.subject == "file" for violation in found):
            initial = _checkpoint(connection)
            found += check_history(_events(connection, progress, total), initial)
            found += same_state(replay(_events(connection, progress, total), initial), state)
        return Audit(
            url=shown,
            cluster_id=meta["cluster_id"],
            epoch=meta["epoch"],
            nodes=len(state["nodes"]),
            live=len(state["allocations"]),
            closed=_count(connection, schema.allocations) - len(state["allocations"]),
            events=total,
            violations=found,
        )


@contextlib.contextmanager
def reading(url: str) -> Iterator[tuple[str, Connection]]:
    """The store's address as it may be shown, and a connection that cannot write."""
    store = store_at(url)
    if isinstance(store, SqliteStore):
        if not Path(store.url.removeprefix("sqlite:///")).exists():
            raise Taking().missing(store.url)
        engine = create_engine(
            "sqlite://", creator=lambda: _sqlite(store.url), poolclass=StaticPool
        )
    else:
        from gridhand.store.postgres import PostgresStore

        assert isinstance(store, PostgresStore)
        engine = create_engine(
            "postgresql+psycopg://",
            creator=store.reading_connection,
            isolation_level="REPEATABLE READ",
            poolclass=StaticPool,
        )
    try:
        with engine.connect() as connection, connection.begin():
            if schema.meta.name not in inspect(connection).get_table_names():
                raise StoreInvalid(
                    f"{store.url} is not a Gridhand store", hint="Check the address of the store."
                )
            yield store.url, connection
    except DBAPIError as error:
        raise StoreUnavailable(" ".join(str(error.orig).split())) from error
    finally:
        engine.dispose()


def _sqlite(url: str) -> sqlite3.Connection:
    path = url.removeprefix("sqlite:///")
    connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, check_same_thread=False)
    # The driver would begin a transaction only when it writes; this one is to see one moment.
    connection.isolation_level = None
    connection.execute("BEGIN")
    return connection


def _damage(connection: Connection) -> list[Violation]:
    if connection.dialect.name != "sqlite":
        return []
    answers = [row[0] for row in connection.exec_driver_sql("PRAGMA integrity_check(5)")]
    return [Violation("I7", "file", " ".join(text.split())) for text in answers if text != "ok"]


def _state(connection: Connection, now: int) -> dict[str, Any]:
    live = select(schema.allocations).where(schema.allocations.c.live_node.is_not(None))
    ledger = Ledger()
    ledger.load(
        (
            rows.node_from_columns(row)
            for row in connection.execute(select(schema.nodes)).mappings()
        ),
        (rows.allocation_from_columns(row) for row in connection.execute(live).mappings()),
    )
    return dump(ledger, {}, now=now)


def _checkpoint(connection: Connection) -> list[dict[str, Any]]:
    texts = connection.execute(select(schema.checkpoint.c.row)).scalars()
    return [json.loads(text) for text in texts]


def _events(connection: Connection, progress: Progress, total: int) -> Iterator[dict[str, Any]]:
    table, after, done = schema.events, 0, 0
    while True:
        query = select(table).where(table.c.number > after).order_by(table.c.number).limit(_CHUNK)
        some = connection.execute(query).mappings().all()
        if not some:
            return
        for row in some:
            text = row["row"]
            yield {**dict(row), "row": None if text is None else json.loads(text)}
        after = some[-1]["number"]
        done += len(some)
        progress(done, total)


def _count(connection: Connection, table: Any) -> int:
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())
