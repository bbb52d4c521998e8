"""Looking at jobs: those that are open from memory, those that have ended from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from gridhand.controller.commands import AskStore, Desk, Read
from gridhand.core.allocations import Allocation
from gridhand.core.jobs import Job, JobState, Phase
from gridhand.core.queue import Queue

_OPEN = (JobState.QUEUED, JobState.RUNNING)


class Seen(NamedTuple):
    """A job with what only the queue and the ledger know of it."""

    job: Job
    phase: Phase
    why: str | None = None  # it waits
    held: Allocation | None = None


class Wanted(NamedTuple):
    """Which jobs to list; newest first, at most so many."""

    states: tuple[JobState, ...] = ()
    owner: str | None = None
    array: str | None = None
    before: int | None = None
    limit: int = 100

    def has(self, job: Job) -> bool:
        return (
            (not self.states or job.state in self.states)
            and self.owner in (None, job.work.owner)
            and self.array in (None, job.array)
            and (self.before is None or job.number < self.before)
        )


def open_ones(queue: Callable[[], Queue], wanted: Wanted) -> Read[list[Seen]]:
    """The open jobs among those wanted."""

    def answer(desk: Desk) -> list[Seen]:
        found = [job for job in desk.ledger.jobs.open.values() if wanted.has(job)]
        found.sort(key=lambda job: -job.number)
        return [_seen(job, desk, queue()) for job in found[: wanted.limit]]

    return Read(answer)


def open_by_id(queue: Callable[[], Queue], ids: Sequence[str]) -> Read[dict[str, Seen]]:
    def answer(desk: Desk) -> dict[str, Seen]:
        book = desk.ledger.jobs.open
        return {id: _seen(book[id], desk, queue()) for id in ids if id in book}

    return Read(answer)


def _seen(job: Job, desk: Desk, queue: Queue) -> Seen:
    if job.attempt is not None:
        return Seen(job, job.phase(desk.now), held=desk.ledger.live.get(job.attempt.allocation))
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
