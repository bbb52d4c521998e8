"""Planning: what would become of a job if it were submitted now, found out without doing so.

What submitting would refuse is refused here, in the same words.
"""

from __future__ import annotations

from typing import Any

from gridhand.controller.commands import Desk, Read, near
from gridhand.controller.controller import Controller
from gridhand.controller.looking import Wanted
from gridhand.controller.within import room_within
from gridhand.core.errors import InvalidDependency, InvalidInput, InvalidRequest
from gridhand.core.explain import explain
from gridhand.core.explanation import Explanation
from gridhand.core.jobs import After, Work
from gridhand.core.refusals import Refusal

_MOST_TASKS = 10_000
_SHOWN = 3


async def planned(controller: Controller, work: Work, after: tuple[After, ...]) -> dict[str, Any]:
    """Whether it would start now, and where; else for what it would wait."""
    if work.within is not None:
        return await controller.ask(Read(lambda desk: _inside(work, after, desk)))
    waits = await _waits_for(controller, after)
    try:
        found = await controller.ask(Read(lambda desk: _explained(work, desk)))
    except InvalidRequest as error:  # what it is to be near to is not there now; it may come
        return _answer(None, f"{error}. {error.hint}")
    return _answer(found, waits or (None if found.fits else str(found)))


def _answer(found: Explanation | None, why: str | None) -> dict[str, Any]:
    return {
        "starts": why is None,
        "node": None if found is None else found.node,
        "gpus": [] if found is None else list(found.gpus),
        "why": why,
        "holders": [] if found is None else [one.to_dict() for one in found.holders],
    }


def _inside(work: Work, after: tuple[After, ...], desk: Desk) -> dict[str, Any]:
    held = room_within(work, after, False, desk)
    gpus = [hold.device for hold in held.devices]
    return {**_answer(None, None), "node": held.node, "gpus": gpus}


def _explained(work: Work, desk: Desk) -> Explanation:
    asked = near(work.request, work.owner, desk.ledger)
    found = explain(asked, desk.snapshot, desk.strategy)
    comes_and_goes = asked.together_with is not None or asked.apart_from
    if not found.ever and not comes_and_goes:
        raise Refusal(asked, desk.snapshot).error()
    return found


async def _waits_for(controller: Controller, after: tuple[After, ...]) -> str:
    """The jobs that would have to end first, in words; nothing if there are none."""
    waits: list[str] = []
    for one in after:
        found = await controller.find([one.id])
        found = found or await controller.jobs(Wanted(array=one.id, limit=_MOST_TASKS))
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
