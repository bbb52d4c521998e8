"""Queries about jobs and allocations: open ones are in memory, ended ones in the store."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gridhand.controller.jobs.job_lines import JobLine, JobLines, view_alike
from gridhand.controller.jobs.job_runner import Runner
from gridhand.controller.keeper.dispatcher import Dispatch
from gridhand.controller.keeper.ledger_commands import Context
from gridhand.controller.keeper.questions import AskStore, Read
from gridhand.controller.store_retry import retry_while_store_is_away
from gridhand.core.errors import (
    GridError,
    OutcomeUnknown,
    StoreDamaged,
    StoreUnavailable,
    UnknownAllocation,
    UnknownJob,
)
from gridhand.core.jobs.job import Job, JobPhase, JobState
from gridhand.core.ledger.allocations import Allocation
from gridhand.core.ledger.job_index import JobIndex
from gridhand.core.model.names import AllocationId, JobId, NodeName
from gridhand.core.operations import Operation, Reply
from gridhand.core.queue.job_view import JobView, view_job

_OPEN = (JobState.QUEUED, JobState.RUNNING)
_LONGEST_NUMBER = 19
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

    def matches(self, job: Job, index: JobIndex) -> bool:
        return (
            (not self.states or state_of(job, index) in self.states)
            and self.owner in (None, job.work.owner)
            and self.array in (None, job.array)
            and (self.before is None or job.number < self.before)
        )


class JobReader:
    """The reading side of a controller."""

    stopping: asyncio.Event
    runner: Runner
    _dispatch: Dispatch

    def ask(self, operation: Operation[Reply]) -> asyncio.Future[Reply]:
        raise NotImplementedError

    async def job(self, id: JobId) -> JobView:
        found = await self.find([id])
        if not found:
            raise UnknownJob(id)
        return found[0]

    async def find(self, ids: Sequence[JobId]) -> list[JobView]:
        """Return those jobs, in that order; unknown ones are left out."""

        def find_open(context: Context) -> dict[JobId, JobView]:
            open_jobs = context.ledger.jobs.open
            return {id: self._view(open_jobs[id], context) for id in ids if id in open_jobs}

        known = await self.ask(Read(find_open))
        missing = [id for id in ids if id not in known]
        if missing:
            known |= {job.id: _ended(job) for job in await self.ask(find_stored(missing))}
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

        def list_open(context: Context) -> list[JobView]:
            index = context.ledger.jobs
            matching = [job for job in index.open.values() if wanted.matches(job, index)]
            matching.sort(key=lambda job: -job.number)
            return [self._view(job, context) for job in matching[: wanted.limit]]

        found = {view.job.id: view for view in await self.ask(Read(list_open))}
        for job in await self.ask(_list_ended(wanted)):
            found.setdefault(job.id, _ended(job))
        newest = sorted(found.values(), key=lambda view: -view.job.number)
        return newest[: wanted.limit]

    async def lines(self, wanted: JobFilter, since: int | None = None) -> list[JobLine]:
        """Return the newest lines of the jobs that match, with like tasks of arrays folded.

        Ended jobs are left out if they ended before `since`. They are read until the page is full,
        or until the first older one.
        """

        def fold_open(context: Context) -> tuple[JobLines, int]:
            index, lines = context.ledger.jobs, JobLines()
            matching = [job for job in index.open.values() if wanted.matches(job, index)]
            lines.add(view_alike(matching, lambda job: self._view(job, context)), context.now)
            return lines, context.now

        lines, now = await self.ask(Read(fold_open))
        page = wanted._replace(limit=_PAGE)
        for _ in range(_MOST_PAGES):
            ended = await self.ask(_list_ended(page))
            recent = [job for job in ended if since is None or (job.ended or 0) >= since]
            lines.add(map(_ended, recent), now)
            if len(recent) < _PAGE or lines.count_from(ended[-1].number) >= wanted.limit:
                break
            page = page._replace(before=ended[-1].number)
        return lines.newest(wanted.limit)

    def _view(self, job: Job, context: Context) -> JobView:
        return view_job(job, context.ledger, self._dispatch.queue, context.now)

    async def devices(self, job: Job) -> list[str]:
        """Return the devices that the job's last attempt had."""
        if not job.attempts:
            return []
        try:
            held = await self.ask(_find_allocations([job.attempts[-1].allocation]))
        except StoreDamaged:
            return []
        return [hold.device for allocation in held for hold in allocation.devices]

    async def count_open(self, ids: Sequence[JobId]) -> int:
        """Return how many of these jobs have not ended."""
        return await self.ask(
            Read(lambda context: sum(id in context.ledger.jobs.open for id in ids))
        )

    async def running_on(self) -> dict[NodeName, int]:
        """Return how many jobs run on each node that has any."""
        return await self.ask(Read(count_running_on))

    async def counts(self) -> dict[str, int]:
        return await self.ask(Read(count_jobs))

    async def idle(self) -> bool:
        """Return whether no job is open; False if that cannot be found out."""
        try:
            return not any((await self.counts()).values())
        except GridError:
            return False

    async def allocation(self, id: AllocationId) -> Allocation:
        """Return the allocation with that id, live or closed."""
        found = await self.ask(Read(lambda context: context.ledger.live.get(id)))
        number = id.rpartition("-")[2]
        if found is None and number.isdecimal() and len(number) < _LONGEST_NUMBER:
            stored = await self.ask(_find_allocations([id]))
            found = next((allocation for allocation in stored if allocation.id == id), None)
        if found is None:
            raise UnknownAllocation(id)
        return found


def state_of(job: Job, index: JobIndex) -> JobState:
    return JobState.QUEUED if index.waits_for_turn(job) else job.state


def count_jobs(context: Context) -> dict[str, int]:
    """Return how many open jobs there are in each state."""
    index = context.ledger.jobs
    running = index.running()
    return {"queued": len(index.open) - running, "running": running}


def count_running_on(context: Context) -> dict[NodeName, int]:
    """Count the allocations in which jobs run: in each they run one after the other."""
    live = context.ledger.live
    return Counter(live[id].node for id in context.ledger.jobs.allocations() if id in live)


def find_stored(ids: Iterable[JobId]) -> AskStore[list[Job]]:
    wanted = list(ids)
    return AskStore(lambda store, _: store.find_jobs(wanted))


def _list_ended(wanted: JobFilter) -> AskStore[list[Job]]:
    states = wanted.states or tuple(JobState)
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


def _find_allocations(ids: Iterable[AllocationId]) -> AskStore[list[Allocation]]:
    """Find allocations by id, closed ones too."""
    numbers = [int(id.rpartition("-")[2]) for id in ids]
    return AskStore(lambda store, _: store.find(numbers))


def _ended(job: Job) -> JobView:
    return JobView(job, JobPhase.ENDED)
