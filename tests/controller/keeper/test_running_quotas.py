"""Quotas of what runs: an owner or a queue over its quota waits, and blocks nobody else."""

import pytest

from controller_place import in_place
from gridhand import Node, StoreUnavailable
from gridhand.controller.jobs.dry_run import planned
from gridhand.core.jobs.job import JobSpec, JobState, Priority, Reason
from gridhand.core.ledger.allocations import Terms
from gridhand.core.model.requests import Request
from gridhand.core.observations import UseQueues
from gridhand.core.operations import Allocate, Cancel, Register, SetHeld, Submit
from gridhand.core.queue.named_queues import NamedQueues, QueueRules, Quota

CPU = 10_000


def use(desk, quotas=None, **rules):
    named = {name: QueueRules(name, **given) for name, given in rules.items()}
    desk.ask(UseQueues(NamedQueues(named, quotas or {})))
    desk.settle()


def cores(count):
    return Quota(running={"cpu": count * CPU})


def test_an_owner_runs_no_more_than_the_quota_and_others_pass(desk):
    desk.nodes(a=8)
    use(desk, {"ann": cores(3)})
    first, second, third = desk.submit(2), desk.submit(1), desk.submit(1)
    bobs = desk.submit(5, owner="bob")
    assert desk.running() == [first, second, bobs]
    assert desk.why(third) == "quota: ann runs 3 of 3 cpu"
    desk.end(second)
    assert desk.running() == [first, third, bobs]
    desk.check()


def test_a_job_that_needs_more_than_is_left_says_so_and_smaller_ones_pass(desk):
    desk.nodes(a=8)
    use(desk, {"*": cores(3)})
    first, large, small = desk.submit(2), desk.submit(2), desk.submit(1)
    assert desk.running() == [first, small]
    desk.end(small)
    assert desk.why(large) == "quota: ann runs 2 of 3 cpu; this needs 2"
    desk.end(first)
    assert desk.running() == [large]


#    what it shows                        rules                                                                why the third of ann waits
SCOPES = {
    "the jobs of an owner":              ({"quotas": {"ann": Quota(max_running_jobs=2)}},                     "quota: ann runs 2 of 2 jobs"),
    "the jobs of a queue":               ({"q": {"quota": Quota(max_running_jobs=2)}},                        "quota: queue q runs 2 of 2 jobs"),
    "the jobs of an owner in a queue":   ({"q": {"owner_quota": Quota(max_running_jobs=2)}},                  "quota: ann runs 2 of 2 jobs (queue q)"),
    "the amounts of a queue":            ({"q": {"quota": cores(2)}},                                         "quota: queue q runs 2 of 2 cpu"),
    "the amounts of an owner in a queue":({"q": {"owner_quota": cores(2)}},                                   "quota: ann runs 2 of 2 cpu (queue q)"),
    "the strictest of several":          ({"quotas": {"ann": cores(9)}, "q": {"quota": cores(2)}},            "quota: queue q runs 2 of 2 cpu"),
}  # fmt: skip


@pytest.mark.parametrize(("rules", "why"), SCOPES.values(), ids=SCOPES)
def test_scopes(desk, rules, why):
    desk.nodes(a=8)
    use(desk, **{"q": {}, **rules})
    first, second, third = (desk.submit(1, queue="q") for _ in range(3))
    assert desk.running() == [first, second]
    assert desk.why(third) == why
    of_all = why.startswith("quota: queue")
    bobs = desk.submit(1, owner="bob", queue="q")
    assert (bobs in desk.running()) is not of_all
    elsewhere = desk.submit(1)
    assert (elsewhere in desk.running()) is ("(queue q)" in why or of_all)
    desk.end(first)
    assert third in desk.running() or bobs in desk.running()
    desk.check()


def test_a_queue_over_its_quota_at_the_head_of_the_line_blocks_nobody(desk):
    desk.nodes(a=4)
    use(desk, slow={"quota": cores(1)})
    stuck = [desk.submit(1, queue="slow", priority=Priority.URGENT) for _ in range(5)]
    others = [desk.submit(1, priority=Priority.LOW) for _ in range(3)]
    assert desk.running() == sorted([stuck[0], *others])


def test_counts_survive_a_restart(desk):
    desk.nodes(a=8)
    rules = {"q": {"owner_quota": cores(2)}}
    use(desk, **rules)
    first, second, third = (desk.submit(1, queue="q") for _ in range(3))
    desk.restart(paused=True)
    use(desk, **rules)
    desk.dispatch.resume()
    desk.submit(1)
    assert third not in desk.running()
    desk.end(first)
    assert {second, third} <= set(desk.running())


