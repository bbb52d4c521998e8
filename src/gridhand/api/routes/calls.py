"""The routes of calls: clients report the calls of functions they make, and read them back.

Thousands of calls are reported at once. Those that differ only in their numbers and times are
reported together, since repeating the rest for each would cost the most.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field, model_validator

from gridhand.api.auth import acts_as, check_visible, may_see, only_owner, owner_of
from gridhand.api.http import api_router, listed
from gridhand.api.json_views import when
from gridhand.api.schemas.ledger import (
    AllocationIdField,
    JobIdField,
    Name,
    NodeNameField,
    RunId,
    SessionId,
    Strict,
)
from gridhand.controller.clients.call_recorder import WantedCalls
from gridhand.controller.clients.nested_waits import WaitReport
from gridhand.controller.controller import Controller
from gridhand.core.errors import InvalidInput, UnknownCall
from gridhand.core.model.call_record import (
    LONGEST_RUN,
    MOST_NUMBER,
    OPEN,
    OVER,
    CallRecord,
    read_call_id,
)
from gridhand.core.model.names import JobId, check_label, check_node_name, check_title

MOST_REPORTED = 5000
MOST_LISTED = 10_000
LONGEST_ERROR = 500
MOST_WAITED_FOR = 10_000
_STATES = (*OPEN, *OVER)
_LATEST_MS = 2**53 - 1

Moment = Annotated[int, Field(ge=0, le=_LATEST_MS)]
Moments = Annotated[list[Moment | None], Field(max_length=MOST_REPORTED)]


class Alike(Strict):
    """Calls that differ only in their numbers and times. Times are milliseconds since 1970."""

    name: Name
    state: Literal["queued", "running", "succeeded", "failed", "cancelled", "lost"]
    node: NodeNameField | None = None
    job: JobIdField | None = None  # the job of its slot; for a queued call, the one it waits for
    allocation: AllocationIdField | None = None
    error: Annotated[str, Field(min_length=1, max_length=LONGEST_ERROR)] | None = None
    numbers: Annotated[
        list[Annotated[int, Field(ge=1, le=MOST_NUMBER)]],
        Field(min_length=1, max_length=MOST_REPORTED),
    ]
    submitted_ms: Annotated[list[Moment], Field(max_length=MOST_REPORTED)]
    started_ms: Moments
    ended_ms: Moments

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        for name in ("submitted_ms", "started_ms", "ended_ms"):
            if len(getattr(self, name)) != len(self.numbers):
                raise ValueError(f"{name} must have as many entries as numbers")
        if (self.error is not None) != (self.state in ("failed", "lost")):
            raise ValueError("error is for failed and lost calls, and only for them")
        if any((ended is None) != (self.state in OPEN) for ended in self.ended_ms):
            raise ValueError(f"ended_ms must be {'null' if self.state in OPEN else 'a time'}")
        if self.state in ("running", "succeeded") and None in self.started_ms:
            raise ValueError("started_ms must be a time if the state is running or succeeded")
        return self

    def records(self, run: str, owner: str) -> list[CallRecord]:
        """Return a record for each call; raise `InvalidInput` for what cannot be one."""
        self._check()
        name, state, error = self.name, self.state, self.error
        node, job, allocation = self.node, self.job, self.allocation
        records = []
        columns = zip(self.numbers, self.submitted_ms, self.started_ms, self.ended_ms, strict=True)
        for number, submitted, started, ended in columns:
            begun = submitted if started is None else started
            if not submitted <= begun <= (begun if ended is None else ended):
                times = [submitted, started, ended]
                raise InvalidInput("submitted_ms, started_ms, ended_ms", times, "times in order")
            records.append(
                CallRecord(
                    run, number, owner, name, state, node, job, allocation,
                    submitted, started, ended, error,
                )
            )  # fmt: skip
        return records

    def _check(self) -> None:
        check_title(self.name, "name")
        if self.node is not None:
            check_node_name(self.node)
        if self.allocation is not None:
            check_label(self.allocation, "allocation")
        if self.error is not None and not self.error.isprintable():
            raise InvalidInput("error", self.error, "characters that can be shown on one line")


class Report(Strict):
    """A session's report on calls of one run."""

    session: SessionId
    run: RunId
    calls: Annotated[list[Alike], Field(min_length=1, max_length=MOST_REPORTED)]

    def records(self, owner: str) -> list[CallRecord]:
        """Return the records of all calls; raise `InvalidInput` if one is there twice."""
        records = [record for alike in self.calls for record in alike.records(self.run, owner)]
        if len(records) > MOST_REPORTED:
            raise InvalidInput("calls", f"{len(records)} calls", f"at most {MOST_REPORTED} at once")
        for number, following in pairwise(sorted([record.number for record in records])):
            if number == following:
                raise InvalidInput("numbers", number, "each call once")
        return records


