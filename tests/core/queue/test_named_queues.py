"""The rules of named queues and the quotas of owners, looked up."""

import pytest

from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.job import JobSpec
from gridhand.core.jobs.scopes import Scope, charged, most_charged, scopes_of
from gridhand.core.model.names import JobId
from gridhand.core.model.requests import Request
from gridhand.core.queue.delays import expected_ms, expires_at
from gridhand.core.queue.named_queues import NO_QUEUES, NO_QUOTA, NamedQueues, QueueRules, Quota

ALL, PER_OWNER, ANNS, REST = (Quota(max_running_jobs=most) for most in (1, 2, 3, 4))
QUEUES = NamedQueues(
    {
        "gpu": QueueRules(
            "gpu",
            owners=frozenset({"ann"}),
            default_duration_ms=500,
            expiry_ms=1000,
            quota=ALL,
            owner_quota=PER_OWNER,
            weight=3,
        ),
        "short": QueueRules("short"),
    },
    {"ann": ANNS, "*": REST},
    {"ann": 2, "*": 0.5},
)


def job(queue=None, **wishes):
    work = JobSpec("ann", ("true",), "/", Request.of(cpu=1), queue=queue, **wishes)
    return jobs.submit(work, id=JobId("1"), number=1, now=100)


@pytest.mark.parametrize(
    ("scope", "quota"),
    [
        (Scope("ann"), ANNS),
        (Scope("bob"), REST),
        (Scope(None, "gpu"), ALL),
        (Scope("ann", "gpu"), PER_OWNER),
        (Scope("bob", "gpu"), PER_OWNER),
        (Scope(None, "short"), NO_QUOTA),
        (Scope(None, "gone"), NO_QUOTA),
    ],
    ids=str,
)
def test_each_scope_has_a_quota_of_its_own(scope, quota):
    assert QUEUES.quota_of(scope) == quota


def test_without_an_entry_for_everybody_others_have_no_quota():
    assert NamedQueues({}, {"ann": ANNS}).quota_of(Scope("bob")) == NO_QUOTA


@pytest.mark.parametrize(
    ("owner", "queue", "weight"),
    [("ann", None, 2), ("ann", "gpu", 6), ("bob", "gpu", 1.5), ("bob", "short", 0.5), ("bob", "gone", 0.5)],
)  # fmt: skip
def test_the_weights_of_owner_and_queue_are_multiplied(owner, queue, weight):
    assert QUEUES.weight_of(owner, queue) == weight
    assert NO_QUEUES.weight_of(owner, queue) == 1


def test_only_listed_owners_may_use_a_queue_with_owners():
    assert QUEUES.open_to("ann") == ["gpu", "short"]
    assert QUEUES.open_to("bob") == ["short"]


def test_a_job_counts_for_its_owner_for_its_queue_and_for_its_owner_there():
    assert scopes_of(job().work) == (Scope("ann"),)
    assert scopes_of(job("gpu").work) == (Scope("ann"), Scope(None, "gpu"), Scope("ann", "gpu"))


@pytest.mark.parametrize(
    ("wishes", "ms"),
    [
        ({"queue": "gpu", "expect_ms": 7, "time_limit_ms": 8}, 7),
        ({"queue": "gpu", "time_limit_ms": 8}, 8),
        ({"queue": "gpu"}, 500),
        ({"queue": "short"}, 3_600_000),
        ({"queue": "gone"}, 3_600_000),
        ({}, 3_600_000),
    ],
    ids=str,
)
def test_the_expected_time_is_the_jobs_own_else_the_queues_else_an_hour(wishes, ms):
    assert expected_ms(job(**wishes), QUEUES) == ms


def test_a_job_expires_when_it_has_waited_since_it_might_have_begun():
    assert expires_at(job("gpu"), QUEUES) == 1100
    assert expires_at(job("gpu", begin_ms=50), QUEUES) == 1150
    assert expires_at(jobs.hold(job("gpu")), QUEUES) == 1100
    assert expires_at(job("short"), QUEUES) is None
    assert expires_at(job(), QUEUES) is None
    assert expires_at(job("gone"), QUEUES) is None


def test_a_job_that_has_run_or_ended_does_not_expire():
    started = jobs.start(job("gpu"), node="n1", allocation="a1-1", now=200)
    assert expires_at(started, QUEUES) is None
    assert expires_at(jobs.cancel(job("gpu"), now=200), QUEUES) is None


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ({"cpu": 2, "memory": "1GB"}, {"cpu": 20_000, "memory": 10**9}),
        ({"gpu": 0.25}, {"gpu": 2500}),
        ({"gpu": 3}, {"gpu": 30_000}),
        ({"gpu_memory": "8GB"}, {"gpu": 10_000, "gpu_memory": 8 * 10**9}),
        ({"gpu": 2, "gpu_memory": "8GB"}, {"gpu": 20_000, "gpu_memory": 16 * 10**9}),
    ],
    ids=str,
)
def test_devices_and_all_their_memory_are_charged(asked, parts):
    assert charged(Request.of(**asked)) == parts


def test_alternatives_are_charged_with_the_largest_of_their_amounts():
    request = Request.of(cpu=1, gpu=1, alternatives=[{"cpu": 8}, {"cpu": 2, "memory": "1GB"}])
    assert most_charged(request) == {"cpu": 80_000, "gpu": 10_000, "memory": 10**9}
