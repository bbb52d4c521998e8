"""Turns a batch of changes into rows: each touched row once, in its final state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gridhand.core.jobs.job import Job
from gridhand.core.ledger.allocations import Allocation
from gridhand.core.model.nodes import Node
from gridhand.core.model.tokens import Token
from gridhand.store.base import Batch, PastShares
from gridhand.store.sql import ledger_rows
from gridhand.store.sql.job_rows import Written

Row = tuple[Any, ...]


class FinalRows:
    """The rows of allocations, nodes and jobs to write."""

    def __init__(self) -> None:
        self.closed: dict[str, list[int]] = {}  # only the state has changed
        self.finished: list[Row] = []  # more than the state has changed
        self.changed: list[Row] = []
        self.inserted: list[Row] = []
        self.nodes: list[Node] = []
        self.dropped_nodes: list[Row] = []
        self.next_number = 0
        self.new_jobs: list[Row] = []
        self.changed_jobs: list[Row] = []
        self.ended_jobs: list[Row] = []
        self.next_job = 0
        self.tokens: dict[str, Token] = {}


def final_rows(batch: Batch) -> FinalRows:
    """Return the final state of each row that the batch touches."""
    last: dict[str, Allocation] = {}
    nodes: dict[str, Node | None] = {}
    jobs: dict[str, tuple[bool, Job]] = {}
    new: set[str] = set()
    twice: set[str] = set()
    final = FinalRows()
    for (_, subject, before, after, _), _, _ in batch.entries:
        if type(after) is Job:
            jobs[subject] = before is None or (subject in jobs and jobs[subject][0]), after
            continue
        if type(after) is Token:
            final.tokens[subject] = after
            continue
        if type(after) is not Allocation:
            if before is not None or after is not None:  # else no row has changed
                nodes[subject] = after
            continue
        if before is None:
            new.add(subject)
        elif subject in last:
            twice.add(subject)
        last[subject] = after
    for subject, held in last.items():
        _add_allocation(final, held, subject in new, subject in twice)
    for is_new, job in jobs.values():
        _add_job(final, job, is_new)
    final.nodes = [node for node in nodes.values() if node is not None]
    final.dropped_nodes = [(name,) for name, node in nodes.items() if node is None]
    return final


def _add_allocation(final: FinalRows, held: Allocation, new: bool, twice: bool) -> None:
    if new:
        final.inserted.append(ledger_rows.allocation_columns(held))
        final.next_number = max(final.next_number, held.number + 1)
    elif not held.live and held.deadline is None and not twice:
        final.closed.setdefault(held.state._value_, []).append(held.number)
    else:
        state, lifetime = held.state._value_, held.lifetime._value_
        row = (state, lifetime, held.deadline, held.ttl_ms, held.number)
        (final.changed if held.live else final.finished).append(row)


def _add_job(final: FinalRows, job: Job, new: bool) -> None:
    written = Written(job)
    if new:
        final.new_jobs.append(written.inserted())
        final.next_job = max(final.next_job, job.number + 1)
    elif job.open:
        final.changed_jobs.append(written.changed())
    else:
        final.ended_jobs.append(written.ended())


def event_rows(batch: Batch, first: int) -> list[Row]:
    """Return the events, numbered from `first`, each with the new row."""
    at = batch.at
    found = []
    for number, (change, owner, op_id) in enumerate(batch.entries, first):
        kind, subject, before, after, why = change
        row: str | None
        if type(after) is Allocation:
            row = ledger_rows.allocation_json(after)
        elif type(after) is Job:
            row = Written(after).event(new=before is None)
        elif type(after) is Token:
            row = None
        else:
            row = ledger_rows.node_json(after)
        found.append((number, at, kind, subject, owner, op_id, why, row))
    return found


def past_shares(rows: Sequence[Mapping[Any, Any]]) -> PastShares:
    """Return the shares that were stored last."""
    newest = max((row["at"] for row in rows), default=0)
    return PastShares({row["owner"]: row["share"] for row in rows if row["at"] == newest}, newest)
