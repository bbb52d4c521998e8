"""Room that is kept free for jobs that wait, and jobs that are stopped for urgent ones."""

from dataclasses import replace

import pytest

from gridhand import NoRoom, StoreUnavailable
from gridhand.controller.keeper.tickets import NOWHERE, Ticket
from gridhand.core.jobs.job import JobState, Reason
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.jobs.spec import Priority
from gridhand.core.ledger.allocations import Lifetime, Terms
from gridhand.core.model.requests import Request
from gridhand.core.observations import UseQueues
from gridhand.core.operations import Allocate, Cancel, MoveAllocation, Submit
from gridhand.core.queue.named_queues import NamedQueues
from gridhand.core.queue.scheduling_times import SchedulingTimes
from gridhand.library.pool.local_workers import program
from job_desk import work_of

LOW, MEDIUM, HIGH, URGENT = Priority.LOW, Priority.MEDIUM, Priority.HIGH, Priority.URGENT
MINUTE = 60_000


def hold(desk, cpu, **more):
    lifetime = Lifetime.LEASE if more else Lifetime.UNTIL_RELEASED
    terms = Terms("ann", lifetime=lifetime, **more)
    call = Allocate("ann", requests=(Request.of(cpu=cpu),), terms=terms)
    return desk.ask(call).allocations[0].id


def stopping(desk):
    found = (job for job in desk.jobs().values() if job.attempt and job.attempt.stopping)
    return sorted(job.id for job in found)


def let_stop(desk):
    for id in stopping(desk):
        desk.end(id, reason=Reason.SIGNAL, code=None, signal=15)


# ---- kept room


def test_small_jobs_of_a_lower_priority_do_not_starve_a_large_one(desk):
    """The case of the issue, with a priority that does not preempt."""
    desk.nodes(a=2)
    running = [desk.submit(), desk.submit()]
    large = desk.submit(2, priority=HIGH)
    small = [desk.submit(priority=LOW) for _ in range(16)]
    desk.end(running[0])
    assert desk.running() == running[1:]
    assert f"kept for job {large}" in desk.why(small[0])
    desk.end(running[1])
    assert desk.running() == [large]
    desk.end(large)
    assert desk.running() == sorted(small[:2])


def test_within_a_priority_others_may_pass_for_a_while(desk):
    """K1: with 4 CPUs free a job for 8 waits, and one for 2 runs; then the first one comes."""
    desk.nodes(a=8)
    running = desk.submit(4)
    large, small = desk.submit(8), desk.submit(2)
    assert desk.state(small) is JobState.RUNNING
    desk.clock.ms += 10_000
    late = desk.submit(2)
    assert desk.state(late) is JobState.QUEUED
    desk.end(running, small)
    assert desk.running() == [large]


def test_a_job_that_ends_in_time_may_pass(desk):
    desk.nodes(a=2)
    desk.submit(1, time_limit_ms=10 * MINUTE)
    desk.submit(2, priority=HIGH)
    desk.clock.ms += MINUTE
    long = desk.submit(1, time_limit_ms=10 * MINUTE)
    short = desk.submit(1, expect_ms=9 * MINUTE)
    assert desk.state(long) is JobState.QUEUED
    assert desk.state(short) is JobState.RUNNING
    assert "should start in 9m" in desk.why(long)


def test_a_job_that_leaves_enough_beside_it_may_pass(desk):
    desk.nodes(a=4)
    desk.submit(3)
    large = desk.submit(2, priority=HIGH)
    assert desk.state(large) is JobState.QUEUED
    beside = desk.submit(1, priority=LOW)  # 2 of 4 are left when the first has ended
    assert desk.state(beside) is JobState.RUNNING


def test_another_node_may_be_used(desk):
    desk.nodes(a=2, b=1)
    desk.submit(1, node="a")
    large = desk.submit(2, priority=HIGH)
    small = desk.submit(priority=LOW)
    assert desk.state(large) is JobState.QUEUED
    assert desk.job(small).attempt.node == "b"


def test_higher_priorities_need_not_respect_it(desk):
    desk.nodes(a=2)
    desk.submit()
    desk.submit(2, priority=MEDIUM)
    high = desk.submit(priority=HIGH)
    assert desk.state(high) is JobState.RUNNING


