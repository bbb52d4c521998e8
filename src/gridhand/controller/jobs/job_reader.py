"""Queries about jobs: open ones are in the read model, ended ones in the store.

Only the queue knows why a job waits: it is asked for the waiting jobs of a page, not for others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from gridhand.controller.jobs.job_lines import JobLine, JobLines, alike
from gridhand.controller.jobs.job_runner import Runner
from gridhand.controller.keeper.dispatcher import Dispatch
from gridhand.controller.keeper.ledger_commands import Context
from gridhand.controller.keeper.questions import AskStore, Read
from gridhand.controller.keeper.queue_questions import (
    QueueReading,
    find_new_place,
    find_place,
    read_queue,
)
from gridhand.controller.read_model import ReadModel
from gridhand.controller.state_reader import StateReader
from gridhand.controller.store_retry import retry_while_store_is_away
from gridhand.core.errors import (
    OutcomeUnknown,
    StoreDamaged,
    StoreUnavailable,
    UnknownJob,
)
from gridhand.core.jobs.job import Job, JobPhase, JobSpec, JobState
from gridhand.core.ledger.job_index import JobIndex
from gridhand.core.model.names import JobId
from gridhand.core.queue.job_view import JobView, view_job
from gridhand.core.queue.queue_place import QueuePlace
from gridhand.core.queue.shares import OwnerShare

_OPEN = (JobState.QUEUED, JobState.RUNNING)
_PAGE = 5000  # ended jobs that are read at a time
_MOST_PAGES = 100
SURELY_S = 10.0  # a client waits for a minute


class JobFilter(NamedTuple):
    """Which jobs to list: newest first, at most `limit`."""

    states: tuple[JobState, ...] = ()
    owner: str | None = None
    array: str | None = None
    before: int | None = None
    limit: int = 100

    def select(self, model: ReadModel) -> Iterator[Job]:
        """Yield the open jobs that match, newest first."""
        wanted, index = self.states, model.ledger.jobs
        placed = wanted != () and JobState.QUEUED not in wanted
        if placed and JobState.RUNNING not in wanted:
            return
        for job in model.pages.newest(
            owner=self.owner, array=self.array, placed=placed, before=self.before
        ):
            if not wanted or state_of(job, index) in wanted:
                yield job


class JobReader(StateReader):
    """The reading side of a controller."""

    runner: Runner
    now: Callable[[], int]  # in ledger milliseconds
    _dispatch: Dispatch

    async def job(self, id: JobId) -> JobView:
        found = await self.find([id])
        if not found:
            raise UnknownJob(id)
        return found[0]

    async def find(self, ids: Sequence[JobId]) -> list[JobView]:
        """Return those jobs, in that order; unknown ones are left out."""
        open_jobs = self.model.ledger.jobs.open
        known = await self._views([open_jobs[id] for id in ids if id in open_jobs])
        missing = [id for id in ids if id not in known]
        if missing:
            stored = await self.read_store(lambda store: store.find_jobs(missing))
            known |= {job.id: _ended(job) for job in stored}
        return [known[id] for id in ids if id in known]

    async def find_surely(self, ids: Sequence[JobId]) -> list[JobView]:
        """Find jobs that were just changed, even if the store is away for a while.

        The change is done, so it must not be reported as failed because the store has gone since.
        Raise OutcomeUnknown before the client loses its patience: it asks again by its op id.
        """
        patience_ends = time.monotonic() + SURELY_S

        def give_up() -> bool:
            return self.stopping.is_set() or time.monotonic() > patience_ends

        try:
            return await retry_while_store_is_away(lambda: self.find(ids), give_up=give_up)
        except StoreUnavailable as away:
            raise OutcomeUnknown(str(away)) from away

    async def jobs(self, wanted: JobFilter) -> list[JobView]:
        """Return the jobs that match, newest first."""
        found = await self._views(list(islice(wanted.select(self.model), wanted.limit)))
        for job in await self._ended_jobs(wanted):
            found.setdefault(job.id, _ended(job))
        newest = sorted(found.values(), key=lambda view: -view.job.number)
        return newest[: wanted.limit]

    async def lines(self, wanted: JobFilter, since: int | None = None) -> list[JobLine]:
        """Return the newest lines of the jobs that match, with like tasks of arrays folded.

        Ended jobs are left out if they ended before `since`. They are read until the page is full,
        or until the first older one.
        """
        matching = list(wanted.select(self.model))
        tasks = [job for job in matching if job.array is not None]
        singles = [job for job in matching if job.array is None]
        now, lines = self.now(), JobLines()
        lines.add((await self._views(singles[: wanted.limit])).values(), now)
        lines.add(await self._alike_views(tasks), now)
        page = wanted._replace(limit=_PAGE)
        for _ in range(_MOST_PAGES):
            ended = await self._ended_jobs(page)
            recent = [job for job in ended if since is None or (job.ended or 0) >= since]
            lines.add(map(_ended, recent), now)
            if len(recent) < _PAGE or lines.count_from(ended[-1].number) >= wanted.limit:
                break
            page = page._replace(before=ended[-1].number)
        return lines.newest(wanted.limit)

    async def _alike_views(self, tasks: Sequence[Job]) -> list[JobView]:
        """Return the views of tasks of arrays: those that are alike wait for the same."""
        first = {key: job for job in reversed(tasks) if (key := alike(job)) is not None}
        apart = [job for job in tasks if alike(job) is None]
        views = await self._views([*apart, *first.values()])
        return [
            views[job.id] if key is None else views[first[key].id]._replace(job=job)
            for job in tasks
            for key in [alike(job)]
        ]

    # ---- the queue

    async def queue(self, limit: int, owner: str | None = None) -> QueueReading:
        """Return the first entries of the queue, those of one owner if one is given."""
        return await self.ask(
            Read(lambda context: read_queue(self._dispatch, context, limit, owner))
        )

    async def place(self, job: Job) -> QueuePlace | None:
        """Return the place of a job in the queue; None if it waits for something else."""
        return await self.ask(Read(lambda context: find_place(self._dispatch, context, job)))

    async def new_place(self, work: JobSpec) -> QueuePlace | None:
        """Return the place that a job would get if it were submitted now."""
        return await self.ask(Read(lambda context: find_new_place(self._dispatch, context, work)))

    def shares(self) -> list[OwnerShare]:
        """Return the shares of owners who have or had something, the largest first."""
        return self._dispatch.shares.listed()

    # ---- views

    async def _views(self, jobs: Sequence[Job]) -> dict[JobId, JobView]:
        """Return the views of open jobs, in that order."""
        ledger, queue, now = self.model.ledger, self._dispatch.queue, self.now()
        waiting = [job.id for job in jobs if job.attempt is None]
        placed = {
            job.id: view_job(job, ledger, queue, now) for job in jobs if job.attempt is not None
        }
        told = await self.ask(Read(lambda context: self._told(waiting, context))) if waiting else {}
        known = {job.id: told.get(job.id) or placed.get(job.id) for job in jobs}
        return {job.id: known[job.id] or JobView(job, job.phase(now)) for job in jobs}

    def _told(self, waiting: Sequence[JobId], context: Context) -> dict[JobId, JobView]:
        """Return the views of these jobs with why they wait; in the keeper's thread."""
        jobs, queue = context.ledger.jobs.open, self._dispatch.queue
        return {
            id: view_job(jobs[id], context.ledger, queue, context.now)
            for id in waiting
            if id in jobs
        }

    async def _ended_jobs(self, wanted: JobFilter) -> list[Job]:
        states = wanted.states or tuple(JobState)
        names = tuple(str(state) for state in states if state not in _OPEN)
        if not names:
            return []
        return await self.read_store(
            lambda store: store.jobs(
                states=names,
                owner=wanted.owner,
                array=wanted.array,
                before=wanted.before,
                limit=wanted.limit,
            )
        )

    async def devices(self, job: Job) -> list[str]:
        """Return the devices that the job's last attempt had."""
        if not job.attempts:
            return []
        try:
            held = await self.find_allocations([job.attempts[-1].allocation])
        except StoreDamaged:
            return []
        return [hold.device for allocation in held for hold in allocation.devices]

    async def count_open(self, ids: Sequence[JobId]) -> int:
        """Return how many of these jobs have not ended."""
        return sum(id in self.model.ledger.jobs.open for id in ids)

    async def is_open(self, id: str) -> bool:
        """Return whether the job, or any task of the array, has not ended."""
        of_array = self.model.pages.newest(owner=None, array=id, placed=False, before=None)
        return id in self.model.ledger.jobs.open or any(True for _ in of_array)


def state_of(job: Job, index: JobIndex) -> JobState:
    return JobState.QUEUED if index.waits_for_turn(job) else job.state


def find_stored(ids: Iterable[JobId]) -> AskStore[list[Job]]:
    wanted = list(ids)
    return AskStore(lambda store, _: store.find_jobs(wanted))


def _ended(job: Job) -> JobView:
    return JobView(job, JobPhase.ENDED)
