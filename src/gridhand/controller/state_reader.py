"""StateReader: nodes, allocations and counts, read without the keeper.

Open things are in the read model. Closed ones are in the store, which is read on a connection of
its own; where it has none, because it is damaged, the keeper is asked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from gridhand.controller.event_feed import EventFeed
from gridhand.controller.keeper.keeper import Keeper
from gridhand.controller.keeper.questions import AskStore, Read
from gridhand.controller.metrics.keeper_meter import KeeperMeter
from gridhand.controller.read_model import ReadModel
from gridhand.controller.store_reads import StoreReads
from gridhand.core.errors import GridError, StoreDamaged, StoreRemoved, UnknownAllocation
from gridhand.core.ledger.allocations import Allocation
from gridhand.core.ledger.ledger import Change
from gridhand.core.ledger.status import NodeStatus, Status
from gridhand.core.model.names import AllocationId, NodeName
from gridhand.core.operations import Operation, Reply
from gridhand.core.rows.ledger import Event
from gridhand.store.base import Store

Answer = TypeVar("Answer")

_LONGEST_NUMBER = 19
_NO_EVENT = 2**62  # no event has a number after this one


class StateReader:
    """The reading side of a controller, for all but jobs."""

    model: ReadModel
    store_url: str
    stopping: asyncio.Event
    events: EventFeed | None = None
    _store: Store
    _keeper: Keeper
    _reads: StoreReads | None = None

    def ask(self, operation: Operation[Reply]) -> asyncio.Future[Reply]:
        raise NotImplementedError

    async def _open_reads(self) -> None:
        await self.ask(Read(self.model.loaded))
        reads = StoreReads(self._store)
        if await reads.open():
            self._reads = reads
        self.events = EventFeed(self.read_events, self.newest_event, self.stopping)

    def _publish(self, changes: Sequence[Change]) -> None:
        """Pass on durable changes; called from the keeper's thread."""
        self.model.committed(changes)
        if self.events is not None:
            self.events.committed()

    async def _close_reads(self) -> None:
        if self._reads is not None:
            await self._reads.close()

    async def read_store(self, ask: Callable[[Store], Answer]) -> Answer:
        """Return the answer of the store to a question that changes nothing."""
        if self._reads is not None:
            return await self._reads.run(ask)
        return await self.ask(AskStore(lambda store, _: ask(store)))

    async def read_events(self, after: int, limit: int) -> list[Event]:
        """Return events in order, from the first one after a number."""
        return await self.read_store(lambda store: store.events(after=after, limit=limit))

    async def newest_event(self) -> int:
        """Return the number of the last event."""
        return await self.read_store(lambda store: store.newest_event())

    def lost_file(self) -> str:
        """Return the file of the store that was removed while it was open; "" if none was."""
        return self._store.lost_file()

    @property
    def _damage(self) -> str:
        return self._keeper.opening.damage

    def store_faults(self) -> list[GridError]:
        """Return what is known to be wrong with the store, without asking it."""
        faults: list[GridError] = []
        if self._damage:
            faults.append(StoreDamaged(self.store_url, self._damage))
        if lost := self.lost_file():
            faults.append(StoreRemoved(lost))
        return faults

    async def touch_store(self) -> None:
        """Have the keeper ask its store something cheap; raise if the store does not answer."""
        await self.ask(AskStore(lambda store, _: store.events(after=_NO_EVENT, limit=1)))

    async def repair_store(self) -> bool:
        """Write the store anew if its file was removed; return whether it was."""
        rewritten = await self.ask(AskStore(lambda store, _: store.rewrite()))
        if rewritten and self._reads is not None:
            await self._reads.reset()
        return rewritten

    # ---- nodes and allocations

    def status(self) -> Status:
        """Return the whole cluster, added up and node by node."""
        return self.model.status()

    def node(self, name: NodeName) -> NodeStatus:
        return self.model.node(name)

    def allocations(self) -> list[Allocation]:
        """Return all live allocations."""
        return list(self.model.ledger.live.values())

    async def allocation(self, id: AllocationId) -> Allocation:
        """Return the allocation with that id, live or closed."""
        found = self.model.ledger.live.get(id)
        if found is None:
            stored = await self.find_allocations([id])
            found = next((allocation for allocation in stored if allocation.id == id), None)
        if found is None:
            raise UnknownAllocation(id)
        return found

    async def find_allocations(self, ids: Iterable[AllocationId]) -> list[Allocation]:
        """Find allocations by id, closed ones too."""
        ends = [id.rpartition("-")[2] for id in ids]
        numbers = [int(end) for end in ends if end.isdecimal() and len(end) < _LONGEST_NUMBER]
        return await self.read_store(lambda store: store.find(numbers)) if numbers else []

    # ---- counts

    async def counts(self) -> dict[str, int]:
        """Return how many open jobs there are in each state."""
        index = self.model.ledger.jobs
        running = index.running()
        return {"queued": len(index.open) - running, "running": running}

    async def running_on(self) -> dict[NodeName, int]:
        """Count the allocations in which jobs run, by node: in each they run one by one."""
        ledger = self.model.ledger
        return Counter(
            ledger.live[id].node for id in ledger.jobs.allocations() if id in ledger.live
        )

    @property
    def meter(self) -> KeeperMeter:
        """The times and failures that the keeper has measured."""
        return self._keeper.meter

    async def idle(self) -> bool:
        """Return whether no job is open."""
        return not self.model.ledger.jobs.open
