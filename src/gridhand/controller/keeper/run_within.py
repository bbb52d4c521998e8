"""Jobs that run within an allocation that their owner holds already, and so wait for nothing.

Such a job starts in the transaction in which it is submitted, on the node, cores and devices of the
allocation it names, and leaves the allocation as it was when it ends. An allocation runs one job at
a time. If its holder releases it or is gone meanwhile, the job is stopped, and the allocation is
free only once the job has ended.
"""

from __future__ import annotations

from dataclasses import replace

from gridhand.controller.keeper.ledger_commands import Context
from gridhand.core.errors import AllocationBusy, InvalidInput, MoveRefused
from gridhand.core.explain.tied_requests import why_not_there
from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.job import After, Job, JobSpec
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.ledger.allocations import Allocation, AllocationState, Lifetime
from gridhand.core.model.gpus import GpuRequest
from gridhand.core.model.requests import Request, Tie
from gridhand.core.model.resources import UNIT

_RUN_IN = "run in"
_ONCE = RetryPolicy(losses=0)  # it can be tried again nowhere else


def find_room_within(
    work: JobSpec, after: tuple[After, ...], is_array: bool, context: Context
) -> Allocation:
    """Return the allocation that the job names, or raise if it cannot start there now."""
    assert work.within is not None
    if is_array:
        raise InvalidInput("within", work.within, "a job by itself, not an array: they would share")
    if after:
        raise InvalidInput("after", after[0].id, "nothing with `within`: that starts at once")
    if work.retry.tries > 1:
        raise InvalidInput("retries", work.retry.tries - 1, "0 with `within`: start it again")
    held = context.find(work.within, work.owner)
    if not held.live or held.lapsed(context.now):
        raise MoveRefused(_RUN_IN, held.id, f"it is {held.state if not held.live else 'expired'}")
    if held.state is AllocationState.RESERVED:
        raise MoveRefused(_RUN_IN, held.id, "it is reserved, and not confirmed yet")
    if context.ledger.nodes[held.node].elsewhere:
        raise MoveRefused(_RUN_IN, held.id, f"the machine of {held.node} is not connected")
    tie = work.request.tied_to
    if tie is not None and context.ledger.nodes[held.node].node.remote:
        allowed = f"an allocation on this machine. It is on {held.node}: {why_not_there(tie)}"
        if tie is Tie.FOLDER:
            allowed += "; with anywhere (--anywhere) the job runs in a new folder there"
        raise InvalidInput("within", held.id, allowed)
    inside = context.ledger.jobs.holding(held.id)
    if inside:
        raise AllocationBusy(_RUN_IN, held.id, f"job {inside[0].id} runs in it")
    assert held.lifetime is not Lifetime.JOB, f"{held.id} is held for a job that does not run"
    return held


def spec_within(work: JobSpec, held: Allocation) -> JobSpec:
    """Return the spec with a request for exactly what the allocation has."""
    return replace(work, within=held.id, request=_request_for(held), retry=_ONCE)


def _request_for(held: Allocation) -> Request:
    """Return a request that would be granted exactly this allocation."""
    gpu = None
    if held.devices:
        first = held.devices[0]
        memory = None if first.exclusive else first.memory_bytes
        gpu = GpuRequest(len(held.devices), UNIT if first.exclusive else first.share, memory)
    return Request(amounts=held.amounts, gpu=gpu, node=held.node, quality=held.quality)


def start_within(context: Context, job: Job, held: Allocation) -> None:
    started = jobs.start(job, node=held.node, allocation=held.id, now=context.now)
    context.ledger.put_job("job.started", started)
