"""Handles of jobs, for threads and for asyncio: their state, and what can be done with them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

from gridhand.client import routes
from gridhand.core.html import sheet
from gridhand.core.operations import Operation, Reply
from gridhand.library.backend import read_ttl
from gridhand.library.loop_bridge import iterate_in_thread
from gridhand.library.remote_operations import RemoteRequest

if TYPE_CHECKING:
    from gridhand.client.client import Client
    from gridhand.core.rows.stream_messages import Frame
    from gridhand.library.remote import Remote

Facts = dict[str, Any]

_OPEN = ("queued", "running")
_SOONEST_S, _LATEST_S = 0.01, 0.25


class JobFacts:
    """The state of a job as of the last reply, not of this moment."""

    __slots__ = ("_facts",)

    _facts: Facts

    @property
    def id(self) -> str:
        return str(self._facts["id"])

    @property
    def name(self) -> str | None:
        """The name given at submission."""
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
        """Whether the job has ended, one way or another."""
        return self.state not in _OPEN

    @property
    def succeeded(self) -> bool:
        return self.state == "succeeded"

    @property
    def exit_code(self) -> int | None:
        """The exit code of the command, 128+n for signal n; None while it is not known."""
        code: int | None = self._facts["exit_code"]
        return code

    @property
    def node(self) -> str | None:
        """The node of the last attempt, or None if there was none yet."""
        return self._fact("node")

    @property
    def reason(self) -> str | None:
        """Why the job ended: `exit`, `signal`, `oom`, `timeout`, `cancelled` …"""
        return self._fact("reason")

    @property
    def message(self) -> str:
        """A sentence on how the job ended, or "" if there is nothing to say."""
        return self._fact("message") or ""

    @property
    def why(self) -> str | None:
        """The reason why the job waits while it is queued."""
        return self._fact("why")

    @property
    def facts(self) -> Facts:
        """Everything known about the job, as the HTTP API returns it."""
        return dict(self._facts)

    def _fact(self, name: str) -> str | None:
        value: str | None = self._facts.get(name)
        return value

    def _note(self, frame: Frame) -> None:
        if frame["event"] == "job" or frame["event"] == "end":
            self._facts = frame["job"]

    def __repr__(self) -> str:
        ended = f", exit code {self.exit_code}" if self.exit_code is not None else ""
        return f"<job {self.id} {self.state}{ended}: {' '.join(self.command)[:60]}>"

    def _repr_html_(self) -> str:
        wanted = ("name", "node", "reason", "exit_code", "message", "why")
        rows = [(name.replace("_", " "), self._facts.get(name)) for name in wanted]
        given = [(name, value) for name, value in self._facts["request"].items() if value]
        asked = ", ".join(f"{name}={value}" for name, value in given)
        command = ("command", " ".join(self.command))
        return sheet(f"job {self.id}: {self.state}", [command, ("asked for", asked), *rows])


class Job(JobFacts):
    """A job that was submitted with `Grid.run`, or found with `Grid.job`.

    job = grid.run("make test", cpu=2)
    for stream, data in job.follow():
        print(stream, data)
    print(job.exit_code)
    """

    __slots__ = ("_remote",)

    def __init__(self, facts: Facts, remote: Remote) -> None:
        self._facts = facts
        self._remote = remote

    def refresh(self) -> Self:
        """Fetch the present state of the job from the controller."""
        self._facts = self._remote.run(find_job(self.id))
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Return when the job has ended; raise `TimeoutError` after `timeout` seconds.

        Check `succeeded` or `exit_code` afterwards: a job that failed raises nothing here.
        """
        if timeout is not None:
            return self._poll_until(_deadline(timeout))
        if not self.done:
            for frame, _ in self._client().follow(self.id, output=False):
                self._note(frame)
        return self

    def cancel(self) -> Self:
        """Stop the job and every process it started. One that has ended stays as it is."""
        self._remote.run(cancel_job(self.owner, self.id))
        return self.refresh()

    def hold(self) -> Self:
        """Keep the job from starting until `unhold`; raise `JobRefused` if it is not queued."""
        self._remote.run(hold_job(self.owner, self.id))
        return self.refresh()

    def unhold(self) -> Self:
        """Let the job start if it is held."""
        self._remote.run(unhold_job(self.owner, self.id))
        return self.refresh()

    def send_signal(self, number: int) -> bool:
        """Send a signal to the job's processes; return False if the job is not running."""
        return self._remote.run(signal_job(self.owner, self.id, number))

    def logs(self, stream: str = "stdout") -> str:
        """Return everything written so far to `stdout` or `stderr`."""
        return read_log(self._client(), self.id, stream)

    def follow(self) -> Iterator[tuple[str, bytes]]:
        """Yield the output as it is written, until the job ends: the stream's name and bytes."""
        for frame, data in self._client().follow(self.id):
            self._note(frame)
            if frame["event"] == "output":
                yield frame["stream"], data

    def _poll_until(self, deadline: float) -> Self:
        for pause in poll_pauses():
            if self.refresh().done:
                return self
            left = deadline - time.monotonic()
            if left <= 0:
                raise _late(self.id, self.state)
            time.sleep(min(pause, left))
        return self

    def _client(self) -> Client:
        return self._remote.checked().client(self.owner)


