"""What the agent answers, over a unix socket in its folder. Each message is a line of JSON.

    asked                                         answered besides `id`
    hello {epoch, version}                        version, pid, start, boot_id, epoch, mark, node, …
    start {jobs: [order, …]}                      attempts: what is known of each
    signal {job, attempt, signal, to}             sent
    stop {job, attempt, reason, grace_ms}         nothing; it ends for this reason
    list {}                                       running, ended, trouble
    forget {attempts: [[job, n], …]}              forgotten
    watch {}                                      nothing; then events: begun, ended, usage, node
    quit {}                                       nothing; the agent ends, and jobs go on

`hello` comes first, and one with a lower epoch than was seen is refused, as is everything from a
connection that said a lower one before. Everything may be asked again.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
import traceback
from collections.abc import Awaitable, Callable

from gridhand import __version__
from gridhand.agent import asked, orders, processes
from gridhand.agent.agent import Agent
from gridhand.agent.link import MOST_LINE_BYTES, Facts, Lines, LinkError, LinkRefused
from gridhand.agent.orders import Malformed
from gridhand.agent.protocol import Refused
from gridhand.agent.runs import Run
from gridhand.core.attempts import Reason

PROTOCOL = 1
_MOST_CLIENTS = 64
_CREDENTIALS = struct.Struct("3i")
_WORDS = {
    Reason.CANCELLED: "it was cancelled",
    Reason.CLIENT_GONE: "it was ended because the one who waited for it has gone",
    Reason.RELEASED: "it was ended because what it ran in was given up",
    Reason.PREEMPTED: "it had to make room for another job",
    Reason.TIMEOUT: "its time was over",
    Reason.NODE_LOST: "its node was given up",
    Reason.DEVICE_LOST: "a device of it was lost",
}


class Client(Lines):
    """One connection, as the agent sees it."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self.epoch: int | None = None
        self.watching = False
        self._service = service

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        full = len(self._service.clients) >= _MOST_CLIENTS
        if full or not _ours(transport.get_extra_info("socket")):
            self.abort()
            return
        self._service.clients.add(self)

    def line_received(self, line: bytes) -> None:
        if self in self._service.clients:
            self._service.answer(self, line)

    def connection_lost(self, exc: Exception | None) -> None:
        self._service.clients.discard(self)


