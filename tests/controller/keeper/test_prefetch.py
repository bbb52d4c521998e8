"""Short tasks of an array, lined up behind those that run."""

import pytest

from gridhand import StoreUnavailable
from gridhand.controller.jobs.job_reader import state_of
from gridhand.controller.keeper.prefetch import AHEAD_MS, MOST_AHEAD
from gridhand.controller.keeper.questions import Read
from gridhand.controller.keeper.tickets import NOWHERE, Ticket
from gridhand.core.errors import OutcomeUnknown
from gridhand.core.jobs.job import JobState, Reason
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.jobs.spec import Priority
from gridhand.core.ledger.allocations import Terms
from gridhand.core.model.nodes import Health
from gridhand.core.model.requests import Request
from gridhand.core.operations import Allocate, Cancel, GetStatus, SetDraining, SetHealth


def took(desk, id, ms, **more):
    """The task ends after it ran for so long."""
    desk.clock.ms += ms
    return desk.end(id, ran_ms=ms, **more)


def first_of(desk, allocation):
    """Who runs, of those that share what is held: they take turns."""
    return desk.ask(Read(lambda seen: seen.ledger.jobs.holding(allocation)[0].id))


def lined_up(desk):
    """How many jobs each allocation is for."""
    found = {}
    for job in desk.jobs().values():
        if job.attempt is not None:
            found[job.attempt.allocation] = found.get(job.attempt.allocation, 0) + 1
    return sorted(found.values())


def array_of(desk, count=100, cpu=1, *, usual_ms=2, **wishes):
    """An array, of which as many have ended as are needed to know how long they take."""
    ids = desk.submit(cpu, indices=range(count), **wishes)
    for id in desk.running():
        took(desk, id, usual_ms)
    return ids


def test_short_tasks_follow_each_other_on_one_allocation_until_none_is_left(desk):
    desk.nodes(a=2)
    ids = array_of(desk)
    allocations = set()
    ended = []
    while running := desk.running():
        held = {desk.job(id).attempt.allocation for id in running}
        assert len(held) <= 2
        assert len(running) <= 2 * MOST_AHEAD
        allocations |= held
        for one in held:
            ended.append(first_of(desk, one))
            took(desk, ended[-1], 2)
    assert sorted([*ended, *ids[:2]]) == sorted(ids)
    assert len(allocations) <= 4
    assert desk.ask(GetStatus()).allocated["cpu"] == 0


def test_lines_are_filled_in_numbers_and_as_short_as_each_other(desk):
    desk.nodes(a=2)
    array_of(desk, 500)
    lengths = lined_up(desk)
    assert len(lengths) == 2
    assert lengths[1] - lengths[0] <= MOST_AHEAD // 2
    before = desk.running()
    took(desk, before[0], 2)
    assert len(desk.running()) in (len(before) - 1, sum(lengths) + MOST_AHEAD)


@pytest.mark.parametrize("usual_ms", [AHEAD_MS, 10 * AHEAD_MS])
def test_what_takes_long_is_not_lined_up(desk, usual_ms):
    desk.nodes(a=2)
    array_of(desk, usual_ms=usual_ms)
    assert lined_up(desk) == [1, 1]


