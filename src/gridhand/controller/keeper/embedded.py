"""A keeper in the caller's own process: the backend of `Grid.in_memory` and `Grid.at`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from gridhand.controller.keeper.keeper import Keeper
from gridhand.controller.keeper.tickets import NOWHERE, LoopPort, PendingReply, Ticket
from gridhand.controller.keeper.tracked_grants import read_tracker
from gridhand.core.errors import GridClosed
from gridhand.core.operations import Granted, MoveAllocation, Operation, Reply
from gridhand.core.placement.strategies import strategy_named
from gridhand.store.ownership import NextEpoch, StoreIdentity, Taking, following_epoch
from gridhand.store.urls import memory_store, store_at


class Embedded:
    """Runs operations on a keeper of its own: `run` in a thread, `port` in an event loop."""

    def __init__(self, keeper: Keeper, next_epoch: NextEpoch = following_epoch) -> None:
        self._keeper = keeper
        self._pid = os.getpid()
        keeper.start(next_epoch)

    @classmethod
    def in_memory(cls, strategy: Any, tracker: Any = None) -> Embedded:
        own = None if tracker is None else read_tracker(tracker)
        return cls(Keeper(memory_store(), strategy=strategy_named(strategy), tracker=own))

    @classmethod
    def at(
        cls,
        url: str,
        strategy: Any,
        *,
        wait_s: float,
        take_over: bool,
        must_exist: bool,
        expect: str | None,
    ) -> Embedded:
        expected = None if expect is None else StoreIdentity.parse(expect)
        taking = Taking(wait_s, take_over, must_exist or expected is not None, expected)
        return cls(Keeper(store_at(url, taking), strategy=strategy_named(strategy)))

    @property
    def where(self) -> str:
        return f"in {self._keeper.where}"

    @property
    def identity(self) -> str:
        return str(StoreIdentity(self._keeper.opening.cluster_id, self._keeper.opening.epoch))

    def close(self) -> None:
        if os.getpid() == self._pid:
            self._keeper.stop()

    def run(self, operation: Operation[Reply]) -> Reply:
        """Return the reply to an operation, or raise its error.

        If it is interrupted, at whatever point, what the operation is granted is released.
        """
        pending = PendingReply(operation, self._keeper.abandon)
        try:
            self.submit([pending.ticket])
            return pending.result()
        except BaseException:
            self._keeper.abandon(pending.ticket)
            raise

    def begin(self, operation: Operation[Reply]) -> PendingReply[Reply]:
        """Send an operation without waiting for its reply."""
        pending = PendingReply(operation, self._keeper.abandon)
        self.submit([pending.ticket])
        return pending

    def submit(self, tickets: Sequence[Ticket]) -> None:
        if os.getpid() != self._pid:
            raise GridClosed(
                f"this grid belongs to process {self._pid}, from which this one was forked",
                hint="Open a grid of its own in each process.",
            )
        self._keeper.submit(tickets)

    def give_back(self, operation: Operation[Reply], reply: Reply) -> None:
        """Release what the operation alone was granted: nobody waits for its reply."""
        if isinstance(reply, Granted) and reply.fresh:
            first = reply.allocations[0]
            self.submit([Ticket(MoveAllocation(first.owner, id=first.id), NOWHERE)])

    def port(self, loop: asyncio.AbstractEventLoop) -> LoopPort:
        return LoopPort(loop, self.submit, self._keeper.abandon)