def test_nothing_is_held_by_hand_in_the_way(desk):
    desk.nodes(a=2)
    desk.submit(1, time_limit_ms=10 * MINUTE)
    large = desk.submit(2, priority=HIGH)
    with pytest.raises(NoRoom, match=f"kept for job {large}"):
        hold(desk, 1)
    assert hold(desk, 1, ttl_ms=5 * MINUTE)


def test_without_an_expected_end_nothing_is_kept(desk):
    desk.nodes(a=2)
    held = hold(desk, 1)
    large = desk.submit(2, priority=HIGH)
    small = desk.submit(priority=LOW)
    assert desk.state(small) is JobState.RUNNING
    desk.ask(MoveAllocation("ann", id=held))
    desk.end(small)
    assert desk.running() == [large]


def test_room_is_free_again_when_the_job_no_longer_waits(desk):
    desk.nodes(a=2)
    desk.submit()
    large = desk.submit(2, priority=HIGH)
    small = desk.submit(priority=LOW)
    assert desk.state(small) is JobState.QUEUED
    desk.ask(Cancel("ann", ids=(large,)))
    assert desk.state(small) is JobState.RUNNING


def test_what_runs_longer_than_expected_is_planned_anew(desk):
    desk.nodes(a=2)
    desk.submit(1, expect_ms=MINUTE)
    desk.submit(2, priority=HIGH)
    desk.clock.ms += 2 * MINUTE
    small = desk.submit(priority=LOW, expect_ms=10 * MINUTE)
    assert "should start in 1m" in desk.why(small)


def test_it_is_planned_again_after_a_restart(desk):
    desk.nodes(a=2)
    desk.submit()
    large = desk.submit(2, priority=HIGH)
    desk.restart()
    small = desk.submit(priority=LOW)
    assert desk.state(small) is JobState.QUEUED
    assert desk.state(large) is JobState.QUEUED


# ---- preemption


def ran(desk, *args, **wishes):
    """A job that has run for long enough to be stopped."""
    id = desk.submit(*args, **wishes)
    desk.clock.ms += 10_000
    return id


def test_an_urgent_job_stops_a_lower_one_which_comes_back(desk):
    desk.nodes(a=2)
    low = ran(desk, 2, priority=LOW)
    urgent = desk.submit(1, priority=URGENT)
    assert stopping(desk) == [low]
    assert desk.job(low).attempt.stopping is Reason.PREEMPTED
    other = desk.submit(1, priority=HIGH)
    let_stop(desk)
    assert desk.running() == sorted([urgent, other])
    assert desk.state(low) is JobState.QUEUED
    desk.end(urgent, other)
    assert desk.running() == [low]
    assert len(desk.job(low).attempts) == 2


#    what it shows                              running jobs: cpu, priority         urgent   stopped
VICTIMS = {
    "the fewest":                              ([(1, LOW), (1, LOW), (2, LOW)],     2,       [2]),
    "the lowest":                              ([(2, LOW), (2, MEDIUM)],            2,       [0]),
    "the youngest":                            ([(2, LOW), (2, LOW)],               2,       [1]),
    "only as many as needed":                  ([(1, LOW), (1, LOW), (2, HIGH)],    2,       [2]),
    "none if that would not suffice":          ([(2, URGENT), (2, LOW)],            3,       []),
    "not its like":                            ([(2, URGENT), (2, URGENT)],         1,       []),
}  # fmt: skip


@pytest.mark.parametrize(("running", "cpu", "stopped"), VICTIMS.values(), ids=VICTIMS)
def test_victims(desk, running, cpu, stopped):
    desk.nodes(a=4)
    ids = [ran(desk, cpu, priority=priority) for cpu, priority in running]
    desk.submit(cpu, priority=URGENT)
    assert stopping(desk) == [ids[index] for index in stopped]


def test_a_high_priority_stops_nobody(desk):
    desk.nodes(a=1)
    ran(desk, priority=LOW)
    desk.submit(priority=HIGH)
    assert stopping(desk) == []


