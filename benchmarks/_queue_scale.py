"""The cost of one pass over a long queue, on a real keeper, beside a naive pass over all jobs.

Every node is full: it runs a job of one core, one of three, one of 20 and one of 40. Waiting jobs
ask for 2 to 41 cores with one of five amounts of memory, so the end of a job of one core lets
nothing start, that of three cores one job, and those of larger ones several.

Times are those of the keeper's thread alone, so that other work on the machine does not count.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from gridhand import Node
from gridhand.controller.keeper.dispatcher import Dispatch
from gridhand.controller.keeper.embedded import Embedded
from gridhand.controller.keeper.keeper import Keeper
from gridhand.controller.keeper.questions import Read
from gridhand.controller.keeper.tickets import NOWHERE, Ticket
from gridhand.core.jobs.job import AttemptEnd, Job, JobState, Reason
from gridhand.core.jobs.spec import JobSpec, Priority
from gridhand.core.model.requests import Request
from gridhand.core.operations import EndAttempts, Ended, Register, Submit
from gridhand.core.placement.place import place
from gridhand.store.urls import memory_store

FILLERS = (1, 3, 20, 40)
CORES = sum(FILLERS)
_AT_ONCE = 1000
_PRIORITIES = (*[Priority.MEDIUM] * 6, Priority.LOW, Priority.LOW, Priority.HIGH, Priority.HIGH)


class Pass(NamedTuple):
    """One pass of the dispatcher: what it took in ms, and how many jobs it started."""

    ms: float
    started: int


class TimedDispatch(Dispatch):
    """A dispatcher that notes what its passes cost, and what a whole batch does."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[Pass] = []

    def run(self, context: Any, *args: Any, **options: Any) -> None:
        begun, known = time.thread_time(), len(context.ledger.changes)
        super().run(context, *args, **options)
        took = time.thread_time() - begun
        kinds = [change.kind for change in context.ledger.changes[known:]]
        self.passes.append(Pass(took * 1000, kinds.count("job.started")))


