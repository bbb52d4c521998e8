"""Jobs as rows and as JSON, and back: exactly, whatever is in them."""

import json

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gridhand.core.jobs.attempt import Attempt, Reason
from gridhand.core.jobs.job import After, Condition, Job, JobState
from gridhand.core.jobs.retry_policy import FINAL, RetryPolicy
from gridhand.core.jobs.spec import JobSpec, Priority
from gridhand.core.model.gpus import GpuRequest
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import MOST, Resources
from gridhand.core.rows.jobs import job_row, job_spec_from_row, work_row
from gridhand.core.rows.requests import request_from_row, request_row
from gridhand.store.sql import schema
from gridhand.store.sql.job_rows import Jobs, Written, work_json

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,9}", fullmatch=True)
RESOURCE = st.from_regex(r"[A-Za-z][A-Za-z0-9_./-]{0,9}", fullmatch=True)
AMOUNTS = st.dictionaries(RESOURCE, st.integers(1, MOST), max_size=4).map(Resources)
# Words as a shell gives them: bytes that are no text are lone surrogates in Python.
WORDS = st.text(
    st.characters(exclude_characters="\0") | st.characters(categories=["Cs"])
    | st.sampled_from('":-\\{}[],\n'),
    max_size=12,
)  # fmt: skip
PATHS = WORDS.map(lambda text: f"/{text}")
COUNTS = st.integers(0, 2**62)
MAYBE = st.none() | COUNTS

GPU_ASKS = st.builds(
    GpuRequest,
    devices=st.integers(1, 8),
    share=st.integers(0, 10_000),
    memory_bytes=MAYBE,
    model=st.none() | st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=9),
    capability=st.none() | st.tuples(st.integers(0, 20), st.integers(0, 9)),
)
PLAIN = {
    "amounts": AMOUNTS,
    "gpu": st.none() | GPU_ASKS,
    "node": st.none() | NAMES,
    "prefer": st.lists(NAMES, max_size=3).map(tuple),
    "exclude": st.frozensets(NAMES, max_size=3),
    "labels": st.dictionaries(NAMES, NAMES, max_size=3),
    "quality": st.none() | NAMES,
    "together_with": st.none() | NAMES,
    "apart_from": st.lists(NAMES, max_size=3).map(tuple),
}
REQUESTS = st.builds(
    Request, **PLAIN, alternatives=st.lists(st.builds(Request, **PLAIN), max_size=2).map(tuple)
)
RETRIES = st.builds(
    RetryPolicy,
    tries=st.integers(1, 9),
    on=st.frozensets(st.sampled_from(sorted(set(Reason) - FINAL))),
    exit_codes=st.frozensets(st.integers(1, 255), max_size=4),
    losses=st.integers(0, 9),
    delay_ms=st.integers(0, 9_999),
    most_delay_ms=st.integers(0, 9_999),
)
TIMES = st.none() | st.integers(1, 10**9)
WORKS = st.builds(
    JobSpec,
    owner=NAMES,
    command=st.tuples(WORDS.filter(bool), *[WORDS] * 2),
    folder=PATHS,
    request=REQUESTS,
    name=st.none() | NAMES,
    priority=st.sampled_from(Priority),
    task_type=st.none() | NAMES,
    time_limit_ms=st.none() | st.integers(1, 10**9),
    grace_ms=st.integers(0, 10**6),
    detached=st.booleans(),
    retry=RETRIES,
    at_once=st.none() | st.integers(1, 99),
    environment=WORDS,
    stdin=st.none() | PATHS,
    stdout=st.none() | PATHS,
    stderr=st.none() | PATHS,
    processes=st.none() | st.integers(1, 999),
    queue=st.none() | NAMES,
    expect_ms=TIMES,
    begin_ms=TIMES,
    deadline_ms=st.none() | st.integers(2 * 10**9, 10**10),
)
REASONS = st.none() | st.sampled_from(Reason)
ATTEMPTS = st.builds(
    Attempt, st.integers(1, 9), NAMES, NAMES, st.integers(0, 5), COUNTS, MAYBE, REASONS, MAYBE,
    MAYBE, MAYBE, REASONS, MAYBE, WORDS,
)  # fmt: skip
JOBS = st.builds(
    lambda work, request, **more: Job(work=work, request=request or work.request, **more),
    id=NAMES,
    number=COUNTS,
    work=WORKS,
    request=st.none() | REQUESTS,
    submitted=COUNTS,
    array=st.none() | NAMES,
    array_index=MAYBE,
    after=st.lists(st.builds(After, NAMES, st.sampled_from(Condition)), max_size=3).map(tuple),
    state=st.sampled_from(JobState),
    attempts=st.lists(ATTEMPTS, max_size=3).map(tuple),
    not_before=MAYBE,
    reason=REASONS,
    ended=MAYBE,
)
COLUMNS = [column.name for column in schema.jobs.c]


