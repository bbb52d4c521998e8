"""The engine of this machine: one agent, which stands on its own feet and is restarted if it falls.

The agent is no child of the controller: it and the jobs below it outlive whoever started them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gridhand.agent.launching import ensure_agent
from gridhand.agent.link import Link, LinkError, LinkRefused
from gridhand.agent.logs import read_range
from gridhand.agent.starting import StarterError, Starters
from gridhand.core.errors import StoreInvalid
from gridhand.engines.base import Fact, Key, Known, Order, Sink

_BATCH = 64  # the ends of the first are told while the last are started
_BATCH_BYTES = 4 << 20  # or fewer: an agent hangs up on a message that is too long
_AGAIN_S = (0.05, 0.2, 0.5, 1.0, 2.0)

_log = logging.getLogger(__name__)


class LocalEngine:
    """Speaks with the agent in a folder, and starts one where none stands."""

    def __init__(
        self, agent_folder: str, starter_folder: str, stands_for: tuple[str, str] | None = None
    ) -> None:
        """`stands_for` is the name and the capacity of another node than this machine is."""
        self._folders = agent_folder, starter_folder
        self._options = () if stands_for is None else ("--stands-for", *stands_for)
        self._link: Link | None = None
        self._sink: Sink | None = None
        self._epoch = 0
        self._greeting: Mapping[str, Any] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()

    async def open(self, epoch: int, sink: Sink) -> Known:
        self._epoch, self._sink = epoch, sink
        try:
            known = await self._reach()
        except LinkRefused as error:
            raise _another(epoch) if _overruled(error) else error from error
        self._keeping = asyncio.create_task(self._keep(), name="gridhand-agent")
        self._keeping.add_done_callback(self._kept)
        return known

    async def epoch_seen(self) -> int:
        return await asyncio.to_thread(_epoch_seen, self._folders[1])

    def _kept(self, keeping: asyncio.Task[None]) -> None:
        error = None if keeping.cancelled() else keeping.exception()
        if error is not None and self._sink is not None:
            self._sink.broken(error)

    async def _reach(self) -> Known:
        """Find or start the agent. From the watching on nothing that ends can be missed."""
        assert self._sink is not None
        self._lost.clear()
        if self._link is not None:
            self._link.close()
        self._link = await ensure_agent(
            *self._folders,
            epoch=self._epoch,
            on_event=self._heard,
            on_lost=self._lost.set,
            options=self._options,
        )
        self._greeting = self._link.greeting
        self._sink.node_changed(self._greeting["node"], self._greeting["problems"])
        await self._link.ask({"do": "watch"})
        found = await self._link.ask({"do": "list"})
        return Known(found["running"], found["ended"])

    async def _keep(self) -> None:
        """Whenever the agent is gone, find or start another, and tell what it knows."""
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

    def _heard(self, message: Mapping[str, Any]) -> None:
        sink = self._sink
        if sink is None:
            return
        match message["event"]:
            case "begun":
                sink.spawned(message["attempts"])
            case "ended":
                sink.ended(message["attempts"])
            case "usage":
                sink.measured(self._greeting["node"]["name"], message)
            case "node":
                sink.node_changed(message["node"], message["problems"])

    # ---- asking

    async def start(self, orders: Sequence[Order]) -> None:
        for batch in _batches(orders):
            reply = await self._ask({"do": "start", "jobs": batch})
            if reply is None:
                return  # once the agent is back it is told again what it does not know
            if "error" in reply:
                await self._start_apart(batch, reply)
            else:
                self._tell_started(reply["attempts"])

    async def _start_apart(self, orders: Sequence[Order], reply: Mapping[str, Any]) -> None:
        """The agent would not. If it is because of one of them, the others must not suffer."""
        if len(orders) > 1:
            for order in orders:
                await self.start([order])
        elif reply["error"] == "malformed":
            name = {key: orders[0][key] for key in ("job", "attempt", "fence")}
            self._tell_started([{**name, "state": "refused", "message": reply["message"]}])
        else:  # nobody knows what has become of it: begin anew, and see
            _log.warning("the agent cannot start job %s: %s", orders[0]["job"], reply["message"])
            await asyncio.sleep(_AGAIN_S[-1])
            self._hang_up()

    def _hang_up(self) -> None:
        """What is not answered may have been done or not; who comes back finds that out."""
        if self._link is not None:
            self._link.abort()

    def _tell_started(self, facts: Sequence[Fact]) -> None:
        assert self._sink is not None
        running = [fact for fact in facts if fact["state"] == "running" and fact["pid"] is not None]
        over = [fact for fact in facts if fact["state"] == "ended"]
        if running:
            self._sink.spawned(running)
        if over:
            self._sink.ended(over)
        for fact in facts:
            if fact["state"] == "refused":
                end = {"reason": "start_failed", "message": fact.get("message", "")}
                self._sink.ended([{**fact, "state": "ended", "end": end}])

    async def stop(self, key: Key, reason: str, grace_ms: int) -> None:
        job, attempt = key
        message = {"do": "stop", "job": job, "attempt": attempt, "reason": reason}
        reply = await self._ask({**message, "grace_ms": grace_ms})
        if reply is not None and reply.get("error") == "unknown_attempt":
            assert self._sink is not None
            end = {"reason": reason, "message": "it was stopped before it was started"}
            fact = {"job": job, "attempt": attempt, "state": "ended", "end": end}
            self._sink.ended([fact])

    async def signal(self, key: Key, signum: int) -> bool:
        job, attempt = key
        message = {"do": "signal", "job": job, "attempt": attempt, "signal": signum, "to": "group"}
        reply = await self._ask(message)
        return reply is not None and bool(reply.get("sent"))

    async def forget(self, keys: Sequence[Key]) -> None:
        await self._ask({"do": "forget", "attempts": [list(key) for key in keys]})

    async def _ask(self, message: dict[str, Any]) -> Mapping[str, Any] | None:
        """The answer, an error of the agent's included; None if the agent is away."""
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

    async def read_log(self, path: str, offset: int, limit: int) -> list[tuple[int, bytes | int]]:
        try:
            pieces = await asyncio.to_thread(read_range, path, offset, limit)
        except (OSError, ValueError):  # a folder, or what we may not read
            return []
        return [(at, one if isinstance(one, bytes) else one.bytes) for at, one in pieces]

    async def log_size(self, path: str) -> int:
        try:
            return (await asyncio.to_thread(os.stat, path)).st_size
        except (OSError, ValueError):
            return 0

    def facts(self) -> Mapping[str, Any]:
        names = ("pid", "version", "boot_id", "enforced", "cpus")
        return {name: self._greeting.get(name) for name in names}

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


def _epoch_seen(starter: str) -> int:
    try:
        with Starters(starter, epoch=None) as client:
            return int(client.greeting["epoch"])
    except (OSError, StarterError):  # none is there
        return 0


def _another(epoch: int) -> StoreInvalid:
    return StoreInvalid(
        f"what runs here belongs to another store, or to a later state of it than epoch {epoch}",
        hint="Put the right store back. Or start with `grid serve --new-cluster`: the jobs that run"
        " here are then stopped.",
    )


def _overruled(error: Exception) -> bool:
    """Whether another controller is in charge of this machine's jobs."""
    return isinstance(error, LinkRefused) and error.because == "stale_epoch"


def _batches(orders: Sequence[Order]) -> Iterator[list[Order]]:
    """The orders in parts that are neither many nor long; one that is long is alone."""
    batch: list[Order] = []
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


def _length(order: Order) -> int:
    """About how many characters its words and variables are, which is nearly all of it."""
    variables: Mapping[str, str] = order["env"]
    return (
        sum(map(len, variables)) + sum(map(len, variables.values())) + sum(map(len, order["argv"]))
    )
