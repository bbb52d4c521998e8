"""Run a graph: validate the arguments, start functions as they become ready, collect results."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gridhand.core.errors import (
    CallFailed,
    FunctionFailed,
    GraphTimeout,
    GridClosed,
    InvalidInput,
)
from gridhand.core.graph.graph import Graph
from gridhand.core.graph.graph_run import GraphRun
from gridhand.core.model.resources import nearest_name
from gridhand.library.backend import Duration, read_ttl
from gridhand.library.functions.function_runner import (
    FunctionCall,
    FunctionRunner,
    Returned,
    Value,
    runner_of,
)
from gridhand.library.graphs.claims import ByStep, Claims, WholeGraph
from gridhand.library.graphs.progress import GraphProgress, Reporter, reporter_for
from gridhand.library.graphs.result import GraphResult, Used
from gridhand.library.graphs.steps import Inbox, Steps, Wait

if TYPE_CHECKING:
    from concurrent.futures import Future

    from gridhand.library.graph_methods import AnyGraph, Told
    from gridhand.library.graphs.claims import Claim
    from gridhand.library.grid_base import GridBase

_CHECK_S = 5.0  # between checks for calls that wait on a node that went down
_FEW = 100  # so few calls are counted at every report
_COUNTED_S = 0.1
_GRACE_S = 5.0  # for stopped calls to end


class CallEnded(NamedTuple):
    """A message: this attempt of the function has ended."""

    id: str
    call: Future[Returned]


class Deadline:
    """The time limit of a run."""

    def __init__(self, run: GraphRun, timeout_s: float | None) -> None:
        self._run = run
        self._timeout_s = timeout_s
        self.began = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def left_s(self) -> float | None:
        """Return the seconds left, None without a limit; raise `GraphTimeout` if none are left."""
        if self._timeout_s is None:
            return None
        left = self._timeout_s - self.seconds()
        if left <= 0:
            run = self._run
            raise GraphTimeout(self._timeout_s, len(run.done), run.total, list(run.running))
        return left


class GraphDriver:
    """One run, from its claims to its result. It releases what it holds however it ends."""

    def __init__(
        self,
        run: GraphRun,
        caller: FunctionRunner,
        claims: Claims,
        inbox: Inbox,
        *,
        run_id: str,
        inputs: Mapping[str, Any],
        deadline: Deadline,
        reporter: Reporter,
    ) -> None:
        self.run_id = run_id
        self._run = run
        self._caller = caller
        self._claims = claims
        self._inbox = inbox
        self._inputs = inputs
        self._deadline = deadline
        self._reporter = reporter
        self._calls: dict[str, Future[Returned]] = {}
        self._claimed: dict[str, Claim] = {}
        self._values: dict[str, Value] = {}
        self._used: dict[str, Used] = {}
        self._checked_s = 0.0
        self._counted = 0.0, 0
        self._lost = False

    def steps(self) -> Steps[GraphResult]:
        try:
            yield from self._claims.open()
            while not self._run.over:
                yield from self._start()
                for message in (yield Wait(self._patience_s())):
                    self._ended(message)
                yield from self._retry_stranded()
                self._report()
            if self._run.failure is not None:
                failed = self._run.failure
                raise FunctionFailed(failed.function, failed.error, failed.attempts)
            return self._result()
        finally:
            self._reporter.end()
            try:
                yield from self._stop()
            finally:
                yield from self._claims.close()

    # ---- starting

    def _start(self) -> Steps[None]:
        ids = self._run.start()
        if not ids:
            return
        claims = yield from self._claims.claims(ids)
        for id in ids:
            self._call(id, claims[id])
        self._report()

    def _call(self, id: str, claim: Claim) -> None:
        plan = self._run.plans[id]
        args = [
            self._values[need] if need in self._values else self._inputs[need]
            for need in plan.needs
        ]
        call = self._caller.submit(
            FunctionCall(
                plan.code,
                claim.request,
                (*args, *plan.extra_args),
                name=id,
                held=claim.held,
            )
        )
        self._calls[id] = call
        self._claimed[id] = claim
        call.add_done_callback(lambda done: self._inbox.put(CallEnded(id, done)))

    # ---- ends

    def _ended(self, message: CallEnded) -> None:
        id, call = message
        if self._calls.get(id) is not call:
            _discard(call)  # an earlier attempt that was given up
            return
        del self._calls[id]
        if self._run.failure is not None:
            self._run.put_back(id)
            _discard(call)
            return
        if call.cancelled():
            raise GridClosed(
                f"the grid was closed before function {id} ended", hint="Open another grid."
            )
        error = call.exception()
        if error is None:
            self._succeeded(id, call.result())
        elif not isinstance(error, CallFailed):
            self._run.failed(id, error)
        elif self._was_lost(id, error):
            self._lost = True
            self._run.lost(id, error)
        elif error.reason in _HOPELESS:
            self._run.refused(id, error.__cause__ or error)
        else:
            self._run.failed(id, error)

    def _was_lost(self, id: str, error: CallFailed) -> bool:
        """Return whether the call may be tried on another node."""
        if error.reason == "not_placed":
            return self._claims.lost(id, self._claimed[id], placed=False)
        if error.lost:
            self._claims.lost(id, self._claimed[id], placed=True)
        return error.lost

    def _succeeded(self, id: str, returned: Returned) -> None:
        self._values[id] = returned.value
        request = self._claimed[id].request
        self._used[id] = Used(returned.node or None, returned.allocation or None, request.resources)
        for unneeded in self._run.succeeded(id):
            self._values.pop(unneeded).drop()

    def _retry_stranded(self) -> Steps[None]:
        """Take back calls that wait on a node that went down, and try them elsewhere."""
        if self._run.over or not (self._lost or self._since_check_s() >= _CHECK_S):
            return
        self._lost = False
        self._checked_s = self._deadline.seconds()
        for id in (yield from self._claims.stranded()):
            call = self._calls.pop(id)
            if call.running():
                self._run.lost(id, CallFailed(id, "node_lost", "its node was lost"))
            else:
                self._run.put_back(id)
            self._caller.stop(call)

    def _since_check_s(self) -> float:
        return self._deadline.seconds() - self._checked_s

    def _patience_s(self) -> float:
        """Return how long to wait for messages."""
        waits = [_CHECK_S - self._since_check_s(), self._deadline.left_s(), self._report_due_s()]
        return max(0.0, min(one for one in waits if one is not None))

    def _report_due_s(self) -> float | None:
        due = self._reporter.due_s
        return None if due is None else due - self._deadline.seconds()

    def _report(self) -> None:
        if self._reporter.due_s is None:
            return
        run = self._run
        self._reporter.report(
            GraphProgress(
                self.run_id,
                len(run.done),
                run.total,
                self._running(),
                run.retried,
                self._deadline.seconds(),
            )
        )

    def _running(self) -> int:
        """Return how many calls run; with many calls, as of at most 0.1 s ago."""
        now = self._deadline.seconds()
        if len(self._calls) <= _FEW or now >= self._counted[0] + _COUNTED_S:
            self._counted = now, sum(call.running() for call in self._calls.values())
        return min(self._counted[1], len(self._run.running))

    # ---- ending

    def _result(self) -> GraphResult:
        order = [id for id in self._run.plans if id in self._run.kept]
        return GraphResult(
            self.run_id,
            {id: self._values[id].load() for id in order},
            {id: self._used[id] for id in self._run.plans},
            dict(self._run.attempts),
            self._deadline.seconds(),
        )

    def _stop(self) -> Steps[None]:
        """Stop running calls and wait for them to end, so that what they held is released."""
        for id in self._run.stop():
            if id in self._calls:
                self._caller.stop(self._calls[id])
        until = time.monotonic() + _GRACE_S
        while any(not call.done() for call in self._calls.values()) and time.monotonic() < until:
            yield Wait(max(0.0, until - time.monotonic()))
        for call in self._calls.values():
            _discard(call)
        for value in self._values.values():
            value.drop()


_HOPELESS = frozenset({"not_placed", "unsendable"})  # another attempt would fail the same way


def _discard(call: Future[Returned]) -> None:
    """Drop the value of a call that nobody needs."""
    if call.done() and not call.cancelled() and call.exception() is None:
        call.result().value.drop()


def driver_for(
    grid: GridBase,
    inbox: Inbox,
    graph: AnyGraph,
    inputs: Mapping[str, Any] | None,
    max_retries: int,
    max_concurrency: int | None,
    claim: str,
    progress: Told,
    timeout: Duration | None,
    keep: Iterable[str] | None,
) -> GraphDriver:
    """Return a driver that is ready to start; raise if the graph or an argument is invalid.

    Nothing is held before everything has been checked.
    """
    checked = Graph.read(graph)
    run = GraphRun(checked, max_retries=max_retries, max_concurrency=max_concurrency, keep=keep)
    timeout_ms = read_ttl(timeout, "timeout")
    deadline = Deadline(run, None if timeout_ms is None else timeout_ms / 1000)
    run_id = f"r{os.urandom(5).hex()}"
    claims: Claims
    if claim == "step":
        claims = ByStep(run, grid._operations)
    elif claim == "whole":
        claims = WholeGraph(run, grid._operations, run_id, deadline.left_s)
    else:
        raise InvalidInput("claim", claim, '"step" or "whole"')
    return GraphDriver(
        run,
        runner_of(grid),
        claims,
        inbox,
        run_id=run_id,
        inputs=_read_inputs(checked, inputs),
        deadline=deadline,
        reporter=reporter_for(progress),
    )


def _read_inputs(graph: Graph, given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidInput("inputs", given, "a mapping of ids to values")
    inputs = dict(given or {})
    wanted = [function.id for function in graph if function.type == "input"]
    for id in inputs:
        if id not in wanted:
            close = nearest_name(id, wanted) if isinstance(id, str) else None
            meant = f" (did you mean {close}?)" if close else ""
            raise InvalidInput("inputs", id, f"the id of an input of the graph{meant}")
    for id in wanted:
        if id not in inputs:
            raise InvalidInput("inputs", inputs, f"a value for the input {id}")
    return inputs