class Bench:
    """A full cluster, and the jobs that wait for it."""

    def __init__(self, nodes: int, shapes: int, owners: int) -> None:
        self.chance = random.Random(16)
        self.dispatch = TimedDispatch()
        self.keeper = Keeper(memory_store(), dispatch=self.dispatch)
        self.backend = Embedded(self.keeper)
        self.owners = [f"user{number:03}" for number in range(owners)]
        self.requests = _shapes(shapes)
        self._fill([f"n{number:04}" for number in range(nodes)])

    def _fill(self, names: Sequence[str]) -> None:
        nodes = tuple(Node.of(name, cpu=CORES, memory="256GiB") for name in names)
        self.backend.run(Register("root", nodes=nodes))
        work = [
            self._work(Request.of(cpu=cpu, node=name, memory=f"{cpu}GiB"), expect_ms=expect_ms)
            for name in names
            for cpu in FILLERS
            for expect_ms in [self.chance.randrange(1, 48) * 3_600_000]
        ]
        self.submit_all(work)
        while any(job.state is JobState.QUEUED for job in self._jobs()):
            time.sleep(0.01)  # one commit starts only so many
        self.fillers: dict[int, list[Job]] = {cpu: [] for cpu in FILLERS}
        for job in self._jobs():
            self.fillers[job.request.amounts["cpu"] // 10_000].append(job)

    def _work(self, asked: Request, **wishes: Any) -> JobSpec:
        owner = self.chance.choice(self.owners)
        return JobSpec(owner, ("true",), "/", asked, **wishes)

    def some_work(self, count: int) -> list[JobSpec]:
        """Jobs of all shapes, owners and priorities; half of them say how long they take."""
        chance = self.chance
        return [
            self._work(
                self.requests[number % len(self.requests)],
                priority=chance.choice(_PRIORITIES),
                expect_ms=chance.choice((None, 600_000, 3_600_000, None)),
            )
            for number in range(count)
        ]

    def submit_all(self, work: Sequence[JobSpec]) -> None:
        for first in range(0, len(work), _AT_ONCE):
            some = work[first : first + _AT_ONCE]
            self.keeper.submit(
                [Ticket(Submit(one.owner, None, one, (), ()), NOWHERE) for one in some]
            )
            self._jobs()  # it is answered once those are in

    def submission_ms(self, count: int) -> float:
        """The median time of one submission in the keeper's thread, commit included."""
        times = []
        for one in self.some_work(count):
            begun = self.backend.run(Read(lambda desk: time.thread_time()))
            self.backend.run(Submit(one.owner, None, one, (), ()))
            times.append(self.backend.run(Read(lambda desk: time.thread_time())) - begun)
        return statistics.median(times) * 1000

    def _jobs(self) -> list[Job]:
        return self.backend.run(Read(lambda desk: list(desk.ledger.jobs.open.values())))

    def end(self, *jobs: Job) -> Pass:
        """End running jobs in one batch; return the pass that follows, with all it starts."""
        self.dispatch.passes.clear()
        ended = []
        for job in jobs:
            assert job.attempt is not None
            how = AttemptEnd(job.attempt.number, job.attempt.allocation, Reason.EXIT, 0)
            ended.append(Ended(job.id, how))
        self.backend.run(EndAttempts("gridhand", ended=tuple(ended)))
        waiting = self.backend.run(Read(lambda desk: list(self.dispatch.passes)))
        return Pass(sum(one.ms for one in waiting), sum(one.started for one in waiting))

    def releases(self, cpu: int, count: int, *, at_once: int = 1) -> list[Pass]:
        fillers = self.fillers[cpu]
        return [self.end(*[fillers.pop() for _ in range(at_once)]) for _ in range(count)]

    def naive_pass_ms(self) -> tuple[float, int]:
        """The time of a pass that tries to place every job that waits, and how many there are."""

        def go(desk: Any) -> tuple[float, int]:
            waiting = sorted(self.dispatch.queue, key=lambda job: job.number)
            begun = time.thread_time()
            for job in waiting:
                place(job.request, desk.snapshot)
            return (time.thread_time() - begun) * 1000, len(waiting)

        return self.backend.run(Read(go))

    def close(self) -> None:
        self.backend.close()


def _shapes(count: int) -> list[Request]:
    return [
        Request.of(cpu=2 + number % 40, memory=f"{2 + number // 40}GiB") for number in range(count)
    ]


def show_scale(waiting: int, nodes: int, shapes: int, owners: int, rounds: int) -> None:
    """Print what passes and submissions cost, with an empty queue and with a long one."""
    bench = Bench(nodes, shapes, owners)
    try:
        bench.submission_ms(shapes)  # so that each shape was tried once
        before = bench.submission_ms(rounds)
        idle = _median(bench.releases(1, rounds))
        bench.submit_all(bench.some_work(waiting))
        print(f"{waiting:,} waiting jobs of {shapes} shapes, {owners} owners, {nodes:,} nodes")
        after = bench.submission_ms(rounds)
        print(
            f"  submission: {before:.2f} ms on a short queue, {after:.2f} ms on the long one,",
            end=" ",
        )
        print(f"{before / after:.2f} x the rate")
        nothing = _show("a release that lets nothing start", bench.releases(1, rounds))
        print(f"    on a short queue: {idle:.2f} ms")
        _show("one of 3 cores", bench.releases(3, rounds))
        _show("one of 20 cores", bench.releases(20, rounds))
        _show("one of 40 cores", bench.releases(40, rounds))
        _show("eight of 40 cores at once", bench.releases(40, rounds // 4, at_once=8))
        naive, count = bench.naive_pass_ms()
        print(
            f"  a naive pass over {count:,} jobs: {naive:,.0f} ms, {naive / nothing:,.0f} x as long"
        )
    finally:
        bench.close()


def _show(what: str, passes: list[Pass]) -> float:
    started = statistics.mean(one.started for one in passes)
    middle = _median(passes)
    worst = max(one.ms for one in passes)
    each = sum(one.ms for one in passes) / max(1, sum(one.started for one in passes))
    more = f", {each:.2f} ms for each start" if started else ""
    print(f"  {what}: {middle:.2f} ms (at most {worst:.2f}), starts {started:.1f}{more}")
    return middle


def _median(passes: list[Pass]) -> float:
    return statistics.median(one.ms for one in passes)
