"""AsyncGrid: the methods of `Grid`, to be awaited. One grid may serve several event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gridhand.core.ledger.allocations import Allocation as Record
from gridhand.core.model.names import check_label
from gridhand.core.operations import Operation, Reply
from gridhand.library.allocation_handle import AsyncAllocation
from gridhand.library.async_wrappers import awaited, awaited_handle, awaited_handles
from gridhand.library.backend import Backend, BackendPort, read_owner, the_backend
from gridhand.library.current_grid import enter, leave
from gridhand.library.functions.function_runner import close_runner
from gridhand.library.grid import Grid, OwnStrategy
from gridhand.library.grid_base import Result
from gridhand.library.job_handle import AsyncJob, Job
from gridhand.library.ledger_methods import LedgerMethods
from gridhand.library.streams.async_stream import AsyncStream
from gridhand.library.submission import with_jobs

if TYPE_CHECKING:
    from gridhand.controller.keeper.tracked_grants import Tracker
    from gridhand.library.functions.function_runner import FunctionRunner
    from gridhand.library.graphs.driver import GraphDriver
    from gridhand.library.graphs.result import GraphResult
    from gridhand.library.graphs.steps import Inbox
    from gridhand.library.job_handle import Facts
    from gridhand.library.streams.stream import Stream


class AsyncGrid:
    """`Grid` for asyncio: the same methods with the same parameters, to be awaited.

    A task that is cancelled leaves nothing behind: what it was granted is released, and the job
    that it submitted is cancelled.

    >>> async def main() -> str:
    ...     async with AsyncGrid.in_memory() as grid:
    ...         await grid.register_node("box", cpu=4)
    ...         async with await grid.allocate(cpu=2) as held:
    ...             return held.node
    >>> asyncio.run(main())
    'box'
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        owner: str | None = None,
        backend: Backend | None = None,
    ) -> None:
        """Connect to a controller, as `Grid` does. Connecting blocks for a moment."""
        self._backend = the_backend(backend, address)
        self._operations = LedgerMethods(read_owner(owner, self._backend))
        self._caller: FunctionRunner | None = None
        self._port: tuple[asyncio.AbstractEventLoop, BackendPort] | None = None

    @classmethod
    def in_memory(
        cls,
        *,
        strategy: OwnStrategy = "default",
        tracker: Tracker | None = None,
        owner: str | None = None,
    ) -> Self:
        """Return a grid that lives in this process, as `Grid.in_memory`."""
        return cls.of(Grid.in_memory(strategy=strategy, tracker=tracker, owner=owner))

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
        """Return a grid whose state is kept in a store, as `Grid.at`. Opening it blocks."""
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
        """Return the same grid for asyncio. Both may be used side by side."""
        return cls(backend=grid._backend, owner=grid.owner)

    def for_owner(self, owner: str) -> Self:
        """Return the same grid, acting in the name of another owner."""
        return type(self)(backend=self._backend, owner=check_label(owner, "owner"))

    @property
    def owner(self) -> str:
        """The owner of what this grid allocates and submits."""
        return self._operations.owner

    @property
    def identity(self) -> str:
        """The id of the ledger and how often it has changed owners, for `expect` of `Grid.at`."""
        return self._backend.identity

    def __repr__(self) -> str:
        return f"<grid of {self.owner} {self._backend.where}, for asyncio>"

    async def close(self) -> None:
        """Stop the functions being called, then disconnect or close the store, as `Grid.close`."""
        leave(self)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, close_runner, self)
        await loop.run_in_executor(None, self._backend.close)

    async def __aenter__(self) -> Self:
        """Make this the grid that tasks of the block are submitted to."""
        enter(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.close()

    register_node = awaited(Grid.register_node)
    register_nodes = awaited(Grid.register_nodes)
    nodes = awaited(Grid.nodes)
    node = awaited(Grid.node)
    drain = awaited(Grid.drain)
    resume = awaited(Grid.resume)
    set_health = awaited(Grid.set_health)
    unregister = awaited(Grid.unregister)
    report_foreign = awaited(Grid.report_foreign)

    fits = awaited(Grid.fits)
    explain = awaited(Grid.explain)
    allocate = awaited_handle(Grid.allocate, AsyncAllocation)
    allocate_group = awaited_handles(Grid.allocate_group, AsyncAllocation)
    reserve = awaited_handle(Grid.reserve, AsyncAllocation)
    confirm = awaited_handle(Grid.confirm, AsyncAllocation)
    renew = awaited_handle(Grid.renew, AsyncAllocation)
    release = awaited_handle(Grid.release, AsyncAllocation)
    allocations = awaited_handles(Grid.allocations, AsyncAllocation)

    status = awaited(Grid.status)
    check = awaited(Grid.check)
    dump = awaited(Grid.dump)
    events = awaited(Grid.events)

    run = awaited_handle(Grid.run, AsyncJob)
    run_array = awaited_handles(Grid.run_array, AsyncJob)
    run_gang = awaited_handles(Grid.run_gang, AsyncJob)
    jobs = awaited_handles(Grid.jobs, AsyncJob)
    job = awaited_handle(Grid.job, AsyncJob)
    queue = awaited(Grid.queue)
    cancel = awaited_handles(Grid.cancel, AsyncJob)
    hold = awaited_handles(Grid.hold, AsyncJob)
    unhold = awaited_handles(Grid.unhold, AsyncJob)

    result = awaited(Grid.result)

    execute = awaited(Grid.execute)
    stream = awaited_handle(Grid.stream, AsyncStream)

    async def prune(self, older_than_s: float, *, most: int = 5000) -> AsyncIterator[int]:
        """Delete events older than that many seconds, as `Grid.prune`; yield how many are left."""
        left = 1
        while left:
            left = await self._run(self._operations.prune(older_than_s, most))
            yield left

    # ---- what the methods of `Grid` use of `self`

    async def _run(self, operation: Operation[Reply]) -> Reply:
        loop = asyncio.get_running_loop()
        known = self._port
        if known is None or known[0] is not loop:  # another loop gets a port of its own
            known = self._port = loop, self._backend.port(loop)
        answer = known[1].run(operation)
        try:
            return await answer
        except asyncio.CancelledError:
            # Answered and cancelled in the same moment: the port could not see that.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._backend.give_back(operation, answer.result())
            raise

    async def _run_then(
        self, operation: Operation[Reply], make: Callable[[Reply], Result]
    ) -> Result:
        return make(await self._run(operation))

    def _allocation(self, records: list[Record]) -> AsyncAllocation:
        return AsyncAllocation(records[0], self)

    def _allocations(self, records: list[Record]) -> list[AsyncAllocation]:
        return [AsyncAllocation(record, self) for record in records]

    def _job(self, facts: Facts) -> AsyncJob:
        return AsyncJob(facts, with_jobs(self._backend))

    def _jobs(self, several: list[Facts]) -> list[AsyncJob]:
        return [self._job(facts) for facts in several]

    async def _job_result(self, id: str, timeout: float | None) -> Any:  # noqa: ASYNC109
        from gridhand.library.functions.detached import result_of

        job = await (await self.job(id)).wait(timeout)
        return result_of(Job(job.facts, with_jobs(self._backend)))

    async def _execute(self, make_driver: Callable[[Inbox], GraphDriver]) -> GraphResult:
        from gridhand.library.graphs.async_steps import LoopInbox, drive_async

        inbox = LoopInbox()
        return await drive_async(make_driver(inbox).steps(), self._run, inbox)

    async def _start_stream(self, start: Callable[[], Stream]) -> AsyncStream:
        return AsyncStream(await asyncio.to_thread(start))
