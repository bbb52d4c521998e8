"""What a job has waited for is written with its attempt."""

from gridhand import Node
from gridhand.core.jobs.job import After, JobSpec, Reason
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.jobs.spec import Priority
from gridhand.core.model.requests import Request
from gridhand.core.observations import UseQueues
from gridhand.core.operations import Register, SetHeld, Submit
from gridhand.core.queue.named_queues import NamedQueues, Quota

S = 1000


def waited(desk, id):
    job = desk.job(id)
    attempt = job.attempts[-1]
    since = job.attempts[-2].ended if len(job.attempts) > 1 else job.submitted
    receipt = dict(attempt.waited or ())
    assert sum(receipt.values()) == attempt.placed - since
    return receipt


def test_a_job_that_starts_at_once_has_waited_for_nothing(desk):
    desk.nodes(a=1)
    assert waited(desk, desk.submit()) == {}


def test_the_resource_that_was_not_free_is_named(desk):
    desk.ask(Register("ann", nodes=(Node.of("a", cpu=8, license=1),)))
    work = JobSpec("ann", ("true",), "/", Request.of(cpu=1, license=1))
    (first,) = desk.ask(Submit("ann", None, work)).ids
    (second,) = desk.ask(Submit("ann", None, work)).ids
    desk.clock.ms += 12 * S
    desk.end(first)
    assert waited(desk, second) == {"room:license": 12 * S}


def test_a_hold_a_dependency_and_no_room_are_told_apart(desk):
    desk.nodes(a=1)
    first = desk.submit()
    other = desk.submit()
    last = desk.submit(after=[After(first)])
    desk.clock.ms += 3 * S
    desk.end(first)
    desk.clock.ms += 2 * S
    desk.ask(SetHeld("ann", None, (last,), True, False))
    desk.clock.ms += 5 * S
    desk.ask(SetHeld("ann", None, (last,), False, False))
    desk.clock.ms += 7 * S
    desk.end(other)
    assert waited(desk, other) == {"room:cpu": 3 * S}
    assert waited(desk, last) == {"dependency": 3 * S, "room:cpu": 9 * S, "held": 5 * S}


def test_room_that_is_kept_for_others_is_a_cause_of_its_own(desk):
    desk.nodes(a=2)
    first = desk.submit(expect_ms=3600 * S)
    large = desk.submit(2, priority=Priority.HIGH)
    desk.clock.ms += 20 * S
    small = desk.submit()
    assert "kept for job" in desk.why(small)
    desk.clock.ms += 30 * S
    desk.end(first)
    desk.end(large)
    assert waited(desk, small)["kept"] == 30 * S


def test_a_retry_has_a_receipt_of_its_own(desk):
    desk.nodes(a=1)
    id = desk.submit(retry=RetryPolicy(tries=2, delay_ms=4 * S, most_delay_ms=4 * S))
    desk.end(id, code=1)
    wait_ms = desk.job(id).not_before - desk.clock.ms
    desk.clock.ms += wait_ms
    desk.submit()  # something happens
    assert waited(desk, id) == {"back_off": wait_ms}


def test_the_limit_of_an_array_is_a_cause(desk):
    desk.nodes(a=8)
    ids = desk.submit(indices=(1, 2), at_once=1)
    desk.clock.ms += 6 * S
    desk.end(ids[0])
    assert waited(desk, ids[1]) == {"array_limit": 6 * S}


def test_the_time_before_a_restart_is_told_apart_and_the_receipt_survives_one(desk):
    desk.nodes(a=1)
    first, second, third = desk.submit(), desk.submit(), desk.submit()
    desk.clock.ms += 5 * S
    desk.submit()
    now = desk.clock.ms
    desk.restart()
    assert desk.clock.ms >= now
    desk.clock.ms = now + 2 * S
    desk.end(first)
    desk.check()
    receipt = waited(desk, second)
    assert receipt["unknown"] >= 5 * S
    desk.clock.ms += S
    desk.end(second, reason=Reason.EXIT)
    desk.restart()
    assert waited(desk, second) == receipt
    assert sum(waited(desk, third).values()) == 8 * S


def test_a_quota_is_a_cause(desk):
    desk.nodes(a=8)
    desk.ask(UseQueues(NamedQueues({}, {"ann": Quota(max_running_jobs=1)})))
    first, second = desk.submit(), desk.submit()
    desk.clock.ms += 9 * S
    desk.end(first)
    assert waited(desk, second) == {"quota": 9 * S}