def test_who_has_just_started_is_spared_for_a_while(desk):
    desk.nodes(a=1)
    low = desk.submit(priority=LOW)
    desk.submit(priority=URGENT)
    assert stopping(desk) == []
    desk.clock.ms += 10_000
    desk.submit(priority=LOW)  # anything happens
    assert stopping(desk) == [low]


def test_an_urgent_job_waits_no_longer_than_they_are_spared(desk):
    desk.nodes(a=1)
    low = desk.submit(priority=LOW)
    desk.clock.ms += 8_000
    desk.submit(priority=URGENT)
    assert stopping(desk) == []
    desk.clock.ms += 2_000
    desk.submit(priority=LOW)
    assert stopping(desk) == [low]


SPARED = {
    "a worker of functions": {"command": tuple(program("folder", "1"))},
    "one that has read from a pipe": {"retry": RetryPolicy.of(0, [])},
}


def test_a_detached_call_is_not_spared(desk):
    desk.nodes(a=1)
    work = replace(work_of(priority=LOW), command=tuple(program("--once", "file")))
    [id] = desk.ask(Submit("ann", None, work)).ids
    desk.clock.ms += 10_000
    desk.submit(priority=URGENT)
    assert stopping(desk) == [id]


@pytest.mark.parametrize("spared", SPARED.values(), ids=SPARED)
def test_what_cannot_be_run_again_is_spared(desk, spared):
    desk.nodes(a=1)
    work = replace(work_of(priority=LOW), **spared)
    desk.ask(Submit("ann", None, work))
    desk.clock.ms += 10_000
    desk.submit(priority=URGENT)
    assert stopping(desk) == []


def test_the_room_is_kept_for_the_one_it_was_made_for(desk):
    desk.nodes(a=2)
    low = [ran(desk, 1, priority=LOW), ran(desk, 1, priority=LOW)]
    urgent = desk.submit(2, priority=URGENT)
    assert stopping(desk) == sorted(low)
    another = desk.submit(1, priority=URGENT)
    desk.end(low[0], reason=Reason.SIGNAL, code=None, signal=15)
    assert desk.state(another) is JobState.QUEUED
    let_stop(desk)
    assert desk.running() == [urgent]


def test_nobody_is_stopped_for_a_job_that_has_gone(desk):
    desk.nodes(a=1)
    low = ran(desk, priority=LOW)
    urgent = desk.submit(priority=URGENT)
    desk.ask(Cancel("ann", ids=(urgent,)))
    let_stop(desk)
    assert desk.running() == [low]


def test_a_job_is_stopped_so_often_and_no_more(desk):
    desk.nodes(a=1)
    low = desk.submit(priority=LOW)
    for _ in range(3):
        desk.clock.ms += 10_000
        urgent = desk.submit(priority=URGENT)
        assert stopping(desk) == [low]
        let_stop(desk)
        desk.end(urgent)
    desk.clock.ms += 10_000
    desk.submit(priority=URGENT)
    assert stopping(desk) == []
    assert desk.running() == [low]


def test_jobs_that_share_an_allocation_are_stopped_together(desk):
    desk.nodes(a=1)
    ids = desk.submit(indices=range(20), priority=LOW)
    desk.clock.ms += 2
    desk.end(ids[0], ran_ms=2)
    desk.clock.ms += 10_000
    urgent = desk.submit(priority=URGENT)
    assert len(stopping(desk)) > 1
    let_stop(desk)
    assert desk.running() == [urgent]


def test_a_preemption_that_could_not_be_written_is_tried_again(desk):
    desk.nodes(a=1)
    low = desk.submit(priority=LOW)
    desk.submit(priority=URGENT)
    desk.clock.ms += 10_000
    desk.store.faults.append(StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable):
        desk.submit(priority=LOW)  # in whose batch the preemption would be
    desk.submit(priority=LOW)
    assert stopping(desk) == [low]


