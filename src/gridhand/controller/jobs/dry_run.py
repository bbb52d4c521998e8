"""Dry runs: what would happen to a job if it were submitted now.

What a submission would refuse is refused here with the same error.
"""

from __future__ import annotations

from typing import Any

from gridhand.controller.controller import Controller
from gridhand.controller.jobs.gang_plan import plan_gang
from gridhand.controller.jobs.job_reader import JobFilter
from gridhand.controller.keeper.job_commands import admit_jobs
from gridhand.controller.keeper.ledger_commands import Context, resolve_neighbours
from gridhand.controller.keeper.questions import Read
from gridhand.controller.keeper.run_within import find_room_within
from gridhand.core.errors import InvalidDependency, InvalidInput, InvalidRequest
from gridhand.core.explain.explain import explain
from gridhand.core.explain.explanation import Explanation
from gridhand.core.explain.refusal import Refusal
from gridhand.core.jobs.job import After, JobSpec
from gridhand.core.jobs.scopes import most_charged
from gridhand.core.model.requests import Request
from gridhand.core.queue.job_admission import NOTHING_LEFT_OPEN, LeftOpen
from gridhand.core.queue.ready import RANKS
from gridhand.core.queue.running_quotas import running_quotas
from gridhand.core.queue.timeline import Caller, RoomClaim, why_kept

_MOST_TASKS = 10_000
_SHOWN = 3


async def planned(
    controller: Controller,
    work: JobSpec,
    after: tuple[After, ...],
    *,
    count: int = 1,
    left_open: LeftOpen = NOTHING_LEFT_OPEN,
) -> dict[str, Any]:
    """Return whether the job would start now and where, or what it would wait for."""
    work = await controller.ask(Read(lambda context: admit_jobs(work, count, context, left_open)))
    if work.within is not None:
        return await controller.ask(Read(lambda context: _plan_within(work, after, context)))
    waits = await _find_waits(controller, after)
    waits = waits or await controller.ask(Read(lambda context: _find_quota(work, context)))
    if work.nodes is not None:
        return await _plan_gang(controller, work, waits)
    try:
        found, kept = await controller.ask(Read(lambda context: _explain(work, context)))
    except InvalidRequest as error:  # its neighbour does not exist now, but may come
        return _answer(None, f"{error}. {error.hint}")
    why = waits or kept or (None if found.fits else str(found))
    answer = _answer(found, why)
    if why is None or waits:
        return answer
    return answer | {"node": None, "gpus": []} | await _expected(controller, work)


async def _plan_gang(controller: Controller, work: JobSpec, waits: str) -> dict[str, Any]:
    answer = await controller.ask(Read(lambda context: plan_gang(work, waits, context)))
    if answer["starts"] or waits:
        return answer
    return answer | await _expected(controller, work)


async def _expected(controller: Controller, work: JobSpec) -> dict[str, Any]:
    """Return when and where a job that has to wait would start, if that is known."""
    place = await controller.new_place(work)
    if place is None or place.start is None:
        return {}
    wait_ms = max(0, place.start.at - controller.now())
    return {"starts_in_s": wait_ms / 1000, "starts_on": place.start.node}


def _answer(found: Explanation | None, why: str | None) -> dict[str, Any]:
    return {
        "starts_in_s": 0 if why is None else None,
        "starts_on": found.node if found is not None and why is None else None,
        "starts": why is None,
        "node": None if found is None else found.node,
        "gpus": [] if found is None else list(found.gpus),
        "why": why,
        "holders": [] if found is None else [one.to_dict() for one in found.holders],
    }


def _plan_within(work: JobSpec, after: tuple[After, ...], context: Context) -> dict[str, Any]:
    held = find_room_within(work, after, False, context)
    gpus = [hold.device for hold in held.devices]
    return {**_answer(None, None), "node": held.node, "gpus": gpus}


def _explain(work: JobSpec, context: Context) -> tuple[Explanation, str | None]:
    """Return what would become of the request, and why it must wait though there is room."""
    asked = resolve_neighbours(work.request, work.owner, context.ledger)
    found = explain(asked, context.snapshot, context.strategy)
    comes_and_goes = asked.together_with is not None or asked.apart_from
    if not found.ever and not comes_and_goes:
        raise Refusal(asked, context.snapshot).error()
    return found, _why_kept(work, asked, context) if found.fits else None


def _why_kept(work: JobSpec, asked: Request, context: Context) -> str | None:
    """Return why the room is kept for others, if all of it is."""
    said_ms = work.expect_ms or work.time_limit_ms
    ends = None if said_ms is None else context.now + said_ms
    placed = context.place(asked, Caller(None, RANKS[work.priority], ends))
    return why_kept(placed, context.now) if isinstance(placed, RoomClaim) else None


def _find_quota(work: JobSpec, context: Context) -> str:
    """Return which quota has no room for the job now, or an empty text."""
    quotas = running_quotas(context.queues, context.ledger.jobs.placed())
    return quotas.why(work, most_charged(work.request, work.nodes)) or ""


async def _find_waits(controller: Controller, after: tuple[After, ...]) -> str:
    """Return a text about the jobs that would have to end first, or an empty one."""
    waits: list[str] = []
    for one in after:
        found = await controller.find([one.id])
        found = found or await controller.jobs(JobFilter(array=one.id, limit=_MOST_TASKS))
        if not found:
            raise InvalidDependency("the new one", one.id)
        for seen in found:
            if seen.job.open:
                waits.append(seen.job.id)
            elif not one.condition.met_by(seen.job.state):
                still = f"jobs that can still end as they have to: {one.id} is {seen.job.state}"
                raise InvalidInput("after", one.id, still)
    more = f" and {len(waits) - _SHOWN} more" if len(waits) > _SHOWN else ""
    return f"for job {', '.join(waits[:_SHOWN])}{more} to end" if waits else ""
