"""Delays and deadlines that the owners of jobs have set."""

import pytest

from gridhand.core.jobs.job import JobPhase, JobSpec, cancel, hold, submit
from gridhand.core.model.requests import Request
from gridhand.core.queue.delays import (
    current_request,
    fallback_at,
    latest_start,
    must_start_by,
    why_delayed,
)

NOW = 1_700_000_000_000
GPU = Request.of(cpu=1, gpu=1, fallback="cpu")


def job(request=None, **fields):
    spec = JobSpec("ann", ("true",), "/", request or Request.of(cpu=1), **fields)
    return submit(spec, id="7", number=7, now=NOW)


def test_a_job_that_begins_later_says_when():
    waiting = job(begin_ms=60_000)
    assert why_delayed(waiting, waiting.phase(NOW)) == "begins at 2023-11-14 22:14:20 UTC"
    assert why_delayed(waiting, waiting.phase(NOW + 60_000)) is None


def test_a_held_job_says_how_it_is_let_go():
    held = hold(job())
    assert why_delayed(held, JobPhase.HELD) == "held; `grid unhold 7` lets it start"
    task = held._replace(array="6", array_index=7)
    assert why_delayed(task, JobPhase.HELD) == "held; `grid unhold 6` lets it start"


#    what it shows                        fields                                              latest start
LATEST = {
    "without a deadline there is none":  ({},                                                 None),
    "it must have started":              ({"deadline_ms": 900},                               NOW + 900),
    "its limit must fit":                ({"deadline_ms": 900, "time_limit_ms": 400},         NOW + 500),
    "else what it is expected to take":  ({"deadline_ms": 900, "expect_ms": 300},             NOW + 600),
    "the limit counts before that":      ({"deadline_ms": 900, "expect_ms": 300, "time_limit_ms": 400}, NOW + 500),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "latest"), LATEST.values(), ids=LATEST)
def test_a_job_must_start_in_time_to_end_before_its_deadline(fields, latest):
    waiting = job(**fields)
    assert latest_start(waiting) == latest
    assert must_start_by(waiting) == (None if latest is None else latest + 1)
    assert must_start_by(cancel(waiting, now=NOW)) is None


def test_alternatives_count_after_a_while():
    waiting = job(GPU, fallback_after_ms=500)
    assert fallback_at(waiting) == NOW + 500
    assert current_request(waiting, NOW + 499) == Request.of(cpu=1, gpu=1)
    assert current_request(waiting, NOW + 500) is waiting.request
    later = job(GPU, fallback_after_ms=500, begin_ms=1000)
    assert fallback_at(later) == NOW + 1500


def test_alternatives_count_at_once_unless_the_job_says_otherwise():
    usual = job(GPU)
    assert fallback_at(usual) is None
    assert current_request(usual, NOW) is usual.request
