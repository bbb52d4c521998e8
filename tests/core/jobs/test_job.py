"""Every move of a job from every state: the new state, and what changes with it."""

import pytest

from gridhand import InvalidInput, InvalidName, JobRefused, Request
from gridhand.core.jobs.attempt import AttemptEnd, Reason
from gridhand.core.jobs.job import (
    OPEN,
    After,
    Condition,
    Job,
    JobPhase,
    JobSpec,
    JobState,
    Priority,
    cancel,
    end,
    hold,
    spawned,
    start,
    stop,
    submit,
    unhold,
)
from gridhand.core.jobs.retry_policy import FINAL, RetryPolicy

QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED, LOST = JobState
NOW = 1_000_000
ASKED = Request.of(cpu=2, memory="1GB")


def work(**more):
    fields = {"owner": "ann", "command": ("sleep", "9"), "folder": "/home/ann", "request": ASKED}
    return JobSpec(**fields | more)


def queued(**more):
    return submit(work(**more), id="j1-1", number=1, now=NOW)


def running(job=None, **more):
    job = job or queued(**more)
    return start(job, node="n1", allocation=f"a{len(job.attempts) + 1}", now=NOW + 1)


def ended(job, reason=Reason.EXIT, code=None, now=NOW + 9, **more):
    last = job.attempts[-1]
    told = AttemptEnd(last.number, last.allocation, Reason(reason), code, **more)
    return end(job, told, now=now)


def one_in(state, **more):
    """Return a job in that state, moved there step by step."""
    if state is QUEUED:
        return queued(**more)
    if state is CANCELLED:
        return cancel(queued(**more), now=NOW)
    job = running(**more)
    if state is RUNNING:
        return job
    if state is LOST:
        job = job._replace(work=work(retry=RetryPolicy(losses=0)))
        return ended(job, "node_lost")
    return ended(job, code=0 if state is SUCCEEDED else 1)


def check(job):
    """Check what holds for every job."""
    assert [one.number for one in job.attempts] == list(range(1, len(job.attempts) + 1))
    assert len({one.allocation for one in job.attempts}) == len(job.attempts)
    over = [one.ended is not None for one in job.attempts]
    assert over == [True] * len(over) or (
        job.state is RUNNING and over[:-1] == [True] * len(over[:-1])
    )
    assert (job.state is RUNNING) == (job.attempt is not None) == (bool(over) and not over[-1])
    assert (job.state in OPEN) == job.open == (job.ended is None) == (job.reason is None)
    assert (job.phase(NOW) is JobPhase.ENDED) == (not job.open)
    assert job.not_before is None or job.state is QUEUED


HOW = {
    "start": lambda job: start(job, node="n2", allocation="b1", now=NOW + 5),
    "hear that it was spawned": lambda job: spawned(job, 1, now=NOW + 5),
    "stop": lambda job: stop(job, 1, Reason.TIMEOUT),
    "cancel": lambda job: cancel(job, now=NOW + 5),
    "hear of success": lambda job: end(job, AttemptEnd(1, "a1", Reason.EXIT, 0), now=NOW + 5),
    "hear of failure": lambda job: end(job, AttemptEnd(1, "a1", Reason.EXIT, 1), now=NOW + 5),
    "lose the node": lambda job: end(job, AttemptEnd(1, "a1", Reason.NODE_LOST), now=NOW + 5),
}

