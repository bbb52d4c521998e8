"""A dispatcher on a ledger without a store, where jobs arrive, run and end on a fake clock."""

import heapq
import random
from itertools import count

from gridhand import Node
from gridhand.controller.keeper import job_commands
from gridhand.controller.keeper.dispatcher import Dispatch
from gridhand.controller.keeper.ledger_commands import Context
from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.job import AttemptEnd, JobState, Reason
from gridhand.core.jobs.spec import JobSpec, Priority
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.model.requests import Request
from gridhand.core.operations import EndAttempts, Ended
from gridhand.core.placement.snapshot import Snapshot

SECOND = 1000
START = 1_000_000_000


class QueueWorld:
    """Jobs run as long as they were made to, unless they are stopped: then half their grace."""

    def __init__(self, **cpus):
        ledger = Ledger()
        for name, cpu in cpus.items():
            ledger.register(Node.of(name, cpu=cpu))
        ledger.settle()
        self.context = Context(ledger, Snapshot(ledger), None, START)
        self.dispatch = Dispatch()
        self.context.timeline = self.dispatch.timeline
        self.run_ms = {}
        self.ends = []  # time, serial, job, attempt
        self.starts = []  # time, job, node
        self.stops = []  # time, victim, how long it had run, why
        self.over = {}  # job: times it reached a final state
        self.number = 0
        self.serials = count()

    @property
    def now(self):
        return self.context.now

    @property
    def open(self):
        return self.context.ledger.jobs.open

    def submit(self, cpu=1, *, owner="ann", priority=Priority.MEDIUM, run_ms=60 * SECOND, **wishes):
        self.number += 1
        id = str(self.number)
        work = JobSpec(owner, ("true",), "/", Request.of(cpu=cpu), priority=priority, **wishes)
        self.run_ms[id] = run_ms
        one = jobs.submit(work, id=id, number=self.number, now=self.now)
        self.context.ledger.put_job("job.submitted", one)
        return id

    def decide(self):
        """Run passes until there is nothing more to do now."""
        while True:
            self.dispatch.run(self.context, lambda ticket: None)
            changes = list(self.context.ledger.changes)
            self.context.ledger.settle()
            self.dispatch.settled(changes)
            for change in changes:
                self._note(change)
            if not changes or not self.dispatch.due(self.now):
                return

    def _note(self, change):
        one = change.after
        if change.kind == "job.started":
            self.starts.append((self.now, one.id, one.attempt.node))
            self._plan_end(one, self.run_ms[one.id])
        elif change.kind == "job.stopping":
            self.stops.append((self.now, one.id, self.now - one.attempt.placed, change.why))
            self._plan_end(one, one.work.grace_ms // 2)
        elif change.kind == "job.ended":
            self.over[one.id] = self.over.get(one.id, 0) + 1

    def _plan_end(self, one, after_ms):
        entry = (self.now + after_ms, next(self.serials), one.id, one.attempt.number)
        heapq.heappush(self.ends, entry)

    def end(self, id, reason=Reason.EXIT, code=0, signal=None):
        attempt = self.open[id].attempt
        self.end_as(id, AttemptEnd(attempt.number, attempt.allocation, reason, code, signal=signal))

    def end_as(self, id, how):
        job_commands.end_attempts(EndAttempts("*", ended=(Ended(id, how),)), self.context)

    def _end_due(self):
        while self.ends and self.ends[0][0] <= self.now:
            _, _, id, number = heapq.heappop(self.ends)
            attempt = self.open[id].attempt if id in self.open else None
            if attempt is None or attempt.number != number:
                continue
            if attempt.stopping is None:
                self.end(id)
            else:
                self.end(id, Reason.SIGNAL, None, 15)

    def advance(self, until):
        """Let time pass: whatever ends or is due until then happens."""
        while True:
            due = self.dispatch.next_due()
            times = [self.ends[0][0]] if self.ends else []
            times += [max(due, self.now + 1)] if due is not None else []
            if not times or min(times) > until:
                break
            self.context.now = max(self.now, min(times))
            self._end_due()
            self.decide()
        self.context.now = max(self.now, until)

    def held(self, owner):
        return sum(
            one.request.amounts["cpu"] / 10_000
            for one in self.open.values()
            if one.work.owner == owner and one.state is JobState.RUNNING
        )

    def running(self):
        return [one.id for one in self.open.values() if one.state is JobState.RUNNING]

    def waiting(self, owner=None):
        return [
            one
            for one in self.open.values()
            if one.state is JobState.QUEUED and owner in (None, one.work.owner)
        ]


def random_stream(seed, jobs_to_come, *, urgent=0.1, nodes=3):
    """A world after so many random arrivals, ends and stops: the same for the same seed."""
    chance = random.Random(seed)
    world = QueueWorld(**{f"n{number}": chance.choice((2, 4, 8)) for number in range(nodes)})
    priorities = (Priority.HIGH, Priority.MEDIUM, Priority.LOW)
    for _ in range(jobs_to_come):
        is_urgent = chance.random() < urgent
        run_ms = int(min(600, 5 * chance.paretovariate(1.2)) * SECOND)
        world.submit(
            chance.choice((1, 1, 1, 2)),
            owner=chance.choice(("ann", "bob", "eve")),
            priority=Priority.URGENT if is_urgent else chance.choice(priorities),
            run_ms=run_ms,
            expect_ms=chance.choice((None, run_ms, 2 * run_ms)),
            grace_ms=chance.choice((2, 10)) * SECOND,
        )
        world.decide()
        world.advance(world.now + chance.choice((0, 1, 2, 4, 6)) * SECOND)
    return world
