"""Queries for calls that stay fast when a million have ended.

As with jobs, each is answered from the end of one index, and none has to sort or to pass over what
was not meant. Owners are few: what is asked of all of them is asked of each. A condition that an
index of more rows could serve is written so that it does not: `owner || ''`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select

from gridhand.core.callrecords import OPEN, OVER
from gridhand.store import schema

_calls = schema.calls
_IS_OPEN, _HAS_ENDED = _calls.c.open == 1, _calls.c.open.is_(None)


def next_owner(after: str | None) -> Select[Any]:
    """The first owner with ended calls, in their order, that comes after another."""
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
    """Queries that together have the calls asked for, each at most `limit`."""
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
    """The keys of those that ended first; only of those that did so before a time, if given."""
    query = select(_calls.c.ended, _calls.c.run, _calls.c.number)
    over = query.where(_HAS_ENDED, _calls.c.owner == owner, _calls.c.state == state)
    if before is not None:
        over = over.where(_calls.c.ended < before)
    return over.order_by(_calls.c.ended, _calls.c.number).limit(limit)


def open_of(owner: str, run: str, limit: int) -> Select[Any]:
    """The numbers of those that are open."""
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
