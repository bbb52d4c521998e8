"""The keeper: the only code that changes a ledger.

On its own thread it takes all waiting commands, decides them in order, writes rows and events in
one transaction, and then answers. What arrives meanwhile is the next batch; it does not wait for a
batch to fill. No batch is decided before the previous one is durable. If a commit fails, the batch
is undone in memory, last change first, and every caller is told.

It decides and writes in the same thread, because it may not decide while it writes: handing the
batch to another thread and back would cost as much as a commit, and gain nothing.
"""

from __future__ import annotations

import contextlib
import copy
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from gridhand.clock import Clock, LedgerClock
from gridhand.controller.keeper import job_commands
from gridhand.controller.keeper.batch_decisions import BatchDecisions
from gridhand.controller.keeper.dispatcher import Dispatch
from gridhand.controller.keeper.ledger_commands import Context
from gridhand.controller.keeper.loaded_ledger import load_ledger
from gridhand.controller.keeper.past_lookup import look_up
from gridhand.controller.keeper.questions import ANSWERS, STORE_ANSWERS
from gridhand.controller.keeper.tickets import NOWHERE, Ticket, deliver
from gridhand.controller.keeper.tracked_grants import RETRY_MS, TrackedGrants, Tracker
from gridhand.controller.keeper.wait_list import WaitList
from gridhand.controller.keeper.write_batch import write_batch
from gridhand.controller.metrics.keeper_meter import KeeperMeter
from gridhand.core.errors import (
    NOTHING_WRITTEN,
    ControllerStopping,
    GridClosed,
    GridError,
    OutcomeUnknown,
    StoreError,
    StoreFenced,
    StoreFull,
)
from gridhand.core.ledger import leftovers
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.operations import Allocate, Command, MoveAllocation
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import OwnStrategy
from gridhand.store.base import Store
from gridhand.store.ownership import NextEpoch, following_epoch

MOST_IN_A_BATCH = 2000
_RETRY_S = 0.5
_Answer = TypeVar("_Answer")


