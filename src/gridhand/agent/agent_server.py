"""The requests that the agent answers, over a unix socket in its folder: lines of JSON.

    request                                       answer, besides `id`
    hello {epoch}                                 version, pid, start, boot_id, epoch, mark, node, …
    start {jobs: [order, …]}                      attempts: a report of each
    signal {job, attempt, signal, to}             sent
    stop {job, attempt, reason, grace_ms}         nothing; it ends for this reason
    reader {job, attempt, offsets: {stream: n}}   nothing; its log is kept from there on
    list {}                                       running, ended, trouble
    forget {attempts: [[job, n], …]}              forgotten
    watch {}                                      nothing; then events: begun, ended, usage, node
    sample {every_ms, for_ms}                     nothing; samples come at least this often
    lease {for_ms}                                nothing; jobs stop unless it comes again in time
    quit {}                                       nothing; the agent ends, and jobs go on

A connection begins with a line that has the secret of the folder, and belongs to no job; see
`starter/admission.py`. `hello` comes first. A hello with a lower epoch than the highest seen is
refused, and so is every request of a connection that has said a lower one. Every request may be
repeated.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping

from gridhand import __version__
from gridhand.agent.agent import Agent
from gridhand.agent.jobs.running_attempt import RunningAttempt
from gridhand.agent.jobs.start_order import decode_orders
from gridhand.agent.link import MOST_LINE_BYTES, Lines, Message
from gridhand.agent.link_errors import LinkError, LinkRefused
from gridhand.agent.messages import AgentEvent, AgentGreeting
from gridhand.agent.sample_pace import LEAST_MS, MOST_MS
from gridhand.agent.starter import message_fields
from gridhand.agent.starter.admission import Admission
from gridhand.agent.starter.message_fields import Malformed
from gridhand.agent.starter.protocol import Refused
from gridhand.core.jobs.attempt import Reason
from gridhand.core.model.names import JobId
from gridhand.posix import procfs
from gridhand.posix.peers import peer_credentials

PROTOCOL = 1
_MOST_CLIENTS = 64
_MESSAGES = {
    Reason.CANCELLED: "it was cancelled",
    Reason.CLIENT_GONE: "it was ended because its client is gone",
    Reason.GANG: "it was ended because another member of its gang had ended",
    Reason.RELEASED: "it was ended because the allocation that it ran in was released",
    Reason.PREEMPTED: "it had to make room for another job",
    Reason.TIMEOUT: "its time was over",
    Reason.NODE_LOST: "its node was given up",
    Reason.DEVICE_LOST: "one of its devices was lost",
}

Reply = Mapping[str, object]


class ControllerConnection(Lines):
    """A controller's connection to the agent."""

    def __init__(self, server: AgentServer) -> None:
        super().__init__()
        self.epoch: int | None = None
        self.admitted = False  # whether it has given the secret
        self.watching = False
        self.peer = 0  # its pid
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        full = len(self._server.clients) >= _MOST_CLIENTS
        connected = transport.get_extra_info("socket")
        if full or not self._server.admission.trusts(connected):
            self.abort()
            return
        self.peer = peer_credentials(connected).pid
        self._server.clients.add(self)

    def line_received(self, line: bytes) -> None:
        if self not in self._server.clients:
            return
        if self.admitted:
            self._server.answer(self, line)
        elif self._server.admission.opens(line):
            self.admitted = True
        else:
            self._server.clients.discard(self)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.clients.discard(self)
        if self.watching:
            self._server.forget_readers()


