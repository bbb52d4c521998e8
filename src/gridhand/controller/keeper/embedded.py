"""A keeper in the caller's own process: what `Grid.in_memory` and `Grid.at` talk to.

Every method that describes a call only builds it; `call` waits for its answer in a thread, `port`
brings answers into an event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from gridhand.controller.commands import (
    Allocate,
    AskStore,
    Desk,
    MoveOne,
    Read,
    Register,
    SetDraining,
    SetHealth,
    Unregister,
    near,
    set_foreign,
)
from gridhand.controller.keeper import Keeper
from gridhand.controller.tickets import NOWHERE, LoopPort, Ticket, Waiter
from gridhand.core.allocations import Allocation, Move
from gridhand.core.calls import Call, Reply
from gridhand.core.check import Violation, check_state
from gridhand.core.errors import GridClosed
from gridhand.core.explain import explain
from gridhand.core.explanation import Explanation
from gridhand.core.ledger import Terms
from gridhand.core.nodes import Health, Node
from gridhand.core.placement import place
from gridhand.core.refusals import Refusal
from gridhand.core.requests import Request
from gridhand.core.strategies import strategy_named
from gridhand.core.views import NodeStatus, Status, cluster_status, dump, node_status
from gridhand.store.base import Event, Store
from gridhand.store.ownership import Identity, Taking
from gridhand.store.urls import memory_store, store_at

REPEATABLE_MS = 24 * 3600 * 1000


class Embedded:
    """The calls of the library, answered by a keeper of our own."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._pid = os.getpid()
        keeper.start()

    @classmethod
    def in_memory(cls, strategy: Any) -> Embedded:
        return cls(Keeper(memory_store(), strategy=strategy_named(strategy)))

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
        expected = None if expect is None else Identity.parse(expect)
        taking = Taking(wait_s, take_over, must_exist or expected is not None, expected)
        return cls(Keeper(store_at(url, taking), strategy=strategy_named(strategy)))

    @property
    def where(self) -> str:
        return f"in {self._keeper.where}"

    @property
    def identity(self) -> str:
        return str(Identity(self._keeper.opening.cluster_id, self._keeper.opening.epoch))

    def close(self) -> None:
        if os.getpid() == self._pid:
            self._keeper.stop()

    # ---- asking

    def call(self, call: Call[Reply]) -> Reply:
        """The answer to `call`, or the error it met."""
        waiter = Waiter()
        ticket = Ticket(call, waiter)
        self.submit([ticket])
        try:
            waiter.wait()
        except BaseException:
            self._keeper.abandon(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        reply: Reply = ticket.reply
        return reply

    def submit(self, tickets: Sequence[Ticket]) -> None:
        if os.getpid() != self._pid:
            raise GridClosed(
                f"this grid belongs to process {self._pid}, from which this one was forked",
                hint="Open a grid of its own in each process.",
            )
        self._keeper.submit(tickets)

    def give_back(self, call: Call[list[Allocation]], made: list[Allocation]) -> None:
        """Release what `call` was granted, since nobody will. Not what the holder had before."""
        if isinstance(call, Allocate) and call.fresh:
            self.submit([Ticket(MoveOne(call.owner, id=made[0].id), NOWHERE)])

    def port(self, loop: asyncio.AbstractEventLoop) -> LoopPort:
        return LoopPort(loop, self.submit, self._keeper.abandon)

    # ---- what can be asked

    def allocate(
        self,
        owner: str,
        op_id: str | None,
        requests: tuple[Request, ...],
        terms: Terms,
        wait_ms: int = 0,
    ) -> Call[list[Allocation]]:
        return Allocate(owner, op_id, requests, terms, wait_ms)

    def move(
        self, owner: str, op_id: str | None, id: str, move: Move, ttl_ms: int | None
    ) -> Call[list[Allocation]]:
        return MoveOne(owner, op_id, id, move, ttl_ms)

    def register(self, owner: str, op_id: str | None, nodes: tuple[Node, ...]) -> Call[list[Node]]:
        return Register(owner, op_id, nodes)

    def set_draining(
        self, owner: str, op_id: str | None, name: str, draining: bool
    ) -> Call[list[Node]]:
        return SetDraining(owner, op_id, name, draining)

    def set_health(
        self, owner: str, op_id: str | None, name: str, health: Health, why: str
    ) -> Call[list[Node]]:
        return SetHealth(owner, op_id, name, health, why)

    def unregister(self, owner: str, op_id: str | None, name: str, force: bool) -> Call[list[Node]]:
        return Unregister(owner, op_id, name, force)

    def fits(self, owner: str, request: Request) -> Call[bool]:
        def answer(desk: Desk) -> bool:
            asked = near(request, owner, desk.ledger)
            return not isinstance(place(asked, desk.snapshot, desk.strategy), Refusal)

        return Read(answer)

    def explain(
        self, owner: str, request: Request, lower: tuple[Request, ...]
    ) -> Call[Explanation]:
        def answer(desk: Desk) -> Explanation:
            asked, *levels = (near(one, owner, desk.ledger) for one in (request, *lower))
            return explain(asked, desk.snapshot, desk.strategy, lower=levels)

        return Read(answer)

    def set_foreign(self, node: str, used: Mapping[str, int]) -> Call[None]:
        return set_foreign(node, used)

    def node(self, name: str) -> Call[NodeStatus]:
        return Read(lambda desk: node_status(desk.ledger.node(name), desk.snapshot.foreign))

    def status(self) -> Call[Status]:
        return Read(lambda desk: cluster_status(desk.ledger, desk.snapshot.foreign))

    def allocations(self) -> Call[list[Allocation]]:
        return Read(lambda desk: list(desk.ledger.live.values()))

    def dump(self) -> Call[dict[str, Any]]:
        return Read(lambda desk: dump(desk.ledger, desk.snapshot.foreign, now=desk.now))

    def check(self) -> Call[list[Violation]]:
        return Read(
            lambda desk: check_state(dump(desk.ledger, desk.snapshot.foreign, now=desk.now))
        )

    def events(self, after: int, limit: int) -> Call[list[Event]]:
        return AskStore(lambda store, now: store.events(after=after, limit=limit))

    def prune(self, age_ms: int, most: int) -> Call[int]:
        def forget(store: Store, now: int) -> int:
            # However short the history is kept, a call may be repeated for a day.
            answered = now - max(age_ms, REPEATABLE_MS)
            return store.prune(before=now - age_ms, most=most, answered_before=answered)

        return AskStore(forget)