class Keeper:
    """Owns a store and the ledger in it, from `start` to `stop`."""

    def __init__(
        self,
        store: Store,
        *,
        strategy: OwnStrategy | None = None,
        clock: Callable[[int], Clock] = LedgerClock,
        dispatch: Dispatch | None = None,
        machine: str = "",
        tracker: Tracker | None = None,
    ) -> None:
        """Without a `dispatch` no jobs are started; they wait for a keeper that has one.

        `machine` is the name of this machine among those that share the store. A `tracker` of the
        user's own has to agree to each grant.
        """
        self._machine = machine
        self._store = store
        self._make_clock = clock
        self._dispatch = dispatch
        self._tracked = None if tracker is None else TrackedGrants(tracker)
        self._context = Context(Ledger(), Snapshot(Ledger()), strategy, tracked=self._tracked)
        self._inbox: queue.SimpleQueue[Sequence[Ticket]] = queue.SimpleQueue()
        self._waiting = WaitList(None if tracker is None else RETRY_MS, dispatch)
        self._closed: GridError | None = None
        self._frozen = False
        self._finished = False
        self._doubt = False
        self._refused = False
        self._thread: threading.Thread | None = None
        self.meter = KeeperMeter()

    # ---- life

    def start(self, next_epoch: NextEpoch = following_epoch) -> None:
        """Take ownership of the store, load the ledger, and begin to take operations."""
        opening = self._store.open(next_epoch)
        try:
            self.clock = self._make_clock(opening.high_water_ms)
            self._epoch, self.opening = opening.epoch, opening
            self._store.note_start(self.clock.now())
            self._load()
            self._learn_from_waiting()
        except BaseException:
            self._store.close()
            raise
        self._thread = threading.Thread(target=self._run, name="gridhand-keeper", daemon=True)
        self._thread.start()

    @property
    def where(self) -> str:
        """The address of the store, without a password."""
        return "memory" if self._store.url == "sqlite://" else self._store.url

    def freeze(self) -> None:
        """Refuse commands and expire nothing from now on; questions are still answered."""
        self._frozen = True
        self._inbox.put(())

    def stop(self) -> None:
        """Answer what waits, close the store, and refuse everything from now on."""
        self._close_with("the grid was closed")
        self._inbox.put(())
        if self._thread is not None:
            self._thread.join()

    def _close_with(self, message: str) -> None:
        if self._closed is None:
            self._closed = GridClosed(message, hint="Open it again.")

    def _load(self) -> None:
        """Read the ledger from the store."""
        contents = self._store.load()
        now = self.clock.now()
        ledger = load_ledger(contents, epoch=self._epoch, machine=self._machine, now=now)
        # Measurements and settings outlive a reload: they were never in the store.
        snapshot = self._context.snapshot.of(ledger)
        leftovers.carry_over(self._context.ledger, ledger)
        latest = max(now, self._context.now)
        strategy = self._context.strategy
        queues = self._context.queues
        self._context = Context(ledger, snapshot, strategy, latest, tracked=self._tracked)
        self._context.queues = queues
        if self._dispatch is not None:
            self._context.timeline = self._dispatch.timeline
            self._dispatch.load_shares(contents.shares)
            self._dispatch.load(contents.jobs, latest)

    def _learn_from_waiting(self) -> None:
        """Teach the request mix what waits: jobs teach it once, when they are submitted."""
        if self._dispatch is not None:
            for job in self._dispatch.queue:
                self._context.snapshot.learn(job.request)

    # ---- taking operations

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Queue operations, from any thread. Their ports are told when they are answered."""
        if self._closed is not None:
            raise copy.copy(self._closed)
        self._inbox.put(tickets)
        if self._finished:  # the thread has just ended, and may not have seen these
            self._refuse_rest()

    def abandon(self, ticket: Ticket) -> None:
        """Release what the ticket is granted, or take it out of line: nobody waits for it."""
        ticket.abandoned = True
        if ticket.done:
            self._give_back(ticket)
        elif ticket.wait_until is not None:
            self._inbox.put(())  # to be woken: see _run

    def _give_back(self, ticket: Ticket) -> None:
        command = ticket.operation
        if isinstance(command, Allocate) and ticket.error is None and ticket.reply.fresh:
            release = MoveAllocation(command.owner, id=ticket.reply.allocations[0].id)
            self._inbox.put([Ticket(release, NOWHERE)])

    def _run(self) -> None:
        try:
            while self._closed is None:
                batch = self._take()
                self._waiting.drop_abandoned(self._context.now)
                deciding = not self._frozen
                if not deciding:
                    batch = self._refuse_commands(batch)
                if batch or self._due():
                    self._serve(batch, deciding)
        finally:
            self._close_with("the keeper has ended")
            self._context.tell_tracker(closing=True)
            self._store.close()
            self._finished = True
            self._refuse_rest()

    def _take(self) -> list[Ticket]:
        """Return all waiting tickets; wait for the first, at most until something is due."""
        batch: list[Ticket] = []
        with contextlib.suppress(queue.Empty):
            batch += self._inbox.get(timeout=self._patience_s())
        size = 0
        # Callers that were answered together come back together: as long as letting the other
        # threads run brings more tickets, these are part of this commit.
        while size < len(batch) < MOST_IN_A_BATCH:
            size = len(batch)
            time.sleep(0)
            with contextlib.suppress(queue.Empty):
                while True:
                    batch += self._inbox.get_nowait()
        return batch

    def _refuse_commands(self, batch: list[Ticket]) -> list[Ticket]:
        """Refuse the commands of a batch and those that wait for room; return the questions."""
        refused = self._waiting.remove_all(self._context.now)
        refused += [ticket for ticket in batch if isinstance(ticket.operation, Command)]
        for ticket in refused:
            ticket.error = ControllerStopping()
        self._answer(refused)
        return [ticket for ticket in batch if not isinstance(ticket.operation, Command)]

    def _refuse_rest(self) -> None:
        rest: list[Ticket] = self._waiting.remove_all(self._context.now)
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
        if self._frozen:
            return False
        if self._doubt:  # what was written may have to be acted on
            return True
        now = self.clock.now()
        deadline = self._context.ledger.next_deadline()
        if deadline is not None and deadline <= now:
            return True
        if self._waiting and (self._waiting.next_due() or 0) <= now:
            return True
        return self._dispatch is not None and self._dispatch.due(now)

    def _patience_s(self) -> float | None:
        """Return how long to wait for an operation before something is due by itself."""
        if self._frozen:
            return None
        if self._doubt:
            return _RETRY_S
        if self._dispatch is not None and self._dispatch.due(self.clock.now()):
            return _RETRY_S if self._refused else 0.0
        dues = [self._context.ledger.next_deadline(), self._waiting.next_due()]
        dues += [self._dispatch.next_due()] if self._dispatch is not None else []
        deadline = min((due for due in dues if due is not None), default=None)
        if deadline is None:
            return None
        left_s = max(0.0, (deadline - self.clock.now()) / 1000)
        # After the store has refused a change, it is tried again only after a while.
        return max(left_s, _RETRY_S) if self._refused else min(left_s, 3600.0)

    # ---- a batch

    def _serve(self, batch: list[Ticket], deciding: bool) -> None:
        commands = [ticket for ticket in batch if isinstance(ticket.operation, Command)]
        questions = [ticket for ticket in batch if not isinstance(ticket.operation, Command)]
        try:
            if self._doubt:
                self._reload()
            if deciding:
                self._change(commands)
        except StoreFull as full:
            self._commit_frees_only(commands, full)
        except Exception as error:
            self._undo(commands, questions, error)
        self._context.tell_tracker()
        self._answer(commands)
        self._answer_questions(questions)

    def _answer_questions(self, questions: list[Ticket]) -> None:
        """Answer them, and try again what waits if an observation says that others use less."""
        if not questions:
            return
        for ticket in questions:
            self._answer_question(ticket)
        if self._context.freed:
            self._waiting.look_again()
            if self._dispatch is not None:
                self._dispatch.look_again()
        self._context.freed = False
        self._answer(questions)

    def _change(self, commands: list[Ticket], *, starting: bool = True) -> None:
        """Decide the commands and commit the changes; raise if that fails."""
        operations = [ticket.operation for ticket in commands]
        answered = self._ask_store(lambda: look_up(operations, self._context, self._store))
        context = self._context
        # Time never goes back, even in tests that steer the clock.
        context.now = max(context.now, self.clock.now())
        decisions = BatchDecisions(context, commands, answered, self._waiting, self._dispatch)
        written = self.meter.decide(lambda: decisions.run(starting), len(commands))
        context.forget_past()
        if written.entries or written.operations:
            if self._dispatch is not None:
                written.shares = self._dispatch.due_shares(context.now)
            self.meter.commit(write_batch, self._store, written)
            if self._dispatch is not None:
                job_commands.add_views(context, self._dispatch.queue)
            context.submitted.clear()
            changes = [change for change, _, _ in written.entries]
            context.ledger.settle()
            self._refused = False
            if self._dispatch is not None:
                self._dispatch.settled(changes)

    def _ask_store(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask the store, once more after a recovery if the connection turns out to be lost."""
        try:
            return ask()
        except OutcomeUnknown:
            self._doubt = True
            self._reload()
            return ask()

    def _answer_question(self, ticket: Ticket) -> None:
        """Answer a question, or take note of an observation, now that the batch is settled."""
        operation = ticket.operation
        if ticket.error is not None:
            return
        try:
            if (answer := ANSWERS.get(type(operation))) is not None:
                ticket.reply = answer(operation, self._context)
            else:
                ask = STORE_ANSWERS[type(operation)]
                ticket.reply = self._ask_store(
                    lambda: ask(operation, self._store, self._context.now)
                )
        except Exception as error:
            ticket.error = error

    # ---- failures

    def _undo(self, commands: list[Ticket], questions: list[Ticket], error: Exception) -> None:
        """Undo what could not be written. Questions can be answered if memory is not in doubt."""
        if self._dispatch is not None:
            self._dispatch.undo(self._context)
        self._context.ledger.rollback()
        self._context.forget_past()
        self._context.submitted.clear()
        self._refused = True
        self.meter.note_failure(error)
        self._doubt |= type(error) not in NOTHING_WRITTEN
        if isinstance(error, StoreFenced):
            self._closed = error
        elif not isinstance(error, StoreError):
            error = OutcomeUnknown(f"{type(error).__name__}: {error}")
        for ticket in (*commands, *questions) if self._doubt else commands:
            ticket.reply, ticket.error = None, copy.copy(error)

    def _commit_frees_only(self, commands: list[Ticket], full: StoreFull) -> None:
        """Commit only what frees something, into the space kept for that: the disk is full."""
        self._undo(commands, [], full)
        ends = [ticket for ticket in commands if ticket.operation.frees_resources()]
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
            self._dispatch.reloaded(self._context)

    # ---- answers

    def _answer(self, batch: list[Ticket]) -> None:
        deliver(batch)
        for ticket in batch:
            # Read after `done` was set, as `abandon` sets the one and then reads the other.
            if ticket.abandoned:
                self._give_back(ticket)
