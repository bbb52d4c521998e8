"""What a caller holds: an allocation with the moves on it, for threads and for asyncio."""

from __future__ import annotations

from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gridhand.core.html import sheet

if TYPE_CHECKING:
    from gridhand.core.allocations import Allocation as Record
    from gridhand.core.resources import Resources
    from gridhand.library.async_grid import AsyncGrid
    from gridhand.library.grid import Grid


class _Facts:
    """What is known of it: as of the last answer, not of this moment."""

    __slots__ = ("_record",)

    _record: Record

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def owner(self) -> str:
        return self._record.owner

    @property
    def holder(self) -> str:
        return self._record.holder

    @property
    def node(self) -> str:
        return self._record.node

    @property
    def resources(self) -> Resources:
        """All that is held, devices included."""
        return self._record.resources

    @property
    def gpus(self) -> tuple[str, ...]:
        """The ids of the devices."""
        return tuple(hold.device for hold in self._record.devices)

    @property
    def state(self) -> str:
        return str(self._record.state)

    @property
    def lifetime(self) -> str:
        return str(self._record.lifetime)

    @property
    def group(self) -> str | None:
        return self._record.group

    @property
    def quality(self) -> str | None:
        return self._record.quality

    @property
    def fence(self) -> tuple[int, int]:
        """The epoch and number it was made with: what is older has no say over what is newer."""
        return self._record.epoch, self._record.number

    @property
    def expires_at(self) -> datetime | None:
        """When it must be confirmed or renewed by, or None where it does not lapse."""
        deadline = self._record.deadline
        return None if deadline is None else datetime.fromtimestamp(deadline / 1000, UTC)

    def __repr__(self) -> str:
        devices = f" on {', '.join(self.gpus)}" if self.gpus else ""
        return f"<{self.id} {self.state}: {self.resources} of {self.node}{devices}>"

    def _repr_html_(self) -> str:
        held = [("holds", self.resources), ("node", self.node), ("GPUs", ", ".join(self.gpus))]
        until = [("lifetime", self.lifetime), ("until", self.expires_at)]
        return sheet(f"allocation {self.id}: {self.state}", [*held, *until])


class Allocation(_Facts):
    """Resources of one node, held. As a context manager it gives them back at the end."""

    __slots__ = ("_grid",)

    def __init__(self, record: Record, grid: Grid) -> None:
        self._record = record
        self._grid = grid

    def confirm(self, ttl: float | None = None) -> Self:
        """Make the reservation an allocation; with a `ttl`, one that must be renewed."""
        self._record = self._grid.confirm(self.id, ttl=ttl)._record
        return self

    def renew(self, ttl: float | None = None) -> Self:
        """Put the end of the lease off, to `ttl` seconds (or as many as before) from now."""
        self._record = self._grid.renew(self.id, ttl=ttl)._record
        return self

    def release(self) -> Self:
        """Give it back. Once is enough; twice changes nothing and answers its state."""
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


class AsyncAllocation(_Facts):
    """Resources of one node, held. As an async context manager it gives them back at the end."""

    __slots__ = ("_grid",)

    def __init__(self, record: Record, grid: AsyncGrid) -> None:
        self._record = record
        self._grid = grid

    async def confirm(self, ttl: float | None = None) -> Self:
        """Make the reservation an allocation; with a `ttl`, one that must be renewed."""
        self._record = (await self._grid.confirm(self.id, ttl=ttl))._record
        return self

    async def renew(self, ttl: float | None = None) -> Self:
        """Put the end of the lease off, to `ttl` seconds (or as many as before) from now."""
        self._record = (await self._grid.renew(self.id, ttl=ttl))._record
        return self

    async def release(self) -> Self:
        """Give it back. Once is enough; twice changes nothing and answers its state."""
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
