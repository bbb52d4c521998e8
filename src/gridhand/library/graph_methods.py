"""The methods of `Grid` that run graphs of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gridhand.core.errors import InvalidInput
from gridhand.library.grid_base import GridBase

if TYPE_CHECKING:
    from gridhand.core.graph.function import Function
    from gridhand.core.graph.graph import Graph
    from gridhand.library.backend import Duration
    from gridhand.library.graphs.driver import GraphDriver
    from gridhand.library.graphs.progress import GraphProgress
    from gridhand.library.graphs.result import GraphResult
    from gridhand.library.graphs.steps import Inbox
    from gridhand.library.streams.stream import Stream

    AnyGraph = Graph | Iterable[Function | Mapping[str, Any]]
    Told = bool | Callable[[GraphProgress], object] | None

DEFAULT_RETRIES = 3
DEFAULT_CAPACITY = 1000  # items of a stream


class GraphMethods(GridBase):
    """Run functions that are joined by their arguments: once, or as a stream."""

    def execute(
        self,
        graph: AnyGraph,
        *,
        inputs: Mapping[str, Any] | None = None,
        retries: int | None = None,
        max_retries: int | None = None,
        max_concurrency: int | None = None,
        claim: str = "step",
        progress: Told = None,
        timeout: Duration | None = None,
        keep: Iterable[str] | None = None,
    ) -> GraphResult:
        """Run each function of a graph as soon as its arguments exist; return all results.

        A function holds its resources while it runs. When one fails after its retries, the run
        ends with `FunctionFailed`: nothing more is started and what runs is stopped. However a
        run ends, it holds nothing afterwards. A graph that cannot run is refused before any
        function starts.

        inputs: the values of the graph's inputs, by id.
        retries: how often a function that fails is tried again: 3 times by default, as in
            Handoff, which calls it `max_retries`.
        max_concurrency: how many functions may run at once.
        claim: `"step"` holds the resources of each function while it runs; `"whole"` holds those
            of the whole graph from the beginning to the end.
        progress: True draws a progress bar and False none; a callable is passed a
            `GraphProgress`; None draws a bar on a terminal after a second.
        timeout: seconds after which the run is given up, or a text such as "5m".
        keep: the ids whose results are returned. The others are dropped as soon as no function
            needs them. None keeps all.
        """

        def make_driver(inbox: Inbox) -> GraphDriver:
            from gridhand.library.graphs.driver import driver_for

            most = _retries(retries, max_retries)
            return driver_for(
                self, inbox, graph, inputs, most, max_concurrency, claim, progress, timeout,
                keep,
            )  # fmt: skip

        return self._execute(make_driver)

    def stream(
        self,
        graph: AnyGraph,
        *,
        capacity: int = DEFAULT_CAPACITY,
        join_timeout: Duration | None = None,
        timeout: Duration | None = 60.0,
    ) -> Stream:
        """Start the functions of a graph as stages, for items that are pushed into its inputs.

        Each function becomes a stage with `parallelism` workers, which hold its resources until
        the stream is stopped. The result of its `init` is passed before its other arguments. A
        stage with a `batch_size` takes a list of items and returns one.

        capacity: how many items may be in the stream at a time.
        join_timeout: seconds that the parts of one item wait for each other where they are joined.
        timeout: seconds to wait for room for all stages.
        """

        def start() -> Stream:
            from gridhand.library.streams.start_stream import start_stream

            return start_stream(
                self, graph, capacity=capacity, join_timeout=join_timeout, timeout=timeout
            )

        return self._start_stream(start)

    def _execute(self, make_driver: Callable[[Inbox], GraphDriver]) -> GraphResult:
        from gridhand.library.graphs.steps import ThreadInbox, drive

        inbox = ThreadInbox()
        return drive(make_driver(inbox).steps(), self._backend.run, inbox)

    def _start_stream(self, start: Callable[[], Stream]) -> Stream:
        return start()


def _retries(retries: int | None, max_retries: int | None) -> int:
    """Return how often functions of a graph are tried again, by either name."""
    if retries is not None and max_retries is not None:
        raise InvalidInput("max_retries", max_retries, "`retries` alone; both mean the same")
    given = max_retries if retries is None else retries
    return DEFAULT_RETRIES if given is None else given
