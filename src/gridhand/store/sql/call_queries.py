"""Queries for calls that stay fast when a million have ended.

As with jobs, each query reads the end of one index, and none sorts or skips rows. Owners are few,
so a query for all of them is one for each. A condition for which the planner might choose a larger
index is written so that it cannot: `owner || ''`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select

from gridhand.core.model.call_record import OPEN, OVER
from gridhand.store.sql import schema

_calls = schema.calls
_IS_OPEN, _HAS_ENDED = _calls.c.open == 1, _calls.c.open.is_(None)


def next_owner(after: str | None) -> Select[Any]:
    """Return a query for the next owner with ended calls after another, in order."""
    query = select(func.min(_calls.c.owner).label("owner")).where(_HAS_ENDED)
    return query if after is None else query.where(_calls.c.owner > after)


def newest(
    *,
    states: Sequence[str],
    name: str | None,
    run: str | None,
    owner: str | None,
    owners: Iterable[str],
    limit: int,
) -> list[Select[Any]]:
    """Return queries that together have the newest matching calls, each at most `limit`."""
    wanted = set(states) or {*OPEN, *OVER}
    unaided = _unaided(name=name, owner=owner)
    if run is not None:
        of_run = [_calls.c.run == run, _calls.c.state.concat("").in_(sorted(wanted)), *unaided]
        return [select(_calls).where(*of_run).order_by(_calls.c.number.desc()).limit(limit)]
    found = []
    if still := sorted(wanted.intersection(OPEN)):
        conditions = [_IS_OPEN, _calls.c.state.concat("").in_(still), *unaided]
        found.append(_latest(conditions, _calls.c.submitted, limit))
    for state in sorted(wanted.intersection(OVER)):
        over = [_HAS_ENDED, _calls.c.state == state]
        if name is not None:
            conditions = [*over, _calls.c.name == name, *_unaided(owner=owner)]
            found.append(_latest(conditions, _calls.c.ended, limit))
        else:
            found += [
                _latest([*over, _calls.c.owner == one], _calls.c.ended, limit)
                for one in (owners if owner is None else [owner])
            ]
    return found


def count_ended() -> Select[Any]:
    return select(func.count().label("count")).select_from(_calls).where(_HAS_ENDED)


def oldest(owner: str, state: str, before: int | None, limit: int) -> Select[Any]:
    """Return a query for the keys of the calls that ended first, before a time if given."""
    query = select(_calls.c.ended, _calls.c.run, _calls.c.number)
    over = query.where(_HAS_ENDED, _calls.c.owner == owner, _calls.c.state == state)
    if before is not None:
        over = over.where(_calls.c.ended < before)
    return over.order_by(_calls.c.ended, _calls.c.number).limit(limit)


def open_of(owner: str, run: str, limit: int) -> Select[Any]:
    """Return a query for the numbers of the open calls of a run."""
    query = select(_calls.c.number).where(_IS_OPEN, *_unaided(run=run, owner=owner))
    return query.limit(limit)


def _unaided(**wanted: str | None) -> list[ColumnElement[bool]]:
    return [
        _calls.c[column].concat("") == value
        for column, value in wanted.items()
        if value is not None
    ]


def _latest(conditions: Sequence[ColumnElement[bool]], when: Any, limit: int) -> Select[Any]:
    query = select(_calls).where(*conditions)
    return query.order_by(when.desc(), _calls.c.number.desc()).limit(limit)
