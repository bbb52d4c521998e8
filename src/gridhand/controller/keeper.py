"""The keeper: the only code that changes a ledger.

On its own loop it takes every command that waits, decides them in order, has rows and events
written in one transaction on the store's thread, and then answers. What arrives meanwhile is the
next batch; there is no timer to wait for company. No batch is decided before the one before it is
durable. If a commit fails, the batch is undone in memory, last change first, and each caller is
told.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gridhand.clock import Clock, LedgerClock
from gridhand.controller.commands import Allocate, AskStore, Command, Desk, MoveOne, Read
from gridhand.core.calls import Call
from gridhand.core.errors import (
    GridClosed,
    GridError,
    OperationReused,
    StoreError,
    StoreFenced,
    StoreUnavailable,
)
from gridhand.core.ledger import Ledger
from gridhand.core.placement import Snapshot
from gridhand.core.strategies import Strategy, best_fit
from gridhand.store.base import Batch, Entry, Operation, OutcomeUnknown, Store

MOST_IN_A_BATCH = 2000
_RETRY_S = 0.5
_KEEPER = ""  # the owner of what nobody asked for, such as an expiry


class Ticket:
    """A command and, later, its answer. `port` is told when it is there."""

    __slots__ = ("abandoned", "command", "done", "error", "port", "reply")

    def __init__(self, command: Call[Any], port: Port) -> None:
        self.command = command
        self.port = port
        self.reply: Any = None
        self.error: BaseException | None = None
        self.done = self.abandoned = False


class Port:
    """Where answers go. One call brings all the answers of a batch that are for this port."""

    def deliver(self, tickets: list[Ticket]) -> None:
        raise NotImplementedError


class _Nowhere(Port):
    def deliver(self, tickets: list[Ticket]) -> None:
        """Nobody asked."""


_NOWHERE = _Nowhere()


class Keeper:
    """Owns a store and the ledger in it, from `start` to `stop`."""

    def __init__(
        self,
        store: Store,
        *,
        strategy: Strategy = best_fit,
        clock: Callable[[int], Clock] = LedgerClock,
    ) -> None:
        self._store = store
        self._make_clock = clock
        self._strategy = strategy
        self._desk = Desk(Ledger(), Snapshot(Ledger()), strategy)
        self._inbox: deque[Ticket] = deque()
        self._awake = False
        self._closed: GridError | None = None
        self._doubt = False
        self._finished = False
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="gridhand-store")

    # ---- life

    def start(self) -> None:
        """Take ownership of the store, load the ledger, and begin to take commands."""
        try:
            opening = self._writer.submit(self._store.open).result()
            self.clock = self._make_clock(opening.high_water_ms)
            self._epoch = opening.epoch
            self._writer.submit(self._load).result()
        except BaseException:
            self._writer.submit(self._store.close).result()
            self._writer.shutdown()
            raise
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(ready)), name="gridhand-keeper", daemon=True
        )
        self._thread.start()
        ready.wait()

    def stop(self) -> None:
        """Answer what waits, give the store back, and refuse everything from now on."""
        if self._thread is None or (self._closed is not None and not self._thread.is_alive()):
            return
        self._closed = self._closed or GridClosed("the grid was closed", hint="Open it again.")
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake.set)
        self._thread.join()
        self._writer.submit(self._store.close).result()
        self._writer.shutdown()

    def _load(self) -> None:
        """Read the present. Every open deadline becomes at least its ttl from now."""
        contents = self._store.load()
        now = self.clock.now()
        ledger = Ledger(epoch=self._epoch, next_number=contents.next_number)
        ledger.load(
            contents.nodes,
            (
                held
                if held.deadline is None
                else held._replace(deadline=max(held.deadline, now + (held.ttl_ms or 0)))
                for held in contents.allocations
            ),
        )
        # What was measured outlives a reload: it was never in the store.
        snapshot = Snapshot(ledger, self._desk.snapshot.foreign)
        self._desk = Desk(ledger, snapshot, self._strategy, max(now, self._desk.now))

    # ---- taking commands

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Queue commands, from any thread. Their ports are told when they are answered."""
        if self._closed is not None:
            raise copy.copy(self._closed)
        self._inbox.extend(tickets)
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):  # it has just stopped
                self._loop.call_soon_threadsafe(self._wake.set)
        if self._finished:
            self._refuse_rest()

    def abandon(self, ticket: Ticket) -> None:
        """Nobody waits for the answer any more: what it was granted must be given back."""
        ticket.abandoned = True
        if ticket.done:
            self._give_back(ticket)

    def _give_back(self, ticket: Ticket) -> None:
        command = ticket.command
        if isinstance(command, Allocate) and command.fresh and ticket.error is None:
            release = MoveOne(command.owner, id=ticket.reply[0].id)
            with contextlib.suppress(GridError):
                self.submit([Ticket(release, _NOWHERE)])

    async def _run(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._set_timer()
        ready.set()
        while self._closed is None:
            await self._wake.wait()
            self._wake.clear()
            await self._serve_all()
            # Whoever comes after this line wakes the loop; who came just before is looked for.
            self._awake = False
            if self._inbox:
                self._wake.set()
            self._set_timer()
        self._finished = True
        self._refuse_rest()

    async def _serve_all(self) -> None:
        while True:
            count = min(len(self._inbox), MOST_IN_A_BATCH)
            batch = [self._inbox.popleft() for _ in range(count)]
            if not batch and not self._due():
                return
            await self._serve(batch)
            if not batch and self._due():
                return  # the store would not take it: the timer tries again

    def _refuse_rest(self) -> None:
        rest: list[Ticket] = []
        with contextlib.suppress(IndexError):
            while True:
                rest.append(self._inbox.popleft())
        for ticket in rest:
            ticket.error = copy.copy(self._closed)
        self._answer(rest)

    # ---- time

    def _due(self) -> bool:
        deadline = self._desk.ledger.next_deadline()
        return deadline is not None and deadline <= self.clock.now()

    def _set_timer(self) -> None:
        """Wake up when the next reservation or lease is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._desk.ledger.next_deadline()
        if deadline is not None:
            delay_s = (deadline - self.clock.now()) / 1000
            self._timer = self._loop.call_later(
                delay_s if delay_s > 0 else _RETRY_S, self._wake.set
            )

    # ---- a batch

    async def _serve(self, batch: list[Ticket]) -> None:
        try:
            if self._doubt:
                await self._on_store(self._reload)
            repeated = await self._look_up(batch)
        except StoreError as error:
            self._fail(batch, error)
            return
        desk = self._desk
        # At least as late as anything decided before, even in tests that steer the clock.
        desk.now = max(desk.now, self.clock.now())
        written = self._decide(batch, repeated)
        if written.entries or written.operations:
            try:
                await self._on_store(self._store.commit, written)
            except Exception as error:
                self._undo(batch, error)
            else:
                desk.ledger.changes.clear()
        await self._answer_questions(batch)
        desk.past.clear()
        self._answer(batch)

    def _decide(self, batch: list[Ticket], repeated: dict[tuple[str, str], Operation]) -> Batch:
        desk = self._desk
        ledger = desk.ledger
        written = Batch(desk.now)
        ledger.expire_due(desk.now)
        for ticket in batch:
            command = ticket.command
            if not isinstance(command, Command):
                continue
            mark = ledger.mark()
            self._note(written, _KEEPER, None)
            try:
                if command.op_id is None:
                    ticket.reply = command.decide(desk)
                else:
                    ticket.reply = self._decide_once(command, written, repeated)
            except Exception as error:
                ledger.rollback(mark)
                ticket.error = error
                continue
            self._note(written, command.owner, command.op_id)
        self._note(written, _KEEPER, None)
        return written

    def _note(self, written: Batch, owner: str, op_id: str | None) -> None:
        """Ascribe the changes that came since the last call."""
        changes = self._desk.ledger.changes
        entries = written.entries
        for index in range(len(entries), len(changes)):
            entries.append(Entry(changes[index], owner, op_id))

    def _decide_once(
        self, command: Command[Any], written: Batch, repeated: dict[tuple[str, str], Operation]
    ) -> Any:
        """The reply this op id had before, or a decision that is remembered under it."""
        assert command.op_id is not None
        key = command.owner, command.op_id
        body = hashlib.sha256(command.body().encode()).hexdigest()
        known = repeated.get(key)
        if known is not None:
            if known.body != body:
                raise OperationReused(command.op_id)
            return command.decode(known.reply)
        reply = command.decide(self._desk)
        repeated[key] = Operation(*key, body, command.encode(reply))
        written.operations.append(repeated[key])
        return reply

    async def _look_up(self, batch: list[Ticket]) -> dict[tuple[str, str], Operation]:
        """What the batch needs to know of the past: answered op ids, closed allocations."""
        live = self._desk.ledger.live
        op_ids: list[tuple[str, str]] = []
        numbers: list[int] = []
        for ticket in batch:
            command = ticket.command
            if not isinstance(command, Command):
                continue
            if command.op_id is not None:
                op_ids.append((command.owner, command.op_id))
            if type(command) is MoveOne and command.id not in live:
                number = command.id.rpartition("-")[2]
                if number.isdecimal() and len(number) < 19:
                    numbers.append(int(number))
        if not op_ids and not numbers:
            return {}
        found, past = await self._on_store(self._ask_past, op_ids, numbers)
        self._desk.past = {held.id: held for held in past}
        return {(operation.owner, operation.op_id): operation for operation in found}

    def _ask_past(self, op_ids: list[tuple[str, str]], numbers: list[int]) -> Any:
        return self._store.operations(op_ids), self._store.find(numbers)

    async def _answer_questions(self, batch: list[Ticket]) -> None:
        for ticket in batch:
            command = ticket.command
            if ticket.error is not None:
                continue
            try:
                if isinstance(command, Read):
                    ticket.reply = command.answer(self._desk)
                elif isinstance(command, AskStore):
                    ticket.reply = await self._on_store(command.call, self._store, self._desk.now)
            except Exception as error:
                ticket.error = error

    # ---- failures

    def _undo(self, batch: list[Ticket], error: Exception) -> None:
        self._desk.ledger.rollback()
        # Full or locked: nothing was written, and memory is as it was. Anything else is not known.
        self._doubt = type(error) is not StoreUnavailable
        if isinstance(error, StoreFenced):
            self._closed = error
        elif not isinstance(error, StoreError):
            error = OutcomeUnknown(f"{type(error).__name__}: {error}")
        for ticket in batch:
            if self._doubt or isinstance(ticket.command, Command):
                ticket.reply, ticket.error = None, copy.copy(error)

    def _fail(self, batch: list[Ticket], error: Exception) -> None:
        for ticket in batch:
            ticket.error = copy.copy(error)
        self._answer(batch)

    def _reload(self) -> None:
        self._store.recover()
        self._load()
        self._doubt = False

    async def _on_store(self, call: Callable[..., Any], *args: Any) -> Any:
        return await self._loop.run_in_executor(self._writer, call, *args)

    # ---- answers

    def _answer(self, batch: list[Ticket]) -> None:
        by_port: dict[Port, list[Ticket]] = {}
        for ticket in batch:
            ticket.done = True
            if ticket.abandoned:
                self._give_back(ticket)
            by_port.setdefault(ticket.port, []).append(ticket)
        for port, tickets in by_port.items():
            port.deliver(tickets)
