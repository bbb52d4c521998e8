"""The beginning of a run: what was given is read and checked, before anything is held."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gridhand.core.errors import InvalidInput
from gridhand.core.graph import Graph
from gridhand.core.graphrun import GraphRun
from gridhand.core.resources import nearest_name
from gridhand.library.backend import read_ttl
from gridhand.library.calling import caller_of
from gridhand.library.graphclaims import AsAWhole, ByStep, Claims
from gridhand.library.graphdriver import Deadline, Driver
from gridhand.library.graphprogress import teller_for

if TYPE_CHECKING:
    from gridhand.library.graphs import AnyGraph, RunsGraphs, RunsGraphsAsync, Told
    from gridhand.library.steps import Inbox


def driver_for(
    grid: RunsGraphs | RunsGraphsAsync,
    inbox: Inbox,
    graph: AnyGraph,
    inputs: Mapping[str, Any] | None,
    max_retries: int,
    max_concurrency: int | None,
    claim: str,
    progress: Told,
    timeout: float | None,
    keep: Iterable[str] | None,
) -> Driver:
    """A run that is ready to begin, or an error that says why there cannot be one."""
    read = Graph.read(graph)
    run = GraphRun(read, max_retries=max_retries, max_concurrency=max_concurrency, keep=keep)
    timeout_ms = read_ttl(timeout, "timeout")
    deadline = Deadline(run, None if timeout_ms is None else timeout_ms / 1000)
    run_id = f"r{os.urandom(5).hex()}"
    claims: Claims
    if claim == "step":
        claims = ByStep(run, grid._calls)
    elif claim == "whole":
        claims = AsAWhole(run, grid._calls, run_id, deadline.left_s)
    else:
        raise InvalidInput("claim", claim, '"step" or "whole"')
    return Driver(
        run,
        caller_of(grid),
        claims,
        inbox,
        run_id=run_id,
        inputs=_read_inputs(read, inputs),
        deadline=deadline,
        teller=teller_for(progress),
    )


def _read_inputs(graph: Graph, given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidInput("inputs", given, "a mapping of ids to values")
    inputs = dict(given or {})
    wanted = [one.id for one in graph if one.type == "input"]
    for id in inputs:
        if id not in wanted:
            close = nearest_name(id, wanted) if isinstance(id, str) else None
            meant = f" (did you mean {close}?)" if close else ""
            raise InvalidInput("inputs", id, f"only the ids of inputs of the graph{meant}")
    for id in wanted:
        if id not in inputs:
            raise InvalidInput("inputs", inputs, f"a value for {id}, which is an input")
    return inputs
