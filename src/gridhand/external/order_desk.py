"""OrderDesk: carries out the orders of a controller with the engine of this machine.

Orders may come twice. One that takes time, as a start that needs its input, is carried out beside
the others, and counts as done only afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from gridhand.agent.jobs.start_order import StartOrder
from gridhand.agent.starter.message_fields import Malformed
from gridhand.core.errors import GridError, InvalidInput, UnknownFile
from gridhand.core.model.names import JobId, NodeName
from gridhand.engines.base import Key
from gridhand.engines.local import LocalEngine
from gridhand.external.attempt_book import AttemptBook
from gridhand.external.controller_link import ControllerLink
from gridhand.external.job_files import JobFileCopies
from gridhand.external.output_sender import OutputSender
from gridhand.external.worker_folder import WorkerFolder

Order = Mapping[str, Any]

_PAUSE_S = 0.05
_AGAIN_S = 0.5  # before an order is asked for again that could not be carried out


class OrderDesk:
    """Knows which orders are done, and with which it is busy."""

    def __init__(
        self,
        node: NodeName,
        folder: WorkerFolder,
        link: ControllerLink,
        engine: LocalEngine,
        book: AttemptBook,
        output: OutputSender,
        copies: JobFileCopies,
    ) -> None:
        self._node, self._folder, self._link = node, folder, link
        self._engine, self._book, self._output = engine, book, output
        self._copies = copies
        self._done: set[int] = set()
        self._busy: set[int] = set()
        self._parked: set[int] = set()
        self._starting: set[Key] = set()  # beside other orders, unless they are stopped before
        self._answers: dict[str, bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.session = ""
        self.closed_by_node = False  # it can start nothing for now

    def close(self) -> None:
        """Start nothing any more."""
        self._closed = True

    def progress(self) -> dict[str, list[int]]:
        """Return which orders are done and which are not, for the next request."""
        return {"done": sorted(self._done), "busy": sorted(self._busy)}

    def take_answers(self) -> dict[str, bool]:
        """Return whether signals were sent, by the numbers of their orders."""
        answers, self._answers = self._answers, {}
        return answers

    def put_back(self, answers: Mapping[str, bool]) -> None:
        """Keep answers for the next report: this one did not arrive."""
        self._answers = {**answers, **self._answers}

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def acknowledged(self, progress: Mapping[str, Sequence[int]]) -> None:
        """Take note that the controller knows what is done."""
        self._done.difference_update(progress["done"])

    # ---- carrying out

    async def carry_out(self, orders: Sequence[Order]) -> None:
        """Carry out orders in turn, and starts that need something first beside them."""
        plain: list[StartOrder] = []
        for order in orders:
            number = order["number"]
            if number in self._done or number in self._busy:
                continue
            if order["do"] != "start":
                await self._start(plain)
                plain = []
                await self._do(order)
                self._done.add(number)
            elif self.closed_by_node or self._closed:
                self._busy.add(number)  # it is given out again when this node can start it
                self._parked.add(number)
            else:
                plain += self._prepare(number, order["order"])
        await self._start(plain)

    def reopen(self) -> None:
        """Have the orders given out again that could not be carried out."""
        self._busy -= self._parked
        self._parked.clear()

    async def _do(self, order: Order) -> None:
        if order["do"] == "sample":
            await self._engine.sample_every(order["every_ms"], order["for_ms"])
            return
        key = JobId(order["job"]), int(order["attempt"])
        match order["do"]:
            case "stop":
                self._starting.discard(key)
                await self._engine.stop(key, order["reason"], order["grace_ms"])
                self._book.report_again([key])
            case "signal":
                sent = await self._engine.signal(key, order["signal"])
                self._answers[str(order["number"])] = sent
            case "reader":
                await self._output.attach(key, order["attached"])
            case "forget":
                await self._forget(key)

    async def _forget(self, key: Key) -> None:
        if any(report.key == key for report in self._book.running()):
            return  # the controller knows better by now
        await self._engine.forget([key])
        self._book.forget(key)
        self._output.forget(key)
        await asyncio.to_thread(self._folder.clear, key)

    # ---- starting

    def _prepare(self, number: int, wire: Order) -> list[StartOrder]:
        """Return the order if it can be carried out at once; else do so beside the others."""
        key = JobId(wire["job"]), int(wire["attempt"])
        known = self._book.fence(key) if key in self._book else None
        if known == wire["fence"]:
            self._book.report_again([key])
            self._done.add(number)
            return []
        needs = wire["input"] or wire["files"]
        if known is None and key not in self._book and not needs:
            self._done.add(number)
            return self._make(wire)
        self._busy.add(number)
        self._starting.add(key)
        self.spawn(self._start_later(number, key, wire))
        return []

    def _make(self, wire: Order) -> list[StartOrder]:
        """Make the folder of an attempt and its order; end it if that is not possible."""
        key = JobId(wire["job"]), int(wire["attempt"])
        try:
            files = self._folder.make(key)
            streams = {name: files.stream(file) for name, file in wire["streams"].items()}
            fields = {
                name: wire[name] for name in wire if name not in ("streams", "input", "files")
            }
            env = {"HOME": files.work, **wire["env"], "PWD": files.work}
            stdin = files.stream("stdin") if wire["input"] else None
            given = {**fields, **streams, "env": env, "stdin": stdin, "cwd": files.work}
            optional = ("warn_signal", "warn_ms")
            given = {
                name: one for name, one in given.items() if one is not None or name not in optional
            }
            order = StartOrder.decode({**given, "node": self._node})
        except (OSError, Malformed, GridError) as error:
            self._book.fail(key, wire["fence"], f"what it needs cannot be prepared: {error}")
            return []
        self._book.order(order)
        return [order]

    async def _start_later(self, number: int, key: Key, wire: Order) -> None:
        """Start what needs its input, or comes in place of an attempt of another time."""
        try:
            await self._end_other(key, wire["fence"])
            if wire["input"]:
                await self._fetch_input(key)
            if wire["files"]:
                files = await asyncio.to_thread(self._folder.make, key)
                await self._copies.fetch(self.session, key, files.work)
            if key in self._starting:
                await self._start(self._make(wire))
            self._done.add(number)
        except (InvalidInput, UnknownFile) as error:  # it is refused every time
            self._book.fail(key, wire["fence"], f"what it needs cannot be fetched: {error}")
            self._done.add(number)
        except (OSError, GridError):
            await asyncio.sleep(_AGAIN_S)  # then it is given out again
        finally:
            self._busy.discard(number)
            self._starting.discard(key)

    async def _end_other(self, key: Key, fence: str) -> None:
        """End an attempt with the same number that belongs to another allocation."""
        while key in self._starting and key in self._book and self._book.fence(key) != fence:
            if any(report.key == key for report in self._book.running()):
                await self._engine.stop(key, "node_lost", 0)
                await asyncio.sleep(_PAUSE_S)
            else:
                await self._forget(key)

    async def _fetch_input(self, key: Key) -> None:
        files = await asyncio.to_thread(self._folder.make, key)
        query = {"session": self.session, "job": key[0], "attempt": key[1]}
        offset = 0
        with await asyncio.to_thread(open, files.stream("stdin"), "wb") as file:
            while part := (await self._link.read_bytes("input", {**query, "offset": offset}))[0]:
                await asyncio.to_thread(file.write, part)
                offset += len(part)

    async def _start(self, orders: Sequence[StartOrder]) -> None:
        if orders:
            await self._engine.start(orders)

    def start_again(self, orders: Sequence[StartOrder]) -> None:
        """Start what another agent does not know."""
        self.spawn(self._start(orders))
