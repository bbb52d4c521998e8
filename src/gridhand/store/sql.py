"""What the SQL stores have in common: the statements, and the order in which a batch is written.

The statements are declared with SQLAlchemy Core and compiled once; a batch then runs them on the
driver's own cursor, many rows at a time. Reading, which is rare, goes through SQLAlchemy.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    bindparam,
    delete,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.expression import UpdateBase

from gridhand.core.allocations import Allocation
from gridhand.core.errors import StoreError, StoreFenced
from gridhand.store import rows, schema
from gridhand.store.base import Batch, Contents, Event, Operation

_CHUNK = 500  # names in one IN (…)

_allocations, _events, _nodes = schema.allocations, schema.events, schema.nodes
_live = _allocations.c.live_node.is_not(None)

STATEMENTS: dict[str, UpdateBase] = {
    "fence": update(schema.meta)
    .where(schema.meta.c.epoch == bindparam("mine"))
    .values(high_water_ms=bindparam("high"), next_number=bindparam("following")),
    "change": update(_allocations)
    .where(_live, _allocations.c.number == bindparam("which"))
    .values(
        state=bindparam("to"),
        lifetime=bindparam("life"),
        deadline=bindparam("due"),
        ttl=bindparam("lasts"),
    ),
    "insert": insert(_allocations),
    "event": insert(_events),
    "operation": insert(schema.operations),
    "drop_node": delete(_nodes).where(_nodes.c.name == bindparam("which")),
    "insert_node": insert(_nodes),
}


class SqlStore(ABC):
    """A store on an SQLAlchemy connection. What differs between databases is abstract here."""

    url: str
    _connection: Connection
    _epoch: int
    _high_water_ms: int
    _next_event: int
    _next_number: int

    @abstractmethod
    def _transaction(self) -> Any:
        """A context: begin, then commit, or roll back; failures as errors of ours."""

    @abstractmethod
    def _run(self, name: str, many: Sequence[tuple[Any, ...]]) -> int:
        """Run a statement once for each tuple of parameters; say how many rows it touched."""

    @abstractmethod
    def _insert(self, name: str, many: Sequence[tuple[Any, ...]]) -> None:
        """Run an INSERT for all of these rows."""

    @abstractmethod
    def _close(self, state: str, numbers: list[int]) -> int:
        """End the live allocations with these numbers; say how many there were."""

    # ---- writing

    def commit(self, batch: Batch) -> None:
        final = _final_rows(batch)
        first_event = self._next_event
        events = _event_rows(batch, first_event)
        with self._transaction():
            self._hold_epoch(max(batch.at, self._high_water_ms), final.next_number)
            self._write(final)
            self._insert("event", events)
            if batch.operations:
                self._insert(
                    "operation",
                    [(op.owner, op.op_id, batch.at, op.body, op.reply) for op in batch.operations],
                )
        self._high_water_ms = max(batch.at, self._high_water_ms)
        self._next_event = first_event + len(events)
        self._next_number = max(self._next_number, final.next_number)

    def _hold_epoch(self, at: int, next_number: int) -> None:
        """Move the high-water marks, if the store is still ours. In every transaction."""
        if self._run("fence", [(at, max(next_number, self._next_number), self._epoch)]) != 1:
            raise StoreFenced(self._epoch)

    def _write(self, final: _FinalRows) -> None:
        # Ends come first: what they free (a holder's name, a node) may be taken in the same batch.
        for state, numbers in final.closed.items():
            _expect(len(numbers), self._close(state, numbers))
        if final.dropped_nodes:
            self._run("drop_node", final.dropped_nodes)
        if final.nodes:
            self._replace_nodes(final.nodes)
        if final.changed:
            _expect(len(final.changed), self._run("change", final.changed))
        if final.inserted:
            self._insert("insert", final.inserted)

    def _replace_nodes(self, many: list[tuple[Any, ...]]) -> None:
        known = self._existing_nodes([row[0] for row in many])
        columns = [column.name for column in _nodes.c]
        for row in many:
            if row[0] in known:
                values = dict(zip(columns[1:], row[1:], strict=True))
                self._connection.execute(
                    update(_nodes).where(_nodes.c.name == row[0]).values(values)
                )
        self._insert("insert_node", [row for row in many if row[0] not in known])

    def _existing_nodes(self, names: list[str]) -> set[str]:
        found: set[str] = set()
        for some in _chunks(names):
            query = select(_nodes.c.name).where(_nodes.c.name.in_(some))
            found.update(self._connection.execute(query).scalars())
        return found

    # ---- reading

    def load(self) -> Contents:
        connection = self._connection
        query = select(_allocations).where(_allocations.c.live_node.is_not(None))
        contents = Contents(
            nodes=[
                rows.node_from_columns(row)
                for row in connection.execute(select(_nodes)).mappings().all()
            ],
            allocations=[
                rows.allocation_from_columns(row)
                for row in connection.execute(query.order_by(_allocations.c.number)).mappings()
            ],
            next_number=connection.execute(select(schema.meta.c.next_number)).scalar_one(),
        )
        self._next_number = contents.next_number
        return contents

    def find(self, numbers: Iterable[int]) -> list[Allocation]:
        found: list[Allocation] = []
        for some in _chunks(list(numbers)):
            query = select(_allocations).where(_allocations.c.number.in_(some))
            found += map(rows.allocation_from_columns, self._connection.execute(query).mappings())
        return found

    def operations(self, wanted: Sequence[tuple[str, str]]) -> list[Operation]:
        table = schema.operations
        found: list[Operation] = []
        for some in _chunks(list(wanted)):
            query = select(table.c.owner, table.c.op_id, table.c.body, table.c.reply).where(
                tuple_(table.c.owner, table.c.op_id).in_(some)
            )
            found += (Operation(*row) for row in self._connection.execute(query))
        return found

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        query = select(_events).where(_events.c.number > after).order_by(_events.c.number)
        return [
            Event(**{**row, "row": None if row["row"] is None else json.loads(row["row"])})
            for row in map(dict, self._connection.execute(query.limit(limit)).mappings())
        ]

    def checkpoint(self) -> list[dict[str, Any]]:
        query = select(schema.checkpoint.c.row)
        return [json.loads(text) for text in self._connection.execute(query).scalars()]

    # ---- forgetting

    def prune(self, *, before: int, most: int) -> int:
        connection, table = self._connection, schema.checkpoint
        query = select(_events).where(_events.c.at < before).order_by(_events.c.number)
        forgotten = connection.execute(query.limit(most)).mappings().all()
        last = {(_kind(event["kind"]), event["subject"]): event for event in forgotten}
        with self._transaction():
            self._hold_epoch(self._high_water_ms, 0)
            for (kind, subject), event in last.items():
                connection.execute(
                    delete(table).where(table.c.kind == kind, table.c.subject == subject)
                )
                if _ended(event):
                    self._forget_closed(kind, event["row"])
                else:
                    row = {"kind": kind, "subject": subject, "row": event["row"]}
                    connection.execute(insert(table), row)
            if forgotten:
                through = forgotten[-1]["number"]
                connection.execute(delete(_events).where(_events.c.number <= through))
                connection.execute(update(schema.meta).values(checkpoint_through=through))
            self._forget_operations(before, most)
        return self._left_to_prune(before) if len(forgotten) == most else 0

    def _forget_closed(self, kind: str, row: str | None) -> None:
        if kind == "allocation" and row is not None:
            number = json.loads(row)["number"]
            self._connection.execute(
                delete(_allocations).where(
                    _allocations.c.number == number, _allocations.c.live_node.is_(None)
                )
            )

    def _forget_operations(self, before: int, most: int) -> None:
        table = schema.operations
        oldest = select(table.c.owner, table.c.op_id).where(table.c.at < before).limit(most)
        for owner, op_id in self._connection.execute(oldest).all():
            self._connection.execute(
                delete(table).where(table.c.owner == owner, table.c.op_id == op_id)
            )

    def _left_to_prune(self, before: int) -> int:
        query = select(_events.c.number).where(_events.c.at < before)
        newest = self._connection.execute(query.order_by(_events.c.number.desc()).limit(1)).scalar()
        oldest = self._connection.execute(
            select(_events.c.number).order_by(_events.c.number).limit(1)
        ).scalar()
        return 0 if newest is None or oldest is None else newest - oldest + 1


def _expect(rows: int, touched: int) -> None:
    if touched != rows:
        raise StoreError(
            f"the store changed {touched} of {rows} rows that memory has",
            hint="Something else wrote to it. It is read again before the next change.",
        )


def _kind(kind: str) -> str:
    return kind.partition(".")[0]


def _ended(event: Any) -> bool:
    """Whether nothing is left of the event's subject: a node removed, an allocation closed."""
    if event["row"] is None:
        return True
    return event["kind"] in _CLOSING


