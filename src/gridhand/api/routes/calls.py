"""The routes of calls: what clients say of the calls they make, and what is known of them.

Calls of which there is the same to say are told together, with a list of their numbers and of their
times: thousands are reported at once, and what is said of each again and again would cost the most.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Query, Request
from pydantic import Field, model_validator

from gridhand.api.callers import owner_of
from gridhand.api.schemas import JobId, Name, RunId, SessionId, Strict
from gridhand.api.strict import StrictRoute
from gridhand.api.views import when
from gridhand.controller.callbook import WantedCalls
from gridhand.controller.controller import Controller
from gridhand.core.callrecords import (
    LONGEST_RUN,
    MOST_NUMBER,
    OPEN,
    OVER,
    CallRecord,
    read_call_id,
)
from gridhand.core.errors import InvalidInput
from gridhand.core.names import check_label, check_node_name, check_title

MOST_REPORTED = 5000
MOST_LISTED = 10_000
LONGEST_ERROR = 500
_STATES = (*OPEN, *OVER)
_LATEST_MS = 2**53 - 1

Moment = Annotated[int, Field(ge=0, le=_LATEST_MS)]
Moments = Annotated[list[Moment | None], Field(max_length=MOST_REPORTED)]


class Alike(Strict):
    """Calls that differ in their numbers and times alone. Times are milliseconds since 1970."""

    name: Name
    state: Literal["queued", "running", "succeeded", "failed", "cancelled", "lost"]
    node: Name | None = None
    job: JobId | None = None  # of its slot; of a queued call, the one it waits for
    allocation: Name | None = None
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
            raise ValueError("error is for what failed or was lost, and only for that")
        if any((ended is None) != (self.state in OPEN) for ended in self.ended_ms):
            raise ValueError(f"ended_ms must be {'null' if self.state in OPEN else 'a time'}")
        if self.state in ("running", "succeeded") and None in self.started_ms:
            raise ValueError("started_ms must be a time of what runs or has succeeded")
        return self

    def records(self, run: str, owner: str) -> list[CallRecord]:
        self._check()
        name, state, error = self.name, self.state, self.error
        node, job, allocation = self.node, self.job, self.allocation
        found = []
        both = zip(self.numbers, self.submitted_ms, self.started_ms, self.ended_ms, strict=True)
        for number, submitted, started, ended in both:
            begun = submitted if started is None else started
            if not submitted <= begun <= (begun if ended is None else ended):
                times = [submitted, started, ended]
                raise InvalidInput("submitted_ms, started_ms, ended_ms", times, "times in order")
            found.append(
                CallRecord(
                    run, number, owner, name, state, node, job, allocation,
                    submitted, started, ended, error,
                )
            )  # fmt: skip
        return found

    def _check(self) -> None:
        check_title(self.name, "name")
        if self.node is not None:
            check_node_name(self.node)
        if self.allocation is not None:
            check_label(self.allocation, "allocation")
        if self.error is not None and not self.error.isprintable():
            raise InvalidInput("error", self.error, "characters that can be shown on one line")


class Report(Strict):
    """What a session says of calls of one run."""

    session: SessionId
    run: RunId
    calls: Annotated[list[Alike], Field(min_length=1, max_length=MOST_REPORTED)]

    def records(self, owner: str) -> list[CallRecord]:
        found = [one for alike in self.calls for one in alike.records(self.run, owner)]
        if len(found) > MOST_REPORTED:
            raise InvalidInput("calls", f"{len(found)} calls", f"at most {MOST_REPORTED} at once")
        numbers = sorted([call.number for call in found])
        for one, next in pairwise(numbers):
            if one == next:
                raise InvalidInput("numbers", one, "each call once")
        return found


def call_routes(controller: Controller) -> APIRouter:
    """Each route translates, makes one call, and translates back."""
    router = APIRouter(prefix="/calls", tags=["calls"], route_class=StrictRoute)
    book = controller.callbook

    @router.post("")
    async def report(body: Report, request: Request) -> dict[str, int]:
        owner = owner_of(request)
        calls = body.records(owner)
        await controller.report_calls(owner, body.session, body.run, calls)
        return {"written": len(calls)}

    @router.get("")
    async def list_calls(
        state: Annotated[list[str] | None, Query(max_length=20)] = None,
        name: Annotated[str | None, Query(max_length=200)] = None,
        run: Annotated[str | None, Query(pattern="^[0-9a-z]+$", max_length=LONGEST_RUN)] = None,
        owner: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
    ) -> dict[str, list[dict[str, Any]]]:
        """Those that are open, the newest first; then those that ended, the latest first."""
        if name is not None:
            check_title(name, "name")
        if owner is not None:
            check_label(owner, "owner")
        wanted = WantedCalls(_states(state or []), name, run, owner, limit)
        return {"calls": [call_json(one) for one in await book.calls(wanted)]}

    @router.get("/{id}")
    async def call(id: str) -> dict[str, Any]:
        return call_json(await book.call(*read_call_id(id)))

    return router


def call_json(call: CallRecord) -> dict[str, Any]:
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
    found: list[str] = []
    for word in words:
        if word != "open" and word not in _STATES:
            raise InvalidInput("state", word, f"open, or one of {', '.join(_STATES)}")
        found += OPEN if word == "open" else [word]
    return tuple(dict.fromkeys(found))