def test_the_times_are_set_by_the_configuration(desk):
    times = SchedulingTimes(minimum_run_ms=0, most_preemptions=1, patience_ms=0)
    desk.ask(UseQueues(NamedQueues(times=times)))
    desk.nodes(a=2)
    low = desk.submit(1, priority=LOW)
    desk.submit(2)
    late = desk.submit(1)
    assert desk.state(late) is JobState.QUEUED  # nobody passes
    urgent = desk.submit(2, priority=URGENT)
    assert stopping(desk) == [low]
    let_stop(desk)
    assert desk.running() == [urgent]


# ---- allocations that wait are in the same queue


def waits_for(desk, cpu, *, owner="ann", priority=MEDIUM, wait_ms=3_600_000, op_id=None):
    call = Allocate(
        owner, op_id, requests=(Request.of(cpu=cpu),), terms=Terms(owner), wait_ms=wait_ms,
        priority=priority,
    )  # fmt: skip
    ticket = Ticket(call, NOWHERE)
    desk.keeper.submit([ticket])
    desk.jobs()  # it was decided about before this question is answered
    return ticket


def test_jobs_and_allocations_wait_in_one_queue(desk):
    desk.nodes(a=1)
    running = desk.submit()
    first = desk.submit()
    second = waits_for(desk, 1)
    third = desk.submit()
    desk.end(running)
    assert desk.running() == [first]
    desk.end(first)
    assert second.reply is not None
    assert desk.running() == []
    desk.ask(MoveAllocation("ann", id=second.reply.allocations[0].id))
    assert desk.running() == [third]


def test_an_allocation_waits_by_its_priority(desk):
    desk.nodes(a=1)
    running = desk.submit()
    job = desk.submit()
    ticket = waits_for(desk, 1, priority=HIGH)
    desk.end(running)
    assert ticket.reply is not None
    assert desk.state(job) is JobState.QUEUED


def test_room_is_kept_for_an_allocation_too(desk):
    desk.nodes(a=2)
    running = desk.submit()
    ticket = waits_for(desk, 2, priority=HIGH)
    small = desk.submit(priority=LOW)
    assert desk.state(small) is JobState.QUEUED
    desk.end(running)
    assert ticket.reply is not None


def test_nobody_who_arrives_with_a_release_overtakes_those_who_wait(desk):
    desk.nodes(a=1)
    held = hold(desk, 1)
    waiting = desk.submit()
    newcomer = Ticket(Allocate("ann", requests=(Request.of(cpu=1),), terms=Terms("ann")), NOWHERE)
    release = Ticket(MoveAllocation("ann", id=held), NOWHERE)
    desk.keeper.submit([release, newcomer])
    assert desk.running() == [waiting]
    assert isinstance(newcomer.error, NoRoom)


def test_a_client_that_asks_again_keeps_its_place(desk):
    desk.nodes(a=1)
    running = desk.submit()
    ticket = waits_for(desk, 1, op_id="o1", wait_ms=1000)
    later = desk.submit()
    desk.clock.ms += 1000
    desk.submit(owner="bob", priority=LOW)
    assert isinstance(ticket.error, NoRoom)
    again = waits_for(desk, 1, op_id="o1", wait_ms=1000)
    desk.end(running)
    assert again.reply is not None
    assert desk.state(later) is JobState.QUEUED


def test_a_place_is_not_kept_for_long(desk):
    desk.nodes(a=1)
    running = desk.submit()
    waits_for(desk, 1, op_id="o1", wait_ms=1000)
    later = desk.submit()
    desk.clock.ms += 1000
    desk.submit(owner="bob", priority=LOW)
    desk.clock.ms += 10_000
    again = waits_for(desk, 1, op_id="o1")
    desk.end(running)
    assert desk.running() == [later]
    assert again.reply is None


def test_an_abandoned_allocation_leaves_the_queue(desk):
    desk.nodes(a=1)
    running = desk.submit()
    ticket = waits_for(desk, 1)
    later = desk.submit()
    desk.keeper.abandon(ticket)
    desk.end(running)
    assert desk.running() == [later]


def test_allocations_still_wait_after_a_batch_was_undone(desk):
    desk.nodes(a=1)
    running = desk.submit()
    ticket = waits_for(desk, 1)
    desk.store.faults.append(StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable):
        desk.submit()
    desk.end(running)
    assert ticket.reply is not None
