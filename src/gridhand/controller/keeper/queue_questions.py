"""Questions about the queue, answered in the keeper's thread."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gridhand.controller.keeper.dispatcher import Dispatch
from gridhand.controller.keeper.ledger_commands import Context
from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.job import Job, JobSpec
from gridhand.core.model.names import JobId
from gridhand.core.queue.forecast import ExpectedStart
from gridhand.core.queue.queue_order import QueueLine, queue_lines
from gridhand.core.queue.queue_place import QueuePlace, queue_place
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
        job, dispatch.queue, dispatch.shares, dispatch.timeline, context.snapshot, context.now
    )


def find_new_place(dispatch: Dispatch, context: Context, work: JobSpec) -> QueuePlace | None:
    """Return the place that a job would get if it were submitted now."""
    number = context.ledger.jobs.next_number
    work = replace(work, request=context.rounded(work.request))
    job = jobs.submit(work, id=_NEW, number=number, now=context.now)
    dispatch.shares.follow(context.ledger, context.now)
    return queue_place(
        job, dispatch.queue, dispatch.shares, dispatch.timeline, context.snapshot, context.now,
        submitted=False,
    )  # fmt: skip
