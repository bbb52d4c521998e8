"""Jobs that run in what their owner holds already."""

import pytest

from gridhand import AllocationBusy, InvalidInput, MoveRefused, Node, NotYours, UnknownAllocation
from gridhand.controller.keeper.questions import Read
from gridhand.core.jobs.job import After, JobState, Reason
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.ledger.allocations import AllocationMove, AllocationState, Lifetime, Terms
from gridhand.core.model.gpus import Gpu
from gridhand.core.model.nodes import Health
from gridhand.core.model.requests import Request
from gridhand.core.operations import (
    Allocate,
    Cancel,
    GetStatus,
    ListAllocations,
    MoveAllocation,
    Register,
    SetHealth,
)


def hold(desk, *cpus, owner="ann", gpu=0, **terms):
    asked = tuple(Request.of(cpu=cpu, gpu=gpu) for cpu in cpus or (2,))
    made = desk.ask(Allocate(owner, requests=asked, terms=Terms(owner, **terms))).allocations
    return [one.id for one in made] if len(cpus) > 1 else made[0].id


def move(desk, id, move=AllocationMove.RELEASE, owner="ann"):
    return desk.ask(MoveAllocation(owner, id=id, move=move))[0]


def live(desk):
    return {held.id: held for held in desk.ask(ListAllocations())}


def free(desk):
    (node, *_) = desk.ask(GetStatus()).nodes
    return node.available["cpu"] // 10_000


@pytest.fixture
def held(desk):
    desk.nodes(a=4)
    return hold(desk)


def test_it_starts_at_once_where_it_is_held_and_takes_no_more(desk, held):
    id = desk.submit(within=held)
    job = desk.job(id)
    assert (job.state, job.attempt.node, job.attempt.allocation) == (JobState.RUNNING, "a", held)
    assert job.request.amounts.parts()["cpu"] == 20_000
    assert free(desk) == 2
    assert ("job.started", id) in desk.kinds()
    desk.check()


def test_its_end_leaves_what_is_held_to_its_holder(desk, held):
    desk.end(desk.submit(within=held))
    assert live(desk)[held].lifetime is Lifetime.UNTIL_RELEASED
    again = desk.submit(within=held)
    assert desk.state(again) is JobState.RUNNING
    desk.end(again, code=3)
    assert move(desk, held).state is AllocationState.RELEASED
    desk.check()


def test_it_need_not_wait_for_those_who_do(desk, held):
    desk.submit(4)
    assert desk.state(desk.submit(within=held)) is JobState.RUNNING


def test_only_one_at_a_time_runs_in_it(desk, held):
    first = desk.submit(within=held)
    with pytest.raises(AllocationBusy, match=f"job {first} runs in it"):
        desk.submit(within=held)
    assert list(desk.jobs()) == [first]
    desk.end(first)
    desk.submit(within=held)


def test_what_is_given_up_is_free_when_its_job_has_ended_and_not_before(desk, held):
    id = desk.submit(within=held)
    left = move(desk, held)
    assert (left.state, left.lifetime) == (AllocationState.ACTIVE, Lifetime.JOB)
    assert free(desk) == 2
    assert desk.job(id).attempt.stopping is Reason.RELEASED
    assert move(desk, held).id == held  # again, as after a lost reply
    desk.check()
    desk.end(id, reason=Reason.SIGNAL, code=None, signal=15)
    ended = desk.job(id)
    assert (ended.state, ended.reason) == (JobState.CANCELLED, Reason.RELEASED)
    assert free(desk) == 4
    desk.check()


def test_a_lease_that_runs_out_ends_its_job_first(desk):
    desk.nodes(a=4)
    held = hold(desk, lifetime=Lifetime.LEASE, ttl_ms=1000)
    id = desk.submit(within=held)
    desk.clock.ms += 2000
    assert desk.job(id).attempt.stopping is Reason.RELEASED
    assert free(desk) == 2
    desk.end(id)
    assert free(desk) == 4
    desk.check()