def test_a_line_is_no_longer_than_what_it_may_take(desk):
    desk.nodes(a=1)
    array_of(desk, usual_ms=AHEAD_MS // 5)
    assert lined_up(desk) == [5]


def test_nothing_is_lined_up_before_it_is_known_how_long_it_takes(desk):
    desk.nodes(a=2)
    desk.submit(indices=range(100))
    assert lined_up(desk) == [1, 1]


def test_one_that_takes_long_says_more_than_many_that_did_not(desk):
    desk.nodes(a=1)
    array_of(desk)
    took(desk, desk.running()[0], 4 * AHEAD_MS)
    while len(running := desk.running()) > 1:
        took(desk, running[0], AHEAD_MS)
    assert lined_up(desk) == [1]


def test_nobody_is_overtaken_who_comes_first(desk):
    desk.nodes(a=2)
    ids = desk.submit(indices=range(100))
    urgent = desk.submit(2, priority=Priority.HIGH)
    took(desk, ids[0], 2)
    assert lined_up(desk) == [1]  # the core that is free is kept for it
    took(desk, ids[1], 2)
    assert desk.running() == [urgent]


def test_nothing_is_lined_up_while_somebody_waits_for_an_allocation(desk):
    desk.nodes(a=2)
    ids = desk.submit(indices=range(100))
    waiting = Allocate("bob", requests=(Request.of(cpu=2),), terms=Terms("bob"), wait_ms=60_000)
    desk.keeper.submit([Ticket(waiting, NOWHERE)])
    took(desk, ids[0], 2)
    assert lined_up(desk) == [1, 1]


@pytest.mark.parametrize("wishes", [{"at_once": 1}, {"stdin": "/dev/null"}])
def test_what_needs_looking_after_in_between_is_not_lined_up(desk, wishes):
    desk.nodes(a=1)
    array_of(desk, **wishes)
    assert lined_up(desk) == [1]


def test_only_tasks_of_one_array_share_what_they_hold(desk):
    desk.nodes(a=1)
    first, second = desk.submit(indices=range(3)), desk.submit(indices=range(3))
    took(desk, first[0], 2)
    arrays = {job.array for job in desk.jobs().values() if job.state is JobState.RUNNING}
    assert arrays == {first[1].partition("_")[0]}
    while any(id in desk.jobs() for id in first):
        took(desk, desk.running()[0], 2)
    assert desk.running() == second[:1]


def test_one_that_could_not_begin_comes_back_and_is_not_lined_up_again(desk):
    desk.nodes(a=1)
    ids = array_of(desk, 4)
    assert desk.running() == ids[1:]
    desk.end(ids[3], reason=Reason.RETURNED, code=None)
    job = desk.job(ids[3])
    assert (job.state, job.attempts[0].reason) == (JobState.QUEUED, Reason.RETURNED)
    took(desk, ids[1], 2)
    assert desk.running() == [ids[2]]
    took(desk, ids[2], 2)
    assert desk.job(ids[3]).attempt.number == 2
    took(desk, ids[3], 2)
    assert desk.state(ids[3]) is JobState.SUCCEEDED


def test_a_failure_in_line_is_tried_again_by_itself_and_holds_nobody_up(desk):
    desk.nodes(a=1)
    ids = array_of(desk, 4, retry=RetryPolicy(tries=2, delay_ms=0))
    took(desk, ids[1], 2, code=1)
    assert desk.state(ids[1]) is JobState.QUEUED
    assert desk.running() == ids[2:]
    took(desk, ids[2], 2)
    took(desk, ids[3], 2)
    assert desk.job(ids[1]).attempt.number == 2


def test_those_in_line_are_queued_to_whoever_looks(desk):
    desk.nodes(a=1)
    ids = array_of(desk, 5)

    def states(seen):
        book = seen.ledger.jobs
        return [state_of(job, book) for job in book.open.values()]

    assert desk.ask(Read(states)) == [JobState.RUNNING] + [JobState.QUEUED] * 3
    assert desk.ask(Read(lambda seen: seen.ledger.jobs.running())) == 1
    desk.ask(Cancel("ann", ids=(ids[1],)))  # it stays the first in line until it has stopped
    assert desk.ask(Read(lambda seen: seen.ledger.jobs.running())) == 1


def test_one_in_line_that_is_cancelled_ends_once_its_node_has_let_it_go(desk):
    desk.nodes(a=1)
    ids = array_of(desk, 5)
    desk.ask(Cancel("ann", ids=(ids[3],)))
    assert desk.job(ids[3]).attempt.stopping is Reason.CANCELLED
    desk.end(ids[3], reason=Reason.RETURNED, code=None)
    assert desk.state(ids[3]) is JobState.CANCELLED


def test_a_lost_node_takes_the_whole_line_with_it_and_all_come_back(desk):
    desk.nodes(a=1)
    ids = array_of(desk, 5)
    desk.ask(SetHealth("ann", name="a", health=Health.DOWN, why="gone"))
    assert [desk.state(id) for id in ids[1:]] == [JobState.QUEUED] * 4
    desk.ask(SetHealth("ann", name="a", health=Health.UP))
    assert {desk.job(id).attempts[0].reason for id in ids[1:]} == {Reason.NODE_LOST}


def test_nothing_is_lined_up_on_a_node_that_is_drained(desk):
    desk.nodes(a=1)
    ids = array_of(desk, 200)
    lined = desk.running()
    desk.ask(SetDraining("ann", name="a", draining=True))
    for id in lined:
        took(desk, id, 2)
    assert desk.running() == []
    desk.ask(SetDraining("ann", name="a", draining=False))
    assert ids[len(lined) + 1] in desk.running()


def test_a_line_is_there_after_a_restart(desk):
    desk.nodes(a=1)
    ids = array_of(desk, 5)
    desk.restart()
    assert desk.running() == ids[1:]
    for id in ids[1:]:
        took(desk, id, 2)
    assert desk.ask(GetStatus()).allocated["cpu"] == 0


@pytest.mark.parametrize("fault", [StoreUnavailable("full"), OutcomeUnknown("gone")])
def test_a_line_that_could_not_be_written_is_not_there(desk, fault):
    desk.nodes(a=1)
    ids = desk.submit(indices=range(5))
    told = len(desk.told)
    desk.store.faults = [fault]
    with pytest.raises(StoreUnavailable):
        took(desk, ids[0], 2)
    assert desk.running() == ids[:1]
    assert len(desk.told) == told
    took(desk, ids[0], 2)
    assert desk.running() == ids[1:]
