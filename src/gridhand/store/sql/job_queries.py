"""Queries for jobs that stay fast when a million have ended.

Few jobs are open and most have ended well, so each kind has an index of its own (see the schema),
and there is a query for each kind that is asked for: every one is answered from the end of one
index, and none has to sort or to pass over what was not meant. A condition that an index of more
rows could serve is written so that it does not: `owner || ''`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, select

from gridhand.store import schema

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
    """Queries that together have the newest jobs asked for, each at most `limit`."""
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
