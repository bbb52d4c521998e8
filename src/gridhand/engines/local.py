"""The engine of this machine: one agent, which is replaced when it dies.

The agent is no child of the controller: it and its jobs outlive the controller that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from gridhand.agent.bootstrap import ensure_agent
from gridhand.agent.link import Link, Message
from gridhand.agent.link_errors import LinkError, LinkRefused
from gridhand.agent.messages import AgentEvent, AgentGreeting
from gridhand.agent.starter.starter_client import ensure_starter, list_attempts
from gridhand.core.errors import StoreInvalid
from gridhand.core.model.names import JobId, NodeName
from gridhand.engines.base import AttemptReport, EndReport, Key, Known, Seen, Sink, StartOrder
from gridhand.engines.log_files import LogFiles
from gridhand.posix.unix_users import UnixUser

_BATCH = 64  # the ends of the first are reported while the last are started
_BATCH_BYTES = 4 << 20  # or fewer: an agent hangs up on a message that is too long
_AGAIN_S = (0.05, 0.2, 0.5, 1.0, 2.0)

_log = logging.getLogger(__name__)


class LocalEngine:
    """Speaks with the agent of a folder, and starts one if none runs."""

    def __init__(
        self,
        agent_folder: str,
        starter_folder: str,
        virtual: tuple[str, str] | None = None,
        lease_ms: int | None = None,
    ) -> None:
        """`virtual` is the name and the capacity of a virtual node to be instead of the machine.

        With `lease_ms` the agent stops its jobs unless `renew_lease` is called in time.
        """
        self._folders = agent_folder, starter_folder
        self._options: tuple[str, ...] = () if virtual is None else ("--virtual-node", *virtual)
        if lease_ms is not None:
            self._options = (*self._options, "--lease", str(lease_ms))
        self._link: Link | None = None
        self._sink: Sink | None = None
        self._epoch = 0
        self._greeting: AgentGreeting | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._logs = LogFiles()

    async def open(self, epoch: int, sink: Sink) -> Known:
        self._epoch, self._sink = epoch, sink
        try:
            known = await self._reach()
        except LinkRefused as error:
            raise _wrong_store(epoch) if _overruled(error) else error from error
        self._keeping = asyncio.create_task(self._keep(), name="gridhand-agent")
        self._keeping.add_done_callback(self._kept)
        return known

    async def look(self) -> Seen:
        return await asyncio.to_thread(_look, self._folders[1])

    def _kept(self, keeping: asyncio.Task[None]) -> None:
        error = None if keeping.cancelled() else keeping.exception()
        if error is not None and self._sink is not None:
            self._sink.broken(error)

    async def _reach(self) -> Known:
        """Find or start the agent; return what it knows.

        `watch` comes before `list`: what ends in between is reported twice, never not at all.
        """
        assert self._sink is not None
        self._lost.clear()
        if self._link is not None:
            self._link.close()
        self._link = await ensure_agent(
            *self._folders,
            epoch=self._epoch,
            on_event=self._on_event,
            on_lost=self._lost.set,
            options=self._options,
        )
        self._greeting = cast(AgentGreeting, self._link.greeting)
        self._sink.node_changed(self._greeting["node"], self._greeting["problems"])
        await self._link.ask({"do": "watch"})
        listing = await self._link.ask({"do": "list"})
        return Known(_decode(listing["running"]), _decode(listing["ended"]))

    async def _keep(self) -> None:
        """Find or start another agent whenever one is gone, and report what it knows."""
        tries = 0
        while True:
            await self._lost.wait()
            try:
                known = await self._reach()
            except (OSError, LinkError) as error:
                if _overruled(error):
                    raise
                if tries < len(_AGAIN_S) or tries % 30 == 0:
                    _log.warning("the agent cannot be reached: %s", error)
                self._lost.set()
                await asyncio.sleep(_AGAIN_S[min(tries, len(_AGAIN_S) - 1)])
                tries += 1
                continue
            tries = 0
            if self._sink is not None:
                self._sink.returned(known)

    def _on_event(self, event: AgentEvent) -> None:
        sink = self._sink
        if sink is None:
            return
        if event["event"] == "begun":
            sink.spawned(_decode(event["attempts"]))
        elif event["event"] == "ended":
            sink.ended(_decode(event["attempts"]))
        elif event["event"] == "usage":
            assert self._greeting is not None
            sink.measured(self._greeting["node"]["name"], event)
        elif event["event"] == "node":
            sink.node_changed(event["node"], event["problems"])

    # ---- requests

    def place(self, key: Key, node: NodeName, engine: str = "") -> None:
        pass  # there is one node

    async def start(self, orders: Sequence[StartOrder]) -> None:
        for batch in _batches(orders):
            reply = await self._ask({"do": "start", "jobs": [order.encode() for order in batch]})
            if reply is None:
                return  # once the agent is back it gets the orders that it does not know
            if "error" in reply:
                await self._start_apart(batch, reply)
            else:
                self._report_started(_decode(reply["attempts"]))

    async def _start_apart(self, orders: Sequence[StartOrder], reply: Message) -> None:
        """Start refused orders one by one: if it is because of one, the others must not suffer."""
        if len(orders) > 1:
            for order in orders:
                await self.start([order])
            return
        [order] = orders
        if reply["error"] == "malformed":
            end = EndReport("start_failed", reply["message"])
            self._report_started([AttemptReport(order.job, order.attempt, order.fence, end=end)])
        else:  # nobody knows what has become of it: connect anew, and see
            _log.warning("the agent cannot start job %s: %s", order.job, reply["message"])
            await asyncio.sleep(_AGAIN_S[-1])
            self._hang_up()

    def _hang_up(self) -> None:
        """Disconnect: a request without an answer may have been carried out, which a new
        connection finds out."""
        if self._link is not None:
            self._link.abort()

    def _report_started(self, reports: Sequence[AttemptReport]) -> None:
        assert self._sink is not None
        for report in reports:
            if report.state == "refused":
                report.state, report.end = "ended", EndReport("returned", report.message or "")
        running = [report for report in reports if report.state == "running" and report.pid]
        over = [report for report in reports if report.state == "ended"]
        if running:
            self._sink.spawned(running)
        if over:
            self._sink.ended(over)

    async def stop(self, key: Key, reason: str, grace_ms: int) -> None:
        job, attempt = key
        message = {"do": "stop", "job": job, "attempt": attempt, "reason": reason}
        reply = await self._ask({**message, "grace_ms": grace_ms})
        if reply is not None and reply.get("error") == "unknown_attempt":
            assert self._sink is not None
            end = EndReport(reason, "it was stopped before it was started")
            self._sink.ended([AttemptReport(job, attempt, None, end=end)])

    async def signal(self, key: Key, signum: int) -> bool:
        job, attempt = key
        message = {"do": "signal", "job": job, "attempt": attempt, "signal": signum, "to": "group"}
        reply = await self._ask(message)
        return reply is not None and bool(reply.get("sent"))

    async def note_reader(self, key: Key, offsets: Mapping[str, int]) -> None:
        job, attempt = key
        message = {"do": "reader", "job": job, "attempt": attempt, "offsets": dict(offsets)}
        await self._ask(message)

    async def forget(self, keys: Sequence[Key]) -> None:
        await self._ask({"do": "forget", "attempts": [list(key) for key in keys]})

    async def renew_lease(self, for_ms: int) -> None:
        """Let the jobs of an agent with a lease run for this time from now on."""
        await self._ask({"do": "lease", "for_ms": for_ms})

    async def sample_every(self, every_ms: int, for_ms: int) -> None:
        await self._ask({"do": "sample", "every_ms": every_ms, "for_ms": for_ms})

    async def _ask(self, message: Message) -> Message | None:
        """Return the answer, which may be an error; None if the agent is away."""
        link = self._link
        if link is None or self._lost.is_set():
            return None
        try:
            return await link.ask(message)
        except LinkRefused as error:
            if _overruled(error):
                raise
            return {"error": error.because, "message": str(error)}
        except LinkError as error:
            _log.warning("the agent did not answer %s: %s", message["do"], error)
            if self._link is link:
                self._hang_up()
            return None

    async def read_log(
        self, path: str, offset: int, limit: int, user: UnixUser | None = None
    ) -> list[tuple[int, bytes | int]]:
        return await self._logs.read(path, offset, limit, user)

    async def log_size(self, path: str, user: UnixUser | None = None) -> int:
        return await self._logs.size(path, user)

    def facts(self) -> Mapping[str, Any]:
        names = ("pid", "version", "boot_id", "enforced", "cpus")
        greeting: Mapping[str, Any] = self._greeting or {}
        return {name: greeting.get(name) for name in names}

    async def close(self, *, end: bool) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError, LinkError):
                await self._keeping
        if end:
            with contextlib.suppress(LinkError):
                await self._ask({"do": "quit"})
        if self._link is not None:
            self._link.close()


def _decode(reports: Sequence[Mapping[str, Any]]) -> list[AttemptReport]:
    return [AttemptReport.decode(report) for report in reports]


def _look(starter: str) -> Seen:
    """Ask the starter, which is started if none runs: its journal has the epoch."""
    epoch = ensure_starter(starter)["epoch"]
    running = list_attempts(starter)["running"]
    return Seen(epoch, [(JobId(report["job"]), report["attempt"]) for report in running])


def _wrong_store(epoch: int) -> StoreInvalid:
    return StoreInvalid(
        f"the jobs here belong to another store, or to a later state of it than epoch {epoch}",
        hint="Put the right store back. Or start with `grid serve --new-cluster`: the jobs that run"
        " here are then stopped.",
    )


def _overruled(error: Exception) -> bool:
    """Return whether another controller is in charge of this machine's jobs."""
    return isinstance(error, LinkRefused) and error.because == "stale_epoch"


def _batches(orders: Sequence[StartOrder]) -> Iterator[list[StartOrder]]:
    """Split orders into batches that are neither many nor long; a long order is alone."""
    batch: list[StartOrder] = []
    size = 0
    for order in orders:
        length = _length(order)
        if batch and (len(batch) == _BATCH or size + length > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(order)
        size += length
    if batch:
        yield batch


def _length(order: StartOrder) -> int:
    """Return the characters of its arguments and variables, which are nearly all of it."""
    env = order.env
    return sum(map(len, env)) + sum(map(len, env.values())) + sum(map(len, order.argv))
