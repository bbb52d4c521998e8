"""Jobs as handles: what is known of one, and what can be done with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Self

from gridhand.client import routes
from gridhand.core.calls import Call
from gridhand.core.html import sheet
from gridhand.library.asking import Asking
from gridhand.library.backend import read_ttl

if TYPE_CHECKING:
    from gridhand.client.client import Client
    from gridhand.library.remote import Remote

Facts = dict[str, Any]

_OPEN = ("queued", "running")
_SOONEST_S, _LATEST_S = 0.01, 0.25


class _JobFacts:
    """What is known of it: as of the last answer, not of this moment."""

    __slots__ = ("_facts",)

    _facts: Facts

    @property
    def id(self) -> str:
        return str(self._facts["id"])

    @property
    def name(self) -> str | None:
        return self._fact("name")

    @property
    def owner(self) -> str:
        return str(self._facts["owner"])

    @property
    def command(self) -> tuple[str, ...]:
        return tuple(self._facts["command"])

    @property
    def state(self) -> str:
        """`queued`, `running`, `succeeded`, `failed`, `cancelled` or `lost`."""
        return str(self._facts["state"])

    @property
    def done(self) -> bool:
        """Whether it has ended, one way or another."""
        return self.state not in _OPEN

    @property
    def succeeded(self) -> bool:
        return self.state == "succeeded"

    @property
    def exit_code(self) -> int | None:
        """What the command ended with, 128+n for a signal; None while that is not known."""
        code: int | None = self._facts["exit_code"]
        return code

    @property
    def node(self) -> str | None:
        return self._fact("node")

    @property
    def reason(self) -> str | None:
        """Why it ended: `exit`, `signal`, `oom`, `timeout`, `cancelled` …"""
        return self._fact("reason")

    @property
    def message(self) -> str:
        """A sentence on how it ended, where there is something to say."""
        return self._fact("message") or ""

    @property
    def why(self) -> str | None:
        """What it waits for, while it is queued."""
        return self._fact("why")

    @property
    def facts(self) -> Facts:
        """All that is known, as the API tells it."""
        return dict(self._facts)

    def _fact(self, name: str) -> str | None:
        found: str | None = self._facts.get(name)
        return found

    def __repr__(self) -> str:
        ended = f", exit code {self.exit_code}" if self.exit_code is not None else ""
        return f"<job {self.id} {self.state}{ended}: {' '.join(self.command)[:60]}>"

    def _repr_html_(self) -> str:
        wanted = ("name", "node", "reason", "exit_code", "message", "why")
        rows = [(name.replace("_", " "), self._facts.get(name)) for name in wanted]
        given = [(name, one) for name, one in self._facts["request"].items() if one]
        asked = ", ".join(f"{name}={one}" for name, one in given)
        command = ("command", " ".join(self.command))
        return sheet(f"job {self.id}: {self.state}", [command, ("asked for", asked), *rows])


class Job(_JobFacts):
    """A command that was submitted."""

    __slots__ = ("_remote",)

    def __init__(self, facts: Facts, remote: Remote) -> None:
        self._facts = facts
        self._remote = remote

    def refresh(self) -> Self:
        """Ask how it stands now."""
        self._facts = self._remote.call(looking(self.id))
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Come back when it has ended; `TimeoutError` if that takes longer than so many seconds."""
        if timeout is not None:
            return self._wait_until(deadline(timeout))
        if not self.done:
            for event, _ in self._client().follow(self.id, output=False):
                self._facts = event.get("job", self._facts)
        return self

    def cancel(self) -> Self:
        """End it, and what it started. One that has ended stays as it is."""
        self._remote.call(cancelling(self.owner, self.id))
        return self.refresh()

    def send_signal(self, number: int) -> bool:
        """Whether it was sent: to a job that does not run there is nobody to send it to."""
        return self._remote.call(signalling(self.owner, self.id, number))

    def logs(self, stream: str = "stdout") -> str:
        """All that it has written until now, to `stdout` or `stderr`."""
        return text_of(self._client(), self.id, stream)

    def follow(self) -> Iterator[tuple[str, bytes]]:
        """What it writes, as it comes: `stdout` or `stderr`, and bytes; until it has ended."""
        for event, data in self._client().follow(self.id):
            self._facts = event.get("job", self._facts)
            if event["event"] == "output":
                yield event["stream"], data

    def _wait_until(self, deadline: float) -> Self:
        for pause in pauses():
            if self.refresh().done:
                return self
            left = deadline - time.monotonic()
            if left <= 0:
                raise late(self.id, self.state)
            time.sleep(min(pause, left))
        return self

    def _client(self) -> Client:
        return self._remote.checked().client(self.owner)


