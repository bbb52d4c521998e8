"""Ended jobs, added up by hand and by `PastJobs`."""

from gridhand import Request
from gridhand.core.jobs.attempt import Attempt, Reason
from gridhand.core.jobs.job import Job, JobState
from gridhand.core.jobs.past_jobs import PastJobs, group_of
from gridhand.core.jobs.spec import JobSpec

GB = 10**9


def attempt(placed, started, ended, peak=None, node="n1", choice=0):
    return Attempt(
        1, node, "a1", choice, placed=placed, started=started, ended=ended, exit_code=0,
        reason=Reason.EXIT, peak_bytes=peak,
    )  # fmt: skip


def ended(*attempts, asked=None, state=JobState.SUCCEEDED, **work):
    asked = asked or Request.of(cpu=2, memory="4GB")
    return Job(
        id="1", number=1, work=JobSpec("ann", ("true",), "/", asked, **work), request=asked,
        state=state, submitted=1000, attempts=attempts, ended=9000,
    )  # fmt: skip


def tally(*jobs):
    found = PastJobs()
    for job in jobs:
        found.add(job)
    return found.figures()


def test_waits_run_times_and_what_was_allocated():
    retried = ended(attempt(2000, 2500, 4500), attempt(5000, 5000, 8000, node="n2"))
    found = tally(ended(attempt(4000, 4000, 5000)), retried, ended(state=JobState.CANCELLED))
    assert (found["jobs"], found["attempts"]) == (3, 3)
    assert found["outcomes"] == {"cancelled": 1, "succeeded": 2}
    assert found["wait_s"] == {"mean": 2.0, "p95": 3.0, "sum": 4.0}
    assert found["run_s"] == {"mean": 3.0, "p95": 5.0, "sum": 6.0}
    assert found["cpu_allocated_s"] == 2 * (1.0 + 2.5 + 3.0)


def test_memory_counts_only_where_it_was_asked_for_and_measured():
    found = tally(
        ended(attempt(1000, 1000, 2000, peak=1 * GB)),
        ended(attempt(1000, 1000, 2000, peak=3 * GB)),
        ended(attempt(1000, 1000, 2000)),
        ended(attempt(1000, 1000, 2000, peak=GB), asked=Request.of(cpu=1)),
    )["memory"]
    assert found == {
        "measured": 2, "asked_mean": 4 * GB, "peak_mean": 2 * GB, "peak_max": 3 * GB,
        "used_part": 0.5,
    }  # fmt: skip


def test_the_choice_that_was_granted_counts():
    asked = Request.of(cpu=8, alternatives=[{"cpu": 1}])
    assert tally(ended(attempt(1000, 1000, 2000, choice=1), asked=asked))["cpu_allocated_s"] == 1.0


def test_the_95th_percentile_is_a_time_that_occurred():
    jobs = [ended(attempt(1000 + 1000 * number, None, None)) for number in range(1, 101)]
    assert tally(*jobs)["wait_s"]["p95"] == 95.0


def test_nothing_is_known_of_no_jobs():
    found = tally()
    assert found["wait_s"] == {"mean": None, "p95": None, "sum": 0.0}
    assert found["memory"]["used_part"] is None


def test_jobs_are_grouped_by_where_they_ran_last():
    job = ended(attempt(1, 1, 2), attempt(3, 3, 4, node="n2"), task_type="train", queue="night")
    assert [group_of(job, one) for one in ("owner", "type", "queue", "node")] == [
        "ann", "train", "night", "n2",
    ]  # fmt: skip
    assert group_of(ended(), "node") is None