class WaitBody(Strict):
    """A worker's report on what the function in its slot waits for."""

    allocation: AllocationIdField
    queued: Annotated[list[JobIdField], Field(max_length=MOST_WAITED_FOR)]
    running: Annotated[list[AllocationIdField], Field(max_length=MOST_WAITED_FOR)]
    blocked: bool


def call_routes(controller: Controller) -> APIRouter:
    """Return the routes of calls. Each translates, runs one operation, and translates back."""
    router = api_router("/calls", "calls")
    book = controller.callbook

    @router.post("")
    async def report(body: Report, request: Request) -> dict[str, int]:
        owner = owner_of(request)
        calls = body.records(owner)
        await controller.report_calls(owner, body.session, body.run, calls)
        return {"written": len(calls)}

    @router.post("/waiting")
    async def wait(body: WaitBody, request: Request) -> dict[str, dict[JobId, str]]:
        """Note that a slot waits for others; reply with the jobs that can never start, and why."""
        report = WaitReport(
            acts_as(request),
            body.allocation,
            tuple(body.queued),
            tuple(sorted(body.running)),
            body.blocked,
        )
        return {"refused": await controller.nested_waits.report(report)}

    def shown(call: CallRecord, request: Request) -> dict[str, Any]:
        told = call_json(call)
        return told if may_see(request, call.owner) else {**told, "error": None}

    @router.get("")
    async def list_calls(
        request: Request,
        state: Annotated[list[str] | None, Query(max_length=20)] = None,
        name: Annotated[str | None, Query(max_length=200)] = None,
        run: Annotated[str | None, Query(pattern="^[0-9a-z]+$", max_length=LONGEST_RUN)] = None,
        owner: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
    ) -> Response:
        """Return open calls, newest first, then ended ones, latest first."""
        if name is not None:
            check_title(name, "name")
        if owner is not None:
            check_label(owner, "owner")
        if (only := only_owner(request)) is not None and owner not in (None, only):
            return listed(request, {"calls": []})
        wanted = WantedCalls(_states(state or []), name, run, only or owner, limit)
        found = [shown(call, request) for call in await book.calls(wanted)]
        return listed(request, {"calls": found})

    @router.get("/{id}")
    async def call(id: str, request: Request) -> dict[str, Any]:
        call = await book.call(*read_call_id(id))
        check_visible(request, call.owner, UnknownCall(id))
        return shown(call, request)

    return router


def call_json(call: CallRecord) -> dict[str, Any]:
    """Return a call as JSON."""
    return {
        "id": call.id,
        "run": call.run,
        "number": call.number,
        "owner": call.owner,
        "name": call.name,
        "state": call.state,
        "node": call.node,
        "job": call.job,
        "allocation": call.allocation,
        "submitted_at": when(call.submitted),
        "started_at": when(call.started),
        "ended_at": when(call.ended),
        "error": call.error,
    }


def _states(words: list[str]) -> tuple[str, ...]:
    states: list[str] = []
    for word in words:
        if word != "open" and word not in _STATES:
            raise InvalidInput("state", word, f"open, or one of {', '.join(_STATES)}")
        states += OPEN if word == "open" else [word]
    return tuple(dict.fromkeys(states))