_CLOSING = {f"allocation.{state}" for state in ("released", "expired", "lost")}


class _FinalRows:
    """Each row that a batch touches, as the batch leaves it: one write per row."""

    def __init__(self) -> None:
        self.closed: dict[str, list[int]] = {}
        self.changed: list[tuple[Any, ...]] = []
        self.inserted: list[tuple[Any, ...]] = []
        self.nodes: list[tuple[Any, ...]] = []
        self.dropped_nodes: list[tuple[Any, ...]] = []
        self.next_number = 0


def _final_rows(batch: Batch) -> _FinalRows:
    final = _FinalRows()
    last: dict[str, Any] = {}
    new: set[str] = set()
    for (_, subject, before, after, _), _, _ in batch.entries:
        last[subject] = after
        if before is None:
            new.add(subject)
    for subject, after in last.items():
        if type(after) is Allocation:
            _add_allocation(final, after, subject in new)
        elif after is None:
            final.dropped_nodes.append((subject,))
        else:
            columns = rows.node_columns(after)
            final.nodes.append(tuple(columns[column.name] for column in _nodes.c))
    return final


def _add_allocation(final: _FinalRows, held: Allocation, new: bool) -> None:
    if new:
        final.inserted.append(rows.allocation_columns(held))
        final.next_number = max(final.next_number, held.number + 1)
    elif held.live:
        state, lifetime = held.state._value_, held.lifetime._value_
        final.changed.append((state, lifetime, held.deadline, held.ttl_ms, held.number))
    else:
        final.closed.setdefault(held.state._value_, []).append(held.number)


def _event_rows(batch: Batch, first: int) -> list[tuple[Any, ...]]:
    at = batch.at
    found = []
    for number, ((kind, subject, _, after, why), owner, op_id) in enumerate(batch.entries, first):
        row = rows.allocation_json(after) if type(after) is Allocation else rows.node_json(after)
        found.append((number, at, kind, subject, owner, op_id, why, row))
    return found


def _chunks(items: list[Any]) -> Iterable[list[Any]]:
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]
