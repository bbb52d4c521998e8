"""A replay of a stream of jobs on a fake clock, through the dispatcher that a controller has.

Jobs arrive and end in the order of their times; nothing is stored, and nothing really runs. Three
dispatchers are compared on the same stream, with the same placement and the same expected times:

  fifo   jobs start in the order they came; the first that does not fit stops the pass
  easy   the same, but room is kept for the first that does not fit, and others may pass it if they
         end before that, or leave enough beside it
  ours   the order of the queue: priorities, shares of owners, request classes, kept room
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from gridhand import Node
from gridhand.controller.keeper import job_commands
from gridhand.controller.keeper.dispatcher import Dispatch
from gridhand.controller.keeper.ledger_commands import Context
from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.job import AttemptEnd, Job, Reason
from gridhand.core.jobs.spec import JobSpec
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.model.names import JobId
from gridhand.core.model.requests import Request
from gridhand.core.operations import EndAttempts, Ended
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.queue.timeline import RoomClaim

_SHORT_MS = 10_000  # shorter runs count as so long, for the slowdown


class StreamedJob(NamedTuple):
    """A job of a stream: when it comes, whose it is, and how long it runs and is said to run."""

    at: int
    owner: str
    asked: Request
    run_ms: int
    expect_ms: int


class InOrder(Dispatch):
    """Starts jobs in the order they came; with `passing`, others may pass the first."""

    def __init__(self, *, passing: bool) -> None:
        super().__init__()
        self._passing = passing
        self.timeline.patience_ms = 0

    def _start(self, context: Context, grant: Any) -> None:
        self.timeline.keep(self.queue.is_ready)
        refused: set[object] = set()
        head = True
        waiting = sorted(self.queue, key=lambda job: job.number)
        for job in waiting:
            if job.request in refused or (job.request, job.work.expect_ms) in refused:
                continue
            refusal = self._try(context, job)
            if refusal is None:
                continue
            if not self._passing:
                return
            if isinstance(refusal, RoomClaim):
                refused.add((job.request, job.work.expect_ms))
            else:
                refused.add(job.request)
            if head:
                head = False
                rank = self.queue.ready.rank(job.work.priority)
                self.timeline.plan(job, rank, job.request, context.snapshot, context.now)


POLICIES = {
    "fifo": lambda: InOrder(passing=False),
    "easy": lambda: InOrder(passing=True),
    "ours": Dispatch,
}


class Outcome(NamedTuple):
    """The results of one replay. Waits are in seconds."""

    mean_wait: float
    late_wait: float  # of the 95th percentile
    slowdown: float
    utilisation: float
    jain_share: float  # of the shares that owners have while they wait
    jain_slowdown: float  # of the mean slowdowns of owners
    decisions: tuple[tuple[int, str, str], ...]  # time, job, node


class Replay:
    """One stream on one cluster with one dispatcher."""

    def __init__(self, nodes: Sequence[Node], stream: Sequence[StreamedJob], policy: str) -> None:
        ledger = Ledger()
        for node in nodes:
            ledger.register(node)
        self.context = Context(ledger, Snapshot(ledger), None)
        self.dispatch = POLICIES[policy]()
        self.context.timeline = self.dispatch.timeline
        self.shares = self.dispatch.shares
        self._stream = stream
        self._ends: list[tuple[int, int, str]] = []
        self._decisions: list[tuple[int, str, str]] = []
        self._had: dict[str, float] = {}
        self._waited: dict[str, float] = {}
        self._busy = 0.0
        self._settled = 0
        self._shares_now: dict[str, float] = {}

    def run(self) -> Outcome:
        arrivals = sorted(range(len(self._stream)), key=lambda number: self._stream[number].at)
        last = self._stream[arrivals[-1]].at
        next_one = 0
        while next_one < len(arrivals) or self._ends:
            coming = self._stream[arrivals[next_one]].at if next_one < len(arrivals) else None
            ending = self._ends[0][0] if self._ends else None
            now = min(at for at in (coming, ending, self._due()) if at is not None)
            self._measure(min(now, last))
            self.context.now = max(self.context.now, now)
            while self._ends and self._ends[0][0] <= now:
                self._end(heapq.heappop(self._ends)[2])
            while next_one < len(arrivals) and self._stream[arrivals[next_one]].at <= now:
                self._submit(arrivals[next_one])
                next_one += 1
            self._decide()
        assert not self.context.ledger.jobs.open, "some job never started"
        return self._outcome(last)

    def _due(self) -> int | None:
        if isinstance(self.dispatch, InOrder):
            return None  # it has no times of its own
        due = self.dispatch.next_due()
        return None if due is None else max(due, self.context.now + 1)

    def _submit(self, number: int) -> None:
        one = self._stream[number]
        work = JobSpec(one.owner, ("true",), "/", one.asked, expect_ms=one.expect_ms)
        job = jobs.submit(work, id=JobId(str(number)), number=number, now=self.context.now)
        self.context.ledger.put_job("job.submitted", job)
        self.context.snapshot.learn(one.asked)

    def _end(self, id: str) -> None:
        attempt = self.context.ledger.jobs.open[JobId(id)].attempt
        assert attempt is not None
        how = AttemptEnd(attempt.number, attempt.allocation, Reason.EXIT, 0)
        job_commands.end_attempts(EndAttempts("*", ended=(Ended(id, how),)), self.context)

    def _decide(self) -> None:
        """Run passes until nothing more starts, and take note of what has started."""
        again = True
        while again:
            self.dispatch.run(self.context, lambda ticket: None)
            changes = list(self.context.ledger.changes)
            self.context.ledger.settle()
            self.dispatch.settled(changes)
            started = [one.after for one in changes if one.kind == "job.started"]
            for job in started:
                self._note_start(job)
            again = bool(started) and self.dispatch.due(self.context.now)
        self.shares.follow(self.context.ledger, self.context.now)
        self._shares_now = {one: self.shares.share(one) for one in self.shares.owners()}

    def _note_start(self, job: Job) -> None:
        assert job.attempt is not None
        self._decisions.append((self.context.now, job.id, job.attempt.node))
        run_ms = self._stream[int(job.id)].run_ms
        heapq.heappush(self._ends, (self.context.now + run_ms, job.number, job.id))

    def _measure(self, now: int) -> None:
        """Add up what owners had since the last time, while they waited."""
        passed, self._settled = now - self._settled, max(now, self._settled)
        if passed <= 0:
            return
        self._busy += passed * sum(self._shares_now.values())
        for owner in {job.work.owner for job in self.dispatch.queue}:
            self._waited[owner] = self._waited.get(owner, 0.0) + passed
            had = passed * self._shares_now.get(owner, 0.0)
            self._had[owner] = self._had.get(owner, 0.0) + had

    def _outcome(self, last: int) -> Outcome:
        waits, slowdowns = [], []
        by_owner: dict[str, list[float]] = {}
        for at, id, _ in self._decisions:
            one = self._stream[int(id)]
            wait = at - one.at
            waits.append(wait / 1000)
            slowdowns.append((wait + one.run_ms) / max(one.run_ms, _SHORT_MS))
            by_owner.setdefault(one.owner, []).append(slowdowns[-1])
        return Outcome(
            statistics.mean(waits),
            sorted(waits)[int(len(waits) * 0.95)],
            statistics.mean(slowdowns),
            self._busy / max(1, last),
            jain([self._had[owner] / waited for owner, waited in self._waited.items()]),
            jain([statistics.mean(found) for found in by_owner.values()]),
            tuple(self._decisions),
        )


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 if all are equal, 1/n if one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
