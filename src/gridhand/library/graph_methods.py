"""The methods of `Grid` and `AsyncGrid` that run graphs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gridhand.core.calls import Call
    from gridhand.core.graph import Graph
    from gridhand.core.graphs import Function
    from gridhand.library.astreams import AsyncStream
    from gridhand.library.backend import Backend
    from gridhand.library.caller import Caller
    from gridhand.library.calls import Calls
    from gridhand.library.graphprogress import Progress
    from gridhand.library.graphresult import GraphResult
    from gridhand.library.streams import Stream

    AnyGraph = Graph | Iterable[Function | Mapping[str, Any]]
    Told = bool | Callable[[Progress], object] | None

DEFAULT_RETRIES = 3
DEFAULT_CAPACITY = 1000  # items of a stream


class RunsGraphs:
    """What a grid can do with functions that are joined by their arguments."""

    _backend: Backend
    _calls: Calls
    _caller: Caller | None

    def execute(
        self,
        graph: AnyGraph,
        *,
        inputs: Mapping[str, Any] | None = None,
        max_retries: int = DEFAULT_RETRIES,
        max_concurrency: int | None = None,
        claim: str = "step",
        progress: Told = None,
        timeout: float | None = None,
        keep: Iterable[str] | None = None,
    ) -> GraphResult:
        """Run the functions of a graph, each when what it takes is there, and come back with all.

        A function holds what it costs while it runs; with `claim="whole"` all of it is held from
        the beginning to the end. The first that fails, after its retries, ends the run with
        `FunctionFailed`: nothing more is started, and what runs is stopped. However it ends, it
        holds nothing afterwards. A graph that cannot be run is refused before anything is.

        `inputs` are the values of the inputs; of those not in `keep` the values are given up as
        soon as nothing needs them. `timeout` is in seconds. `progress` is True for a bar, False
        for none, or a function to be told; None draws one on a terminal after a second.
        """
        from gridhand.library.graphstart import driver_for
        from gridhand.library.steps import ThreadInbox, drive

        inbox = ThreadInbox()
        driver = driver_for(
            self, inbox, graph, inputs, max_retries, max_concurrency, claim, progress, timeout, keep
        )
        return drive(driver.steps(), self._backend.call, inbox)

    def stream(
        self,
        graph: AnyGraph,
        *,
        capacity: int = DEFAULT_CAPACITY,
        join_timeout: float | None = None,
        timeout: float | None = 60.0,
    ) -> Stream:
        """Have the functions of a graph stand by, for items that are pushed into its inputs.

        Each is a stage with `parallelism` workers, which hold what it costs until the stream is
        stopped; what its `init` returned comes before its other arguments. With a `batch_size` it
        takes lists and returns one. At most `capacity` items are on their way at a time. Parts of
        one that are to be joined wait `join_timeout` seconds for each other; without room for a
        stage within `timeout` seconds it is given up.
        """
        from gridhand.library.streaming import stream_of

        return stream_of(self, graph, capacity=capacity, join_timeout=join_timeout, timeout=timeout)


class RunsGraphsAsync:
    """The same, to be awaited."""

    _backend: Backend
    _calls: Calls
    _caller: Caller | None

    def _hold(self, call: Call[Any]) -> Awaitable[Any]:
        raise NotImplementedError

    async def execute(
        self,
        graph: AnyGraph,
        *,
        inputs: Mapping[str, Any] | None = None,
        max_retries: int = DEFAULT_RETRIES,
        max_concurrency: int | None = None,
        claim: str = "step",
        progress: Told = None,
        timeout: float | None = None,  # noqa: ASYNC109, the same as without asyncio
        keep: Iterable[str] | None = None,
    ) -> GraphResult:
        """Run the functions of a graph, as `Grid.execute` does. To be cancelled stops them."""
        from gridhand.library.asteps import LoopInbox, drive_async
        from gridhand.library.graphstart import driver_for

        inbox = LoopInbox()
        driver = driver_for(
            self, inbox, graph, inputs, max_retries, max_concurrency, claim, progress, timeout, keep
        )
        return await drive_async(driver.steps(), self._hold, inbox)

    async def stream(
        self,
        graph: AnyGraph,
        *,
        capacity: int = DEFAULT_CAPACITY,
        join_timeout: float | None = None,
        timeout: float | None = 60.0,  # noqa: ASYNC109, the same as without asyncio
    ) -> AsyncStream:
        """Have the functions of a graph stand by, as `Grid.stream` does."""
        import asyncio

        from gridhand.library.astreams import AsyncStream
        from gridhand.library.streaming import stream_of

        made = await asyncio.to_thread(
            stream_of,
            self,
            graph,
            capacity=capacity,
            join_timeout=join_timeout,
            timeout=timeout,
        )
        return AsyncStream(made)