SAME = "same"
#    move                        queued      running     succeeded   failed      cancelled   lost
TABLE = {
    "start":                    (RUNNING,    JobRefused, JobRefused, JobRefused, JobRefused, JobRefused),
    "hear that it was spawned": (SAME,       RUNNING,    SAME,       SAME,       SAME,       SAME),
    "stop":                     (SAME,       RUNNING,    SAME,       SAME,       SAME,       SAME),
    "cancel":                   (CANCELLED,  RUNNING,    SAME,       SAME,       SAME,       SAME),
    "hear of success":          (SAME,       SUCCEEDED,  SAME,       SAME,       SAME,       SAME),
    "hear of failure":          (SAME,       FAILED,     SAME,       SAME,       SAME,       SAME),
    "lose the node":            (SAME,       QUEUED,     SAME,       SAME,       SAME,       SAME),
}  # fmt: skip
MOVES = {
    f"{move} when {state}": (move, state, leads_to)
    for move, row in TABLE.items()
    for state, leads_to in zip(JobState, row, strict=True)
}


@pytest.mark.parametrize(("move", "state", "leads_to"), MOVES.values(), ids=MOVES)
def test_every_move_from_every_state(move, state, leads_to):
    before = one_in(state)
    check(before)
    assert before.state is state
    if leads_to is JobRefused:
        with pytest.raises(JobRefused, match=f"cannot start job j1-1: it is {state}"):
            HOW[move](before)
        return
    after = HOW[move](before)
    check(after)
    if leads_to is SAME:
        assert after is before
    else:
        assert after.state is leads_to
        assert after != before


#    what it shows                                  reason           code   policy                          leads to
ENDS = {
    "an exit with 0 is success":                   ("exit",          0,     {},                             SUCCEEDED),
    "another is failure":                          ("exit",          3,     {},                             FAILED),
    "a signal is failure":                         ("signal",        None,  {},                             FAILED),
    "running out of memory is failure":            ("oom",           None,  {},                             FAILED),
    "a start that failed is failure":              ("start_failed",  None,  {},                             FAILED),
    "a lost device is failure":                    ("device_lost",   None,  {},                             FAILED),
    "a lost node brings it back":                  ("node_lost",     None,  {},                             QUEUED),
    "or it is lost":                               ("node_lost",     None,  {"losses": 0},                  LOST),
    "without an exit status it is lost":           ("agent_lost",    None,  {},                             LOST),
    "preemption brings it back":                   ("preempted",     None,  {},                             QUEUED),
    "unless it must not come back":                ("preempted",     None,  {"on": frozenset()},            FAILED),
    "a failure with a try left brings it back":    ("exit",          3,     {"tries": 2},                   QUEUED),
    "success needs no other try":                  ("exit",          0,     {"tries": 2},                   SUCCEEDED),
    "whose client is gone is not wanted":          ("client_gone",   None,  {"tries": 2},                   CANCELLED),
    "exit 0 told with another reason is none":     ("timeout",       0,     {},                             FAILED),
}  # fmt: skip


@pytest.mark.parametrize(("reason", "code", "policy", "leads_to"), ENDS.values(), ids=ENDS)
def test_how_an_attempt_ends(reason, code, policy, leads_to):
    job = ended(running(retry=RetryPolicy(**policy)), reason, code)
    check(job)
    assert job.state is leads_to
    assert job.attempts[0].reason == reason
    assert job.attempts[0].exit_code == code
    assert job.attempts[0].ended == NOW + 9
    if not job.open:
        assert (job.reason, job.ended) == (reason, NOW + 9)


def test_every_reason_ends_a_job_somewhere():
    for reason in set(Reason) - {Reason.RETURNED}:
        job = ended(running(retry=RetryPolicy(on=frozenset())), reason, 1)
        assert not job.open
        assert job.reason is reason


@pytest.mark.parametrize("leads_to", [SUCCEEDED, FAILED, QUEUED])
def test_a_repeated_end_changes_nothing(leads_to):
    told = AttemptEnd(1, "a1", Reason.EXIT, 0 if leads_to is SUCCEEDED else 1)
    policy = RetryPolicy(tries=2 if leads_to is QUEUED else 1)
    once = end(running(retry=policy), told, now=NOW + 2)
    assert once.state is leads_to
    assert end(once, told, now=NOW + 3) is once


