"""Questions about the queue, answered in the keeper's thread."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gridhand.controller.keeper.dispatcher import Dispatch
from gridhand.controller.keeper.ledger_commands import Context, resolve_neighbours
from gridhand.core.errors import GridError
from gridhand.core.explain.refusal import Refusal
from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.job import Job, JobSpec
from gridhand.core.model.names import JobId
from gridhand.core.queue.delays import current_request, declared_ms
from gridhand.core.queue.forecast import ExpectedStart
from gridhand.core.queue.preemption_forecast import PlannedStop, planned_stop
from gridhand.core.queue.queue_order import QueueLine, queue_lines
from gridhand.core.queue.queue_place import QueuePlace, queue_place
from gridhand.core.queue.timeline import Caller
from gridhand.core.queue.wait_causes import KEPT, cause_text

_NEW = JobId("new")


class QueueRow(NamedTuple):
    """One entry of the queue, with its owner's shares and when it should start."""

    line: QueueLine
    why: str
    start: ExpectedStart | None
    share: float
    past_share: float
    holder: str | None = None  # of an allocation that waits
    is_job: bool = True


class QueueReading(NamedTuple):
    """The first entries, how many jobs are ready, and how many wait for something else."""

    rows: list[QueueRow]
    ready: int
    later: int


def read_queue(
    dispatch: Dispatch, context: Context, limit: int, owner: str | None = None
) -> QueueReading:
    """Return the first entries of the order, those of one owner if one is given."""
    queue, shares = dispatch.queue, dispatch.shares
    shares.follow(context.ledger, context.now)
    rows: list[QueueRow] = []
    for line in queue_lines(queue.ready, context.now):
        if owner in (None, line.job.work.owner):
            rows.append(_row(dispatch, line, context.now))
        if len(rows) == limit:
            break
    ready = queue.ready.count()
    return QueueReading(rows, ready, len(queue) - ready)


def _row(dispatch: Dispatch, line: QueueLine, now: int) -> QueueRow:
    shares, job = dispatch.shares, line.job
    claim = dispatch.timeline.get(job.id)
    start = None if claim is None else ExpectedStart(max(claim.start, now), claim.node)
    # The full sentence about all nodes takes long, and is for `why`.
    why = dispatch.queue.why(job.id, now) if line.cause == KEPT else cause_text(line.cause)
    owner = job.work.owner
    row = QueueRow(line, why, start, shares.share(owner), shares.past_share(owner))
    if job.id not in dispatch.waits:
        return row
    holder = dispatch.waits.ticket(job.id).operation.terms.holder
    return row._replace(holder=holder, is_job=False)


def find_place(dispatch: Dispatch, context: Context, job: Job) -> QueuePlace | None:
    """Return the place of a job; None if it is not ready."""
    dispatch.shares.follow(context.ledger, context.now)
    return queue_place(
        job, dispatch.queue, dispatch.shares, dispatch.timeline, context.snapshot, context.now,
        stop=_find_stop(dispatch, context, job),
    )  # fmt: skip


def find_new_place(dispatch: Dispatch, context: Context, work: JobSpec) -> QueuePlace | None:
    """Return the place that a job would get if it were submitted now."""
    number = context.ledger.jobs.next_number
    work = replace(work, request=context.rounded(work.request))
    job = jobs.submit(work, id=_NEW, number=number, now=context.now)
    dispatch.shares.follow(context.ledger, context.now)
    return queue_place(
        job, dispatch.queue, dispatch.shares, dispatch.timeline, context.snapshot, context.now,
        submitted=False, stop=_find_stop(dispatch, context, job),
    )  # fmt: skip


def _find_stop(dispatch: Dispatch, context: Context, job: Job) -> PlannedStop | None:
    """Return which jobs this one would stop if it were tried now, as the dispatcher does."""
    now, rules = context.now, dispatch.preemption
    if not rules.may_preempt(job):
        return None
    try:
        asked = resolve_neighbours(current_request(job, now), job.work.owner, context.ledger)
        rank, said_ms = dispatch.queue.ready.rank(job.work.priority), declared_ms(job)
        ends = None if said_ms is None else now + said_ms
        refused = context.place(asked, Caller(job.id, rank, ends))
    except GridError:  # its node or its neighbour does not exist now
        return None
    if not isinstance(refused, Refusal):
        return None
    return planned_stop(rules, job, refused.asked, rank, context.snapshot, now)
