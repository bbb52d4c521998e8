"""Within: jobs that run in what their owner holds already, and so wait for nothing.

Such a job starts in the transaction in which it is submitted, on the node, the cores and the
devices of the allocation that it names, and leaves it as it was when it ends. One at a time: what
is held is one job's at any moment. If its holder gives it up meanwhile, by releasing it or by being
gone, the job is stopped, and what is held is free when that has ended and not before.
"""

from __future__ import annotations

from dataclasses import replace

from gridhand.controller.commands import Desk
from gridhand.core import jobs
from gridhand.core.allocations import Allocation, Lifetime, State
from gridhand.core.errors import AllocationBusy, InvalidInput, MoveRefused
from gridhand.core.gpus import GpuAsk
from gridhand.core.jobs import After, Job, Work
from gridhand.core.requests import Request
from gridhand.core.resources import UNIT
from gridhand.core.retries import RetryPolicy

_RUN_IN = "run in"
_ONCE = RetryPolicy(losses=0)  # there is nowhere else to try it again


def room_within(work: Work, after: tuple[After, ...], several: bool, desk: Desk) -> Allocation:
    """What the job is to run in, if it may start there now."""
    assert work.within is not None
    if several:
        raise InvalidInput("within", work.within, "a job by itself, not an array: they would share")
    if after:
        raise InvalidInput("after", after[0].id, "nothing with `within`: that starts at once")
    if work.retry.tries > 1:
        raise InvalidInput("retries", work.retry.tries - 1, "0 with `within`: start it again")
    held = desk.find(work.within, work.owner)
    if not held.live or held.lapsed(desk.now):
        raise MoveRefused(_RUN_IN, held.id, f"it is {held.state if not held.live else 'expired'}")
    if held.state is State.RESERVED:
        raise MoveRefused(_RUN_IN, held.id, "it is reserved, and not confirmed yet")
    inside = desk.ledger.jobs.holding(held.id)
    if inside:
        raise AllocationBusy(_RUN_IN, held.id, f"job {inside[0].id} runs in it")
    assert held.lifetime is not Lifetime.JOB, f"{held.id} is held for a job that does not run"
    return held


def as_held(work: Work, held: Allocation) -> Work:
    """The work, asking for just what it gets."""
    return replace(work, within=held.id, request=request_of(held), retry=_ONCE)


def request_of(held: Allocation) -> Request:
    """A request that what is held is an answer to."""
    gpu = None
    if held.devices:
        first = held.devices[0]
        memory = None if first.exclusive else first.memory_bytes
        gpu = GpuAsk(len(held.devices), UNIT if first.exclusive else first.share, memory)
    return Request(amounts=held.amounts, gpu=gpu, node=held.node, quality=held.quality)


def begin_within(desk: Desk, job: Job, held: Allocation) -> None:
    started = jobs.start(job, node=held.node, allocation=held.id, now=desk.now)
    desk.ledger.put_job("job.started", started)
