"""What can be asked of the keeper about jobs: to queue them, to cancel them, to note their end.

Starting them is not asked for: the keeper's dispatch does that, in the transaction of whatever
made room. A job and what it holds change in one transaction, so no moment exists in which one is
written without the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gridhand.controller.commands import Command, Desk, Read
from gridhand.controller.within import as_held, begin_within, room_within
from gridhand.core import jobs
from gridhand.core.allocations import Allocation, Lifetime, Move
from gridhand.core.errors import (
    InvalidDependency,
    JobsFull,
    NeverFits,
    NotYours,
    UnknownJob,
    UnknownResource,
)
from gridhand.core.jobs import After, End, Job, JobState, Reason, Work
from gridhand.core.jobviews import work_row
from gridhand.core.placement import place
from gridhand.core.refusals import Refusal
from gridhand.core.resources import Resources

MOST_OPEN = 1_000_000  # jobs of all owners; each is in memory
ADMIN = "*"  # acts for everybody: the controller itself


@dataclass(slots=True)
class IdsCommand(Command[list[str]]):
    """A change to jobs; replies with the ids of those it is about."""

    def encode(self, reply: list[str]) -> str:
        return json.dumps(reply)

    def decode(self, text: str) -> list[str]:
        return list(json.loads(text))


@dataclass(slots=True)
class Submit(IdsCommand):
    """Queue a job, or an array of them: all, or none."""

    work: Work | None = None
    indices: tuple[int, ...] = ()  # of an array's tasks; none for a single job
    after: tuple[After, ...] = ()
    fresh: bool = False  # whether it was decided for this call, and not for an earlier one

    def decide(self, desk: Desk) -> list[str]:
        assert self.work is not None
        book, count = desk.ledger.jobs, max(1, len(self.indices))
        if len(book.open) + count > MOST_OPEN:
            raise JobsFull(len(book.open), MOST_OPEN)
        self._check_dependencies(desk)
        held = self._check_room(desk)
        work = self.work if held is None else as_held(self.work, held)
        self.fresh = True
        first = book.next_number
        book.next_number += count
        ids = _ids(first, self.indices)
        array = str(first) if self.indices else None
        for offset, id in enumerate(ids):
            job = jobs.submit(
                work,
                id=id,
                number=first + offset,
                now=desk.now,
                array=array,
                array_index=self.indices[offset] if self.indices else None,
                after=self.after,
            )
            desk.ledger.put_job("job.submitted", job)
            if held is not None:
                begin_within(desk, job, held)
        return ids

    def _check_dependencies(self, desk: Desk) -> None:
        for wanted in self.after:
            if _known(desk, wanted.id) is None:
                raise InvalidDependency("the new one", wanted.id)

    def _check_room(self, desk: Desk) -> Allocation | None:
        """Who could never run is told at once; answers what it is to run in, if it said so."""
        assert self.work is not None
        if self.work.within is not None:
            return room_within(self.work, self.after, bool(self.indices), desk)
        asked = self.work.request
        if asked.together_with is not None or asked.apart_from:
            return None  # what these name may come and go while the job waits
        answer = place(asked, desk.snapshot, desk.strategy)
        if isinstance(answer, Refusal):
            error = answer.error()
            if isinstance(error, NeverFits | UnknownResource):
                raise error
        return None

    def past_jobs(self) -> Iterable[str]:
        return [wanted.id for wanted in self.after]

    def body(self) -> str:
        assert self.work is not None
        work = json.dumps(work_row(self.work), sort_keys=True)  # the same in every process
        return f"submit {work} {self.indices} {self.after}"


def _ids(first: int, indices: Sequence[int]) -> list[str]:
    return [f"{first}_{index}" for index in indices] if indices else [str(first)]


@dataclass(slots=True)
class Cancel(IdsCommand):
    """End jobs that nobody wants any more: at once if they wait, once they have stopped if not.

    An id may be that of an array, and stands for its tasks. Replies with those it was about; what
    has ended already stays as it is.
    """

    ids: tuple[str, ...] = ()
    reason: Reason = Reason.CANCELLED

    def decide(self, desk: Desk) -> list[str]:
        found = [job for id in self.ids for job in _named(desk, id, self.owner)]
        for job in found:
            cancel(desk, job, self.reason)
        return [job.id for job in found]

    def gives_back(self) -> bool:
        return True

    def past_jobs(self) -> Iterable[str]:
        return self.ids

    def body(self) -> str:
        return f"cancel {self.ids} {self.reason}"


def _named(desk: Desk, id: str, owner: str) -> list[Job]:
    """The job of that id, or the tasks of the array; `UnknownJob` if there never was one."""
    book = desk.ledger.jobs
    one = _known(desk, id)
    found = [one] if one is not None else [job for job in book.open.values() if job.array == id]
    found = found or [job for job in desk.past_jobs.values() if job.array == id]
    found = found or [job for job in book.over.values() if job.array == id]
    if not found:
        raise UnknownJob(id)
    for job in found:
        if owner not in (job.work.owner, ADMIN):
            raise NotYours(id, owner, "job")
    return found


def _known(desk: Desk, id: str) -> Job | None:
    """The job, be it open, over by what was decided just before, or over for long."""
    book = desk.ledger.jobs
    return book.open.get(id) or book.over.get(id) or desk.past_jobs.get(id)


def cancel(desk: Desk, job: Job, reason: Reason) -> None:
    after = jobs.cancel(job, now=desk.now, reason=reason)
    if after is not job:
        desk.ledger.put_job("job.stopping" if after.open else "job.ended", after)


@dataclass(slots=True)
class Stop(IdsCommand):
    """Make attempts stop that may come back: what was lost with a device, or is preempted."""

    stops: tuple[tuple[str, int], ...] = ()
    reason: Reason = Reason.PREEMPTED

    def decide(self, desk: Desk) -> list[str]:
        stopped = []
        for id, attempt in self.stops:
            job = desk.ledger.jobs.open.get(id)
            after = jobs.stop(job, attempt, self.reason) if job is not None else None
            if job is not None and after is not None and after is not job:
                desk.ledger.put_job("job.stopping", after)
                stopped.append(id)
        return stopped


class Ended(NamedTuple):
    """How an attempt of a job ended, as its node tells."""

    job: str
    how: End


@dataclass(slots=True)
class EndAttempts(IdsCommand):
    """Note how attempts ended, and give back what they held; replies with those it was news of.

    What is told twice, late, or by one who never ran it changes nothing.
    """

    ended: tuple[Ended, ...] = ()
    jitter: float = 0.0

    def decide(self, desk: Desk) -> list[str]:
        return [one.job for one in self.ended if end_attempt(desk, *one, jitter=self.jitter)]

    def gives_back(self) -> bool:
        return True


def end_attempt(desk: Desk, id: str, how: End, *, jitter: float = 0.0) -> bool:
    """End the attempt, and release what was its own if it was the last in line; was that news?"""
    ledger = desk.ledger
    job = ledger.jobs.open.get(id)
    if job is None:
        return False
    most = _largest(desk) if how.reason is Reason.OOM else None
    after = jobs.end(job, how, now=desk.now, most=most, jitter=jitter)
    if after is job:
        return False
    ledger.put_job("job.requeued" if after.open else "job.ended", after)
    held = ledger.live.get(how.allocation)
    own = held is not None and held.lifetime is Lifetime.JOB
    if own and not ledger.jobs.lined_up(how.allocation):
        ledger.move(how.allocation, Move.RELEASE, now=desk.now, why=f"job {id} has ended")
    return True


def end_lost(desk: Desk, since: int) -> None:
    """End the attempts whose allocations were lost by the changes after `since`."""
    lost = [change for change in desk.ledger.changes[since:] if change.kind == "allocation.lost"]
    for change in lost:
        for job in desk.ledger.jobs.holding(change.subject):
            assert job.attempt is not None
            how = End(job.attempt.number, change.subject, Reason.NODE_LOST, message=change.why)
            end_attempt(desk, job.id, how)


def _largest(desk: Desk) -> Resources:
    """The memory of the largest node, and of the largest device."""
    uses = desk.ledger.nodes.values()
    memory = max((use.node.capacity["memory"] for use in uses), default=0)
    devices = (gpu.memory_bytes for use in uses for gpu in use.node.gpus)
    return Resources({"memory": memory, "gpu_memory": max(devices, default=0)})


def note_spawned(spawned: Iterable[tuple[str, int, int]]) -> Read[list[Job]]:
    """Take on that processes are there, since how many milliseconds; answers what was news.

    Not written: a new controller is told of them again.
    """
    told = list(spawned)

    def answer(desk: Desk) -> list[Job]:
        found = (_noted(desk, *one) for one in told)
        return [job for job in found if job is not None]

    return Read(answer)


def _noted(desk: Desk, id: str, attempt: int, ran_ms: int) -> Job | None:
    book = desk.ledger.jobs
    before = book.open.get(id)
    if before is None or before.attempt is None:
        return None
    since = max(before.attempt.placed, desk.now - ran_ms)  # clocks do not all go alike
    if (after := jobs.spawned(before, attempt, now=since)) is before:
        return None
    book.note(after)
    return after


def open_jobs(states: Sequence[JobState] = ()) -> Read[list[Job]]:
    """The jobs that are not over, lowest number first."""

    def answer(desk: Desk) -> list[Job]:
        return list(_in(desk.ledger.jobs.open.values(), states))

    return Read(answer)


def _in(some: Iterable[Job], states: Sequence[JobState]) -> Iterator[Job]:
    return (job for job in some if not states or job.state in states)
