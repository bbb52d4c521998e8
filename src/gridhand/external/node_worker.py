"""NodeWorker: serves one node of a controller that is reached over the network.

It joins with all that its agent knows, says every few seconds that it lives, fetches orders and
carries them out with an agent and a starter of its own, and reports what becomes of them. Contact
may be lost at any time, and for any time. The agent stops the jobs when that lasts too long; the
worker goes on trying.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gridhand.core.errors import GridError, NodeSuperseded, WorkerUnknown
from gridhand.core.liveness.budget import HEARTBEAT_MS, SELF_FENCE_MS
from gridhand.core.model.names import NodeName
from gridhand.engines.base import AttemptReport, Known, ProblemReport, UsageEvent
from gridhand.engines.local import LocalEngine
from gridhand.external.attempt_book import AttemptBook
from gridhand.external.controller_link import ControllerLink
from gridhand.external.job_files import JobFileCopies
from gridhand.external.order_desk import OrderDesk
from gridhand.external.output_sender import OutputSender
from gridhand.external.worker_folder import WorkerFolder, WorkerMemory
from gridhand.posix import boot_clock

WAIT_S = 20.0  # for orders, in one request
_POLL_TIMEOUT_S = WAIT_S + 10.0
_BEAT_TIMEOUT_S = HEARTBEAT_MS / 1000
_JOIN_TIMEOUT_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
_LOOK_S = 0.2  # between looks at the output of jobs
_LEAVE_S = 20.0  # for jobs to stop when the worker ends

Say = Callable[[str], object]


class NodeWorker:
    """One node. It is also the sink of its engine. Used in the event loop only."""

    def __init__(
        self,
        folder: WorkerFolder,
        memory: WorkerMemory,
        link: ControllerLink,
        node: NodeName,
        say: Say,
        offered: str | None = None,
    ) -> None:
        """`offered` are the amounts of the node, if it is not the whole machine."""
        self._folder, self._memory, self._link, self._node = folder, memory, link, node
        self._say = say
        virtual = None if offered is None else (str(node), offered)
        self._engine = LocalEngine(folder.agent, folder.starter, virtual, SELF_FENCE_MS)
        self._look = asyncio.Event()
        self._book = AttemptBook(self._look.set)
        self._output = OutputSender(link, self._engine)
        self._copies = JobFileCopies(link, say)
        self._desk = OrderDesk(
            node, folder, link, self._engine, self._book, self._output, self._copies
        )
        self._row: dict[str, Any] = {}
        self._problems: Sequence[ProblemReport] = ()
        self._row_is_new = False
        self._usage: UsageEvent | None = None
        self._sequence = 0
        self._acknowledged = boot_clock.boot_ms()
        self._session: str | None = None
        self._contact = True
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, leaving: asyncio.Event) -> None:
        """Serve until told to leave; then stop the jobs and say that the node is gone."""
        known = await self._engine.open(self._memory.incarnation, self)
        self._book.note([*known.running, *known.ended])
        self._folder.sweep([report.key for report in self._book.all()])
        if not await self._join_first(leaving):
            await self._engine.close(end=not self._book.running())
            return
        self._say(f"serving node {self._node} for {self._link.address}; Ctrl-C ends it")
        told = asyncio.create_task(leaving.wait())
        tasks = [asyncio.create_task(work) for work in (self._beat(), self._serve())]
        try:
            waiting: set[asyncio.Future[Any]] = {*tasks, told, self._failed}
            ended, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in ended:
                future.result()
            await _cancel(*tasks)  # without heartbeats the node stays closed
            await self._leave()
        except NodeSuperseded:
            await self._stop_all()
            raise
        finally:
            await _cancel(*tasks, told)
            self._link.close()
            await self._engine.close(end=not self._book.running())

    # ---- contact with the controller

    async def _join_first(self, leaving: asyncio.Event) -> bool:
        """Join as soon as the controller answers; return False if told to leave before."""
        pause_s = _FIRST_PAUSE_S
        while not leaving.is_set():
            try:
                await self._join()
                return True
            except OSError as error:
                self._lost(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s * random.uniform(0.5, 1.0)):
                    await leaving.wait()
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
        return False

    async def _join(self) -> None:
        """Tell the controller all that is known here, and get a session."""
        memory = self._memory
        self._book.report_again([report.key for report in self._book.all()])
        body = {
            "row": self._row,
            "problems": list(self._problems),
            "incarnation": memory.incarnation,
            "cluster": memory.cluster,
            "epoch": memory.epoch,
            "attempts": [report.encode() for report in self._book.for_joining()],
        }
        joined = await self._link.post("join", body, _JOIN_TIMEOUT_S)
        self._session = self._desk.session = joined["session"]
        self._memory = memory._replace(cluster=joined["cluster"], epoch=joined["epoch"])
        if self._memory != memory:
            self._folder.remember(self._memory)
        self._output.begin()
        self._look.set()

    async def _beat(self) -> None:
        """Say that this node lives, and keep its jobs alive while that is acknowledged."""
        while True:
            begin = boot_clock.boot_ms()
            try:
                await self._beat_once(begin)
                self._heard()
            except NodeSuperseded:
                raise
            except (OSError, GridError) as error:
                self._lost(error)
            spent_s = (boot_clock.boot_ms() - begin) / 1000
            await asyncio.sleep(max(0.1, HEARTBEAT_MS / 1000 - spent_s))

    async def _beat_once(self, sent_at: int) -> None:
        self._sequence += 1
        facts = self._engine.facts()
        body: dict[str, Any] = {
            "incarnation": self._memory.incarnation,
            "sequence": self._sequence,
            "boot_id": facts["boot_id"],
            "running": self._book.fences(),
        }
        if self._usage is not None:
            body["usage"] = self._usage
        answer = await self._link.post("heartbeat", body, _BEAT_TIMEOUT_S)
        if answer["acknowledged"]:
            self._acknowledged = sent_at
            await self._renew_lease()
        await self._stop_fences(answer["stop"])

    async def _renew_lease(self) -> None:
        """Let jobs run for as long as the controller waits for us, counted as it counts."""
        left_ms = self._acknowledged + SELF_FENCE_MS - boot_clock.boot_ms()
        await self._engine.renew_lease(max(0, left_ms))

    async def _stop_fences(self, fences: Sequence[str]) -> None:
        for report in self._book.running():
            if report.fence in fences:
                await self._engine.stop(report.key, "node_lost", 0)

    def _heard(self) -> None:
        if not self._contact:
            self._contact = True
            self._say("in contact with the controller again")
            self._link.hang_up()  # requests from before were perhaps lost on the way

    def _lost(self, error: Exception) -> None:
        if self._contact:
            self._contact = False
            self._say(f"no contact with {self._link.address}: {error}; trying again")

    async def _serve(self) -> None:
        """Fetch orders and report, and join again whenever the controller does not know us."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                if self._session is None:
                    await self._join()
                await self._poll_and_send()
            except NodeSuperseded:
                raise
            except WorkerUnknown:
                self._session = None
                pause_s = _FIRST_PAUSE_S / 10
            except (OSError, GridError) as error:
                self._lost(error)
                if isinstance(error, GridError):
                    self._session = None  # it refuses something: begin anew
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, pause_s * 2))

    async def _poll_and_send(self) -> None:
        """Do both until one of them fails."""
        tasks = [asyncio.create_task(work) for work in (self._poll(), self._send())]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            await _cancel(*tasks)

    async def _poll(self) -> None:
        while True:
            progress = self._desk.progress()
            body = {"session": self._session, **progress, "wait_s": WAIT_S}
            reply = await self._link.post("orders", body, _POLL_TIMEOUT_S)
            self._desk.acknowledged(progress)
            await self._desk.carry_out(reply["orders"])
            self._look.set()

    async def _send(self) -> None:
        """Send output, and report what has begun or ended; an end only after all its output."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S if self._book.running() else None):
                    await self._look.wait()
            self._look.clear()
            session = self._session
            assert session is not None
            for report in self._book.running():
                await self._output.send(session, report.key, self._folder.files(report.key))
            await self._report(session)

    async def _report(self, session: str) -> None:
        reports = self._book.unreported()
        ended = [report for report in reports if report.state == "ended"]
        files = [(report.key, self._folder.files(report.key)) for report in ended]
        await self._output.flush(session, files)
        for key, place in files:
            await self._copies.send_back(session, key, place.work)
        await self._post_report(session, reports)
        if len(self._book.unreported(1)):
            self._look.set()

    async def _post_report(self, session: str, reports: Sequence[AttemptReport]) -> None:
        """Report, and keep for the next time what did not arrive."""
        answers, with_node = self._desk.take_answers(), self._row_is_new
        body: dict[str, Any] = {
            "session": session,
            "attempts": [report.encode() for report in reports],
            "sent": answers,
        }
        if with_node:
            self._row_is_new = False
            body["node"] = {"row": self._row, "problems": list(self._problems)}
        if not (reports or answers or with_node):
            return
        try:
            await self._link.post("reports", body)
        except BaseException:
            self._desk.put_back(answers)
            self._row_is_new = self._row_is_new or with_node
            self._look.set()
            raise
        self._book.reported(reports)

    # ---- the end

    async def _leave(self) -> None:
        """Stop the jobs, report their ends, and say that this node is gone."""
        running = len(self._book.running())
        jobs = "1 job" if running == 1 else f"{running} jobs"
        self._say(f"leaving; stopping {jobs}" if running else "leaving")
        self._desk.close()
        await self._tell_leaving(stopped=False)
        await self._stop_all()
        await self._tell_leaving(stopped=True)

    async def _tell_leaving(self, *, stopped: bool) -> None:
        session = self._session
        with contextlib.suppress(OSError, GridError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                if session is not None:
                    await self._report(session)
                    await self._link.post("leave", {"session": session, "stopped": stopped})

    async def _stop_all(self) -> None:
        for report in self._book.running():
            await self._engine.stop(report.key, "node_lost", 5000)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                while self._book.running():
                    await self._look.wait()
                    self._look.clear()

    # ---- the sink of the engine

    def spawned(self, reports: Sequence[AttemptReport]) -> None:
        self._book.note(reports)
        self._look.set()

    def ended(self, reports: Sequence[AttemptReport]) -> None:
        self._book.note(reports)
        self._look.set()

    def node_changed(self, node: Mapping[str, Any], problems: Sequence[ProblemReport]) -> None:
        self._row, self._problems = {**node, "name": self._node}, problems
        self._row_is_new = self._session is not None
        self._desk.closed_by_node = node["health"] != "up"
        if not self._desk.closed_by_node:
            self._desk.reopen()
        self._look.set()

    def measured(self, node: NodeName, usage: UsageEvent) -> None:
        self._usage = usage

    def returned(self, known: Known, node: NodeName | None = None) -> None:
        """Go on with another agent: what it does not know is started again."""
        self._book.note([*known.running, *known.ended])
        self._desk.start_again(self._book.unknown_orders([*known.running, *known.ended]))
        self._desk.spawn(self._renew_lease())
        self._look.set()

    async def settled(self, node: NodeName) -> None:
        pass

    def broken(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