def test_of_a_group_that_is_given_up_only_that_stays_which_is_in_use(desk):
    desk.nodes(a=4)
    first, second = hold(desk, 1, 2)
    id = desk.submit(within=second)
    move(desk, first)
    assert list(live(desk)) == [second]
    desk.check()
    desk.end(id)
    assert live(desk) == {}
    desk.check()


def test_of_a_group_that_lost_a_node_what_runs_elsewhere_ends_before_it_is_free(desk):
    desk.nodes(a=4, b=4)
    asked = tuple(Request.of(cpu=2, node=node) for node in "ab")
    on_a, on_b = desk.ask(Allocate("ann", requests=asked, terms=Terms("ann"))).allocations
    lost, runs = desk.submit(within=on_a.id), desk.submit(within=on_b.id)
    desk.ask(SetHealth("ann", name="a", health=Health.DOWN))
    assert desk.state(lost) is JobState.LOST
    assert desk.job(runs).attempt.stopping is Reason.RELEASED
    assert list(live(desk)) == [on_b.id]
    desk.check()
    desk.end(runs)
    assert live(desk) == {}
    desk.check()


def test_cancelling_the_job_keeps_what_is_held(desk, held):
    id = desk.submit(within=held)
    desk.ask(Cancel("ann", ids=(id,)))
    desk.end(id, reason=Reason.SIGNAL, code=None, signal=15)
    assert desk.state(id) is JobState.CANCELLED
    assert held in live(desk)


def test_it_has_the_devices_that_are_held(desk):
    gpus = tuple(Gpu(f"g{n}", n, "A100", 40 * 10**9) for n in range(2))
    desk.ask(Register("ann", nodes=(Node.of("a", cpu=4, gpus=gpus),)))
    for gpu in (1, 0.5):
        held = hold(desk, gpu=gpu)
        id = desk.submit(within=held)
        desk.check()
        desk.end(id)
        move(desk, held)


def test_both_are_as_they_were_after_a_restart(desk, held):
    id = desk.submit(within=held)
    move(desk, held)
    desk.restart()
    desk.check()
    assert desk.job(id).work.within == held
    desk.end(id)
    assert free(desk) == 4


def test_what_cannot_be_written_was_not_started(desk, held):
    from gridhand import StoreUnavailable

    desk.store.faults = [StoreUnavailable("no")]
    with pytest.raises(StoreUnavailable):
        desk.submit(within=held)
    assert desk.jobs() == {}
    assert desk.ask(Read(lambda seen: seen.ledger.jobs.count(held))) == 0
    assert desk.state(desk.submit(within=held)) is JobState.RUNNING


REFUSED = {
    "what is not there": (UnknownAllocation, lambda desk, held: {"within": "a9-9"}),
    "another's": (NotYours, lambda desk, held: {"within": hold(desk, 1, owner="bob")}),
    "what is only reserved": (
        MoveRefused,
        lambda desk, held: {"within": hold(desk, 1, state=AllocationState.RESERVED, ttl_ms=9000)},
    ),
    "what a job has of its own": (
        AllocationBusy,
        lambda desk, held: {"within": desk.job(desk.submit()).attempt.allocation},
    ),
    "an array": (InvalidInput, lambda desk, held: {"within": held, "indices": (1, 2)}),
    "one that waits for another": (
        InvalidInput,
        lambda desk, held: {"within": held, "after": (After(desk.submit()),)},
    ),
    "one that is to be tried again": (
        InvalidInput,
        lambda desk, held: {"within": held, "retry": RetryPolicy(tries=2)},
    ),
}


@pytest.mark.parametrize(("error", "asked"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_and_changes_nothing(desk, held, error, asked):
    wishes = asked(desk, held)
    before = desk.jobs()
    with pytest.raises(error):
        desk.submit(**wishes)
    assert desk.jobs() == before
    desk.check()


def test_it_may_be_named_by_its_holder(desk):
    desk.nodes(a=4)
    held = hold(desk, holder="mine")
    assert desk.job(desk.submit(within="mine")).work.within == held
    with pytest.raises(UnknownAllocation):
        desk.submit(within="mine", owner="bob")


def test_a_repeat_finds_the_same_job(desk, held):
    first = desk.submit(within=held, op_id="one")
    assert desk.submit(within=held, op_id="one") == first
