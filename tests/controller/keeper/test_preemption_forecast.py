"""What is foretold of a preemption is what happens, and who was stopped by whom is remembered."""

import random

import pytest

from gridhand.api.queue_views import stops_json
from gridhand.controller.keeper.questions import Read
from gridhand.controller.keeper.queue_questions import find_new_place, find_place
from gridhand.core.jobs.spec import Priority
from gridhand.core.queue.preemption_forecast import StoppedJob
from job_desk import work_of

URGENT, LOW = Priority.URGENT, Priority.LOW
GRACE_MS = work_of(1).grace_ms


def foretold(desk, cpu):
    """The start that a dry run of an urgent job tells."""
    work = work_of(cpu, priority=URGENT)
    return desk.ask(Read(lambda context: find_new_place(desk.dispatch, context, work))).start


def stopping(desk):
    jobs = [desk.job(id) for id in desk.running()]
    return {job.id for job in jobs if job.attempt.stopping is not None}


@pytest.mark.parametrize("seed", range(3))
def test_a_dry_run_and_the_decision_agree_on_random_states(desk, seed):
    chance, stops = random.Random(seed), 0
    desk.nodes(a=4, b=3)
    for _ in range(25):
        for _ in range(3):
            priority = chance.choice([LOW, LOW, LOW, Priority.MEDIUM, Priority.HIGH])
            desk.submit(chance.randrange(1, 3), priority=priority, owner=chance.choice("xyz"))
        desk.clock.ms += chance.choice((3_000, 10_000, 20_000))
        desk.settle()
        cpu, now, before = chance.randrange(1, 4), desk.clock.ms, stopping(desk)
        start = foretold(desk, cpu)
        at_once = start is not None and start.stops and start.at <= now + GRACE_MS
        id = desk.submit(cpu, priority=URGENT)
        told = {job.id for job in start.stops} if at_once else set()
        assert stopping(desk) - before == told
        if at_once:
            stops += 1
            assert desk.dispatch.timeline.get(id)[2:5:2] == (start.node, start.at)
        desk.end(*stopping(desk))  # the urgent one may start now
        running = [desk.job(one) for one in desk.running()]
        is_over = {job.id: chance.random() < 0.1 for job in running}
        desk.end(*(job.id for job in running if job.work.priority is URGENT or is_over[job.id]))
    assert stops > 3


def test_it_is_foretold_when_somebody_may_be_stopped_who_has_just_started(desk):
    desk.nodes(a=1)
    low = desk.submit(1, priority=LOW)
    desk.clock.ms += 4_000
    start = foretold(desk, 1)
    assert start.at == desk.clock.ms + 6_000 + GRACE_MS
    assert [(job.id, job.ran_ms) for job in start.stops] == [(low, 4_000)]
    desk.submit(1, priority=URGENT)
    assert not stopping(desk)
    desk.clock.ms += 6_000
    desk.settle()
    assert stopping(desk) == {low}


def test_nobody_else_is_stopped_after_a_restart_and_both_know_of_each_other(desk):
    desk.nodes(a=2)
    low = [desk.submit(1, priority=LOW) for _ in range(2)]
    desk.clock.ms += 10_000
    urgent = desk.submit(1, priority=URGENT)
    (victim,) = stopping(desk)
    now = desk.clock.ms
    desk.restart()
    desk.clock.ms = now + 11_000
    desk.settle()
    assert stopping(desk) == {victim}
    job = desk.job(urgent)
    place = desk.ask(Read(lambda context: find_place(desk.dispatch, context, job)))
    assert [(one.id, one.stopping) for one in place.start.stops] == [(victim, True)]
    assert f"stopping for it: 1 job of ann ({victim})" in "\n".join(place.lines(desk.clock.ms))
    desk.end(victim)
    assert desk.job(urgent).attempt.preempts == (victim,)
    assert desk.job(victim).attempts[0].preempted_by == urgent
    assert all(desk.job(one).attempts[0].preempted_by is None for one in low if one != victim)


def test_names_of_others_are_told_only_to_those_who_may_know_them():
    stops = (StoppedJob("7", "train", "bob", 5000, False), StoppedJob("8", "x", "ann", 1, False))
    told = [(one["id"], one["name"], one["owner"]) for one in stops_json(stops, "ann")]
    assert told == [("7", None, None), ("8", "x", "ann")]
    assert stops_json(stops, None)[0]["name"] == "train"
