"""The beginning of a stream: what was given is read and checked, and its stages find a place."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

from gridhand.core.graph import Graph
from gridhand.core.graphrun import GraphRun
from gridhand.core.graphs import check_count
from gridhand.core.streamrun import StreamRun, Workers, check_room
from gridhand.library.backend import read_ttl
from gridhand.library.calling import caller_of
from gridhand.library.graphclaims import ByStep
from gridhand.library.stageports import Sockets, Threads, Wiring
from gridhand.library.steps import ThreadInbox, drive
from gridhand.library.streams import Stream
from gridhand.library.threadcaller import ThreadCaller

if TYPE_CHECKING:
    from gridhand.library.graphs import AnyGraph, RunsGraphs, RunsGraphsAsync

MOST_CAPACITY = 1_000_000


def stream_of(
    grid: RunsGraphs | RunsGraphsAsync,
    graph: AnyGraph,
    *,
    capacity: int,
    join_timeout: float | None,
    timeout: float | None,
) -> Stream:
    """A stream whose stages are all there."""
    read = Graph.read(graph)
    join_ms, timeout_ms = read_ttl(join_timeout, "join_timeout"), read_ttl(timeout, "timeout")
    check_count("capacity", capacity, 1, MOST_CAPACITY)
    run = StreamRun(read, join_timeout_s=None if join_ms is None else join_ms / 1000)
    caller = caller_of(grid)
    # Where stages go that are to be together is chosen as for a graph that is run once.
    claims = ByStep(GraphRun(read), grid._calls)
    ask = grid._backend.call
    drive(claims.open(), ask, ThreadInbox())
    chosen = drive(claims.claims(list(run.plans)), ask, ThreadInbox())
    requests = {id: claim.request for id, claim in chosen.items()}
    workers = {id: Workers(one, run.functions[id].parallelism) for id, one in requests.items()}
    check_room(workers, {one.name: one.total for one in ask(grid._backend.status()).nodes})
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threads = isinstance(caller, ThreadCaller)
    wiring: Wiring = Threads(inbox.put) if threads else Sockets(inbox.put)
    stream = Stream(run, caller, wiring, inbox, requests, capacity=capacity)
    stream.begin(None if timeout_ms is None else timeout_ms / 1000)
    return stream