#    what it shows                                attempt  allocation
STRANGERS = {
    "an attempt that is over":                   (1,       "a1"),
    "one that was never made":                   (3,       "a3"),
    "the right number with another's holding":   (2,       "a1"),
    "the right holding with another number":     (1,       "a2"),
}  # fmt: skip


@pytest.mark.parametrize(("attempt", "allocation"), STRANGERS.values(), ids=STRANGERS)
def test_an_end_of_another_attempt_changes_nothing(attempt, allocation):
    job = ended(running(retry=RetryPolicy(tries=3, delay_ms=0)), code=1)
    job = running(job)
    assert job.attempt.number == 2
    assert end(job, AttemptEnd(attempt, allocation, Reason.EXIT, 0), now=NOW + 9) is job


def test_news_of_an_older_attempt_does_not_touch_the_newer_one():
    job = running(ended(running(), "node_lost"))
    assert spawned(job, 1, now=NOW + 5) is job
    assert stop(job, 1, Reason.TIMEOUT) is job
    assert stop(job, 2, Reason.TIMEOUT).attempt.stopping is Reason.TIMEOUT


def test_a_repeated_start_is_one_attempt():
    job = running()
    assert start(job, node="n1", allocation="a1", now=NOW + 7) is job
    with pytest.raises(JobRefused):
        start(job, node="n1", allocation="a2", now=NOW + 7)


def test_the_allocation_of_an_ended_attempt_starts_no_other():
    job = ended(running(), "node_lost")
    with pytest.raises(JobRefused, match="a1"):
        start(job, node="n1", allocation="a1", now=NOW + 7)


def test_a_job_that_backs_off_starts_when_its_time_has_come():
    job = ended(running(retry=RetryPolicy(tries=2, delay_ms=500)), code=1, now=NOW)
    assert job.not_before == NOW + 500
    with pytest.raises(JobRefused, match="wait"):
        start(job, node="n1", allocation="a2", now=NOW + 499)
    assert start(job, node="n1", allocation="a2", now=NOW + 500).not_before is None


def test_the_phases_of_a_job():
    job = queued(retry=RetryPolicy(tries=2))
    assert job.phase(NOW, waiting=True) is JobPhase.WAITING
    assert job.phase(NOW) is JobPhase.QUEUED
    job = running(job)
    assert job.phase(NOW) is JobPhase.STARTING
    job = spawned(job, 1, now=NOW + 2)
    assert job.phase(NOW) is JobPhase.RUNNING
    assert spawned(job, 1, now=NOW + 3) is job
    job = stop(job, 1, Reason.PREEMPTED)
    assert job.phase(NOW) is JobPhase.STOPPING
    job = ended(running(retry=RetryPolicy(tries=2)), code=1, now=NOW)
    assert job.phase(NOW) is job.phase(NOW + 999) is JobPhase.BACKING_OFF
    assert job.phase(NOW + 1_000) is JobPhase.QUEUED
    assert cancel(job, now=NOW).phase(NOW) is JobPhase.ENDED
    check(cancel(job, now=NOW))


#    what it shows                                     told first        then               and then      counts as     leads to
STOPS = {
    "a time-out is one, whatever the exit code":      (["timeout"],                        ("exit", 0),  "timeout",    FAILED),
    "who exits well when preempted comes back":       (["preempted"],                      ("exit", 0),  "preempted",  QUEUED),
    "the first reason stands":                        (["preempted", "timeout"],           ("exit", 1),  "preempted",  QUEUED),
    "cancelling overrides it":                        (["preempted", "cancelled"],         ("exit", 1),  "cancelled",  CANCELLED),
    "and is not overridden":                          (["cancelled", "preempted"],         ("exit", 1),  "cancelled",  CANCELLED),
    "who was cancelled does not come back":           (["cancelled"],                      ("node_lost", None), "cancelled", CANCELLED),
    "nor with an exit of 0":                          (["cancelled"],                      ("exit", 0),  "cancelled",  CANCELLED),
    "nor whose client is gone":                       (["client_gone"],                    ("node_lost", None), "client_gone", CANCELLED),
    "nor one that ran too long":                      (["timeout"],                        ("node_lost", None), "timeout", FAILED),
    "the first who did not want it stands":           (["client_gone", "cancelled"],       ("exit", 1),  "client_gone", CANCELLED),
}  # fmt: skip


