"""Calls in the controller: written while the store is there, lost and forgotten when it is again."""

import asyncio

import pytest

from controller_place import in_place
from gridhand.controller import store_retry
from gridhand.controller.clients import call_recorder
from gridhand.controller.clients.call_recorder import WantedCalls
from gridhand.core.errors import (
    InvalidInput,
    NotYours,
    OutcomeUnknown,
    StoreFull,
    StoreUnavailable,
    UnknownCall,
)
from gridhand.core.model.call_record import CallRecord

SESSION = "5e" * 16
DAY_MS = 86_400_000


def call(number, state="running", *, at=1000, run="r1", owner="ann"):
    over = state not in ("queued", "running")
    return CallRecord(run, number, owner, "f", state, None, None, None, at, at, at if over else None, None)  # fmt: skip


async def states(place, **wanted):
    found = await place.controller.callbook.calls(WantedCalls(**wanted, limit=1000))
    return {one.id: one.state for one in found}


def fails(place, name, *errors):
    """Have the store raise these, one after the other, before it does what it is asked."""
    waiting, real = list(errors), getattr(place.store._store, name)

    def write(*args, **more):
        if waiting:
            raise waiting.pop(0)
        return real(*args, **more)

    setattr(place.store, name, write)
    return waiting


@in_place()
async def test_calls_are_taken_from_those_who_are_connected(place):
    controller = place.controller
    with pytest.raises(InvalidInput, match="session"):
        await controller.report_calls("ann", SESSION, "r1", [call(1)])
    with controller.sessions.connected("ann", SESSION):
        await controller.report_calls("ann", SESSION, "r1", [call(1)])
        with pytest.raises(InvalidInput, match="session"):
            await controller.report_calls("bob", SESSION, "r1", [call(2, owner="bob")])
        with controller.sessions.connected("bob", SESSION), pytest.raises(NotYours):
            await controller.report_calls("bob", SESSION, "r1", [call(2, owner="bob")])
        assert await states(place) == {"r1.1": "running"}
        assert (await controller.callbook.call("r1", 1)).name == "f"
        with pytest.raises(UnknownCall):
            await controller.callbook.call("r1", 2)


@in_place()
async def test_a_store_that_is_away_is_said_and_jobs_go_on(place):
    with place.controller.sessions.connected("ann", SESSION):
        fails(place, "write_calls", StoreUnavailable("away"), StoreFull("full"))
        for error in (StoreUnavailable, StoreFull):
            with pytest.raises(error):
                await place.controller.report_calls("ann", SESSION, "r1", [call(1)])
        id = await place.submit()
        await place.sent((id, 1))
        await place.controller.report_calls("ann", SESSION, "r1", [call(1)])
        assert await states(place) == {"r1.1": "running"}


@in_place()
async def test_a_report_whose_outcome_is_unknown_is_written_again(place):
    """Which does no harm: it says the same."""
    with place.controller.sessions.connected("ann", SESSION):
        fails(place, "write_calls", OutcomeUnknown("the connection was lost"))
        await place.controller.report_calls("ann", SESSION, "r1", [call(1)])
        assert await states(place) == {"r1.1": "running"}


@in_place()
async def test_what_is_lost_with_a_session_is_so_once_the_store_is_back(place, monkeypatch):
    monkeypatch.setattr(store_retry, "PAUSE_S", 0.01)
    with place.controller.sessions.connected("ann", SESSION):
        await place.controller.report_calls("ann", SESSION, "r1", [call(1), call(2, "queued")])
        waiting = fails(place, "lose_calls", StoreUnavailable("away"), StoreUnavailable("away"))
        await place.controller.sessions.end("ann", SESSION)
        assert waiting == []
        assert await states(place) == {"r1.1": "lost", "r1.2": "lost"}


@in_place()
async def test_what_a_session_has_told_before_its_end_is_written_before_it_is_lost(place):
    with place.controller.sessions.connected("ann", SESSION):
        await place.controller.report_calls("ann", SESSION, "r1", [call(1), call(2)])
        last = place.controller.report_calls("ann", SESSION, "r1", [call(1, "succeeded"), call(3)])
        ending = place.controller.sessions.end("ann", SESSION)
        await asyncio.gather(last, ending)
        assert await states(place) == {"r1.1": "succeeded", "r1.2": "lost", "r1.3": "lost"}


@in_place()
async def test_old_calls_go_with_the_rest_of_history_and_open_ones_stay(place):
    controller = place.controller
    now = controller._keeper.clock.now()
    kept_ms = controller.settings.kept_ms()
    old, young = now - kept_ms - DAY_MS, now - kept_ms + DAY_MS
    with controller.sessions.connected("ann", SESSION):
        told = [call(1, "succeeded", at=old), call(2, "succeeded", at=young), call(3, at=old)]
        await controller.report_calls("ann", SESSION, "r1", told)
        await controller._retention.forget()
        assert await states(place) == {"r1.2": "succeeded", "r1.3": "running"}


@in_place()
async def test_of_too_many_the_oldest_go_while_others_come(place, monkeypatch):
    monkeypatch.setattr(call_recorder, "KEPT_CALLS", 30)
    monkeypatch.setattr(call_recorder, "_BETWEEN", 40)
    monkeypatch.setattr(call_recorder, "_STEP", 7)
    now = place.controller._keeper.clock.now() - DAY_MS
    with place.controller.sessions.connected("ann", SESSION):
        for number in range(1, 101):
            one = call(number, "succeeded", at=now + number)
            await place.controller.report_calls("ann", SESSION, "r1", [one])
        await place.until(lambda: few_enough(place, 70))
        left = sorted(int(id.partition(".")[2]) for id in await states(place))
        assert left == list(range(101 - len(left), 101))


async def few_enough(place, count):
    return len(await states(place)) <= count


@in_place()
async def test_a_store_that_cannot_forget_ends_nobody(place, monkeypatch):
    monkeypatch.setattr(call_recorder, "_BETWEEN", 1)
    with place.controller.sessions.connected("ann", SESSION):
        waiting = fails(place, "forget_calls", StoreUnavailable("away"))
        await place.controller.report_calls("ann", SESSION, "r1", [call(1)])
        await place.until(lambda: not waiting)
        await place.controller.report_calls("ann", SESSION, "r1", [call(2)])
        assert not place.controller.stopping.is_set()