class AgentServer:
    """Answers the requests of all connections, with one method for each kind."""

    def __init__(self, folder_fd: int) -> None:
        self.admission = Admission(folder_fd, lambda: self.agent.mark, self._leaders)
        self.clients: set[ControllerConnection] = set()
        self.quitting = asyncio.Event()
        self._agent: Agent | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._process = procfs.read_process(os.getpid())
        self._handlers: dict[str, Callable[[ControllerConnection, Message], Awaitable[Reply]]] = {
            "hello": self._hello,
            "start": self._start,
            "signal": self._signal,
            "stop": self._stop,
            "reader": self._reader,
            "list": self._list,
            "forget": self._forget,
            "watch": self._watch,
            "sample": self._sample,
            "lease": self._lease,
            "quit": self._quit,
        }

    def serve(self, agent: Agent) -> None:
        self._agent = agent

    @property
    def agent(self) -> Agent:
        assert self._agent is not None
        return self._agent

    def _leaders(self) -> set[int]:
        return {run.pid for run in self.agent.running.values() if run.pid is not None}

    def watched(self) -> bool:
        return any(client.watching for client in self.clients)

    def controllers(self) -> set[int]:
        """Return the pids of the controllers that watch."""
        return {client.peer for client in self.clients if client.watching}

    def tell(self, event: AgentEvent) -> None:
        """Send an event to all connections that watch and have the present epoch."""
        for client in list(self.clients):
            if client.watching and client.epoch == self.agent.epoch:
                client.tell(event)

    def answer(self, client: ControllerConnection, line: bytes) -> None:
        task = asyncio.create_task(self._answer(client, line))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, client: ControllerConnection, line: bytes) -> None:
        number = None
        try:
            message = message_fields.read_message(line, MOST_LINE_BYTES)
            number = message.get("id")
            handler = self._handlers.get(message["do"])
            if handler is None:
                raise Malformed(f"there is no {message['do'][:40]!r} to do")
            if message["do"] != "hello":
                self._check_epoch(client.epoch)
            reply = await handler(client, message)
        except Malformed as error:
            reply = {"error": "malformed", "message": str(error)}
        except (Refused, LinkRefused) as error:
            code = error.code if isinstance(error, Refused) else error.because
            reply = {"error": code, "message": str(error)}
        except LinkError as error:
            reply = {"error": "starter_unavailable", "message": str(error)}
        except Exception as error:  # a bug of ours; the jobs still need their agent
            traceback.print_exc(file=sys.stderr)
            reply = {"error": "internal", "message": repr(error)}
        client.tell({"id": number, **reply})

    def _check_epoch(self, epoch: int | None) -> None:
        if epoch is None:
            raise Refused("no_hello", "say hello first")
        if epoch < self.agent.epoch:
            raise Refused("stale_epoch", f"epoch {self.agent.epoch} was here; {epoch} is over")

    async def _hello(self, client: ControllerConnection, message: Message) -> Reply:
        epoch = message_fields.epoch_of(message)
        self._check_epoch(epoch)
        self.agent.epoch = epoch
        await self.agent.starter.hello(epoch)
        self._check_epoch(epoch)
        client.epoch = epoch
        self._drop_older(epoch)
        agent = self.agent
        greeting: AgentGreeting = {
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
            "foreign": agent.gpus.health.foreign,
        }
        return greeting

    def _drop_older(self, epoch: int) -> None:
        """Close connections of older epochs that watch: they would wait for events for ever."""
        for client in list(self.clients):
            older = client.epoch is not None and client.epoch < epoch
            if client.watching and older and client.transport:
                client.transport.close()

    async def _start(self, _: ControllerConnection, message: Message) -> Reply:
        reports = await self.agent.start(decode_orders(message.get("jobs")))
        return {"attempts": [report.encode() for report in reports]}

    async def _signal(self, _: ControllerConnection, message: Message) -> Reply:
        run = self._run(message)
        signum, to = message_fields.signal_of(message), message_fields.receiver_of(message)
        await run.settled.wait()  # its output may be seen before the starter's answer is read
        if not run.alive:
            return {"sent": False}
        request = {"do": "stop", "job": run.job, "attempt": run.number, "signal": signum, "to": to}
        return {"sent": bool((await self.agent.starter.ask(request))["sent"])}

    async def _stop(self, _: ControllerConnection, message: Message) -> Reply:
        run = self._run(message)
        reason = message.get("reason")
        if not isinstance(reason, str) or reason not in list(Reason):
            raise Malformed(f"reason: give one of {', '.join(Reason)}")
        grace_ms = message_fields.whole("grace_ms", message.get("grace_ms", run.note.grace_ms))
        text = _MESSAGES.get(Reason(reason), "it was ended")
        self.agent.stopper.stop(run, reason, text, grace_ms)
        return {}

    async def _reader(self, _: ControllerConnection, message: Message) -> Reply:
        offsets = message.get("offsets")
        if not isinstance(offsets, dict) or not offsets.keys() <= {"stdout", "stderr"}:
            raise Malformed("offsets: give an object of stdout and stderr")
        read = {name: message_fields.whole(name, offset) for name, offset in offsets.items()}
        self._run(message).note_reader(read)
        return {}

    def forget_readers(self) -> None:
        """Let logs be cut again: a controller is gone, and the next one tells who reads."""
        if self._agent is not None and not self.watched():
            for run in self._agent.running.values():
                run.note_reader({})

    def _run(self, message: Message) -> RunningAttempt:
        run = self.agent.runs.get(
            (JobId(message_fields.job_of(message)), message_fields.attempt_of(message))
        )
        if run is None:
            raise Refused("unknown_attempt", "nothing is known of this attempt")
        return run

    async def _list(self, *_: object) -> Reply:
        agent = self.agent
        runs = [(run.key in agent.running, run.report().encode()) for run in agent.runs.values()]
        return {
            "running": [report for running, report in runs if running],
            "ended": [report for running, report in runs if not running],
            "trouble": agent.trouble(),
        }

    async def _forget(self, _: ControllerConnection, message: Message) -> Reply:
        keys = message_fields.keys(message.get("attempts"))
        gone = self.agent.forget((JobId(job), attempt) for job, attempt in keys)
        for first in range(0, len(gone), 1000):
            part = gone[first : first + 1000]
            await self.agent.starter.ask({"do": "forget", "attempts": part})
        return {"forgotten": len(gone)}

    async def _watch(self, client: ControllerConnection, _: Message) -> Reply:
        client.watching = True
        # Early, so that it can be planned around.
        client.tell({**self.agent.usage, "foreign": self.agent.gpus.health.foreign})
        return {}

    async def _sample(self, _: ControllerConnection, message: Message) -> Reply:
        every_ms = message_fields.whole("every_ms", message.get("every_ms"), MOST_MS)
        for_ms = message_fields.whole("for_ms", message.get("for_ms"), MOST_MS)
        if every_ms < LEAST_MS:
            raise Malformed(f"every_ms: give a whole number from {LEAST_MS} to {MOST_MS}")
        self.agent.pace.ask(every_ms, for_ms)
        return {}

    async def _lease(self, _: ControllerConnection, message: Message) -> Reply:
        self.agent.lease.renew(message_fields.whole("for_ms", message.get("for_ms"), MOST_MS))
        return {}

    async def _quit(self, *_: object) -> Reply:
        self.quitting.set()
        return {}