@pytest.mark.parametrize(("told", "how", "counts_as", "leads_to"), STOPS.values(), ids=STOPS)
def test_the_reason_to_stop_is_the_reason_of_the_end(told, how, counts_as, leads_to):
    job = running(retry=RetryPolicy(tries=9))
    for reason in map(Reason, told):
        job = cancel(job, now=NOW, reason=reason) if reason in FINAL else stop(job, 1, reason)
        assert job.state is RUNNING  # it holds what it holds until it has ended
        check(job)
    job = ended(job, *how)
    check(job)
    assert job.state is leads_to
    assert job.attempts[0].reason == counts_as


def test_cancelling_twice_changes_nothing():
    for job in (queued(), running()):
        once = cancel(job, now=NOW)
        assert cancel(once, now=NOW + 1) is once


def test_stopping_and_cancelling_have_reasons_of_their_own():
    with pytest.raises(ValueError, match="cancel"):
        stop(running(), 1, Reason.CANCELLED)
    with pytest.raises(ValueError, match="stop"):
        cancel(running(), now=NOW, reason=Reason.TIMEOUT)


def test_a_retry_after_running_out_of_memory_asks_for_more_of_it_alone():
    job = ended(running(retry=RetryPolicy(tries=3)), "oom", peak_bytes=2 * 10**9)
    assert job.request == Request.of(cpu=2, memory=2400)
    assert job.work.request == ASKED
    again = ended(running(job._replace(not_before=None)), "node_lost")
    assert again.request == job.request  # it needs what it needs


def test_where_no_node_has_more_it_fails():
    told = AttemptEnd(1, "a1", Reason.OOM, peak_bytes=10**9)
    job = running(retry=RetryPolicy(tries=3))
    assert end(job, told, now=NOW, most_bytes=10**9).state is FAILED
    assert end(job, told, now=NOW, most_bytes=2 * 10**9).state is QUEUED


def test_jitter_brings_it_back_sooner():
    job, told = running(retry=RetryPolicy(tries=2)), AttemptEnd(1, "a1", Reason.EXIT, 1)
    assert end(job, told, now=NOW, jitter=1.0).not_before == NOW + 500


def test_the_status_of_a_killed_job_is_that_of_a_shell():
    job = end(running(), AttemptEnd(1, "a1", Reason.SIGNAL, signal=9), now=NOW)
    assert (job.reason, job.attempts[0].signal, job.attempts[0].status) == ("signal", 9, 137)


#    condition   met by
CONDITIONS = {
    "afterok":    {SUCCEEDED},
    "afterany":   {SUCCEEDED, FAILED, CANCELLED, LOST},
    "afternotok": {FAILED, CANCELLED, LOST},
}  # fmt: skip


@pytest.mark.parametrize("condition", Condition)
def test_how_a_job_must_have_ended(condition):
    found = {state for state in JobState if state not in OPEN and condition.met_by(state)}
    assert found == CONDITIONS[condition]


