"""Queries for jobs that stay fast when a million have ended.

Few jobs are open and most have succeeded, so each state has an index of its own (see the schema)
and is queried separately: every query reads the end of one index, and none sorts or skips rows. A
condition for which the planner might choose a larger index is written so that it cannot:
`owner || ''`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, select

from gridhand.store.sql import schema

_jobs = schema.jobs
_OPEN = frozenset({"queued", "running"})


def by_ids(ids: Sequence[str]) -> Select[Any]:
    return select(_jobs).where(_jobs.c.id.in_(ids))


def newest(
    *,
    states: Sequence[str],
    owner: str | None,
    array: str | None,
    before: int | None,
    limit: int,
) -> list[Select[Any]]:
    """Return queries that together have the newest matching jobs, each at most `limit`."""
    wanted = set(states)
    own = [] if owner is None else [_jobs.c.owner == owner]
    own_unaided = [] if owner is None else [_jobs.c.owner.concat("") == owner]
    if array is not None:
        kinds = [[_jobs.c.array == array, *own_unaided]]
        if wanted:
            kinds[0].append(_jobs.c.state.concat("").in_(sorted(wanted)))
    elif not wanted:
        kinds = [own]
    else:
        kinds = [
            [_jobs.c.open.is_(None), _jobs.c.state == state, *own]
            for state in sorted(wanted - _OPEN)
        ]
        if still := sorted(wanted & _OPEN):
            kinds.append([_jobs.c.open == 1, _jobs.c.state.concat("").in_(still), *own_unaided])
    return [_newest(kind, before, limit) for kind in kinds]


def _newest(
    conditions: Sequence[ColumnElement[bool]], before: int | None, limit: int
) -> Select[Any]:
    query = select(_jobs).where(*conditions)
    if before is not None:
        query = query.where(_jobs.c.number < before)
    return query.order_by(_jobs.c.number.desc()).limit(limit)
