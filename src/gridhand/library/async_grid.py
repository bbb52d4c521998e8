"""AsyncGrid: the same as `Grid`, to be awaited. One grid may serve several event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gridhand.core.allocations import Allocation as Record
from gridhand.core.allocations import Move
from gridhand.core.calls import Call, Reply
from gridhand.core.gpus import Gpu
from gridhand.core.names import check_label
from gridhand.core.nodes import Node
from gridhand.core.resources import Resources
from gridhand.library.allocation import AsyncAllocation
from gridhand.library.backend import Backend, Port, read_owner, the_backend
from gridhand.library.calling import close_caller
from gridhand.library.calls import DEFAULT_RESERVATION_S, Calls, read_layout
from gridhand.library.current import enter, leave
from gridhand.library.graphs import RunsGraphsAsync
from gridhand.library.grid import Grid, OwnStrategy
from gridhand.library.running import Asked, RunsJobsAsync

if TYPE_CHECKING:
    from gridhand.core.check import Violation
    from gridhand.core.explanation import Explanation
    from gridhand.core.views import NodeStatus, Status
    from gridhand.library.caller import Caller
    from gridhand.store.base import Event


class AsyncGrid(RunsJobsAsync, RunsGraphsAsync):
    """Nodes, and resources held on them, from asyncio."""

    def __init__(
        self,
        address: str | None = None,
        *,
        owner: str | None = None,
        backend: Backend | None = None,
    ) -> None:
        """The grid of this machine's controller, which is started if need be; or of another's.

        What is allocated ends with this grid, or with its process; a `ttl` makes it last.
        """
        self._backend = the_backend(backend, address)
        self._calls = Calls(self._backend, read_owner(owner, self._backend))
        self._caller: Caller | None = None
        self._port: tuple[asyncio.AbstractEventLoop, Port] | None = None

    @classmethod
    def in_memory(cls, *, strategy: OwnStrategy = "default", owner: str | None = None) -> Self:
        """A grid of this process alone, gone when it is closed."""
        return cls.of(Grid.in_memory(strategy=strategy, owner=owner))

    @classmethod
    def at(
        cls,
        store_url: str,
        *,
        strategy: OwnStrategy = "default",
        owner: str | None = None,
        wait: float = 0,
        take_over: bool = False,
        create: bool = True,
        expect: str | None = None,
    ) -> Self:
        """A grid whose state is kept in a store, as `Grid.at`. Opening it blocks for a moment."""
        grid = Grid.at(
            store_url,
            strategy=strategy,
            owner=owner,
            wait=wait,
            take_over=take_over,
            create=create,
            expect=expect,
        )
        return cls.of(grid)

    @classmethod
    def of(cls, grid: Grid) -> Self:
        """The same grid for asyncio: both may be used side by side."""
        return cls(backend=grid._backend, owner=grid.owner)

    def for_owner(self, owner: str) -> Self:
        """The same grid, acting in the name of another owner."""
        return type(self)(backend=self._backend, owner=check_label(owner, "owner"))

    @property
    def owner(self) -> str:
        return self._calls.owner

    @property
    def identity(self) -> str:
        """Which ledger this is and how often it has changed hands, for `expect` of `Grid.at`."""
        return self._backend.identity

    def __repr__(self) -> str:
        return f"<grid of {self.owner} {self._backend.where}, for asyncio>"

    async def close(self) -> None:
        """Give the store back: what is held in it stays held. Or let go of the controller: what
        was allocated without a `ttl` ends, and so do jobs that are not detached.

        Functions that are being called are stopped first.
        """
        leave(self)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, close_caller, self)
        await loop.run_in_executor(None, self._backend.close)

    async def __aenter__(self) -> Self:
        """Tasks that are submitted inside of the block go to this grid."""
        enter(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.close()

    # ---- nodes

    async def register_node(
        self,
        name: str,
        resources: Resources | Mapping[str, Any] | str | None = None,
        *,
        gpus: Sequence[Gpu | Mapping[str, Any]] | None = None,
        labels: Mapping[str, str] | None = None,
        price: float | str = 0,
        address: str = "",
        op_id: str | None = None,
        **named: Any,
    ) -> Node:
        """Add a node, or describe it anew: what is held there stays held."""
        node = Node.of(
            name, resources, gpus=gpus, labels=labels, price=price, address=address, **named
        )
        return (await self.register_nodes([node], op_id=op_id))[0]

    async def register_nodes(
        self, nodes: Sequence[Node], *, op_id: str | None = None
    ) -> list[Node]:
        """Add many nodes as one: all of them, or none."""
        return await self._ask(self._calls.register(nodes, op_id))

    async def nodes(self) -> list[NodeStatus]:
        """Every node, in the order of their names."""
        return list((await self.status()).nodes)

    async def node(self, name: str) -> NodeStatus:
        return await self._ask(self._calls.node(name))

    async def drain(self, name: str, *, op_id: str | None = None) -> Node:
        """Give the node no new work. What is held there stays held."""
        return (await self._ask(self._calls.set_draining(name, True, op_id)))[0]

    async def resume(self, name: str, *, op_id: str | None = None) -> Node:
        """Give a drained node work again."""
        return (await self._ask(self._calls.set_draining(name, False, op_id)))[0]

    async def set_health(
        self, name: str, health: str, *, why: str = "", op_id: str | None = None
    ) -> Node:
        """Mark a node `up`, `suspect` (no new work) or `down` (what it held is lost, and free)."""
        return (await self._ask(self._calls.set_health(name, health, why, op_id)))[0]

    async def unregister(self, name: str, *, force: bool = False, op_id: str | None = None) -> None:
        """Remove a node. With live allocations only by `force`, and these are then lost."""
        await self._ask(self._calls.unregister(name, force, op_id))

    async def report_foreign(self, node: str, used: Mapping[str, Any]) -> None:
        """Say how much memory of each device strangers use: `{"gpu1/0": "10GB"}`."""
        await self._ask(self._calls.set_foreign(node, used))

    # ---- allocations

    async def fits(self, node: str, resources: Asked = None, **named: Any) -> bool:
        """Whether the request would be granted on that node now."""
        return await self._ask(self._calls.fits(node, resources, named))

    async def explain(self, resources: Asked = None, **named: Any) -> Explanation:
        """Where the request would go now; or why nowhere, if it ever could, and what would fit.

        It takes what `allocate` takes, and changes nothing. Print it, or read its fields.
        """
        return await self._ask(self._calls.explain(resources, named))

    async def allocate(
        self,
        resources: Asked = None,
        *,
        holder: str | None = None,
        ttl: float | None = None,
        wait: float = 0,
        op_id: str | None = None,
        **named: Any,
    ) -> AsyncAllocation:
        """Hold resources on one node, as `Grid.allocate` does.

        A task that is cancelled while it waits leaves nothing held.
        """
        call = self._calls.allocate(resources, holder, ttl, op_id, named, wait)
        return self._held(await self._hold(call))

    async def allocate_group(
        self,
        requests: Sequence[Asked],
        *,
        holder: str | None = None,
        ttl: float | None = None,
        wait: float = 0,
        apart: bool = False,
        together: bool = False,
        op_id: str | None = None,
    ) -> list[AsyncAllocation]:
        """Hold all of the requests, or none. They are renewed and released as one, too.

        With `apart` each is on a node of its own, with `together` all are on one.
        """
        layout = read_layout(apart, together)
        made = await self._hold(self._calls.group(requests, holder, ttl, op_id, layout, wait))
        return [AsyncAllocation(record, self) for record in made]

    async def reserve(
        self,
        resources: Asked = None,
        *,
        ttl: float = DEFAULT_RESERVATION_S,
        holder: str | None = None,
        wait: float = 0,
        op_id: str | None = None,
        **named: Any,
    ) -> AsyncAllocation:
        """Hold resources for at most `ttl` seconds, within which they are to be confirmed."""
        call = self._calls.reserve(resources, holder, ttl, op_id, named, wait)
        return self._held(await self._hold(call))

    async def confirm(
        self,
        allocation: str | AsyncAllocation,
        *,
        ttl: float | None = None,
        op_id: str | None = None,
    ) -> AsyncAllocation:
        """Turn a reservation into an allocation; with a `ttl` into a lease."""
        return await self._move(allocation, Move.CONFIRM, ttl, op_id)

    async def renew(
        self,
        allocation: str | AsyncAllocation,
        *,
        ttl: float | None = None,
        op_id: str | None = None,
    ) -> AsyncAllocation:
        """Put the end of a lease off, to `ttl` seconds (or as many as before) from now."""
        return await self._move(allocation, Move.RENEW, ttl, op_id)

    async def release(
        self, allocation: str | AsyncAllocation, *, op_id: str | None = None
    ) -> AsyncAllocation:
        """Give an allocation back, by its id or itself. What has ended already stays as it is."""
        return await self._move(allocation, Move.RELEASE, None, op_id)

    async def allocations(self) -> list[AsyncAllocation]:
        """Everything that is held, by anyone."""
        found = await self._ask(self._backend.allocations())
        return [AsyncAllocation(record, self) for record in found]

    # ---- knowing

    async def status(self) -> Status:
        """The cluster added up, and each of its nodes."""
        return await self._ask(self._backend.status())

    async def check(self) -> list[Violation]:
        """Recount everything and say which invariants do not hold: none, if all is well."""
        return await self._ask(self._backend.check())

    async def dump(self) -> dict[str, Any]:
        """The state as plain data, as `check` reads it."""
        return await self._ask(self._backend.dump())

    async def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """What happened, in order, from the event after number `after`."""
        return await self._ask(self._calls.events(after, limit))

    async def prune(self, older_than_s: float, *, most: int = 5000) -> AsyncIterator[int]:
        """Forget what is older, `most` events at a time; yields how many are still to go."""
        left = 1
        while left:
            left = await self._ask(self._calls.prune(older_than_s, most))
            yield left

    # ---- inside

    def _ask(self, call: Call[Reply]) -> asyncio.Future[Reply]:
        loop = asyncio.get_running_loop()
        known = self._port
        if known is None or known[0] is not loop:  # another loop gets a port of its own
            known = self._port = loop, self._backend.port(loop)
        return known[1].call(call)

    async def _hold(self, call: Call[list[Record]]) -> list[Record]:
        answer = self._ask(call)
        try:
            return await answer
        except asyncio.CancelledError:
            # Answered and cancelled in the same moment: the port could not see that.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._backend.give_back(call, answer.result())
            raise

    def _held(self, made: list[Record]) -> AsyncAllocation:
        return AsyncAllocation(made[0], self)

    async def _move(
        self, allocation: str | AsyncAllocation, move: Move, ttl: float | None, op_id: str | None
    ) -> AsyncAllocation:
        return self._held(await self._ask(self._calls.move(allocation, move, ttl, op_id)))