def test_counts_survive_reading_the_ledger_again(desk):
    desk.nodes(a=8)
    use(desk, {"ann": cores(1)})
    first, second = desk.submit(1), desk.submit(1)
    desk.store.faults = [(StoreUnavailable("gone"), False)]
    with pytest.raises(StoreUnavailable):
        desk.end(first)
    desk.keeper._load()
    desk.dispatch.look_again()
    third = desk.submit(1)
    assert desk.running() == [first]
    desk.end(first)
    assert desk.running() == [second]
    assert desk.why(third) == "quota: ann runs 1 of 1 cpu"


def test_a_batch_that_could_not_be_written_is_not_counted(desk):
    desk.nodes(a=8)
    use(desk, {"ann": cores(1)})
    desk.store.faults = [StoreUnavailable("full")]
    with pytest.raises(StoreUnavailable):
        desk.submit(1)  # it was started in the batch
    first, second = desk.submit(1), desk.submit(1)
    assert desk.running() == [first]
    desk.store.faults = [StoreUnavailable("full")]
    with pytest.raises(StoreUnavailable):
        desk.end(first)  # in the batch, the second was started instead
    assert desk.running() == [first]
    assert desk.why(second) == "quota: ann runs 1 of 1 cpu"
    desk.end(first)
    assert desk.running() == [second]


def test_a_job_that_is_requeued_gives_its_part_back(desk):
    desk.nodes(a=1, b=1)
    use(desk, {"ann": cores(1)})
    first, second = desk.submit(1, node="a"), desk.submit(1, node="b")
    desk.end(first, reason=Reason.NODE_LOST)
    assert desk.running() == [first]  # it is the older one
    desk.end(first)
    assert desk.running() == [second]


def test_a_job_that_is_cancelled_while_it_waits_leaves_the_rest_in_order(desk):
    desk.nodes(a=8)
    use(desk, {"ann": cores(1)})
    first, second, third = (desk.submit(1) for _ in range(3))
    desk.ask(Cancel("ann", ids=(second,)))
    desk.end(first)
    assert desk.running() == [third]


def test_a_reload_counts_what_runs_and_lets_start_what_it_permits(desk):
    desk.nodes(a=8)
    jobs = [desk.submit(1) for _ in range(3)]
    use(desk, {"ann": cores(2)})
    late = [desk.submit(1) for _ in range(4)]
    assert desk.running() == jobs
    assert desk.why(late[0]) == "quota: ann runs 3 of 2 cpu"
    desk.end(jobs[0])
    assert desk.running() == jobs[1:]
    use(desk, {"ann": cores(4)})
    assert desk.running() == sorted([*jobs[1:], *late[:2]])
    use(desk)
    assert desk.running() == sorted([*jobs[1:], *late])


def test_tasks_that_share_an_allocation_count_once(desk):
    desk.nodes(a=1, b=1)
    use(desk, {"ann": Quota(max_running_jobs=2, running={"cpu": 2 * CPU})})
    desk.submit(1, indices=range(9), node="a")
    desk.clock.ms += 2
    desk.end(*desk.running(), ran_ms=2)  # they are short, so others are lined up
    assert len(desk.running()) > 2
    other = desk.submit(1, node="b")
    assert other in desk.running()
    late = desk.submit(1)
    assert desk.why(late) == "quota: ann runs 2 of 2 jobs"
    desk.clock.ms += 2
    desk.end(next(id for id in desk.running() if id != other), ran_ms=2)
    assert desk.why(late) == "quota: ann runs 2 of 2 jobs"  # others go on in its place
    desk.check()


def test_of_alternatives_the_one_that_runs_counts(desk):
    desk.ask(Register("ann", nodes=(Node.of("a", cpu=8),)))
    use(desk, {"ann": cores(4)})
    request = Request.of(cpu=4, node="a", alternatives=[{"cpu": 1}])
    asked = JobSpec("bob", ("true",), "/", Request.of(cpu=6))
    desk.ask(Submit("bob", None, asked))
    two = [desk.ask(Submit("ann", None, JobSpec("ann", ("true",), "/", request))) for _ in range(2)]
    (first,), (second,) = (one.ids for one in two)
    assert first in desk.running()  # with one core, as there are two
    assert second not in desk.running()  # it might take four of the three that are left
    assert desk.why(second) == "quota: ann runs 1 of 4 cpu; this needs 4"


def test_a_job_within_an_allocation_does_not_count(desk):
    desk.nodes(a=8)
    use(desk, {"ann": Quota(max_running_jobs=1)})
    hold = Allocate("ann", requests=(Request.of(cpu=1),), terms=Terms("ann"))
    (held,) = desk.ask(hold).allocations
    inside = desk.submit(1, within=held.id)
    own = desk.submit(1)
    assert desk.running() == [inside, own]


