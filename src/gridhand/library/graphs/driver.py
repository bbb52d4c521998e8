"""The run of a graph: starts what may start, hears how it ends, and leaves nothing behind."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gridhand.core.errors import CallFailed, FunctionFailed, GraphTimeout, GridClosed
from gridhand.library.caller import Caller, FunctionCall, Returned, Value
from gridhand.library.graphprogress import Progress, Teller
from gridhand.library.graphresult import GraphResult, Used
from gridhand.library.steps import Inbox, Steps, Wait

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from gridhand.core.graphrun import GraphRun
    from gridhand.library.graphclaims import Claim, Claims

_LOOK_S = 5.0  # between looks for nodes that went down under what waits for them
_FEW = 100  # calls that are soon counted
_COUNTED_S = 0.1
_GRACE_S = 5.0  # for calls that were stopped to be over


class Ended(NamedTuple):
    """A message: that attempt of the function is over."""

    id: str
    call: Future[Returned]


class Deadline:
    """When a run must be done."""

    def __init__(self, run: GraphRun, timeout_s: float | None) -> None:
        self._run = run
        self._timeout_s = timeout_s
        self.began = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def left_s(self) -> float | None:
        """How much time is left, or `GraphTimeout` if none is."""
        if self._timeout_s is None:
            return None
        left = self._timeout_s - self.seconds()
        if left <= 0:
            run = self._run
            raise GraphTimeout(self._timeout_s, len(run.done), run.total, list(run.running))
        return left


class Driver:
    """One run, from its claims to its result. What it holds it gives back, however it ends."""

    def __init__(
        self,
        run: GraphRun,
        caller: Caller,
        claims: Claims,
        inbox: Inbox,
        *,
        run_id: str,
        inputs: Mapping[str, Any],
        deadline: Deadline,
        teller: Teller,
    ) -> None:
        self.run_id = run_id
        self._run = run
        self._caller = caller
        self._claims = claims
        self._inbox = inbox
        self._inputs = inputs
        self._deadline = deadline
        self._teller = teller
        self._calls: dict[str, Future[Returned]] = {}
        self._asked: dict[str, Claim] = {}
        self._values: dict[str, Value] = {}
        self._used: dict[str, Used] = {}
        self._looked_s = 0.0
        self._counted = 0.0, 0
        self._lost = False

    def steps(self) -> Steps[GraphResult]:
        try:
            yield from self._claims.open()
            while not self._run.over:
                yield from self._start()
                for message in (yield Wait(self._patience_s())):
                    self._ended(message)
                yield from self._look()
                self._tell()
            if self._run.failure is not None:
                failed = self._run.failure
                raise FunctionFailed(failed.function, failed.error, failed.attempts)
            return self._result()
        finally:
            self._teller.end()
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
        self._tell()

    def _call(self, id: str, claim: Claim) -> None:
        plan = self._run.plans[id]
        args = [
            self._values[one] if one in self._values else self._inputs[one] for one in plan.needs
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
        self._asked[id] = claim
        call.add_done_callback(lambda done: self._inbox.put(Ended(id, done)))

    # ---- hearing

    def _ended(self, message: Ended) -> None:
        id, call = message
        if self._calls.get(id) is not call:
            _discard(call)  # it was taken back before
            return
        del self._calls[id]
        if self._run.failure is not None:
            self._run.put_back(id)
            _discard(call)
            return
        if call.cancelled():
            raise GridClosed(
                f"the grid was closed while function {id} was to run", hint="Open another one."
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
        """Whether it may have more luck elsewhere."""
        if error.reason == "not_placed":
            return self._claims.lost(id, self._asked[id], placed=False)
        if error.lost:
            self._claims.lost(id, self._asked[id], placed=True)
        return error.lost

    def _succeeded(self, id: str, returned: Returned) -> None:
        self._values[id] = returned.value
        asked = self._asked[id].request
        self._used[id] = Used(returned.node or None, returned.allocation or None, asked.resources)
        for one in self._run.succeeded(id):
            self._values.pop(one).drop()

    def _look(self) -> Steps[None]:
        """Take back those that were sent to a node that is down by now, and try them elsewhere."""
        if self._run.over or not (self._lost or self._since_look_s() >= _LOOK_S):
            return
        self._lost = False
        self._looked_s = self._deadline.seconds()
        for id in (yield from self._claims.stranded()):
            call = self._calls.pop(id)
            if call.running():
                self._run.lost(id, CallFailed(id, "node_lost", "the node it was on was lost"))
            else:
                self._run.put_back(id)
            self._caller.stop(call)

    def _since_look_s(self) -> float:
        return self._deadline.seconds() - self._looked_s

    def _patience_s(self) -> float:
        """How long to wait for news."""
        waits = [_LOOK_S - self._since_look_s(), self._deadline.left_s(), self._bar_s()]
        return max(0.0, min(one for one in waits if one is not None))

    def _bar_s(self) -> float | None:
        due = self._teller.due_s
        return None if due is None else due - self._deadline.seconds()

    def _tell(self) -> None:
        if self._teller.due_s is None:
            return
        run = self._run
        self._teller.tell(
            Progress(
                self.run_id,
                len(run.done),
                run.total,
                self._running(),
                run.retried,
                self._deadline.seconds(),
            )
        )

    def _running(self) -> int:
        """How many calls do not wait for room any more, as of a moment ago if there are many."""
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
        """End what runs, and wait a while for it to be over: what it held is then given back."""
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


_HOPELESS = frozenset({"not_placed", "unsendable"})  # another try would end the same


def _discard(call: Future[Returned]) -> None:
    """Nobody wants its value."""
    if call.done() and not call.cancelled() and call.exception() is None:
        call.result().value.drop()
