"""NestedWaits: the slots that wait for other slots, to refuse calls that can never start.

A worker repeats the report that its function waits for calls for as long as that is so. Therefore
the reports are kept in memory only: after a restart they come again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gridhand.controller.keeper.job_commands import ADMIN
from gridhand.controller.keeper.ledger_commands import Context
from gridhand.controller.keeper.questions import Read
from gridhand.core.jobs.job import JobState
from gridhand.core.model.names import AllocationId, JobId
from gridhand.core.operations import Operation
from gridhand.core.queue.standstill import SURE_S, WaitingSlot, refused_jobs

_STALE_S = 5.0  # a report that is not repeated for so long is dropped
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class WaitReport:
    """A worker's report of what the function in its slot waits for.

    `queued` are the jobs of workers that have not started, `running` the allocations of workers
    that run its calls. The slot counts as waiting only if its process is `blocked`.
    """

    owner: str
    allocation: AllocationId
    queued: tuple[JobId, ...]
    running: tuple[AllocationId, ...]
    blocked: bool


@dataclass(slots=True)
class _Wait:
    report: WaitReport
    since: float
    repeated: float


class NestedWaits:
    """The latest report of each slot."""

    def __init__(
        self,
        ask: Callable[[Operation[Any]], Awaitable[Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._waits: dict[tuple[str, AllocationId], _Wait] = {}

    async def report(self, report: WaitReport) -> dict[JobId, str]:
        """Note the report; return which of its queued jobs can never start, and why."""
        now = self._clock()
        fresh = {key: wait for key, wait in self._waits.items() if now - wait.repeated < _STALE_S}
        known = fresh.pop((report.owner, report.allocation), None)
        since = known.since if known is not None and known.report == report else now
        own = _Wait(report, since, now)
        if report.blocked and len(fresh) < _MOST:
            fresh[report.owner, report.allocation] = own
        self._waits = fresh
        if not report.queued:
            return {}
        sure = [wait for wait in self._waits.values() if now - wait.since >= SURE_S]
        refused: dict[JobId, str] = await self._ask(
            Read(lambda context: _refused_jobs(context, own, sure))
        )
        return refused


def _refused_jobs(context: Context, own: _Wait, waits: list[_Wait]) -> dict[JobId, str]:
    slot = _slot(context, own)
    if slot is None:
        return {}
    totals = {name: use.total_resources().parts() for name, use in context.ledger.nodes.items()}
    slots = [other for wait in waits if (other := _slot(context, wait)) is not None]
    return refused_jobs(slot, slots, totals)


def _slot(context: Context, wait: _Wait) -> WaitingSlot | None:
    """Return the slot with what it holds and waits for now; None if the owner does not hold it."""
    report, ledger = wait.report, context.ledger
    held = ledger.live.get(report.allocation)
    if held is None or report.owner not in (held.owner, ADMIN):
        return None
    jobs = [ledger.jobs.open.get(id) for id in report.queued]
    queued = {
        job.id: job.request for job in jobs if job is not None and job.state is JobState.QUEUED
    }
    running = frozenset(report.running)
    return WaitingSlot(held.id, wait.since, held.node, held.resources.parts(), queued, running)
