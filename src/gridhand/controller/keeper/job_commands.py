"""How the keeper decides commands about jobs: submitting, cancelling and ending them.

No command starts a job: the keeper's dispatcher does that, in the transaction of whatever made
room. A job and what it holds change in one transaction, so neither is ever written without the
other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gridhand.controller.keeper.gang_ends import end_with_member
from gridhand.controller.keeper.ledger_commands import Context
from gridhand.controller.keeper.run_within import find_room_within, spec_within, start_within
from gridhand.core.errors import (
    InvalidDependency,
    InvalidInput,
    JobsFull,
    NeverFits,
    NotYours,
    UnknownJob,
    UnknownResource,
)
from gridhand.core.explain.gang_refusal import GangRefusal
from gridhand.core.explain.refusal import Refusal
from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.gang import members_of, others_of
from gridhand.core.jobs.job import AttemptEnd, Job, JobSpec, JobState, Reason
from gridhand.core.ledger.allocations import Allocation, AllocationMove, Lifetime
from gridhand.core.model.names import JobId
from gridhand.core.model.requests import Request
from gridhand.core.notes import NoteSignal
from gridhand.core.observations import NoteSpawned, SkipJobNumbers, Spawned
from gridhand.core.operations import (
    Cancel,
    Command,
    EndAttempts,
    SetHeld,
    Submit,
    Submitted,
)
from gridhand.core.placement.place import place
from gridhand.core.placement.strategies import strategy_named
from gridhand.core.queue.job_admission import (
    NOTHING_LEFT_OPEN,
    LeftOpen,
    check_quotas,
    complete,
    within_limits,
)
from gridhand.core.queue.job_view import view_job
from gridhand.core.queue.queue import Queue

MOST_OPEN = 1_000_000  # jobs of all owners; each is in memory
_MOST_KNOWN_TO_FIT = 1000
_MOST_VIEWS = 1000  # of the jobs of one submission
ADMIN = "*"  # may act for every owner: the controller itself


def submit(command: Submit, context: Context) -> Submitted:
    assert command.work is not None
    index, indices = context.ledger.jobs, command.indices
    count = max(1, len(indices))
    if command.work.nodes is not None and indices != tuple(range(command.work.nodes)):
        raise InvalidInput("nodes", command.work.nodes, "one task for each rank, and no array")
    work = admit_jobs(command.work, count, context, command.left_open)
    if len(index.open) + count > MOST_OPEN:
        raise JobsFull(len(index.open), MOST_OPEN)
    for dependency in command.after:
        if _find_job(context, dependency.id) is None:
            raise InvalidDependency("the new one", dependency.id)
    held = _check_room(work, command, context)
    work = work if held is None else spec_within(work, held)
    first = index.next_number
    index.next_number += count
    ids = _new_ids(first, indices)
    for offset, id in enumerate(ids):
        job = jobs.submit(
            work,
            id=id,
            number=first + offset,
            now=context.now,
            array=str(first) if indices else None,
            array_index=indices[offset] if indices else None,
            after=command.after,
        )
        context.ledger.put_job("job.submitted", job)
        context.snapshot.learn(work.request)
        if held is not None:
            start_within(context, job, held)
    submitted = Submitted(ids, fresh=True, views=[])
    context.submitted.append(submitted)
    return submitted


def admit_jobs(
    work: JobSpec, count: int, context: Context, left_open: LeftOpen = NOTHING_LEFT_OPEN
) -> JobSpec:
    """Return the work as its queue and the rounding of memory change it.

    Raise an error if its queue or a quota does not take so many jobs, or such jobs.
    """
    completed = complete(work, context.queues, left_open)
    if context.snapshot.memory_step_bytes:
        completed = replace(completed, request=context.rounded(completed.request))
    admitted = within_limits(completed, context.queues)
    check_quotas(admitted, count, context.queues, context.ledger.jobs.tallies)
    return admitted


def _check_room(work: JobSpec, command: Submit, context: Context) -> Allocation | None:
    """Raise NeverFits early; return the `within` allocation."""
    if work.within is not None:
        return find_room_within(work, command.after, bool(command.indices), context)
    request = work.request
    if request.strategy is not None:
        strategy_named(request.strategy)  # raises if there is none of that name
    if request.together_with is not None or request.apart_from:
        return None  # what these name may come and go while the job waits
    if work.nodes is not None:
        _check_gang(request, work.nodes, context)
        return None
    shape = context.ledger.touched.shape
    if not request.labels and context.can_fit.get(request) == shape:
        return None
    answer = place(request, context.snapshot, context.strategy)
    if isinstance(answer, Refusal):
        error = answer.error()
        if isinstance(error, NeverFits | UnknownResource):
            raise error
    if len(context.can_fit) >= _MOST_KNOWN_TO_FIT:
        context.can_fit.clear()
    context.can_fit[request] = shape
    return None


def _check_gang(request: Request, nodes: int, context: Context) -> None:
    """Raise NeverFits if there are too few nodes that could ever hold a member."""
    refusal = GangRefusal(request, context.snapshot, nodes)
    if not refusal.ever:
        raise refusal.error()


def _new_ids(first: int, indices: Sequence[int]) -> list[JobId]:
    return [JobId(f"{first}_{index}") for index in indices] if indices else [JobId(str(first))]


def cancel(command: Cancel, context: Context) -> list[JobId]:
    owner = ADMIN if command.any_owner else command.owner
    named = [job for id in command.ids for job in _find_jobs(context, id, owner)]
    for job in named:
        cancel_job(context, job, command.reason)
    return [job.id for job in named]


def _find_jobs(context: Context, id: str, owner: str) -> list[Job]:
    """Return the job with that id and its gang, or the tasks of that array; else UnknownJob."""
    index = context.ledger.jobs
    job = _find_job(context, JobId(id))
    if job is not None:
        found = members_of(job, index.open) or [job]
    else:
        found = [job for job in index.open.values() if job.array == id]
    found = found or [job for job in context.past_jobs.values() if job.array == id]
    found = found or [job for job in index.over.values() if job.array == id]
    if not found:
        raise UnknownJob(id)
    for job in found:
        if owner not in (job.work.owner, ADMIN):
            raise NotYours(id, owner, "job")
    return found


def _find_job(context: Context, id: JobId) -> Job | None:
    """Return the job, whether it is open, ended in this batch, or ended long ago."""
    index = context.ledger.jobs
    return index.open.get(id) or index.over.get(id) or context.past_jobs.get(id)


def cancel_job(context: Context, job: Job, reason: Reason) -> None:
    after = jobs.cancel(job, now=context.now, reason=reason)
    if after is not job:
        context.ledger.put_job("job.stopping" if after.open else "job.ended", after)


def set_held(command: SetHeld, context: Context) -> list[JobId]:
    """Hold or let go; raise JobRefused if none of the jobs to hold is queued."""
    owner = ADMIN if command.any_owner else command.owner
    named = [job for id in command.ids for job in _find_jobs(context, id, owner)]
    if command.held:
        waiting = [job for job in named if job.state is JobState.QUEUED] or named[:1]
        changed = [(job, jobs.hold(job)) for job in waiting]
    else:
        changed = [(job, jobs.unhold(job, now=context.now)) for job in named]
    differing = [after for before, after in changed if after != before]
    for after in differing:
        context.ledger.put_job("job.held" if command.held else "job.unheld", after)
    return [after.id for after in differing]


def note_signal(command: NoteSignal, context: Context) -> list[JobId]:
    job = context.ledger.jobs.open.get(command.id)
    if job is None or job.attempt is None:
        return []
    context.ledger.put_job("job.signalled", job, f"signal {command.signum}")
    return [job.id]


def end_attempts(command: EndAttempts, context: Context) -> list[JobId]:
    return [job for job, how in command.ended if _end_attempt(context, job, how, command.jitter)]


def _end_attempt(context: Context, id: JobId, how: AttemptEnd, jitter: float = 0.0) -> bool:
    """End the attempt and release its allocation unless others share it; return if it was new."""
    ledger = context.ledger
    job = ledger.jobs.open.get(id)
    if job is None:
        return False
    most_bytes = _largest_memory(context) if how.reason is Reason.OOM else None
    others = others_of(job, ledger.jobs.open)
    after = jobs.end(job, how, now=context.now, most_bytes=most_bytes, jitter=jitter, others=others)
    if after is job:
        return False
    ledger.put_job("job.requeued" if after.open else "job.ended", after)
    held = ledger.live.get(how.allocation)
    own = held is not None and held.lifetime is Lifetime.JOB
    if own and not ledger.jobs.count(how.allocation):
        ledger.move(
            how.allocation, AllocationMove.RELEASE, now=context.now, why=f"job {id} has ended"
        )
    if others is not None:
        end_with_member(after, context.ledger, context.now)
    return True


def end_lost_attempts(context: Context, since: int) -> None:
    """End the attempts whose allocations were lost by the changes after `since`."""
    changes = context.ledger.changes[since:]
    for change in [change for change in changes if change.kind == "allocation.lost"]:
        for job in context.ledger.jobs.holding(change.after.id):
            assert job.attempt is not None
            how = AttemptEnd(
                job.attempt.number, change.after.id, Reason.NODE_LOST, message=change.why
            )
            _end_attempt(context, job.id, how)


def _largest_memory(context: Context) -> int:
    """Return the memory of the largest node in bytes."""
    uses = context.ledger.nodes.values()
    return max((use.node.capacity["memory"] for use in uses), default=0)


DECISIONS: Mapping[type[Command[Any]], Callable[[Any, Context], Any]] = {
    Submit: submit,
    Cancel: cancel,
    EndAttempts: end_attempts,
    NoteSignal: note_signal,
    SetHeld: set_held,
}


# ---- observations


def add_views(context: Context, queue: Queue) -> None:
    """Complete the replies to submissions, which are durable now, with views of the jobs."""
    index = context.ledger.jobs
    for submitted in context.submitted:
        for id in submitted.ids[:_MOST_VIEWS]:
            job = index.open.get(id) or index.over[id]
            submitted.views.append(view_job(job, context.ledger, queue, context.now))


def note_spawned(observed: NoteSpawned, context: Context) -> list[Job]:
    noted = (_note_spawned(context, spawned) for spawned in observed.spawned)
    return [job for job in noted if job is not None]


def _note_spawned(context: Context, spawned: Spawned) -> Job | None:
    index = context.ledger.jobs
    before = index.open.get(spawned.job)
    if before is None or before.attempt is None:
        return None
    # The clocks of machines differ: it began no earlier than it was placed.
    since = max(before.attempt.placed, context.now - spawned.ran_ms)
    after = jobs.spawned(before, spawned.attempt, now=since)
    if after is before:
        return None
    index.note(after)
    return after


def skip_job_numbers(observed: SkipJobNumbers, context: Context) -> None:
    index = context.ledger.jobs
    index.next_number = max(index.next_number, observed.up_to + 1)
