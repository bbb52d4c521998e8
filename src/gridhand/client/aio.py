"""AsyncClient: the same routes, to be awaited, with httpx. Only this module needs it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from gridhand.client import routes
from gridhand.client.calling import PATIENCE_S, PAUSE_S, Away, Facts, Revive, gone, read_answer
from gridhand.client.client import Client
from gridhand.client.following import Following, Frame, read_event
from gridhand.client.http1 import Lost
from gridhand.client.problems import read_problem
from gridhand.client.routes import Ask
from gridhand.client.transport import Address

Sent = TypeVar("Sent")

_TIMEOUT = httpx.Timeout(60.0)
_STREAM_TIMEOUT = httpx.Timeout(60.0, read=None)


class AsyncClient:
    """One controller, from one event loop."""

    def __init__(
        self,
        address: Address | str,
        *,
        revive: Revive | None = None,
        owner: str | None = None,
    ) -> None:
        parsed = Address.parse(address) if isinstance(address, str) else address
        self._address = parsed
        self._revive = revive  # blocks, so it is run in a thread
        self._blocking: Client | None = None
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=parsed.path or None),
            base_url="http://localhost" if parsed.path else str(parsed),
            headers={"x-gridhand-owner": owner} if owner else {},
            timeout=_TIMEOUT,
            trust_env=False,
        )

    @classmethod
    async def connect(cls, *, start: bool = True, owner: str | None = None) -> Self:
        """As `gridhand.client.connect`, which runs in a thread: starting one takes a moment."""
        from gridhand.client.starting import connect

        return cls.of(await asyncio.to_thread(connect, start=start), owner=owner)

    @classmethod
    def of(cls, client: Client, *, owner: str | None = None) -> Self:
        """The controller of a client that blocks; that one is closed with this one."""
        made = cls(client.address, revive=client.revive, owner=owner or client.owner)
        made._blocking = client
        return made

    @property
    def address(self) -> str:
        return str(self._address)

    async def close(self) -> None:
        await self._http.aclose()
        if self._blocking is not None:
            self._blocking.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.close()

    # ---- jobs

    async def submit(
        self, submission: Mapping[str, Any], *, op_id: str | None = None
    ) -> list[Facts]:
        jobs: list[Facts] = await self.ask(routes.submit(submission, op_id))
        return jobs

    async def plan(self, submission: Mapping[str, Any]) -> Facts:
        return await self._facts(routes.plan(submission))

    async def jobs(
        self,
        *,
        states: Iterable[str] = (),
        owner: str | None = None,
        array: str | None = None,
        limit: int | None = None,
        before: str | None = None,
    ) -> list[Facts]:
        jobs: list[Facts] = await self.ask(routes.jobs(states, owner, array, limit, before))
        return jobs

    async def job(self, id: str) -> Facts:
        return await self._facts(routes.job(id))

    async def cancel(self, id: str, *, op_id: str | None = None) -> list[Facts]:
        jobs: list[Facts] = await self.ask(routes.cancel(id, op_id))
        return jobs

    async def signal(self, id: str, number: int, *, op_id: str | None = None) -> bool:
        return bool(await self.ask(routes.signal(id, number, op_id)))

    async def why(self, id: str) -> Facts:
        return await self._facts(routes.why(id))

    async def follow(
        self,
        id: str,
        *,
        attach: bool = False,
        output: bool = True,
        stdout: int = 0,
        stderr: int = 0,
    ) -> AsyncIterator[Frame]:
        """Events of a job with the bytes that belong to them, as `Client.follow`."""
        told = Following(id, attach=attach, output=output, stdout=stdout, stderr=stderr)
        while not told.ended:
            reply = await self._open(told.ask())
            try:
                with contextlib.suppress(OSError, httpx.TransportError):
                    async for event, data in _frames(reply):
                        if frame := told.take(event, data):
                            yield frame
                    told.finished()
            finally:
                await reply.aclose()
            if not told.ended:
                await self._lost(None, start=not told.stopping)

    # ---- calls of functions

    async def calls(
        self,
        *,
        states: Iterable[str] = (),
        name: str | None = None,
        run: str | None = None,
        owner: str | None = None,
        limit: int | None = None,
    ) -> list[Facts]:
        calls: list[Facts] = await self.ask(routes.calls(states, name, run, owner, limit))
        return calls

    async def call(self, id: str) -> Facts:
        return await self._facts(routes.call(id))

    # ---- nodes and allocations

    async def status(self) -> Facts:
        return await self._facts(routes.status())

    async def nodes(self) -> list[Facts]:
        nodes: list[Facts] = await self.ask(routes.nodes())
        return nodes

    async def node(self, name: str) -> Facts:
        return await self._facts(routes.node(name))

    async def allocations(self) -> list[Facts]:
        held: list[Facts] = await self.ask(routes.allocations())
        return held

    async def allocate(self, order: Mapping[str, Any], *, op_id: str | None = None) -> Facts:
        return await self._facts(routes.allocate(order, op_id))

    async def move(
        self, id: str, move: str, *, ttl_s: float | None = None, op_id: str | None = None
    ) -> Facts:
        return await self._facts(routes.move(id, move, ttl_s, op_id))

    async def explain(self, request: Mapping[str, Any]) -> Facts:
        return await self._facts(routes.explain(request))

    async def version(self) -> Facts:
        return await self._facts(routes.version())

    async def events(self, *, after: int = 0, limit: int | None = None) -> list[Facts]:
        events: list[Facts] = await self.ask(routes.events(after, limit))
        return events

    async def check(self) -> Facts:
        return await self._facts(routes.check())

    # ---- asking

    async def _facts(self, ask: Ask) -> Facts:
        facts: Facts = await self.ask(ask)
        return facts

    async def ask(self, ask: Ask) -> Any:
        """The answer to any of `routes`."""
        away = Away(ask, None)
        while True:
            reply = await self._persist(ask, lambda: self._http.send(self._request(ask)))
            if reply.status_code < 400:
                return read_answer(ask, reply.content)
            away.refused(read_problem(reply.status_code, reply.content))
            await asyncio.sleep(PAUSE_S)

    async def _open(self, ask: Ask) -> httpx.Response:
        def send() -> Awaitable[httpx.Response]:
            return self._http.send(self._request(ask, self._patience()), stream=True)

        away = Away(ask, None)
        while True:
            reply = await self._persist(ask, send)
            if reply.status_code < 400:
                return reply
            content = await reply.aread()
            await reply.aclose()
            away.refused(read_problem(reply.status_code, content))
            await asyncio.sleep(PAUSE_S)

    def _patience(self) -> httpx.Timeout:
        return _STREAM_TIMEOUT if self._address.path else _TIMEOUT

    def _request(self, ask: Ask, timeout: httpx.Timeout = _TIMEOUT) -> httpx.Request:
        return self._http.build_request(
            ask.method, ask.target, content=ask.body, headers=ask.headers, timeout=timeout
        )

    async def _persist(self, ask: Ask, send: Callable[[], Awaitable[Sent]]) -> Sent:
        """Send it until there is a reply, as long as that is safe and there is hope."""
        deadline = 0.0
        while True:
            try:
                return await send()
            except httpx.TransportError as error:
                now = time.monotonic()
                deadline = deadline or now + PATIENCE_S
                if not (_may_repeat(ask, error) and now < deadline):
                    raise gone(self.address, _plain(error)) from error
                await self._lost(_plain(error))

    async def _lost(self, error: OSError | None, *, start: bool = True) -> None:
        if self._revive is None:
            raise gone(self.address, error)
        await asyncio.to_thread(self._revive, start)


async def _frames(reply: httpx.Response) -> AsyncIterator[Frame]:
    """Frames of a stream until its last one; raises `Lost` when it ends within one."""
    kept = bytearray()
    event: dict[str, Any] | None = None
    count = 0
    async for chunk in reply.aiter_raw():
        kept += chunk
        while True:
            if event is None:
                end = kept.find(b"\n")
                if end < 0:
                    break
                event, count = read_event(bytes(kept[:end]))
                del kept[: end + 1]
            if len(kept) < count:
                break
            data = bytes(kept[:count])
            del kept[:count]
            yield event, data
            if event["event"] == "end":
                return
            event = None
    if kept or event is not None:
        raise Lost("the stream ended within a frame")


def _may_repeat(ask: Ask, error: httpx.TransportError) -> bool:
    if isinstance(error, httpx.TimeoutException):
        return False
    return ask.repeatable or isinstance(error, httpx.ConnectError)


def _plain(error: httpx.TransportError) -> OSError:
    """The same as the error that a socket would have raised."""
    if isinstance(error, httpx.TimeoutException):
        return TimeoutError(str(error))
    kind = ConnectionRefusedError if isinstance(error, httpx.ConnectError) else Lost
    return kind(str(error))
