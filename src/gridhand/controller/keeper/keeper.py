"""The keeper: the only code that changes a ledger.

On its own thread it takes every command that waits, decides them in order, writes rows and events
in one transaction, and then answers. What arrives meanwhile is the next batch; there is no timer
to wait for company. No batch is decided before the one before it is durable. If a commit fails,
the batch is undone in memory, last change first, and each caller is told.

It decides and writes in the same thread, because it may not decide while it writes: handing the
batch to another thread and back would cost as much as a commit, and gain nothing.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gridhand.clock import Clock, LedgerClock
from gridhand.controller.commands import Allocate, AskStore, Command, Desk, MoveOne, Read
from gridhand.controller.dispatch import Dispatch
from gridhand.controller.line import Line
from gridhand.controller.tickets import NOWHERE, Ticket, deliver
from gridhand.core.errors import (
    GridClosed,
    GridError,
    OperationReused,
    OutcomeUnknown,
    StoreDamaged,
    StoreError,
    StoreFenced,
    StoreFull,
    StoreUnavailable,
)
from gridhand.core.ledger import Ledger
from gridhand.core.placement import Snapshot
from gridhand.core.strategies import OwnStrategy
from gridhand.store.base import Batch, Operation, Store

MOST_IN_A_BATCH = 2000
_RETRY_S = 0.5
_RECOVERY_S = 3.0  # a database that restarts is back by then
_KEEPER = ""  # the owner of what nobody asked for, such as an expiry
_Answer = TypeVar("_Answer")
_Repeated = dict[tuple[str, str], Operation]


class Keeper:
    """Owns a store and the ledger in it, from `start` to `stop`."""

    def __init__(
        self,
        store: Store,
        *,
        strategy: OwnStrategy | None = None,
        clock: Callable[[int], Clock] = LedgerClock,
        dispatch: Dispatch | None = None,
    ) -> None:
        """Jobs are started only if there is a `dispatch`; else they wait for one who has."""
        self._store = store
        self._make_clock = clock
        self._strategy = strategy
        self._dispatch = dispatch
        self._desk = Desk(Ledger(), Snapshot(Ledger()), strategy)
        self._inbox: queue.SimpleQueue[Sequence[Ticket]] = queue.SimpleQueue()
        self._line = Line()
        self._closed: GridError | None = None
        self._finished = False
        self._doubt = False
        self._refused = False
        self._thread: threading.Thread | None = None

    # ---- life

    def start(self) -> None:
        """Take ownership of the store, load the ledger, and begin to take commands."""
        opening = self._store.open()
        try:
            self.clock = self._make_clock(opening.high_water_ms)
            self._epoch, self.opening = opening.epoch, opening
            self._load()
        except BaseException:
            self._store.close()
            raise
        self._thread = threading.Thread(target=self._run, name="gridhand-keeper", daemon=True)
        self._thread.start()

    @property
    def where(self) -> str:
        """Where the store is; a password is not in its address."""
        return "memory" if self._store.url == "sqlite://" else self._store.url

    def stop(self) -> None:
        """Answer what waits, give the store back, and refuse everything from now on."""
        self._close_with("the grid was closed")
        self._inbox.put(())
        if self._thread is not None:
            self._thread.join()

    def _close_with(self, message: str) -> None:
        if self._closed is None:
            self._closed = GridClosed(message, hint="Open it again.")

    def _load(self) -> None:
        """Read the present. Every open deadline becomes at least its ttl from now.

        That is so after a restart, and after the store was away so long that its state is read
        anew: nobody could renew meanwhile.
        """
        contents = self._store.load()
        now = self.clock.now()
        ledger = Ledger(
            epoch=self._epoch, next_number=contents.next_number, next_job=contents.next_job
        )
        ledger.load(
            contents.nodes,
            (
                held
                if held.deadline is None
                else held._replace(deadline=max(held.deadline, now + (held.ttl_ms or 0)))
                for held in contents.allocations
            ),
            contents.jobs,
        )
        # What was measured outlives a reload: it was never in the store.
        before = self._desk.snapshot
        snapshot = Snapshot(ledger, before.foreign, mix=before.mix)
        self._desk = Desk(ledger, snapshot, self._strategy, max(now, self._desk.now))
        if self._dispatch is not None:
            self._dispatch.load(contents.jobs)

    # ---- taking commands

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Queue commands, from any thread. Their ports are told when they are answered."""
        if self._closed is not None:
            raise copy.copy(self._closed)
        self._inbox.put(tickets)
        if self._finished:  # it has just ended, and may not have seen these
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
            self._inbox.put([Ticket(release, NOWHERE)])

    def _run(self) -> None:
        try:
            while self._closed is None:
                batch = self._take()
                if batch or self._due():
                    self._serve(batch)
        finally:
            self._close_with("the keeper has ended")
            self._store.close()
            self._finished = True
            self._refuse_rest()

    def _take(self) -> list[Ticket]:
        """Everything that waits; if nothing does, what comes first, or nothing at a deadline."""
        batch: list[Ticket] = []
        with contextlib.suppress(queue.Empty):
            batch += self._inbox.get(timeout=self._patience_s())
        size = 0
        # Those who were answered together come back together: as long as letting the other
        # threads run brings more of them, they all fit into this commit.
        while size < len(batch) < MOST_IN_A_BATCH:
            size = len(batch)
            time.sleep(0)
            with contextlib.suppress(queue.Empty):
                while True:
                    batch += self._inbox.get_nowait()
        return batch

    def _refuse_rest(self) -> None:
        rest = self._line.dissolve()
        try:
            while True:
                rest += self._inbox.get_nowait()
        except queue.Empty:
            pass
        for ticket in rest:
            ticket.error = copy.copy(self._closed)
        self._answer(rest)

    # ---- time

    def _due(self) -> bool:
        if self._doubt:  # what was written may have to be acted on, though nobody asks
            return True
        now = self.clock.now()
        deadline = self._desk.ledger.next_deadline()
        if deadline is not None and deadline <= now:
            return True
        if self._line and (self._line.next_due() or 0) <= now:
            return True
        return self._dispatch is not None and self._dispatch.due(now)

    def _patience_s(self) -> float | None:
        """How long to wait for a command before something is due by itself."""
        if self._doubt:
            return _RETRY_S
        if self._dispatch is not None and self._dispatch.due(self.clock.now()):
            return _RETRY_S if self._refused else 0.0
        dues = [self._desk.ledger.next_deadline(), self._line.next_due()]
        dues += [self._dispatch.next_due()] if self._dispatch is not None else []
        deadline = min((due for due in dues if due is not None), default=None)
        if deadline is None:
            return None
        left_s = max(0.0, (deadline - self.clock.now()) / 1000)
        # Where the store would not take the last change, it is tried again after a while.
        return max(left_s, _RETRY_S) if self._refused else min(left_s, 3600.0)

    # ---- a batch

    def _serve(self, batch: list[Ticket]) -> None:
        commands = [ticket for ticket in batch if isinstance(ticket.command, Command)]
        questions = [ticket for ticket in batch if not isinstance(ticket.command, Command)]
        try:
            if self._doubt:
                self._reload()
            self._change(commands)
        except StoreFull as full:
            self._only_give_back(commands, full)
        except Exception as error:
            self._undo(commands, questions, error)
        self._answer(commands)
        for ticket in questions:
            self._look(ticket)
        if self._desk.freed and self._dispatch is not None:
            self._dispatch.look_again()
        self._desk.freed = False
        self._answer(questions)

    def _change(self, commands: list[Ticket], *, starting: bool = True) -> None:
        """Decide the commands and have the changes written; raises if they could not be."""
        repeated = self._surely(lambda: self._look_up(commands))
        desk = self._desk
        # At least as late as anything decided before, even in tests that steer the clock.
        desk.now = max(desk.now, self.clock.now())
        written = self._decide(commands, repeated, starting)
        desk.past.clear()
        desk.past_jobs.clear()
        if written.entries or written.operations:
            self._write(written)
            changes = [change for change, _, _ in written.entries]
            desk.ledger.settle()
            self._refused = False
            if self._dispatch is not None:
                self._dispatch.settled(changes)

    def _write(self, written: Batch) -> None:
        """Have it written. If the outcome is unknown, look it up before anybody is answered."""
        try:
            self._store.commit(written)
        except OutcomeUnknown as lost:
            if not self._recovered(lost):
                raise StoreUnavailable(str(lost.__cause__ or lost)) from lost

    def _recovered(self, lost: OutcomeUnknown) -> bool:
        """Whether the batch turned out to be in the store. If that cannot be told, `lost`."""
        give_up = time.monotonic() + _RECOVERY_S
        while True:
            try:
                return self._store.recover()
            except StoreUnavailable:
                if time.monotonic() > give_up:
                    raise lost from None
                time.sleep(_RETRY_S / 5)

    def _decide(self, commands: list[Ticket], repeated: _Repeated, starting: bool) -> Batch:
        desk = self._desk
        ledger = desk.ledger
        changes = ledger.changes
        written = Batch(desk.now)
        entries = written.entries
        ledger.expire_due(desk.now)
        entries.extend((change, _KEEPER, None) for change in changes)
        for ticket in commands:
            self._decide_one(ticket, written, repeated)
        if self._line and starting:
            self._try_again(commands, written, repeated)
        if self._dispatch is not None:
            mark = len(entries)
            self._dispatch.run(desk, starting=starting, ahead=not self._line)
            entries.extend([(change, _KEEPER, None) for change in changes[mark:]])
        return written

    def _decide_one(self, ticket: Ticket, written: Batch, repeated: _Repeated) -> None:
        desk, entries = self._desk, written.entries
        ledger = desk.ledger
        command: Command[Any] = ticket.command
        mark = len(entries)
        try:
            if command.op_id is None:
                ticket.reply = command.decide(desk)
            else:
                ticket.reply = self._decide_once(command, written, repeated)
        except Exception as error:
            ledger.rollback(mark)
            if self._line.takes(ticket, error, desk.now):
                self._line.join(ticket)
            else:
                ticket.error = error
        else:
            owner, op_id = command.owner, command.op_id
            entries.extend([(change, owner, op_id) for change in ledger.changes[mark:]])

    def _try_again(self, commands: list[Ticket], written: Batch, repeated: _Repeated) -> None:
        """Try those who wait for room; who waits no more is answered with the batch."""
        commands[:] = [ticket for ticket in commands if ticket not in self._line]
        for ticket in self._line.to_try(written.entries, self._desk.now):
            self._decide_one(ticket, written, repeated)
            if ticket.error is not None or ticket.reply is not None:
                self._line.leave(ticket)
                commands.append(ticket)

    def _decide_once(self, command: Command[Any], written: Batch, repeated: _Repeated) -> Any:
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

    def _look_up(self, commands: list[Ticket]) -> _Repeated:
        """What the batch needs to know of the past: answered op ids, closed allocations."""
        live = self._desk.ledger.live
        op_ids: list[tuple[str, str]] = []
        numbers: list[int] = []
        wanted: list[str] = []
        for ticket in commands:
            command: Command[Any] = ticket.command
            if command.op_id is not None:
                op_ids.append((command.owner, command.op_id))
            if type(command) is MoveOne and command.id not in live:
                number = command.id.rpartition("-")[2]
                if number.isdecimal() and len(number) < 19:
                    numbers.append(int(number))
            wanted += command.past_jobs()
        self._look_up_jobs(wanted)
        if numbers:
            self._desk.past.update({held.id: held for held in self._store.find(numbers)})
        if not op_ids:
            return {}
        return {(known.owner, known.op_id): known for known in self._store.operations(op_ids)}

    def _look_up_jobs(self, wanted: list[str]) -> None:
        """Jobs that have ended, and the tasks of arrays of which none is open any more."""
        book, past = self._desk.ledger.jobs, self._desk.past_jobs
        missing = [id for id in dict.fromkeys(wanted) if id not in book.open]
        if not missing:
            return
        past.update({job.id: job for job in self._store.find_jobs(missing)})
        arrays = {job.array for job in book.open.values()} if len(past) < len(missing) else set()
        for id in missing:
            if id not in past and id not in arrays:
                past.update({job.id: job for job in self._store.jobs(array=id, limit=100_000)})

    def _surely(self, ask: Callable[[], _Answer]) -> _Answer:
        """What the store answers; if the connection turns out to be lost, after mending it."""
        try:
            return ask()
        except OutcomeUnknown:
            self._doubt = True
            self._reload()
            return ask()

    def _look(self, ticket: Ticket) -> None:
        """Answer a question from what is durable now; the batch it came with is settled."""
        command = ticket.command
        if ticket.error is not None:
            return
        try:
            if isinstance(command, Read):
                ticket.reply = command.answer(self._desk)
            elif isinstance(command, AskStore):
                call = command.call
                ticket.reply = self._surely(lambda: call(self._store, self._desk.now))
        except Exception as error:
            ticket.error = error

    # ---- failures

    def _undo(self, commands: list[Ticket], questions: list[Ticket], error: Exception) -> None:
        """Take back what could not be written. Questions are answered, if memory is sure."""
        if self._dispatch is not None:
            self._dispatch.undo(self._desk)
        self._desk.ledger.rollback()
        self._desk.past.clear()
        self._desk.past_jobs.clear()
        self._refused = True
        # Full, locked or damaged: nothing was written, memory is as it was. Else it is not known.
        self._doubt |= type(error) not in (StoreUnavailable, StoreFull, StoreDamaged)
        if isinstance(error, StoreFenced):
            self._closed = error
        elif not isinstance(error, StoreError):
            error = OutcomeUnknown(f"{type(error).__name__}: {error}")
        for ticket in (*commands, *questions) if self._doubt else commands:
            ticket.reply, ticket.error = None, copy.copy(error)

    def _only_give_back(self, commands: list[Ticket], full: StoreFull) -> None:
        """The disk is full: only what frees something is written, into the space kept for that."""
        self._undo(commands, [], full)
        ends = [ticket for ticket in commands if ticket.command.gives_back()]
        if (ends or self._due()) and self._store.relieve():
            for ticket in ends:
                ticket.error = None
            try:
                self._change(ends, starting=False)
            except Exception as error:
                self._undo(ends, [], error)

    def _reload(self) -> None:
        self._store.recover()
        self._load()
        self._doubt = False
        if self._dispatch is not None:
            self._dispatch.reloaded()

    # ---- answers

    def _answer(self, batch: list[Ticket]) -> None:
        deliver(batch)
        for ticket in batch:
            # Read after `done` was set, as `abandon` sets the one and then reads the other.
            if ticket.abandoned:
                self._give_back(ticket)