#    what it shows                     fields
WRONG = {
    "no program":                     {"command": ()},
    "an empty one":                   {"command": ("",)},
    "a word that is no text":         {"command": ("a", 7)},
    "a zero byte":                    {"command": ("a", "b\0c")},
    "a zero byte in the folder":      {"folder": "/\0"},
    "a name on two lines":            {"name": "a\nb"},
    "an owner without a name":        {"owner": ""},
    "a time limit of nothing":        {"time_limit_ms": 0},
    "part of a millisecond":          {"time_limit_ms": 1.5},
    "a negative grace":               {"grace_ms": -1},
    "none at once":                   {"at_once": 0},
    "a task type with spaces":        {"task_type": "a b"},
    "a queue with spaces":            {"queue": "a b"},
    "an expectation of nothing":      {"expect_ms": 0},
    "a begin of long ago":            {"begin_ms": -1},
    "a begin within an allocation":   {"begin_ms": 1, "within": "a1-1"},
    "a deadline before its end":      {"deadline_ms": 999, "time_limit_ms": 1000},
    "a deadline before it begins":    {"deadline_ms": 1000, "begin_ms": 501, "expect_ms": 500},
    "a fallback to nothing":          {"fallback_after_ms": 5},
    "a warning without a signal":     {"warn_ms": 5, "time_limit_ms": 9},
    "a signal without a time":        {"warn_signal": 15, "time_limit_ms": 9},
    "a warning without a limit":      {"warn_signal": 15, "warn_ms": 5},
    "a warning before the start":     {"warn_signal": 15, "warn_ms": 9, "time_limit_ms": 9},
    "a signal that there is not":     {"warn_signal": 65, "warn_ms": 5, "time_limit_ms": 9},
}  # fmt: skip


@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG)
def test_work_that_makes_no_sense_is_refused(fields):
    with pytest.raises(InvalidInput):
        work(**fields)


def test_work_may_fill_its_time_to_the_last_millisecond():
    spec = work(deadline_ms=1000, begin_ms=500, expect_ms=500, warn_signal=64, warn_ms=8, time_limit_ms=500)  # fmt: skip
    assert spec.longest_ms == 500
    assert work(expect_ms=7).longest_ms == 7
    assert work().longest_ms == 0


def test_a_job_begins_when_it_was_told_to():
    job = queued(begin_ms=500)
    assert (job.not_before, job.begins) == (NOW + 500, NOW + 500)
    assert job.phase(NOW + 499) is JobPhase.SCHEDULED
    assert job.phase(NOW + 500) is JobPhase.QUEUED
    with pytest.raises(JobRefused, match="must wait"):
        running(job)
    assert queued().begins is None


def test_a_held_job_does_not_start_until_it_is_let_go():
    held = hold(queued())
    assert held.phase(NOW) is held.phase(NOW, waiting=True) is JobPhase.HELD
    assert hold(held) == held
    with pytest.raises(JobRefused):
        running(held)
    free = unhold(held, now=NOW)
    assert free == queued()
    assert unhold(free, now=NOW) is free
    assert cancel(held, now=NOW).state is CANCELLED


def test_a_job_that_is_let_go_begins_no_earlier_than_it_was_to():
    held = hold(queued(begin_ms=500))
    assert unhold(held, now=NOW + 499).not_before == NOW + 500
    assert unhold(held, now=NOW + 500).not_before is None


@pytest.mark.parametrize("state", list(JobState)[1:])
def test_only_a_queued_job_can_be_held(state):
    job = one_in(state)
    with pytest.raises(JobRefused, match=f"cannot hold job j1-1: it is {state}"):
        hold(job)
    assert unhold(job, now=NOW) is job


def test_an_id_is_a_name():
    with pytest.raises(InvalidName, match="job id"):
        submit(work(), id="../etc", number=1, now=NOW)


def test_a_job_has_what_it_was_submitted_with():
    after = (After("j0"), After("j9", Condition.ANY))
    job = submit(work(), id="j1", number=7, now=NOW, array="x", array_index=3, after=after)
    assert job == Job("j1", 7, work(), ASKED, NOW, "x", 3, after)
    assert hash(job) == hash(job._replace())


def test_priorities_are_read_in_any_case():
    assert Priority.read("HIGH") is Priority.HIGH
    for wrong in ("highest", 1, None):
        with pytest.raises(InvalidInput, match="priority"):
            Priority.read(wrong)
