"""Handles of allocations, for threads and for asyncio: confirm, renew and release them."""

from __future__ import annotations

from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gridhand.core.html import sheet

if TYPE_CHECKING:
    from gridhand.core.ledger.allocations import Allocation as Record
    from gridhand.core.model.resources import Resources
    from gridhand.library.async_grid import AsyncGrid
    from gridhand.library.backend import Duration
    from gridhand.library.grid import Grid


class AllocationFacts:
    """An allocation as of the last reply, not of this moment."""

    __slots__ = ("_record",)

    _record: Record

    @property
    def id(self) -> str:
        """The id that `Grid.release` and the other methods take."""
        return self._record.id

    @property
    def owner(self) -> str:
        """The owner, who alone may confirm, renew and release it."""
        return self._record.owner

    @property
    def holder(self) -> str:
        """The name of the allocation, unique among its owner's live ones."""
        return self._record.holder

    @property
    def node(self) -> str:
        """The name of the node whose resources are held."""
        return self._record.node

    @property
    def resources(self) -> Resources:
        """Everything that is held, GPUs included."""
        return self._record.resources

    @property
    def gpus(self) -> tuple[str, ...]:
        """The ids of the GPUs that are held."""
        return tuple(hold.device for hold in self._record.devices)

    @property
    def state(self) -> str:
        """`reserved`, `active`, `released`, `expired` or `lost`."""
        return str(self._record.state)

    @property
    def lifetime(self) -> str:
        """The event that ends it: `until_released`, `lease`, `session` or `job`."""
        return str(self._record.lifetime)

    @property
    def group(self) -> str | None:
        """The id that it shares with the others of `Grid.allocate_group`, or None."""
        return self._record.group

    @property
    def quality(self) -> str | None:
        """The quality level that was granted, if the request named one."""
        return self._record.quality

    @property
    def fence(self) -> tuple[int, int]:
        """A pair that grows with each grant: a resource can refuse a holder with a lower one."""
        return self._record.epoch, self._record.number

    @property
    def expires_at(self) -> datetime | None:
        """When it expires unless it is confirmed or renewed, or None if it does not expire."""
        deadline = self._record.deadline
        return None if deadline is None else datetime.fromtimestamp(deadline / 1000, UTC)

    def __repr__(self) -> str:
        devices = f" on {', '.join(self.gpus)}" if self.gpus else ""
        return f"<{self.id} {self.state}: {self.resources} of {self.node}{devices}>"

    def _repr_html_(self) -> str:
        held = [("holds", self.resources), ("node", self.node), ("GPUs", ", ".join(self.gpus))]
        until = [("lifetime", self.lifetime), ("until", self.expires_at)]
        return sheet(f"allocation {self.id}: {self.state}", [*held, *until])


class Allocation(AllocationFacts):
    """Resources held on one node, as `Grid.allocate` returns them.

    As a context manager it releases them at the end of the block:

        with grid.allocate(cpu=2, memory="4GB", ttl=60) as held:
            print(held.node, held.expires_at)
            held.renew()
    """

    __slots__ = ("_grid",)

    def __init__(self, record: Record, grid: Grid) -> None:
        self._record = record
        self._grid = grid

    def confirm(self, ttl: Duration | None = None) -> Self:
        """Turn the reservation into an allocation; with a `ttl` in seconds, into a lease."""
        self._record = self._grid.confirm(self.id, ttl=ttl)._record
        return self

    def renew(self, ttl: Duration | None = None) -> Self:
        """Extend the lease to `ttl` seconds from now, or by its own `ttl` if none is given."""
        self._record = self._grid.renew(self.id, ttl=ttl)._record
        return self

    def release(self) -> Self:
        """Release the resources. Releasing twice changes nothing."""
        self._record = self._grid.release(self.id)._record
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.release()


class AsyncAllocation(AllocationFacts):
    """An allocation, for asyncio: `Allocation` with methods that are awaited."""

    __slots__ = ("_grid",)

    def __init__(self, record: Record, grid: AsyncGrid) -> None:
        self._record = record
        self._grid = grid

    async def confirm(self, ttl: Duration | None = None) -> Self:
        """Turn the reservation into an allocation; with a `ttl` in seconds, into a lease."""
        self._record = (await self._grid.confirm(self.id, ttl=ttl))._record
        return self

    async def renew(self, ttl: Duration | None = None) -> Self:
        """Extend the lease to `ttl` seconds from now, or by its own `ttl` if none is given."""
        self._record = (await self._grid.renew(self.id, ttl=ttl))._record
        return self

    async def release(self) -> Self:
        """Release the resources. Releasing twice changes nothing."""
        self._record = (await self._grid.release(self.id))._record
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.release()
