"""The history that a log of rows tells.

The event log is what a ledger is rebuilt from after a kill, so the log itself must be lawful:
numbered and dated in order, each allocation moving only as the table below allows, closed once,
and never holding more or less than it was granted. The table is written a second time here on
purpose: like all of the checker this shares no code with the ledger. What cannot be read in an
event is a `Violation` of I7.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gridhand.core.check.jobhistory import JobSteps
from gridhand.core.check.jobs import OVER
from gridhand.core.check.rows import (
    CLOSED,
    LIVE,
    Allocation,
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
class Event:
    number: int
    at: int
    kind: str
    subject: str
    row: object


def check_history(events: Iterable[object], initial: object = ()) -> list[Violation]:
    """Every unlawful step in `events`, which go on from the rows of a checkpoint, `initial`.

    `initial` is what `replay` returns, or a dump, or a table or list of rows.
    """
    found: list[Violation] = []
    last: dict[str, Allocation] = {}
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
            found.append(_out_of_order(event, f"is of {event.at}, before the last, of {at}"))
        number, at = max(number, event.number), max(at, event.at)
        if _of_job(event):
            found += jobs.step(event.number, event.kind, event.subject, event.row)
        else:
            found += _check_node_event(event) if _of_node(event) else _check_step(event, last)
    return found


def _read_events(events: Iterable[object], found: list[Violation]) -> Iterator[Event]:
    if not isinstance(events, Iterable):
        found.append(Violation("I7", "events", f"must be a list, not {show(events)}"))
        return
    for place, row in enumerate(events):
        read = Reader(row, "I7", f"events[{place}]")
        event = Event(
            number=read.count("number"),
            at=read.count("at"),
            kind=read.text("kind"),
            subject=read.text("subject"),
            row=read.get("row", None, "a table or null", _is_row),
        )
        if event.kind and not event.kind.startswith(("allocation.", "node.", "job.")):
            read.note(f"{show(event.kind)} is no kind of event")
        found += read.found
        if not read.found:
            yield event


def _is_row(value: object) -> bool:
    return value is None or isinstance(value, Mapping)


def _of_node(event: Event) -> bool:
    return event.kind.startswith("node.")


def _of_job(event: Event) -> bool:
    return event.kind.startswith("job.")


def _out_of_order(event: Event, message: str) -> Violation:
    return Violation("I7", f"event {event.number}", message)


def _check_node_event(event: Event) -> list[Violation]:
    found: list[Violation] = []
    if event.row is None:  # the node was removed
        return found
    node = read_node(event.row, event.subject, found)
    if node and node.name != event.subject:
        found.append(Violation("I7", event.subject, f"{event.kind} has the row of {node.name}"))
    return found


def _check_step(event: Event, last: dict[str, Allocation]) -> list[Violation]:
    """One move of one allocation, from what `last` knows of it; `last` then knows the new row."""
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
        wrong += [f"its {name} changed" for name, was, now in _granted(before, held) if was != now]
    return [Violation("I5", held.id, f"event {event.number}: {text}") for text in wrong]


def _wrong_move(before: Allocation | None, held: Allocation, at: int) -> list[str]:
    wrong = []
    if before is None and held.state not in LIVE:
        wrong.append(f"begins as {held.state}")
    if before and held.state not in NEXT.get(before.state, ()):
        wrong.append(f"{before.state} cannot become {held.state}")
    if held.state == "expired" and (held.deadline is None or held.deadline > at):
        wrong.append(f"expired at {at}, but its deadline is {held.deadline}")
    return wrong


def _granted(before: Allocation, held: Allocation) -> Iterator[tuple[str, object, object]]:
    """What was granted for life, then and now."""
    for name in ("node", "owner", "holder", "number", "amounts"):
        yield name, getattr(before, name), getattr(held, name)
    yield "devices", sorted(map(str, before.holds)), sorted(map(str, held.holds))


def replay(events: Iterable[object], initial: object = ()) -> dict[str, Rows]:
    """The nodes, live allocations and open jobs that `events` lead to, from those of `initial`.

    An event without a row takes its subject away; that of a job without its work goes on from the
    row before. Unreadable events are passed over: `check_history` reports them.
    """
    nodes, allocations, jobs = _tables(initial, [])
    for event in _read_events(events, []):
        table = jobs if _of_job(event) else nodes if _of_node(event) else allocations
        before = table.pop(event.subject, None)
        if isinstance(event.row, Mapping):
            row = event.row
            if _of_job(event) and before is not None and "work" not in row and "work" in before:
                row = {**row, "work": before["work"]}
            table[event.subject] = row
            if _of_job(event) and row.get("state") in OVER:
                del table[event.subject]
    return {"nodes": nodes, "allocations": _without_closed(allocations), "jobs": _open(jobs)}


def check_rebuild(events: Iterable[object], state: object, initial: object = ()) -> list[Violation]:
    """How `state` differs from what its own events lead to."""
    return same_state(replay(events, initial), state)


def same_state(one: object, other: object, *, invariant: str = "I7") -> list[Violation]:
    """How the nodes, live allocations and open jobs of two dumps (or replays) differ, by field.

    With `invariant="I4"` it proves that a refused request changed nothing.
    """
    found: list[Violation] = []
    nodes, allocations, jobs = _tables(one, found)
    other_nodes, other_allocations, other_jobs = _tables(other, found)
    live, other_live = _without_closed(allocations), _without_closed(other_allocations)
    differences = [(each.subject, each.message) for each in found]
    differences += _differing(nodes, other_nodes, NODE_FIELDS)
    differences += _differing(live, other_live, ALLOCATION_FIELDS)
    differences += _differing(_open(jobs), _open(other_jobs), JOB_FIELDS)
    return [Violation(invariant, subject, message) for subject, message in differences]


def _differing(one: Rows, other: Rows, fields: Iterable[str]) -> list[tuple[str, str]]:
    lone = [(name, "is in the first state only") for name in one if name not in other]
    lone += [(name, "is in the second state only") for name in other if name not in one]
    return lone + [
        (name, f"{field} is {show(one[name].get(field))}, then {show(other[name].get(field))}")
        for name in one
        if name in other
        for field in fields
        if _text(one[name], field) != _text(other[name], field)
    ]


def _text(row: Mapping[str, Any], field: str) -> str:
    """A field as exact text: 1, 1.0 and true differ; a tuple, a list and any order do not."""
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
    """When an attempt under way has started may be known and not written: a restart asks again."""
    if isinstance(attempt, Mapping) and attempt.get("ended") is None:
        return {name: value for name, value in attempt.items() if name != "started"}
    return attempt


def _tables(state: object, found: list[Violation]) -> tuple[Rows, Rows, Rows]:
    """Nodes by name, allocations and jobs by id, of a dump, a replay, or rows in any order."""
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
    """Rows by their name; one that is no row keeps its place, and so makes a difference."""
    return {
        label(row, key, f"[{place}]"): row if isinstance(row, Mapping) else {"unreadable": row}
        for place, row in enumerate(_listed(rows, found))
    }


def _without_closed(rows: Rows) -> Rows:
    return {name: row for name, row in rows.items() if row.get("state") not in CLOSED}


def _open(jobs: Rows) -> Rows:
    return {id: row for id, row in jobs.items() if row.get("state") not in OVER}