class Service:
    """One method for each thing that may be asked."""

    def __init__(self) -> None:
        self.clients: set[Client] = set()
        self.quitting = asyncio.Event()
        self._agent: Agent | None = None
        self._working: set[asyncio.Task[None]] = set()
        self._process = processes.process(os.getpid())
        self._asked: dict[str, Callable[[Client, Facts], Awaitable[Facts]]] = {
            "hello": self._hello,
            "start": self._start,
            "signal": self._signal,
            "stop": self._stop,
            "list": self._list,
            "forget": self._forget,
            "watch": self._watch,
            "quit": self._quit,
        }

    def serve(self, agent: Agent) -> None:
        self._agent = agent

    @property
    def agent(self) -> Agent:
        assert self._agent is not None
        return self._agent

    def watched(self) -> bool:
        return any(client.watching for client in self.clients)

    def tell(self, event: Facts) -> None:
        """Tell all that watch, and are still in charge."""
        for client in list(self.clients):
            if client.watching and client.epoch == self.agent.epoch:
                client.tell(event)

    def answer(self, client: Client, line: bytes) -> None:
        task = asyncio.create_task(self._answer(client, line))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _answer(self, client: Client, line: bytes) -> None:
        number = None
        try:
            message = _message(line)
            number = message.get("id")
            asked = self._asked.get(message["do"])
            if asked is None:
                raise Malformed(f"there is no {message['do'][:40]!r} to do")
            if message["do"] != "hello":
                self._check_epoch(client.epoch)
            reply = await asked(client, message)
        except Malformed as error:
            reply = {"error": "malformed", "message": str(error)}
        except (Refused, LinkRefused) as error:
            word = error.code if isinstance(error, Refused) else error.because
            reply = {"error": word, "message": str(error)}
        except LinkError as error:
            reply = {"error": "starter_unavailable", "message": str(error)}
        except Exception as error:  # our own fault; the jobs need their agent all the same
            traceback.print_exc(file=sys.stderr)
            reply = {"error": "internal", "message": repr(error)}
        client.tell({"id": number, **reply})

    def _check_epoch(self, epoch: int | None) -> None:
        if epoch is None:
            raise Refused("no_hello", "say hello first")
        if epoch < self.agent.epoch:
            raise Refused("stale_epoch", f"epoch {self.agent.epoch} was here; {epoch} is over")

    async def _hello(self, client: Client, message: Facts) -> Facts:
        epoch = orders.whole("epoch", message.get("epoch"))
        self._check_epoch(epoch)
        self.agent.epoch = epoch
        await self.agent.parent.hello(epoch)
        self._check_epoch(epoch)
        client.epoch = epoch
        self._let_go(epoch)
        agent = self.agent
        return {
            "version": __version__,
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "start": self._process.start if self._process else None,
            "boot_id": agent.found.boot_id,
            "epoch": epoch,
            "mark": agent.mark,
            "node": agent.node(),
            "cpus": sorted(agent.found.cpus),
            "problems": agent.problems(),
            "enforced": agent.limits.enforced,
            "foreign": agent.driving.watch.foreign,
        }

    def _let_go(self, epoch: int) -> None:
        """Who waits for events, and is no longer in charge, would wait for ever and not know."""
        for one in list(self.clients):
            if one.watching and one.epoch is not None and one.epoch < epoch and one.transport:
                one.transport.close()

    async def _start(self, _: Client, message: Facts) -> Facts:
        return {"attempts": await self.agent.start(asked.orders(message.get("jobs")))}

    async def _signal(self, _: Client, message: Facts) -> Facts:
        run = self._run(message)
        signum, to = orders.signal_of(message), message.get("to", "group")
        if to not in ("group", "leader"):
            raise Malformed('to: give "group" or "leader"')
        if not run.alive:
            return {"sent": False}
        told = {"do": "stop", "job": run.job, "attempt": run.number, "signal": signum, "to": to}
        return {"sent": bool((await self.agent.parent.ask(told))["sent"])}

    async def _stop(self, _: Client, message: Facts) -> Facts:
        run = self._run(message)
        reason = message.get("reason")
        if not isinstance(reason, str) or reason not in list(Reason):
            raise Malformed(f"reason: give one of {', '.join(Reason)}")
        grace_ms = orders.whole("grace_ms", message.get("grace_ms", run.note.grace_ms))
        words = _WORDS.get(Reason(reason), "it was ended")
        self.agent.stopping.stop(run, reason, words, grace_ms)
        return {}

    def _run(self, message: Facts) -> Run:
        run = self.agent.runs.get((orders.job_of(message), orders.attempt_of(message)))
        if run is None:
            raise Refused("unknown_attempt", "nothing is known of this attempt")
        return run

    async def _list(self, *_: object) -> Facts:
        running = set(self.agent.running)
        facts = [run.fact() for run in self.agent.runs.values()]
        return {
            "running": [one for one in facts if (one["job"], one["attempt"]) in running],
            "ended": [one for one in facts if (one["job"], one["attempt"]) not in running],
            "trouble": self.agent.trouble(),
        }

    async def _forget(self, _: Client, message: Facts) -> Facts:
        gone = self.agent.forget(orders.keys(message.get("attempts")))
        for first in range(0, len(gone), 1000):
            part = gone[first : first + 1000]
            await self.agent.parent.ask({"do": "forget", "attempts": part})
        return {"forgotten": len(gone)}

    async def _watch(self, client: Client, _: Facts) -> Facts:
        client.watching = True
        if foreign := self.agent.driving.watch.foreign:  # as early as it can be planned around
            client.tell({"event": "usage", "node": {}, "jobs": {}, "foreign": foreign})
        return {}

    async def _quit(self, *_: object) -> Facts:
        self.quitting.set()
        return {}


def _message(line: bytes) -> Facts:
    if len(line) > MOST_LINE_BYTES:
        raise Malformed(f"longer than {MOST_LINE_BYTES} bytes")
    return orders.read(line)


def _ours(connected: socket.socket) -> bool:
    """Whether the one at the other end is our own user, or root."""
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return uid in (0, os.geteuid())
