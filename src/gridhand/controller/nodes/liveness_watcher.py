"""LivenessWatcher: hears the heartbeats of remote nodes, and records how healthy they are.

It runs in the event loop. Heartbeats are answered from memory; only changes of health go to the
keeper. Nodes without the label `gridhand.engine` are none of its business: on the machine of the
controller pid and start time decide, and declared nodes are a part of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from gridhand.controller.jobs.job_runner import OWNER
from gridhand.controller.keeper.ledger_commands import Context
from gridhand.controller.keeper.questions import AskStore, Read
from gridhand.core.errors import GridError, InvalidInput, NodeSuperseded, StoreUnavailable
from gridhand.core.ledger.status import NodeStatus
from gridhand.core.liveness.budget import (
    RECOVERY_GRACE_MS,
    STORE_GRACE_MS,
    TAKE_OVER_GRACE_MS,
    TICK_MS,
)
from gridhand.core.liveness.heartbeats import BeatAnswer, HealthChange, Heartbeat, Receipt, Recorded
from gridhand.core.liveness.liveness import Liveness
from gridhand.core.liveness.remote_nodes import recorded, recorded_nodes
from gridhand.core.model.names import NodeName
from gridhand.core.model.nodes import ENGINE_LABEL, Health, Node
from gridhand.core.operations import GetNode, Operation, ReportHealth
from gridhand.store.base import Store

_NO_EVENT = 2**62  # a question to the store that costs nothing: the events after this number

_log = logging.getLogger(__name__)


class LivenessWatcher:
    """The link between the agents of remote nodes, `Liveness`, and the keeper."""

    def __init__(
        self, ask: Callable[[Operation[Any]], Awaitable[Any]], now: Callable[[], int], shared: bool
    ) -> None:
        """`now` is the clock of the ledger.

        A `shared` store may have been taken from a controller that is still alive.
        """
        self._ask = ask
        self._now = now
        self._grace_ms = TAKE_OVER_GRACE_MS if shared else RECOVERY_GRACE_MS
        self._liveness: Liveness | None = None
        self._look = asyncio.Event()
        self.tasks = (self._keep_time, self._keep_records)  # to run until the controller stops

    # ---- for agents, and for the engines that speak to them

    async def heartbeat(self, beat: Heartbeat) -> BeatAnswer:
        """Take a heartbeat and return what the node must stop; raise if it does not count."""
        liveness = self._known()
        if beat.node not in liveness:
            await self._follow_unknown(beat.node)
        now = self._now()
        answer = liveness.heartbeat(beat, now)
        if answer.receipt is Receipt.SUPERSEDED:
            raise NodeSuperseded(beat.node, beat.incarnation, answer.incarnation)
        if answer.receipt is Receipt.UNCONFIRMED:
            raise StoreUnavailable(f"it has not answered for {STORE_GRACE_MS // 1000} s")
        if liveness.change(beat.node, now) is not None:
            self._look.set()
        return answer

    def order_unanswered(self, name: NodeName) -> None:
        """Take note that an order to a remote node timed out or failed on the way."""
        self._known().order_unanswered(name)

    def order_answered(self, name: NodeName) -> None:
        """Take note that a remote node has answered an order."""
        self._known().order_answered(name, self._now())

    def takes_work(self, name: NodeName) -> bool:
        """Return whether a remote node is up, both in the ledger and by its heartbeats."""
        return self._known().takes_work(name, self._now())

    def last_heard(self, name: NodeName) -> int | None:
        """Return when a remote node was last heard, in ledger time; None if it was not."""
        return self._known().last_heard(name)

    def look_again(self) -> None:
        """Compare with the ledger soon: nodes were registered or removed."""
        self._look.set()

    # ---- for the ledger

    async def _keep_time(self) -> None:
        """Tick, whatever the keeper and the store do, so that only a deaf loop is late."""
        while True:
            liveness = self._known()
            liveness.tick(self._now())
            if liveness:
                self._look.set()
            await asyncio.sleep(TICK_MS / 1000)

    async def _keep_records(self) -> None:
        """Bring the ledger up to date with the heartbeats, whenever there may be a difference."""
        self._look.set()
        while True:
            await self._look.wait()
            self._look.clear()
            try:
                await self._record_changes()
            except GridError as error:  # the store is away: everything is judged anew later
                _log.warning("the health of nodes cannot be recorded yet: %s", error)
                await asyncio.sleep(TICK_MS / 1000)

    async def _record_changes(self) -> None:
        liveness = self._known()
        await self._follow()
        if not liveness:
            return
        asked_at = self._now()
        await self._ask(AskStore(_touch))
        liveness.store_answered(asked_at)
        changes = liveness.changes(self._now())
        await asyncio.gather(*map(self._record, changes))  # sent in one turn, so one transaction

    async def _record(self, change: HealthChange) -> None:
        name, was, health, why, boot_id = change
        report = ReportHealth(OWNER, None, name, was, health, why, boot_id)
        for node in await self._ask(report):
            if health is not was:
                _log.log(_level(node), "node %s is %s: %s", name, health, why)
            self._known().note_recorded(name, recorded(node), self._now())

    async def _follow(self) -> None:
        found: dict[NodeName, Recorded] = await self._ask(Read(_remote_nodes))
        self._known().follow(found, self._now())

    async def _follow_unknown(self, name: NodeName) -> None:
        """Look for a node that was just registered; raise if there is no such remote node."""
        await self._follow()
        if name not in self._known():
            status: NodeStatus = await self._ask(GetNode(name))
            allowed = f"one that is served elsewhere, with the label {ENGINE_LABEL}"
            raise InvalidInput("node", status.name, allowed)

    def _known(self) -> Liveness:
        """Return what is known since the controller began to listen."""
        if self._liveness is None:
            self._liveness = Liveness(self._now(), grace_ms=self._grace_ms)
        return self._liveness


def _touch(store: Store, now: int) -> None:
    store.events(after=_NO_EVENT, limit=1)


def _remote_nodes(context: Context) -> dict[NodeName, Recorded]:
    return recorded_nodes(use.node for use in context.ledger.nodes.values())


def _level(node: Node) -> int:
    return logging.INFO if node.health is Health.UP else logging.WARNING
