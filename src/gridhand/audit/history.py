"""Checks the event log: its order, each step in it, and that it leads to the current state.

A ledger can be rebuilt from its events, so the log itself must be valid: numbered and dated in
order, each allocation moving only as the table below allows, closed once, and never holding more
or less than was granted. The table repeats the ledger's on purpose: the checker shares no code
with it. An unreadable event is a `Violation` of I7.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gridhand.audit.job_history import JobSteps
from gridhand.audit.jobs import OVER
from gridhand.audit.rows import (
    CLOSED,
    LIVE,
    AuditedAllocation,
    Reader,
    Violation,
    label,
    read_allocation,
    read_node,
    show,
)

KINDS = {
    "reserved": ("reserved",),
    "active": ("active", "confirmed", "renewed", "left"),
    **{state: (state,) for state in CLOSED},
}
NEXT = {
    "reserved": ("active", *CLOSED),
    "active": ("active", *CLOSED),
}
NODE_FIELDS = ("name", "capacity", "devices", "labels", "health", "draining")
ALLOCATION_FIELDS = (
    "id", "number", "epoch", "owner", "holder", "node", "amounts", "devices",
    "state", "lifetime", "deadline", "ttl", "group",
)  # fmt: skip

JOB_FIELDS = (
    "id", "number", "owner", "name", "state", "array", "array_index", "submitted", "ended",
    "reason", "not_before", "request", "after", "attempts", "work",
)  # fmt: skip

Rows = dict[str, Mapping[str, Any]]


@dataclass(frozen=True)
class AuditedEvent:
    number: int
    at: int
    kind: str
    subject: str
    row: object


def check_history(events: Iterable[object], initial: object = ()) -> list[Violation]:
    """Return every invalid step in `events`, which continue from the checkpoint `initial`.

    `initial` is a result of `replay`, a dump, or a table or list of rows.
    """
    found: list[Violation] = []
    last: dict[str, AuditedAllocation] = {}
    jobs = JobSteps()
    _, allocations, begun = _tables(initial, found)
    for id, row in allocations.items():
        if held := read_allocation(row, id, found):
            last[id] = held
    for id, row in begun.items():
        jobs.begin(id, row, found)
    number, at = -1, 0
    for event in _read_events(events, found):
        if event.number <= number:
            found.append(_out_of_order(event, f"comes after event {number}"))
        if event.at < at:
            found.append(_out_of_order(event, f"is dated {event.at}, but follows {at}"))
        number, at = max(number, event.number), max(at, event.at)
        if event.kind.startswith("admin."):
            continue  # it has no row
        if _is_of_job(event):
            found += jobs.step(event.number, event.kind, event.subject, event.row)
        else:
            found += _check_node_event(event) if _is_of_node(event) else _check_step(event, last)
    return found


def _read_events(events: Iterable[object], found: list[Violation]) -> Iterator[AuditedEvent]:
    if not isinstance(events, Iterable):
        found.append(Violation("I7", "events", f"must be a list, not {show(events)}"))
        return
    for place, row in enumerate(events):
        read = Reader(row, "I7", f"events[{place}]")
        event = AuditedEvent(
            number=read.count("number"),
            at=read.count("at"),
            kind=read.text("kind"),
            subject=read.text("subject"),
            row=read.get("row", None, "a table or null", _is_row),
        )
        if event.kind and not event.kind.startswith(("allocation.", "node.", "job.", "admin.")):
            read.note(f"{show(event.kind)} is not a kind of event")
        found += read.found
        if not read.found:
            yield event


def _is_row(value: object) -> bool:
    return value is None or isinstance(value, Mapping)


def _is_of_node(event: AuditedEvent) -> bool:
    return event.kind.startswith("node.")


def _is_of_job(event: AuditedEvent) -> bool:
    return event.kind.startswith("job.")


def _out_of_order(event: AuditedEvent, message: str) -> Violation:
    return Violation("I7", f"event {event.number}", message)


def _check_node_event(event: AuditedEvent) -> list[Violation]:
    found: list[Violation] = []
    if event.row is None:  # the node was removed
        return found
    node = read_node(event.row, event.subject, found)
    if node and node.name != event.subject:
        found.append(Violation("I7", event.subject, f"{event.kind} has the row of {node.name}"))
    return found


def _check_step(event: AuditedEvent, last: dict[str, AuditedAllocation]) -> list[Violation]:
    """Check one move of one allocation against its last row, and update `last`."""
    found: list[Violation] = []
    held = read_allocation(event.row, event.subject, found)
    if held is None:
        return found
    if held.id != event.subject:
        return [Violation("I7", event.subject, f"{event.kind} has the row of {held.id}")]
    before = last.get(held.id)
    last[held.id] = held
    wrong = _wrong_move(before, held, event.at)
    if event.kind.partition(".")[2] not in KINDS.get(held.state, ()):
        wrong.append(f"is of kind {event.kind}, but says {held.state}")
    if before:
        wrong += [
            f"its {name} changed" for name, was, now in _fixed_fields(before, held) if was != now
        ]
    return [Violation("I5", held.id, f"event {event.number}: {text}") for text in wrong]


def _wrong_move(before: AuditedAllocation | None, held: AuditedAllocation, at: int) -> list[str]:
    wrong = []
    if before is None and held.state not in LIVE:
        wrong.append(f"begins as {held.state}")
    if before and held.state not in NEXT.get(before.state, ()):
        wrong.append(f"{before.state} cannot become {held.state}")
    if held.state == "expired" and (held.deadline is None or held.deadline > at):
        wrong.append(f"expired at {at}, but its deadline is {held.deadline}")
    return wrong


def _fixed_fields(
    before: AuditedAllocation, held: AuditedAllocation
) -> Iterator[tuple[str, object, object]]:
    """Yield the fields that must never change, with their old and new values."""
    for name in ("node", "owner", "holder", "number", "amounts"):
        yield name, getattr(before, name), getattr(held, name)
    yield "devices", sorted(map(str, before.holds)), sorted(map(str, held.holds))


def replay(events: Iterable[object], initial: object = ()) -> dict[str, Rows]:
    """Return the nodes, live allocations and open jobs that `events` lead to from `initial`.

    An event without a row removes its subject; an event of a job without `work` keeps the previous
    one. Unreadable events are skipped: `check_history` reports them.
    """
    nodes, allocations, jobs = _tables(initial, [])
    for event in _read_events(events, []):
        table = jobs if _is_of_job(event) else nodes if _is_of_node(event) else allocations
        before = table.pop(event.subject, None)
        if isinstance(event.row, Mapping):
            row = event.row
            if _is_of_job(event) and before is not None and "work" not in row and "work" in before:
                row = {**row, "work": before["work"]}
            table[event.subject] = row
            if _is_of_job(event) and row.get("state") in OVER:
                del table[event.subject]
    return {"nodes": nodes, "allocations": _without_closed(allocations), "jobs": _open(jobs)}


def check_rebuild(events: Iterable[object], state: object, initial: object = ()) -> list[Violation]:
    """Return how `state` differs from the state its events lead to."""
    return same_state(replay(events, initial), state)


def same_state(first: object, second: object, *, invariant: str = "I7") -> list[Violation]:
    """Return how the nodes, live allocations and open jobs of two dumps or replays differ.

    With `invariant="I4"` it checks that a refused request changed nothing.
    """
    found: list[Violation] = []
    nodes, allocations, jobs = _tables(first, found)
    second_nodes, second_allocations, second_jobs = _tables(second, found)
    live, second_live = _without_closed(allocations), _without_closed(second_allocations)
    differences = [(each.subject, each.message) for each in found]
    differences += _differing(nodes, second_nodes, NODE_FIELDS)
    differences += _differing(live, second_live, ALLOCATION_FIELDS)
    differences += _differing(_open(jobs), _open(second_jobs), JOB_FIELDS)
    return [Violation(invariant, subject, message) for subject, message in differences]


def _differing(first: Rows, second: Rows, fields: Iterable[str]) -> list[tuple[str, str]]:
    lone = [(name, "is in the first state only") for name in first if name not in second]
    lone += [(name, "is in the second state only") for name in second if name not in first]
    return lone + [
        (name, f"{field} is {show(first[name].get(field))}, then {show(second[name].get(field))}")
        for name in first
        if name in second
        for field in fields
        if _text(first[name], field) != _text(second[name], field)
    ]


def _text(row: Mapping[str, Any], field: str) -> str:
    """Return a field as exact text: 1, 1.0 and true differ; tuples, lists and key order do not."""
    value = row.get(field)
    try:
        if field == "devices" and isinstance(value, list | tuple):
            return str(sorted(json.dumps(part, sort_keys=True) for part in value))
        if field == "attempts" and isinstance(value, list | tuple):
            value = [_as_written(attempt) for attempt in value]
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return show(value)


def _as_written(attempt: object) -> object:
    """Drop `started` of a running attempt: it may be known but not stored until it ends."""
    if isinstance(attempt, Mapping) and attempt.get("ended") is None:
        return {name: value for name, value in attempt.items() if name != "started"}
    return attempt


def _tables(state: object, found: list[Violation]) -> tuple[Rows, Rows, Rows]:
    """Index nodes by name, allocations and jobs by id, of a dump, a replay or plain rows."""
    if isinstance(state, Mapping) and {"nodes", "allocations", "jobs"} & state.keys():
        nodes, allocations, jobs = (
            state.get(name, ()) for name in ("nodes", "allocations", "jobs")
        )
    else:
        rows = _listed(state, found)
        nodes = [row for row in rows if _looks_like_node(row)]
        jobs = [row for row in rows if _looks_like_job(row)]
        allocations = [row for row in rows if not _looks_like_node(row) | _looks_like_job(row)]
    return _index(nodes, "name", found), _index(allocations, "id", found), _index(jobs, "id", found)


def _looks_like_node(row: object) -> bool:
    return isinstance(row, Mapping) and "name" in row and "id" not in row


def _looks_like_job(row: object) -> bool:
    return isinstance(row, Mapping) and "id" in row and "attempts" in row


def _listed(rows: object, found: list[Violation]) -> list[object]:
    if isinstance(rows, Mapping):
        return list(rows.values())
    if isinstance(rows, Iterable):
        return list(rows)
    found.append(Violation("I7", "state", f"must be rows, not {show(rows)}"))
    return []


def _index(rows: object, key: str, found: list[Violation]) -> Rows:
    """Index rows by name; an unreadable row is kept by position, so that it shows as different."""
    return {
        label(row, key, f"[{place}]"): row if isinstance(row, Mapping) else {"unreadable": row}
        for place, row in enumerate(_listed(rows, found))
    }


def _without_closed(rows: Rows) -> Rows:
    return {name: row for name, row in rows.items() if row.get("state") not in CLOSED}


def _open(jobs: Rows) -> Rows:
    return {id: row for id, row in jobs.items() if row.get("state") not in OVER}