class AsyncJob(_JobFacts):
    """A command that was submitted, from asyncio."""

    __slots__ = ("_remote",)

    def __init__(self, facts: Facts, remote: Remote) -> None:
        self._facts = facts
        self._remote = remote

    async def refresh(self) -> Self:
        """Ask how it stands now."""
        self._facts = await self._ask(looking(self.id))
        return self

    async def wait(self, timeout: float | None = None) -> Self:  # noqa: ASYNC109 - as Job.wait
        """Come back when it has ended; `TimeoutError` if that takes longer than so many seconds."""
        if timeout is None:
            async for _ in self._frames(output=False):
                pass
            return self
        limit_s = (read_ttl(timeout, "timeout") or 0) / 1000 if timeout else 0.0
        try:
            return await asyncio.wait_for(self.wait(), limit_s)
        except TimeoutError:
            raise late(self.id, self.state) from None

    async def cancel(self) -> Self:
        """End it, and what it started. One that has ended stays as it is."""
        await self._ask(cancelling(self.owner, self.id))
        return await self.refresh()

    async def send_signal(self, number: int) -> bool:
        """Whether it was sent: to a job that does not run there is nobody to send it to."""
        sent: bool = await self._ask(signalling(self.owner, self.id, number))
        return sent

    async def logs(self, stream: str = "stdout") -> str:
        """All that it has written until now, to `stdout` or `stderr`."""
        client = self._remote.checked().client(self.owner)
        return await asyncio.to_thread(text_of, client, self.id, stream)

    async def follow(self) -> AsyncIterator[tuple[str, bytes]]:
        """What it writes, as it comes: `stdout` or `stderr`, and bytes; until it has ended."""
        async for event, data in self._frames():
            if event["event"] == "output":
                yield event["stream"], data

    async def _frames(self, *, output: bool = True) -> AsyncIterator[tuple[Facts, bytes]]:
        from gridhand.client.aio import AsyncClient

        known = self._remote.checked().client(self.owner)
        async with AsyncClient(known.address, revive=known.revive, owner=known.owner) as client:
            async for event, data in client.follow(self.id, output=output):
                self._facts = event.get("job", self._facts)
                yield event, data

    def _ask(self, call: Call[Any]) -> asyncio.Future[Any]:
        return self._remote.port(asyncio.get_running_loop()).call(call)


def looking(id: str) -> Call[Facts]:
    return Asking(None, routes.job(id), dict)


def cancelling(owner: str, id: str) -> Call[list[Facts]]:
    return Asking(owner, routes.cancel(id), list)


def signalling(owner: str, id: str, number: int) -> Call[bool]:
    return Asking(owner, routes.signal(id, number), bool)


def text_of(client: Client, id: str, stream: str) -> str:
    """A log to where it ends now, read piece by piece."""
    text, offset = bytearray(), 0
    while (part := client.logs(id, stream, offset=offset)).end > offset:
        text += part.data
        offset = part.end
    return text.decode(errors="replace")


def deadline(timeout: float) -> float:
    if not timeout:  # only a look
        return time.monotonic()
    return time.monotonic() + (read_ttl(timeout, "timeout") or 0) / 1000


def pauses() -> Iterator[float]:
    """Short at first, since most jobs that are waited for are."""
    pause = _SOONEST_S
    while True:
        yield pause
        pause = min(pause * 1.5, _LATEST_S)


def late(id: str, state: str) -> TimeoutError:
    return TimeoutError(f"job {id} is still {state}")
