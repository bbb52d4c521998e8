"""Converts jobs to and from rows of the table, with the text of a work made once for many jobs.

The text is kept by the identity of the work, which all jobs of an array share. Rows with the same
text are read back into one work.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from sqlalchemy import RowMapping

from gridhand.core.jobs.attempt import Attempt, Reason
from gridhand.core.jobs.job import After, Job, JobState
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.jobs.spec import JobSpec
from gridhand.core.model.requests import Request
from gridhand.core.rows.jobs import (
    asks_as_submitted,
    attempt_from_row,
    bare_work_row,
    dependency_from_row,
    job_spec_from_row,
    retry_row,
)
from gridhand.core.rows.requests import request_from_row, request_row
from gridhand.store.sql.ledger_rows import compact, without_false_alarm

Row = tuple[Any, ...]

_MOST_WORKS = 2000
_works: dict[
    int, tuple[JobSpec, str]
] = {}  # with the work itself, so that its `id()` is not reused


def work_json(work: JobSpec) -> str:
    found = _works.get(id(work))
    if found is None:
        if len(_works) >= _MOST_WORKS:
            _works.clear()
        found = _works[id(work)] = work, _work_json(work)
    return found[1]


def _work_json(work: JobSpec) -> str:
    """Return `compact(work_row(work))` with names in another order, in half the time."""
    request, retry = _request_json(work.request), _retry_json(work.retry)
    return f'{{"request":{request},"retry":{retry},{compact(bare_work_row(work))[1:]}'


@lru_cache(maxsize=1024)
def _request_json(request: Request) -> str:
    return compact(request_row(request))


@lru_cache(maxsize=128)
def _retry_json(retry: RetryPolicy) -> str:
    return compact(retry_row(retry))


def request_json(job: Job) -> str | None:
    """Return the request of the job, or None while it equals that of its work."""
    return None if asks_as_submitted(job) else _request_json(job.request)


def after_json(after: tuple[After, ...]) -> str:
    return compact([[one.id, one.condition._value_] for one in after]) if after else "[]"


def attempts_json(attempts: tuple[Attempt, ...]) -> str:
    return f"[{','.join(map(_attempt_json, attempts))}]" if attempts else "[]"


def _attempt_json(one: Attempt) -> str:
    """Return `json.dumps(attempt_row(one))`, many times as fast: each change of a job needs it."""
    (
        number, node, allocation, choice, placed, started, stopping, ended, exit_code, signal,
        reason, peak, message, waited, master, preempted_by, preempts,
    ) = one  # fmt: skip
    text = (
        f'{{"number":{number},"node":{quoted(node)},"allocation":{quoted(allocation)},'
        f'"choice":{choice},"placed":{placed}'
    )
    if started is not None:
        text += f',"started":{started}'
    if stopping is not None:
        text += f',"stopping":"{stopping._value_}"'
    if ended is not None:
        text += f',"ended":{ended}'
    if exit_code is not None:
        text += f',"exit_code":{exit_code}'
    if signal is not None:
        text += f',"signal":{signal}'
    if reason is not None:
        text += f',"reason":"{reason._value_}"'
    if peak is not None:
        text += f',"peak_bytes":{peak}'
    if message:
        text += f',"message":{without_false_alarm(quoted(message))}'
    if waited:
        text += f',"waited":{compact(waited)}'
    if master:
        text += f',"master":{without_false_alarm(quoted(master))}'
    if preempted_by is not None:
        text += f',"preempted_by":{without_false_alarm(quoted(preempted_by))}'
    if preempts:
        text += f',"preempts":{without_false_alarm(compact(preempts))}'
    return text + "}"


class Written:
    """The JSON texts of a job after a change, for its row and for the event."""

    __slots__ = ("attempts", "job", "request")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.request = request_json(job)
        self.attempts = attempts_json(job.attempts)

    def inserted(self) -> Row:
        """Return the row of the table, in the order of its columns."""
        job, work = self.job, self.job.work
        return (
            job.number, job.id, work.owner, work.name, job.state._value_, 1 if job.open else None,
            job.array, job.array_index, job.submitted, job.ended,
            None if job.reason is None else job.reason._value_, job.not_before,
            work_json(work), self.request, after_json(job.after), self.attempts,
        )  # fmt: skip

    def changed(self) -> Row:
        """Return what may have changed for a job that stays open, and its number."""
        job = self.job
        return job.state._value_, job.not_before, self.request, self.attempts, job.number

    def ended(self) -> Row:
        """Return what has changed for a job that has ended, and its number."""
        job = self.job
        reason = None if job.reason is None else job.reason._value_
        return job.state._value_, job.ended, reason, None, self.request, self.attempts, job.number

    def event(self, *, new: bool) -> str:
        """Return the row as JSON; with the work only for a new job, as it never changes."""
        (
            id, number, work, _, submitted, array, array_index, after, state, _, not_before,
            reason, ended,
        ) = self.job  # fmt: skip
        name = "null" if work.name is None else quoted(work.name)
        of_array = "null" if array is None else quoted(array)
        index = "null" if array_index is None else array_index
        end = "null" if ended is None else ended
        why = "null" if reason is None else f'"{reason._value_}"'
        wait = "null" if not_before is None else not_before
        whole = f',"work":{work_json(work)}' if new else ""
        return (
            f'{{"id":{quoted(id)},"number":{number},"owner":{quoted(work.owner)},"name":{name},'
            f'"state":"{state._value_}","array":{of_array},"array_index":{index},'
            f'"submitted":{submitted},'
            f'"ended":{end},"reason":{why},"not_before":{wait},'
            f'"request":{self.request or "null"},"after":{after_json(after)},'
            f'"attempts":{self.attempts}{whole}}}'
        )


# ---- reading


class Jobs:
    """Reads rows of jobs; jobs with the same text for their work share one object."""

    def __init__(self) -> None:
        self._works: dict[str, JobSpec] = {}
        self._requests: dict[str, Request] = {}

    def read(self, rows: Iterable[RowMapping]) -> list[Job]:
        return [self.job(row) for row in rows]

    def job(self, row: RowMapping | Mapping[str, Any]) -> Job:
        work = self._works.get(row["work"])
        if work is None:
            work = self._works[row["work"]] = job_spec_from_row(json.loads(row["work"]))
        after, attempts, reason = row["after"], row["attempts"], row["reason"]
        return Job(
            row["id"], row["number"], work,
            work.request if row["request"] is None else self._request(row["request"]),
            row["submitted"], row["array"], row["array_index"],
            () if after == "[]" else tuple(map(dependency_from_row, json.loads(after))),
            _STATES[row["state"]],
            () if attempts == "[]" else tuple(map(attempt_from_row, json.loads(attempts))),
            row["not_before"],
            None if reason is None else _REASONS[reason], row["ended"],
        )  # fmt: skip

    def _request(self, text: str) -> Request:
        found = self._requests.get(text)
        if found is None:
            found = self._requests[text] = request_from_row(json.loads(text))
        return found


_STATES = {str(state): state for state in JobState}
_REASONS = {str(reason): reason for reason in Reason}
