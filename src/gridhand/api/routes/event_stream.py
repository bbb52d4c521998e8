"""GET /events: what has changed, as pages of JSON or as a stream of server-sent events.

A stream begins with what happens next, or after the event that `Last-Event-ID` or `after` names, so
a client that reconnects misses nothing. Of other owners' events only what happened to what, and
when, is shown to those who may not see more.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

from gridhand.api.auth import may_see, only_owner, sole_view
from gridhand.api.http import JSONResponse, api_router
from gridhand.api.json_views import when
from gridhand.controller.controller import Controller
from gridhand.controller.event_feed import PAGE, EventFeed, FeedEvent
from gridhand.core.rows.ledger import Event

MOST_STREAMS = 500
ALIVE_S = 10.0
_MOST_SCANNED = 20_000  # events that one filtered page looks through
_STREAM = "text/event-stream"

Kinds = Annotated[list[str], Query(max_length=20)]
After = Annotated[int | None, Query(ge=0, le=2**63 - 1)]
LastId = Annotated[int | None, Header(alias="Last-Event-ID", ge=0, le=2**63 - 1)]


class EventFilter(NamedTuple):
    """Which events are wanted; `job` as a kind stands for all that begin with `job.`.

    `only` is the owner of whose things, and of nodes, the caller may know; None if of all.
    """

    kinds: tuple[str, ...] = ()
    owners: frozenset[str] = frozenset()
    only: str | None = None

    def matches(self, event: Event) -> bool:
        owner = object_owner(event)
        if self.only not in (None, owner) and not event.kind.startswith("node."):
            return False
        if self.owners and owner not in self.owners:
            return False
        return not self.kinds or any(_is_of(event.kind, kind) for kind in self.kinds)


def _is_of(kind: str, wanted: str) -> bool:
    return kind == wanted or kind.startswith(f"{wanted.removesuffix('.*')}.")


def event_routes(controller: Controller) -> APIRouter:
    router = api_router("/events", "knowing")

    @router.get("", responses={200: {"content": {_STREAM: {}}}})
    async def events(
        request: Request,
        after: After = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
        kind: Kinds = [],  # noqa: B006
        owner: Kinds = [],  # noqa: B006
        last: Annotated[int | None, Query(ge=0, le=10_000)] = None,
        last_event_id: LastId = None,
    ) -> Response:
        """List events after a number, or the `last` ones.

        They are streamed if the client accepts `text/event-stream`.
        """
        wanted = EventFilter(tuple(kind), frozenset(owner), only_owner(request))
        start = last_event_id if last_event_id is not None else after
        if _STREAM in request.headers.get("accept", ""):
            return _stream(controller, request, wanted, start)
        if last is not None:
            found, number = await _last(controller, wanted, last)
        else:
            found, number = await _page(controller, wanted, start or 0, limit)
        told = [event_json(event, own=may_see(request, object_owner(event))) for event in found]
        return JSONResponse({"events": told, "next": number})

    return router


async def _page(
    controller: Controller, wanted: EventFilter, after: int, limit: int
) -> tuple[list[Event], int]:
    """Return matching events, and the number of the last one that was looked at."""
    found: list[Event] = []
    size = min(limit, PAGE) if wanted == EventFilter() else PAGE
    for _ in range(_MOST_SCANNED // size + 1):
        some = await controller.read_events(after, size)
        for event in some:
            after = event.number
            if wanted.matches(event):
                found.append(event)
                if len(found) == limit:
                    return found, after
        if len(some) < size:
            break
    return found, after


async def _last(controller: Controller, wanted: EventFilter, count: int) -> tuple[list[Event], int]:
    """Return the last matching events among the newest, and the number of the newest."""
    newest = await controller.newest_event()
    scanned = count if wanted == EventFilter() else _MOST_SCANNED
    found, number = await _page(controller, wanted, max(0, newest - scanned), _MOST_SCANNED)
    return found[-count:] if count else [], max(newest, number)


def _stream(
    controller: Controller, request: Request, wanted: EventFilter, start: int | None
) -> Response:
    feed = controller.events
    assert feed is not None, "it was opened before anything is served"
    if feed.followers >= MOST_STREAMS:
        raise HTTPException(503, f"{MOST_STREAMS} streams of events are open already")
    frames = _frames(controller, feed, request, wanted, start)
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(frames, media_type=_STREAM, headers=headers)


async def _frames(
    controller: Controller,
    feed: EventFeed,
    request: Request,
    wanted: EventFilter,
    start: int | None,
) -> AsyncIterator[bytes]:
    viewer = sole_view(request)
    with feed.follow():
        number = start if start is not None else await feed.now()
        yield b": events follow\n\n"  # so that the client knows that it is connected
        while not controller.stopping.is_set():
            found = await feed.after(number, ALIVE_S)
            if not found:
                yield b": alive\n\n"
                continue
            number = found[-1].number
            key = found[0].number, number, wanted, viewer
            yield feed.shared(key, partial(_page_text, found, wanted, viewer))


def _page_text(found: Sequence[FeedEvent], wanted: EventFilter, viewer: str | None) -> bytes:
    """Return the events that are wanted as server-sent text."""
    return b"".join(
        _frame(known, viewer in (None, object_owner(known.event)))
        for known in found
        if wanted.matches(known.event)
    )


def _frame(known: FeedEvent, own: bool) -> bytes:
    """Return an event as server-sent text, made once for all who see the same."""
    text = known.texts.get(own)
    if text is None:
        event = known.event
        data = json.dumps(event_json(event, own=own), separators=(",", ":"))
        text = f"id: {event.number}\nevent: {event.kind}\ndata: {data}\n\n".encode()
        known.texts[own] = text
    return text


def object_owner(event: Event) -> str:
    """Return the owner of what an event is about, which the keeper may have changed by itself."""
    row = event.row or {}
    return str(row.get("owner", event.owner))


def event_json(event: Event, *, own: bool) -> dict[str, Any]:
    """Return an event; of other users only what happened to what, and when."""
    shown = event if own else event._replace(op_id=None, why="", row=None, token=None)
    return {**shown._asdict(), "at": when(event.at), "at_ms": event.at}
