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
    and_,
    bindparam,
    delete,
    insert,
    null,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.expression import UpdateBase

from gridhand.core.allocations import Allocation
from gridhand.core.errors import StoreError, StoreFenced
from gridhand.core.nodes import Node
from gridhand.store import rows, schema
from gridhand.store.base import Batch, Contents, Event, Operation

_CHUNK = 500  # names in one IN (…)

_allocations, _events, _nodes = schema.allocations, schema.events, schema.nodes
_this_live = and_(
    _allocations.c.number == bindparam("which"), _allocations.c.live_node.is_not(None)
)

STATEMENTS: dict[str, UpdateBase] = {
    "fence": update(schema.meta)
    .where(schema.meta.c.epoch == bindparam("mine"))
    .values(high_water_ms=bindparam("high"), next_number=bindparam("following")),
    "close": update(_allocations).where(_this_live).values(state=bindparam("to"), live_node=null()),
    "change": update(_allocations)
    .where(_this_live)
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

    # ---- writing

    def commit(self, batch: Batch) -> None:
        final = _final_rows(batch)
        first_event = self._next_event
        events = _event_rows(batch, first_event)
        with self._transaction():
            self._hold_epoch(max(batch.at, self._high_water_ms), final.next_number)
            self._write(final)
            self._run("event", events)
            if batch.operations:
                self._run("operation", [
                    (op.owner, op.op_id, batch.at, op.body, op.reply) for op in batch.operations
                ])  # fmt: skip
        self._high_water_ms = max(batch.at, self._high_water_ms)
        self._next_event = first_event + len(events)
        self._next_number = max(self._next_number, final.next_number)

    def _hold_epoch(self, at: int, next_number: int) -> None:
        """Move the high-water marks, if the store is still ours. In every transaction."""
        if self._run("fence", [(at, max(next_number, self._next_number), self._epoch)]) != 1:
            raise StoreFenced(self._epoch)

    def _write(self, final: _FinalRows) -> None:
        # Ends come first: what they free (a holder's name, a node) may be taken in the same batch.
        self._expect("close", final.closed)
        if final.dropped_nodes:
            self._run("drop_node", final.dropped_nodes)
        if final.nodes:
            self._replace_nodes(final.nodes)
        self._expect("change", final.changed)
        if final.inserted:
            self._run("insert", final.inserted)

    def _expect(self, name: str, many: list[tuple[Any, ...]]) -> None:
        if many and self._run(name, many) != len(many):
            raise StoreError(f"{name}: the store does not have the rows that memory has")

    def _replace_nodes(self, many: list[tuple[Any, ...]]) -> None:
        known = self._existing_nodes([row[0] for row in many])
        columns = [column.name for column in _nodes.c]
        for row in many:
            if row[0] in known:
                values = dict(zip(columns[1:], row[1:], strict=True))
                self._connection.execute(
                    update(_nodes).where(_nodes.c.name == row[0]).values(values)
                )
        self._run("insert_node", [row for row in many if row[0] not in known])

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
        self.closed: list[tuple[Any, ...]] = []
        self.changed: list[tuple[Any, ...]] = []
        self.inserted: list[tuple[Any, ...]] = []
        self.nodes: list[tuple[Any, ...]] = []
        self.dropped_nodes: list[tuple[Any, ...]] = []
        self.next_number = 0


def _final_rows(batch: Batch) -> _FinalRows:
    first: dict[str, Any] = {}
    last: dict[str, Any] = {}
    node_last: dict[str, Node | None] = {}
    for change, _, _ in batch.entries:
        _, subject, before, after, _ = change
        if type(after) is Allocation:
            first.setdefault(subject, before)
            last[subject] = after
        else:
            node_last[subject] = after
    final = _FinalRows()
    for subject, held in last.items():
        if first[subject] is None:
            final.inserted.append(_allocation_tuple(held))
            final.next_number = max(final.next_number, held.number + 1)
        elif held.live:
            final.changed.append(
                (held.state, held.lifetime, held.deadline, held.ttl_ms, held.number)
            )
        else:
            final.closed.append((held.state, held.number))
    for name, node in node_last.items():
        if node is None:
            final.dropped_nodes.append((name,))
        else:
            final.nodes.append(tuple(rows.node_columns(node)[column.name] for column in _nodes.c))
    return final


def _allocation_tuple(held: Allocation) -> tuple[Any, ...]:
    return (
        held.number, held.epoch, held.owner, held.holder, held.node,
        held.node if held.live else None,
        rows.amounts_json(held.amounts), rows.devices_json(held.devices), held.state,
        held.lifetime, held.deadline, held.ttl_ms, held.group, held.asked, held.quality,
        held.made_at,
    )  # fmt: skip


def _event_rows(batch: Batch, number: int) -> list[tuple[Any, ...]]:
    at = batch.at
    return [
        (
            number + index, at, change.kind, change.subject, owner, op_id, change.why,
            rows.allocation_json(change.after)
            if type(change.after) is Allocation
            else rows.node_json(change.after),
        )
        for index, (change, owner, op_id) in enumerate(batch.entries)
    ]  # fmt: skip


def _chunks(items: list[Any]) -> Iterable[list[Any]]:
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]
