"""Looking at jobs: those that are open from memory, those that have ended from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from gridhand.controller.commands import AskStore, Desk, Read
from gridhand.core.allocations import Allocation
from gridhand.core.jobbook import JobBook
from gridhand.core.jobs import Job, JobState, Phase
from gridhand.core.queue import Queue

_OPEN = (JobState.QUEUED, JobState.RUNNING)


class Seen(NamedTuple):
    """A job with what only the queue and the ledger know of it."""

    job: Job
    phase: Phase
    why: str | None = None  # it waits
    held: Allocation | None = None
    next: bool = False  # it has its place, and waits for those before it to end

    @property
    def state(self) -> JobState:
        """As people would say it: what has not begun, and may not yet, is queued."""
        return JobState.QUEUED if self.next else self.job.state


class Wanted(NamedTuple):
    """Which jobs to list; newest first, at most so many."""

    states: tuple[JobState, ...] = ()
    owner: str | None = None
    array: str | None = None
    before: int | None = None
    limit: int = 100

    def has(self, job: Job, book: JobBook) -> bool:
        return (
            (not self.states or state_of(job, book) in self.states)
            and self.owner in (None, job.work.owner)
            and self.array in (None, job.array)
            and (self.before is None or job.number < self.before)
        )


def open_ones(queue: Callable[[], Queue], wanted: Wanted) -> Read[list[Seen]]:
    """The open jobs among those wanted."""

    def answer(desk: Desk) -> list[Seen]:
        book = desk.ledger.jobs
        found = [job for job in book.open.values() if wanted.has(job, book)]
        found.sort(key=lambda job: -job.number)
        return [_seen(job, desk, queue()) for job in found[: wanted.limit]]

    return Read(answer)


def open_by_id(queue: Callable[[], Queue], ids: Sequence[str]) -> Read[dict[str, Seen]]:
    def answer(desk: Desk) -> dict[str, Seen]:
        book = desk.ledger.jobs.open
        return {id: _seen(book[id], desk, queue()) for id in ids if id in book}

    return Read(answer)


def state_of(job: Job, book: JobBook) -> JobState:
    return JobState.QUEUED if book.waits_in_line(job) else job.state


def counted(desk: Desk) -> dict[str, int]:
    """How many open jobs there are in each state."""
    book = desk.ledger.jobs
    running = book.running()
    return {"queued": len(book.open) - running, "running": running}


def _seen(job: Job, desk: Desk, queue: Queue) -> Seen:
    if job.attempt is not None:
        held = desk.ledger.live.get(job.attempt.allocation)
        if desk.ledger.jobs.waits_in_line(job):
            why = f"it is among the next on {job.attempt.node}"
            return Seen(job, Phase.QUEUED, why, held, next=True)
        return Seen(job, job.phase(desk.now), held=held)
    waiting = bool(queue.waits_for(job.id))
    return Seen(job, job.phase(desk.now, waiting=waiting), queue.why(job.id, desk.now))


def over(job: Job) -> Seen:
    return Seen(job, Phase.ENDED)


def ended_ones(wanted: Wanted) -> AskStore[list[Job]]:
    states = wanted.states or tuple(state for state in JobState if state not in _OPEN)
    names = tuple(str(state) for state in states if state not in _OPEN)
    return AskStore(
        lambda store, _: (
            store.jobs(
                states=names,
                owner=wanted.owner,
                array=wanted.array,
                before=wanted.before,
                limit=wanted.limit,
            )
            if names
            else []
        )
    )


def stored(ids: Iterable[str]) -> AskStore[list[Job]]:
    wanted = list(ids)
    return AskStore(lambda store, _: store.find_jobs(wanted))


def held_by(ids: Iterable[str]) -> AskStore[list[Allocation]]:
    """Allocations, closed ones too, by id."""
    numbers = [int(id.rpartition("-")[2]) for id in ids]
    return AskStore(lambda store, _: store.find(numbers))
