"""Pages of open jobs: in order, complete, and as cheap with many jobs as with few."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand.controller.jobs.job_pages import JobPages, NumberList
from gridhand.core.jobs.job import Job, JobSpec, JobState, start
from gridhand.core.model.requests import Request

WORKS = {owner: JobSpec(owner, ("true",), "/", Request.of(cpu=1)) for owner in ("ann", "bob")}


def job(number, owner="ann", array=None):
    index = None if array is None else number
    id = str(number) if array is None else f"{array}_{number}"
    return Job(id=id, number=number, work=WORKS[owner], request=WORKS[owner].request, submitted=0, array=array, array_index=index)  # fmt: skip


def started(one):
    return start(one, node="n1", allocation=f"a1-{one.number}", now=0)


def over(one):
    return one._replace(state=JobState.SUCCEEDED)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=200), st.integers(0, 31))
def test_numbers_are_those_that_were_added_and_not_discarded(steps, before):
    listed, model = NumberList(), set()
    for add, number in steps:
        (listed.add if add else listed.discard)(number)
        (model.add if add else model.discard)(number)
        assert len(listed) == len(model)
    assert list(listed.newest()) == sorted(model, reverse=True)
    assert list(listed.newest(before)) == sorted(filter(lambda n: n < before, model), reverse=True)


def pages():
    """1 of ann runs, 2 of bob waits, 3 and 4 are tasks of ann's array, of which 3 runs, 5 ended."""
    found = JobPages()
    for one in (job(1), job(2, "bob"), job(3, array="3"), job(4, array="3"), job(5)):
        found.put(one)
    found.put(started(job(1)))
    found.put(started(job(3, array="3")))
    found.put(over(started(job(5))))
    return found


CASES = {
    "all, newest first":      ({}, [4, 3, 2, 1]),
    "those that run":         ({"placed": True}, [3, 1]),
    "those of an owner":      ({"owner": "bob"}, [2]),
    "nothing of a stranger":  ({"owner": "eve"}, []),
    "an owner's that run":    ({"owner": "ann", "placed": True}, [3, 1]),
    "tasks of an array":      ({"array": "3"}, [4, 3]),
    "tasks that run":         ({"array": "3", "placed": True}, [3]),
    "no tasks of others":     ({"array": "3", "owner": "bob"}, []),
    "the next page":          ({"before": 3}, [2, 1]),
}  # fmt: skip


@pytest.mark.parametrize(("wanted", "expected"), CASES.values(), ids=CASES)
def test_a_page_has(wanted, expected):
    asked = {"owner": None, "array": None, "placed": False, "before": None, **wanted}
    assert [one.number for one in pages().newest(**asked)] == expected


def test_a_job_that_is_requeued_no_longer_runs():
    found = pages()
    found.put(job(1))
    asked = {"owner": None, "array": None, "placed": True, "before": None}
    assert [one.number for one in found.newest(**asked)] == [3]
    assert (found.count(), found.count("bob"), found.count("eve")) == (4, 1, 0)


def test_a_page_of_many_jobs_costs_what_a_page_of_few_costs():
    """A page of 100 in the middle of 100,000 jobs beside one of 200, in the same run."""

    def page_s(found, before):
        best = 1.0
        for _ in range(20):
            begun = time.perf_counter()
            chosen = found.newest(owner="ann", array=None, placed=False, before=before)
            assert len([one for one, _ in zip(chosen, range(100), strict=False)]) == 100
            best = min(best, time.perf_counter() - begun)
        return best

    few, many = JobPages(), JobPages()
    for number in range(200):
        few.put(job(number))
    for number in range(100_000):
        many.put(job(number))
    assert page_s(many, 50_000) < 5 * page_s(few, 150)
