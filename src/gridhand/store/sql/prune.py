"""Deletes old events, after moving their result into the checkpoint.

At every moment the checkpoint and the remaining events give the current state. Each run deletes a
bounded number of events, and at most as many closed allocations, ended jobs and operations.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, func, insert, select, tuple_, update

from gridhand.store.sql import schema
from gridhand.store.sql.ledger_rows import compact

_CLOSING = {"allocation.released", "allocation.expired", "allocation.lost", "job.ended"}
_CHUNK = 500

_allocations, _checkpoint, _events, _jobs = (
    schema.allocations, schema.checkpoint, schema.events, schema.jobs
)  # fmt: skip


def forget(connection: Connection, before: int, answered_before: int, most: int) -> None:
    """Delete at most `most` events older than `before`, and old operations likewise."""
    query = select(_events).order_by(_events.c.number)
    oldest = connection.execute(query.limit(1)).mappings().first()
    found = []
    if oldest is not None and oldest["at"] < before:
        # A condition on their time would have to scan all events.
        rows = connection.execute(query.limit(most)).mappings()
        found = [row for row in rows if row["at"] < before]
    if found:
        # Only the last event of each subject counts.
        last = {(event["kind"].partition(".")[0], event["subject"]): event for event in found}
        _move_to_checkpoint(connection, last, _works(connection, found, last))
        through = found[-1]["number"]
        connection.execute(delete(_events).where(_events.c.number <= through))
        of = schema.event_tokens
        connection.execute(delete(of).where(of.c.number <= through))
        connection.execute(update(schema.meta).values(checkpoint_through=through))
    _forget_operations(connection, answered_before, most)


def left_to_forget(connection: Connection, before: int, answered_before: int) -> int:
    """Return how many events and operations are still too old."""
    table = schema.operations
    old = select(func.count()).select_from(table).where(table.c.at < answered_before)
    operations = int(connection.execute(old).scalar_one())
    first, last = _event_from(connection, 0), _newest(connection)
    if first is None or first[1] >= before:
        return operations
    # Numbers are in the order of time, so a binary search finds the first young event.
    low, high = first[0], last + 1
    while high - low > 1:
        found = _event_from(connection, (low + high) // 2)
        if found is None or found[1] >= before:
            high = (low + high) // 2
        else:
            low = found[0]
    return operations + low - first[0] + 1


def _event_from(connection: Connection, least: int) -> tuple[int, int] | None:
    """Return the number and the time of the first event with at least this number."""
    number = _events.c.number
    query = select(number, _events.c.at).where(number >= least).order_by(number).limit(1)
    row = connection.execute(query).first()
    return None if row is None else (row[0], row[1])


def _newest(connection: Connection) -> int:
    return int(connection.execute(select(func.max(_events.c.number))).scalar() or 0)


def _works(
    connection: Connection, found: list[RowMapping], last: dict[tuple[str, str], RowMapping]
) -> dict[str, Any]:
    """Return the work of each job whose last event lacks it, from its event or the checkpoint."""
    lacking = {
        subject
        for (kind, subject), event in last.items()
        if kind == "job" and event["kind"] != "job.submitted" and not _ended(event)
    }
    told = [
        (event["subject"], event["row"])
        for event in found
        if event["kind"] == "job.submitted" and event["subject"] in lacking
    ]
    for some in chunks(sorted(lacking - {subject for subject, _ in told})):
        query = select(_checkpoint.c.subject, _checkpoint.c.row).where(
            _checkpoint.c.kind == "job", _checkpoint.c.subject.in_(some)
        )
        told += [(row[0], row[1]) for row in connection.execute(query)]
    return {subject: json.loads(row).get("work") for subject, row in told}


def _move_to_checkpoint(
    connection: Connection, last: dict[tuple[str, str], RowMapping], works: dict[str, Any]
) -> None:
    key = tuple_(_checkpoint.c.kind, _checkpoint.c.subject)
    for some in chunks(list(last)):
        connection.execute(delete(_checkpoint).where(key.in_(some)))
    ended = {subject: event for subject, event in last.items() if _ended(event)}
    kept = [
        {"kind": kind, "subject": subject, "row": _whole(kind, event, works)}
        for (kind, subject), event in last.items()
        if (kind, subject) not in ended
    ]
    if kept:
        connection.execute(insert(_checkpoint), kept)
    for kind, table, over in (
        ("allocation", _allocations, _allocations.c.live_node.is_(None)),
        ("job", _jobs, _jobs.c.open.is_(None)),
    ):
        numbers = [
            json.loads(event["row"])["number"] for (of, _), event in ended.items() if of == kind
        ]
        for some in chunks(numbers):
            connection.execute(delete(table).where(table.c.number.in_(some), over))


def _whole(kind: str, event: RowMapping, works: dict[str, Any]) -> str:
    """Return the row of the event; for a job with its work, which a replay needs."""
    text: str = event["row"]
    if kind == "job" and event["subject"] in works:
        return compact({**json.loads(text), "work": works[event["subject"]]})
    return text


def _ended(event: RowMapping) -> bool:
    """Return whether the subject is gone: a removed node, closed allocation or ended job."""
    return event["row"] is None or event["kind"] in _CLOSING


def _forget_operations(connection: Connection, before: int, most: int) -> None:
    table = schema.operations
    old = select(table.c.owner, table.c.op_id).where(table.c.at < before).limit(most)
    key = tuple_(table.c.owner, table.c.op_id)
    for some in chunks([tuple(row) for row in connection.execute(old)]):
        connection.execute(delete(table).where(key.in_(some)))


def chunks(items: list[Any]) -> list[list[Any]]:
    """Split the items into pieces that fit into one IN (…)."""
    return [items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK)]