class AsyncJob(JobFacts):
    """A job, for asyncio: `Job` with methods that are awaited."""

    __slots__ = ("_remote",)

    def __init__(self, facts: Facts, remote: Remote) -> None:
        self._facts = facts
        self._remote = remote

    async def refresh(self) -> Self:
        """Fetch the present state of the job from the controller."""
        self._facts = await self._run(find_job(self.id))
        return self

    async def wait(self, timeout: float | None = None) -> Self:  # noqa: ASYNC109 - as Job.wait
        """Return when the job has ended; raise `TimeoutError` after `timeout` seconds."""
        if timeout is None:
            async with aclosing(self._frames(output=False)) as frames:
                async for _ in frames:
                    pass
            return self
        limit_s = (read_ttl(timeout, "timeout") or 0) / 1000 if timeout else 0.0
        try:
            return await asyncio.wait_for(self.wait(), limit_s)
        except TimeoutError:
            raise _late(self.id, self.state) from None

    async def cancel(self) -> Self:
        """Stop the job and every process it started. One that has ended stays as it is."""
        await self._run(cancel_job(self.owner, self.id))
        return await self.refresh()

    async def hold(self) -> Self:
        """Keep the job from starting until `unhold`; raise `JobRefused` if it is not queued."""
        await self._run(hold_job(self.owner, self.id))
        return await self.refresh()

    async def unhold(self) -> Self:
        """Let the job start if it is held."""
        await self._run(unhold_job(self.owner, self.id))
        return await self.refresh()

    async def send_signal(self, number: int) -> bool:
        """Send a signal to the job's processes; return False if the job is not running."""
        return await self._run(signal_job(self.owner, self.id, number))

    async def logs(self, stream: str = "stdout") -> str:
        """Return everything written so far to `stdout` or `stderr`."""
        client = self._remote.checked().client(self.owner)
        return await asyncio.to_thread(read_log, client, self.id, stream)

    async def follow(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield the output as it is written, until the job ends: the stream's name and bytes."""
        async with aclosing(self._frames()) as frames:
            async for frame, data in frames:
                if frame["event"] == "output":
                    yield frame["stream"], data

    async def _frames(self, *, output: bool = True) -> AsyncGenerator[tuple[Frame, bytes], None]:
        client = self._remote.checked().client(self.owner)
        async with aclosing(iterate_in_thread(client.follow(self.id, output=output))) as frames:
            async for frame, data in frames:
                self._note(frame)
                yield frame, data

    def _run(self, operation: Operation[Reply]) -> asyncio.Future[Reply]:
        return self._remote.port(asyncio.get_running_loop()).run(operation)


def find_job(id: str) -> Operation[Facts]:
    return RemoteRequest(None, routes.job(id), dict)


def cancel_job(owner: str, id: str) -> Operation[list[Facts]]:
    return RemoteRequest(owner, routes.cancel(id), list)


def hold_job(owner: str, id: str) -> Operation[list[Facts]]:
    return RemoteRequest(owner, routes.hold(id), list)


def unhold_job(owner: str, id: str) -> Operation[list[Facts]]:
    return RemoteRequest(owner, routes.unhold(id), list)


def signal_job(owner: str, id: str, number: int) -> Operation[bool]:
    return RemoteRequest(owner, routes.signal(id, number), bool)


def read_log(client: Client, id: str, stream: str) -> str:
    """Return a log up to its present end, read piece by piece."""
    text, offset = bytearray(), 0
    while (part := client.logs(id, stream, offset=offset)).end > offset:
        text += part.data
        offset = part.end
    return text.decode(errors="replace")


def _deadline(timeout: float) -> float:
    if not timeout:  # look once
        return time.monotonic()
    return time.monotonic() + (read_ttl(timeout, "timeout") or 0) / 1000


def poll_pauses() -> Iterator[float]:
    """Yield the seconds between two polls: few at first, since most awaited jobs are short."""
    pause = _SOONEST_S
    while True:
        yield pause
        pause = min(pause * 1.5, _LATEST_S)


def _late(id: str, state: str) -> TimeoutError:
    return TimeoutError(f"job {id} is still {state}")
