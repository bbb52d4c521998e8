"""Start a stream: check the arguments, choose nodes for the stages and start their workers."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

from gridhand.core.graph.function import check_count
from gridhand.core.graph.graph import Graph
from gridhand.core.graph.graph_run import GraphRun
from gridhand.core.graph.stream_run import StageWorkers, StreamRun, check_room
from gridhand.core.operations import GetStatus
from gridhand.library.backend import Duration, read_ttl
from gridhand.library.functions.function_runner import runner_of
from gridhand.library.graphs.claims import ByStep
from gridhand.library.graphs.steps import ThreadInbox, drive
from gridhand.library.streams.stage_ports import SocketWiring, ThreadWiring, Wiring
from gridhand.library.streams.stream import Stream
from gridhand.library.thread_runner.thread_runner import ThreadRunner

if TYPE_CHECKING:
    from gridhand.library.graph_methods import AnyGraph
    from gridhand.library.grid_base import GridBase

MOST_CAPACITY = 1_000_000


def start_stream(
    grid: GridBase,
    graph: AnyGraph,
    *,
    capacity: int,
    join_timeout: Duration | None,
    timeout: Duration | None,
) -> Stream:
    """Return a stream whose stages all have their workers."""
    checked = Graph.read(graph)
    join_ms, timeout_ms = read_ttl(join_timeout, "join_timeout"), read_ttl(timeout, "timeout")
    check_count("capacity", capacity, 1, MOST_CAPACITY)
    run = StreamRun(checked, join_timeout_s=None if join_ms is None else join_ms / 1000)
    caller = runner_of(grid)
    # Nodes of collocated stages are chosen as for a graph that runs once.
    claims = ByStep(GraphRun(checked), grid._operations)
    ask = grid._backend.run
    drive(claims.open(), ask, ThreadInbox())
    chosen = drive(claims.claims(list(run.plans)), ask, ThreadInbox())
    requests = {id: claim.request for id, claim in chosen.items()}
    workers = {id: StageWorkers(one, run.functions[id].parallelism) for id, one in requests.items()}
    check_room(workers, {one.name: one.total for one in ask(GetStatus()).nodes})
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threads = isinstance(caller, ThreadRunner)
    wiring: Wiring = ThreadWiring(inbox.put) if threads else SocketWiring(inbox.put)
    stream = Stream(run, caller, wiring, inbox, requests, capacity=capacity)
    stream.begin(None if timeout_ms is None else timeout_ms / 1000)
    return stream