def columns(job):
    return dict(zip(COLUMNS, Written(job).inserted(), strict=True))


# Making such deep values takes its time on a busy machine, which is no fault of theirs.
unhurried = settings(suppress_health_check=[HealthCheck.too_slow])


@unhurried
@given(JOBS)
def test_a_job_comes_back_from_its_row_as_it_was(job):
    found = Jobs().job(columns(job))
    assert found == job
    assert [type(value) for value in found] == [type(value) for value in job]
    same = job.request == job.work.request
    assert (found.request is found.work.request) is same
    for was, now in zip(job.attempts, found.attempts, strict=True):
        assert [type(value) for value in now] == [type(value) for value in was]


@unhurried
@given(JOBS)
def test_an_event_carries_the_plain_row_and_only_the_first_its_work(job):
    row = job_row(job)
    assert json.loads(Written(job).event(new=True)) == json.loads(json.dumps(row))
    del row["work"]
    assert json.loads(Written(job).event(new=False)) == json.loads(json.dumps(row))


@unhurried
@given(WORKS)
def test_a_work_comes_back_from_plain_data(work):
    assert job_spec_from_row(json.loads(json.dumps(work_row(work)))) == work
    assert json.loads(work_json(work)) == json.loads(json.dumps(work_row(work)))


@unhurried
@given(REQUESTS)
def test_a_request_comes_back_from_plain_data(request):
    found = request_from_row(json.loads(json.dumps(request_row(request))))
    assert found == request
    assert found.key() == request.key()


@unhurried
@given(WORKS, st.lists(ATTEMPTS, max_size=2).map(tuple))
@example(JobSpec("ann", ('x":-1', 'a\\":-', '\\\\":-', '":-'), "/", Request.of(cpu=1)), ())
def test_no_text_looks_like_a_negative_amount(work, attempts):
    """The guard of the table would refuse it."""
    job = Job("1", 1, work, work.request, 0, attempts=attempts)
    row = columns(job)
    assert '":-' not in row["work"] + row["attempts"]
    assert Jobs().job(row) == job


def test_equal_works_are_shared_when_they_are_read():
    request = Request.of(cpu=1)
    works = [JobSpec("ann", ("x",), "/", request), JobSpec("ann", ("x",), "/", Request.of(cpu=1)),
             JobSpec("ann", ("y",), "/", request)]  # fmt: skip
    jobs = [Job(str(number), number, work, work.request, 0) for number, work in enumerate(works)]
    one, same, other = Jobs().read(map(columns, jobs))
    assert one.work is same.work
    assert one.work is not other.work


def test_the_texts_of_many_works_are_not_kept_for_ever():
    from gridhand.store.sql import job_rows

    for number in range(3 * job_rows._MOST_WORKS):
        work_json(JobSpec("ann", ("x", str(number)), "/", Request.of(cpu=1)))
    assert len(job_rows._works) <= job_rows._MOST_WORKS


def test_what_a_row_does_not_tell_is_as_usual():
    work = JobSpec("ann", ("x",), "/", Request.of(cpu=1))
    row = {name: work_row(work)[name] for name in work_row(work) if name != "detached"}
    assert job_spec_from_row(row) == work


def test_fields_that_earlier_versions_stored_are_ignored():
    job = Job("1", 1, JobSpec("ann", ("x",), "/", Request.of(cpu=1)), Request.of(cpu=1), 0)
    job = job._replace(attempts=(Attempt(1, "n", "a1-1", 0, 0, reason=Reason.OOM, ended=5),))
    row = columns(job)
    (attempt,) = json.loads(row["attempts"])
    row["attempts"] = json.dumps([attempt | {"gpu_peak_bytes": 7, "short_of": "memory"}])
    row["work"] = json.dumps(json.loads(row["work"]) | {"pieces": 1, "layout": "any"})
    assert Jobs().job(row) == job
