"""The part of the SQL stores that records calls of functions.

Calls are written in groups, in a transaction of their own that states its epoch, as all do. A call
that has ended is not written again, so a report may be repeated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, null, select, update

from gridhand.core.errors import NotYours
from gridhand.core.model.call_record import OPEN, OVER, CallRecord
from gridhand.store.sql import schema
from gridhand.store.sql.batches import Row
from gridhand.store.sql.call_queries import count_ended, newest, next_owner, oldest, open_of
from gridhand.store.sql.prune import chunks

_calls = schema.calls
COLUMNS = [column.name for column in _calls.c]
_NEW = (f"{name} = excluded.{name}" for name in COLUMNS if name not in ("run", "number", "owner"))
_INTO = f"INSERT INTO calls ({', '.join(COLUMNS)})"
_IF_OPEN = (
    f" ON CONFLICT (run, number) DO UPDATE SET {', '.join(_NEW)} WHERE calls.open IS NOT NULL"
)


def upsert(source: str) -> str:
    """Return the statement that writes the calls of `source`, VALUES or a SELECT."""
    return f"{_INTO} {source}{_IF_OPEN}"


class CallStore(ABC):
    """The methods of a store for calls."""

    _connection: Connection
    _ended_calls: int | None = None  # approximately, once they have been counted

    @abstractmethod
    def writing(self) -> AbstractContextManager[None]: ...

    @abstractmethod
    def _read(self, query: Select[Any]) -> Sequence[RowMapping]: ...

    @abstractmethod
    def _run(self, name: str, many: Sequence[Row]) -> int: ...

    @abstractmethod
    def _put_calls(self, rows: Sequence[Row]) -> None:
        """Insert these calls, or update those that are open; the keys are distinct."""

    def _check_writable(self, *, more: bool) -> None:  # noqa: B027 - most have nothing to refuse
        """Raise an error if nothing, or nothing `more`, may be written now."""

    # ---- writing

    def write_calls(self, calls: Sequence[CallRecord]) -> None:
        self._check_writable(more=True)
        latest = {(call.run, call.number): call for call in calls}
        with self.writing():
            for run, owner in {(call.run, call.owner) for call in calls}:
                self._refuse_if_not_of(owner, run)
            self._put_calls([_columns(call) for call in latest.values()])
        if self._ended_calls is not None:
            self._ended_calls += sum(1 for call in latest.values() if call.ended is not None)

    def _refuse_if_not_of(self, owner: str, run: str) -> None:
        """Raise `NotYours` if the run has another owner; all its calls have the same."""
        known = self._read(select(_calls.c.owner).where(_calls.c.run == run).limit(1))
        if known and known[0]["owner"] != owner:
            raise NotYours(run, owner, "run")

    def lose_calls(self, owner: str, run: str, *, at: int, why: str, most: int) -> int:
        self._check_writable(more=False)
        numbers = [row["number"] for row in self._read(open_of(owner, run, most))]
        if not numbers:
            return 0
        lost = update(_calls).values(state="lost", open=null(), ended=at, error=why)
        with self.writing():
            for some in chunks(numbers):
                self._connection.execute(lost.where(_calls.c.run == run, _calls.c.number.in_(some)))
        if self._ended_calls is not None:
            self._ended_calls += len(numbers)
        return len(numbers)

    # ---- reading

    def find_call(self, run: str, number: int) -> CallRecord | None:
        query = select(_calls).where(_calls.c.run == run, _calls.c.number == number)
        found = self._read(query)
        return _record(found[0]) if found else None

    def calls(
        self,
        *,
        states: Sequence[str] = (),
        name: str | None = None,
        run: str | None = None,
        owner: str | None = None,
        limit: int = 100,
    ) -> list[CallRecord]:
        all_owners = self._owners() if (name, run, owner) == (None, None, None) else []
        queries = newest(
            states=states, name=name, run=run, owner=owner, owners=all_owners, limit=limit
        )
        found = [_record(row) for query in queries for row in self._read(query)]
        return sorted(found, key=_order)[:limit]

    def open_runs(self) -> list[tuple[str, str]]:
        query = select(_calls.c.owner, _calls.c.run).where(_calls.c.open == 1).distinct()
        return [(row["owner"], row["run"]) for row in self._read(query)]

    def _owners(self) -> list[str]:
        """Return owners with ended calls, each found by an index from the one before."""
        found: list[str] = []
        while owner := self._read(next_owner(found[-1] if found else None))[0]["owner"]:
            found.append(owner)
        return found

    # ---- forgetting

    def forget_calls(self, *, before: int, keep: int, most: int) -> bool:
        self._check_writable(more=False)
        if self._ended_calls is None:
            self._ended_calls = self._read(count_ended())[0]["count"]
        beyond = self._ended_calls - keep
        first = sorted(
            (row["ended"], row["run"], row["number"])
            for owner in self._owners()
            for state in OVER
            for row in self._read(oldest(owner, state, before if beyond <= 0 else None, most))
        )[:most]
        old = [
            (run, number)
            for place, (ended, run, number) in enumerate(first)
            if place < beyond or ended < before
        ]
        if not old:
            return False
        with self.writing():
            self._run("forget_call", old)
        self._ended_calls -= len(old)
        return len(old) == most


def _columns(call: CallRecord) -> Row:
    still = 1 if call.state in OPEN else None
    return (*call[:5], still, *call[5:])


def _record(row: RowMapping) -> CallRecord:
    return CallRecord(**{name: value for name, value in row.items() if name != "open"})


def _order(call: CallRecord) -> tuple[bool, int, int]:
    over = call.ended is not None
    return over, -(call.ended if call.ended is not None else call.submitted), -call.number