def test_room_is_not_kept_for_a_job_over_its_quota(desk):
    desk.nodes(a=4)
    first = desk.submit(2, time_limit_ms=60_000)
    desk.submit(1, owner="bob", time_limit_ms=60_000)
    large = desk.submit(4)
    assert desk.dispatch.timeline.get(large) is not None
    use(desk, {"ann": cores(4)})
    assert not desk.dispatch.timeline
    assert desk.why(large) == "quota: ann runs 2 of 4 cpu; this needs 4"
    bobs = desk.submit(1, owner="bob")  # nobody knows when it ends
    assert desk.running() == ["1", "2", bobs]
    desk.end(first)
    assert desk.dispatch.timeline.get(large) is not None


@in_place()
async def test_a_dry_run_says_that_a_quota_is_full(place):
    await place.controller.ask(UseQueues(NamedQueues({}, {"ann": Quota(max_running_jobs=0)})))
    work = JobSpec("ann", ("true",), "/", Request.of(cpu=1))
    plan = await planned(place.controller, work, ())
    assert (plan["starts"], plan["why"]) == (False, "quota: ann runs 0 of 0 jobs")


def test_a_job_that_waited_too_long_for_its_queue_expires(desk):
    desk.nodes(a=1)
    use(desk, q={"expiry_ms": 1000})
    first, second, other = desk.submit(1, queue="q"), desk.submit(1, queue="q"), desk.submit(1)
    held = desk.submit(1, queue="q", begin_ms=500)
    desk.clock.ms += 999
    desk.submit(1)
    assert second in desk.jobs()
    desk.clock.ms += 1
    desk.submit(1)
    assert desk.job(second).reason is Reason.EXPIRED
    assert desk.state(second) is JobState.CANCELLED
    assert desk.running() == [first]  # it runs, and so it is kept
    assert {held, other} <= desk.jobs().keys()
    desk.end(first, reason=Reason.NODE_LOST)
    desk.clock.ms += 10_000
    desk.submit(1)
    assert first in desk.jobs()  # it has run, and so it does not expire
    assert desk.job(held).reason is Reason.EXPIRED


def test_a_reload_gives_jobs_that_wait_another_expiry(desk):
    desk.nodes(a=1)
    use(desk, q={})
    desk.submit(1)
    waiting = desk.submit(1, queue="q")
    desk.clock.ms += 5000
    use(desk, q={"expiry_ms": 6000})
    assert waiting in desk.jobs()
    desk.ask(SetHeld("ann", ids=(waiting,)))  # which changes nothing about it
    use(desk, q={"expiry_ms": 5500})
    use(desk, q={"expiry_ms": 1000})
    assert desk.job(waiting).reason is Reason.EXPIRED
    assert desk.kinds().count(("job.ended", waiting)) == 1
    desk.check()


def test_a_job_with_several_alarms_ends_once(desk):
    desk.nodes(a=1)
    desk.submit(1)
    use(desk, q={"expiry_ms": 1000})
    waiting = desk.submit(1, queue="q", deadline_ms=1000)
    use(desk, q={"expiry_ms": 1000})
    desk.clock.ms += 1000
    desk.submit(1)
    assert desk.job(waiting).reason is Reason.EXPIRED
    assert desk.kinds().count(("job.ended", waiting)) == 1
    desk.check()


def test_room_is_kept_by_the_expected_time_of_a_queue(desk):
    desk.nodes(a=2)
    use(desk, quick={"default_duration_ms": 60_000})
    desk.submit(1, queue="quick")
    large = desk.submit(2)
    claim = desk.dispatch.timeline.get(large)
    assert claim.start == desk.clock.ms + 60_000


def test_an_owner_with_more_weight_comes_first(desk):
    desk.nodes(a=3)
    desk.ask(UseQueues(NamedQueues({}, {}, {"ann": 4.0})))
    desk.settle()
    desk.submit(1, owner="ann")
    desk.submit(1, owner="bob")
    last = desk.submit(1, owner="bob")
    bobs, anns = desk.submit(1, owner="bob"), desk.submit(1, owner="ann")
    desk.end(last)
    assert anns in desk.running()  # both run one, but hers counts a quarter
    assert bobs not in desk.running()


def test_allocations_that_wait_are_not_jobs_and_have_no_quota(desk):
    desk.nodes(a=2)
    use(desk, {"ann": Quota(max_running_jobs=1)})
    first, bobs, waiting = desk.submit(1), desk.submit(1, owner="bob"), desk.submit(1)
    hold = Allocate("ann", requests=(Request.of(cpu=1),), terms=Terms("ann"), wait_ms=60_000)
    pending = desk.backend.begin(hold)
    desk.end(bobs)
    assert len(pending.result().allocations) == 1
    assert desk.running() == [first]
    assert desk.why(waiting) == "quota: ann runs 1 of 1 jobs"
