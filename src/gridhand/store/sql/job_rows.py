"""Rows of jobs, to and from the values of the core: texts that are made once for many jobs.

The text of a work is kept by the identity of the work, which all jobs of an array share, and read
back into one work for all that have the same text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from sqlalchemy import RowMapping

from gridhand.core.attempts import Attempt, Reason
from gridhand.core.jobs import After, Condition, Job, JobState
from gridhand.core.jobviews import asks_as_submitted, bare_work_row, request_row, retry_row
from gridhand.core.requests import Layout, Request
from gridhand.core.retries import RetryPolicy
from gridhand.core.rowreading import request_from_row
from gridhand.core.work import Priority, Work
from gridhand.store.rows import compact, without_false_alarm

Row = tuple[Any, ...]

_MOST_WORKS = 2000
_works: dict[int, tuple[Work, str]] = {}  # with the work itself, so that its id stays its own


def work_json(work: Work) -> str:
    found = _works.get(id(work))
    if found is None:
        if len(_works) >= _MOST_WORKS:
            _works.clear()
        found = _works[id(work)] = work, _work_json(work)
    return found[1]


def _work_json(work: Work) -> str:
    """What `compact(work_row(work))` gives, but for the order of its names, in half the time."""
    request, retry = _request_json(work.request), _retry_json(work.retry)
    return f'{{"request":{request},"retry":{retry},{compact(bare_work_row(work))[1:]}'


@lru_cache(maxsize=1024)
def _request_json(request: Request) -> str:
    return compact(request_row(request))


@lru_cache(maxsize=128)
def _retry_json(retry: RetryPolicy) -> str:
    return compact(retry_row(retry))


def request_json(job: Job) -> str | None:
    """What it asks for, or None while that is what its work says."""
    return None if asks_as_submitted(job) else _request_json(job.request)


def after_json(after: tuple[After, ...]) -> str:
    return compact([[one.id, one.condition._value_] for one in after]) if after else "[]"


def attempts_json(attempts: tuple[Attempt, ...]) -> str:
    return f"[{','.join(map(_attempt_json, attempts))}]" if attempts else "[]"


def _attempt_json(one: Attempt) -> str:
    """What `json.dumps(attempt_row(one))` gives, many times as fast: for every move of a job."""
    (
        number, node, allocation, choice, placed, started, stopping, ended, exit_code, signal,
        reason, peak, gpu_peak, short_of, message,
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
    if gpu_peak is not None:
        text += f',"gpu_peak_bytes":{gpu_peak}'
    if short_of is not None:
        text += f',"short_of":{quoted(short_of)}'
    if message:
        text += f',"message":{without_false_alarm(quoted(message))}'
    return text + "}"


class Written:
    """The texts of one job as it is after a move: for its row, and for the event of the move."""

    __slots__ = ("attempts", "job", "request")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.request = request_json(job)
        self.attempts = attempts_json(job.attempts)

    def inserted(self) -> Row:
        """The row of the table, in the order of its columns."""
        job, work = self.job, self.job.work
        return (
            job.number, job.id, work.owner, work.name, job.state._value_, 1 if job.open else None,
            job.array, job.array_index, job.submitted, job.ended,
            None if job.reason is None else job.reason._value_, job.not_before,
            work_json(work), self.request, after_json(job.after), self.attempts,
        )  # fmt: skip

    def changed(self) -> Row:
        """What may be new of a job that stays open, and its number."""
        job = self.job
        return job.state._value_, job.not_before, self.request, self.attempts, job.number

    def ended(self) -> Row:
        """What is new of a job that is over, and its number."""
        job = self.job
        reason = None if job.reason is None else job.reason._value_
        return job.state._value_, job.ended, reason, None, self.request, self.attempts, job.number

    def event(self, *, new: bool) -> str:
        """The row as JSON. Only that of a new job has its work, which never changes."""
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


# ---- and back


class Jobs:
    """Reads rows of jobs; those with the same text for their work share one."""

    def __init__(self) -> None:
        self._works: dict[str, Work] = {}
        self._requests: dict[str, Request] = {}

    def read(self, rows: Iterable[RowMapping]) -> list[Job]:
        return [self.job(row) for row in rows]

    def job(self, row: RowMapping | Mapping[str, Any]) -> Job:
        work = self._works.get(row["work"])
        if work is None:
            work = self._works[row["work"]] = work_from(json.loads(row["work"]))
        after, attempts, reason = row["after"], row["attempts"], row["reason"]
        return Job(
            row["id"], row["number"], work,
            work.request if row["request"] is None else self._request(row["request"]),
            row["submitted"], row["array"], row["array_index"],
            () if after == "[]" else _after(json.loads(after)), _STATES[row["state"]],
            () if attempts == "[]" else _attempts(json.loads(attempts)), row["not_before"],
            None if reason is None else _REASONS[reason], row["ended"],
        )  # fmt: skip

    def _request(self, text: str) -> Request:
        found = self._requests.get(text)
        if found is None:
            found = self._requests[text] = request_from_row(json.loads(text))
        return found


_STATES = {str(state): state for state in JobState}
_REASONS = {str(reason): reason for reason in Reason}


def _after(rows: list[list[str]]) -> tuple[After, ...]:
    return tuple(After(id, Condition(condition)) for id, condition in rows)


def _attempts(rows: list[dict[str, Any]]) -> tuple[Attempt, ...]:
    for row in rows:
        for name in {"stopping", "reason"} & row.keys():
            row[name] = _REASONS[row[name]]
    return tuple(Attempt(**row) for row in rows)


def work_from(row: Mapping[str, Any]) -> Work:
    return Work(
        **{
            **row,
            "command": tuple(row["command"]),
            "request": request_from_row(row["request"]),
            "priority": Priority(row["priority"]),
            "retry": _retry(row["retry"]),
            "layout": Layout(row["layout"]),
        }
    )


def _retry(row: Mapping[str, Any]) -> RetryPolicy:
    on, codes = frozenset(map(Reason, row["on"])), frozenset(row["exit_codes"])
    return RetryPolicy(**{**row, "on": on, "exit_codes": codes})
