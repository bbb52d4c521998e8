"""RequestMeter: counts requests by route and status class, and how long they take.

The label of a route is its path in the table of `access`, never the path that was sent, so there
are no more series than routes. Everything that reaches no route shares one label.
"""

from __future__ import annotations

from collections import Counter
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gridhand.controller.metrics.histogram import Histogram

ROUTE = "gridhand.route"  # the key of the route in the scope of a request, set by its guard
UNMATCHED = ("", "unmatched")  # refused before a route was found, or there is none

Key = tuple[str, str, str]  # method, route, status class


class RequestMeter:
    """The outermost middleware. Replies that last are counted and not timed."""

    def __init__(self) -> None:
        self.requests: Counter[Key] = Counter()
        self.seconds = Histogram()

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        status = 500  # of a reply that never began

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        began = perf_counter()
        try:
            await app(scope, receive, note_status)
        finally:
            method, path, lasts = scope.get(ROUTE, (*UNMATCHED, False))
            self.requests[method, path, f"{status // 100}xx"] += 1
            if not lasts:
                self.seconds.add(perf_counter() - began)


class MeasuredRequests:
    """Middleware that has a meter count every request."""

    def __init__(self, app: ASGIApp, *, meter: RequestMeter) -> None:
        self._app = app
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._meter.run(self._app, scope, receive, send)
        else:
            await self._app(scope, receive, send)
