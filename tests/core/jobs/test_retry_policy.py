"""Retries: whether, when, and with which request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand import InvalidInput, Request, Resources
from gridhand.core.jobs.attempt import Attempt, Reason
from gridhand.core.jobs.retry_policy import (
    FINAL,
    LOSSES,
    Retry,
    RetryPolicy,
    enough,
    next_retry,
    with_more_memory,
)

MiB, GiB = 2**20, 2**30
EXIT, SIGNAL, OOM, TIMEOUT, START_FAILED = "exit", "signal", "oom", "timeout", "start_failed"
PREEMPTED, NODE_LOST, AGENT_LOST, DEVICE_LOST = (
    "preempted",
    "node_lost",
    "agent_lost",
    "device_lost",
)
REQUEST = Request.of(cpu=2, memory="1GiB", disk="5GB")


def attempts(*reasons, **last):
    """Make attempts that ended for these reasons; a number is an exit code."""
    made = []
    for number, reason in enumerate(reasons, 1):
        code, reason = (reason, EXIT) if isinstance(reason, int) else (None, reason)
        made.append(
            Attempt(number, "n1", f"a{number}", 0, 0, exit_code=code, reason=Reason(reason))
        )
    return [*made[:-1], made[-1]._replace(**last)]


#    what it shows                                    policy                    how its attempts ended           wait
CASES = {
    "by default a failure is the end":               ({},                       [1],                             None),
    "and so is running out of memory":               ({},                       [OOM],                           None),
    "but a lost node is not":                        ({},                       [NODE_LOST],                     0),
    "nor is preemption":                             ({},                       [PREEMPTED],                     0),
    "however often":                                 ({},                       [PREEMPTED] * 50,                0),
    "a lost device is the end":                      ({},                       [DEVICE_LOST],                   None),
    "who lost the exit status may have succeeded":   ({},                       [AGENT_LOST],                    None),
    "unless the job says otherwise":                 ({"on": "agent_lost"},     [AGENT_LOST],                    0),
    "nodes are lost so often, not more":             ({},                       [NODE_LOST] * 5,                 0),
    "a job that fells nodes comes to an end":        ({},                       [NODE_LOST] * 6,                 None),
    "a try is left":                                 ({"retries": 1},           [1],                             1_000),
    "then none is":                                  ({"retries": 1},           [1, 1],                          None),
    "lost nodes do not use up tries":                ({"retries": 1},           [NODE_LOST, NODE_LOST, 1],       1_000),
    "nor do preemptions":                            ({"retries": 1},           [PREEMPTED, PREEMPTED, 1],       1_000),
    "tries do not use up losses":                    ({"retries": 9},           [1, 1, 1, 1, 1, 1, NODE_LOST],   0),
    "each wait is twice as long":                    ({"retries": 9},           [1, 1, 1],                       4_000),
    "losses do not make it longer":                  ({"retries": 9},           [1, NODE_LOST, PREEMPTED, 1],    2_000),
    "up to five minutes":                            ({"retries": 99},          [1] * 50,                        300_000),
    "a signal is a failure like others":             ({"retries": 1},           [SIGNAL],                        1_000),
    "so is a failed start":                          ({"retries": 1},           [START_FAILED],                  1_000),
    "what took too long would again":                ({"retries": 1},           [TIMEOUT],                       None),
    "unless it is asked for":                        ({"retries": 1, "on": "timeout"}, [TIMEOUT],                1_000),
    "only what is listed is retried":                ({"retries": 1, "on": "oom"}, [1],                          None),
    "lost nodes are to be listed then, too":         ({"retries": 1, "on": "oom"}, [NODE_LOST],                  None),
    "a listed exit code is retried":                 ({"retries": 1, "on": "75"}, [75],                          1_000),
    "another is not":                                ({"retries": 1, "on": "75"}, [76],                          None),
    "a range of them will do":                       ({"retries": 1, "on": "oom,100-109"}, [109],                1_000),
    "and has an end":                                ({"retries": 1, "on": "oom,100-109"}, [110],                None),
    "success is the end":                            ({"retries": 9},           [1, 0],                          None),
    "nobody wants what was cancelled":               ({"retries": 9},           ["cancelled"],                   None),
    "nor whose client is gone":                      ({"retries": 9},           ["client_gone"],                 None),
}  # fmt: skip


@pytest.mark.parametrize(("policy", "ended", "wait"), CASES.values(), ids=CASES)
def test_the_policy_decides_on_the_next_retry(policy, ended, wait):
    found = next_retry(RetryPolicy.of(**policy), attempts(*ended), REQUEST)
    assert found == (None if wait is None else Retry(REQUEST, wait))


def test_a_signal_counts_as_the_code_a_shell_gives_it():
    policy = RetryPolicy.of(1, on="137")
    assert next_retry(policy, attempts(SIGNAL, signal=9), REQUEST)
    assert next_retry(policy, attempts(SIGNAL, signal=15), REQUEST) is None


#    what it shows                                had       peak       most     asked then
MEMORY = {
    "a fifth more than was used":                (1 * GiB,  1 * GiB,   None,    GiB * 6 // 5 + 1),
    "at least 100 MiB more than was used":       (64 * MiB, 64 * MiB,  None,    164 * MiB),
    "never less than a fifth more than it had":  (10 * GiB, 1 * GiB,   None,    12 * GiB),
    "from what it had, if nothing was measured": (10 * GiB, None,      None,    12 * GiB),
    "from what was measured, if it had no word": (0,        5 * GiB,   None,    6 * GiB),
    "what was used beyond what it had counts":   (1 * GiB,  10 * GiB,  None,    12 * GiB),
    "no more than the largest node has":         (10 * GiB, 10 * GiB,  11 * GiB, 11 * GiB),
    "what no node has is not asked for":         (10 * GiB, 10 * GiB,  10 * GiB, None),
    "nor what was used beyond that":             (1 * GiB,  10 * GiB,  8 * GiB, None),
    "nothing known, nothing changed":            (0,        None,      None,    0),
    "parts are rounded up":                      (GiB + 1,  0,         None,    (6 * GiB + 10) // 5),
}  # fmt: skip


@pytest.mark.parametrize(("had", "peak", "most", "asked"), MEMORY.values(), ids=MEMORY)
def test_after_running_out_of_memory_more_is_asked_for(had, peak, most, asked):
    request = Request(Resources({"cpu": 20_000, "memory": had}), labels={"zone": "a"})
    last = attempts(OOM, peak_bytes=peak)[-1]
    found = with_more_memory(request, last, most)
    if asked is None:
        assert found is None
        return
    assert found == Request(Resources({"cpu": 20_000, "memory": asked}), labels={"zone": "a"})


def test_running_out_again_asks_for_more_again():
    policy, request, made = RetryPolicy.of(3), REQUEST, []
    asked = []
    for number in range(3):
        made += attempts(OOM, number=number + 1, peak_bytes=request.amounts["memory"])
        request = next_retry(policy, made, request).request
        asked.append(request.amounts["memory"])
        assert request.amounts.without("memory") == REQUEST.amounts.without("memory")
    assert asked == sorted(set(asked))
    assert asked[0] > REQUEST.amounts["memory"]


def test_where_no_node_has_more_memory_the_job_fails():
    most = REQUEST.amounts["memory"]
    assert next_retry(RetryPolicy.of(3), attempts(OOM), REQUEST, most_bytes=most) is None


@pytest.mark.parametrize("reason", [PREEMPTED, NODE_LOST, EXIT, SIGNAL, START_FAILED])
def test_after_anything_else_the_same_is_asked_for(reason):
    ended = attempts(OOM, reason, peak_bytes=50 * GiB)
    assert next_retry(RetryPolicy.of(9), ended, REQUEST).request == REQUEST


def test_only_the_choice_that_ran_is_raised():
    asked = Request.of(cpu=1, memory="10GB", gpu=1, fallback="cpu")
    first = with_more_memory(asked, attempts(OOM)[-1], None)
    assert [one.amounts["memory"] for one in first.choices()] == [12 * 10**9, 10 * 10**9]
    second = with_more_memory(first, attempts(OOM, choice=1, peak_bytes=20 * 10**9)[-1], None)
    assert [one.amounts["memory"] for one in second.choices()] == [12 * 10**9, 24 * 10**9]
    assert [one.gpu for one in second.choices()] == [one.gpu for one in asked.choices()]


@given(st.integers(0, 2**50), st.integers(0, 2**50))
def test_enough_is_more_than_was_had_and_than_was_used(had, peak):
    if had or peak:
        assert enough(had, peak) >= max(had, peak) * 1.199 > 0
        assert enough(had, peak) > max(had, peak)
        assert enough(had, peak) >= peak + 100 * MiB or not peak


def test_jitter_takes_off_up_to_half():
    policy = RetryPolicy(delay_ms=1_000, most_delay_ms=10_000)
    assert [policy.wait_ms(3, jitter) for jitter in (0, 0.5, 1, 7, -7)] == [
        4000,
        3000,
        2000,
        2000,
        4000,
    ]
    assert next_retry(RetryPolicy.of(1), attempts(1), REQUEST, jitter=1.0).wait_ms == 500


@given(st.integers(1, 5_000), st.floats(0, 1))
def test_no_wait_is_longer_than_the_most(failed, jitter):
    assert 0 < RetryPolicy().wait_ms(failed, jitter) <= 300_000


#    what it shows                          arguments                       what is said
WRONG = {
    "a cause nobody knows":                ({"on": "oops"},                 "oops"),
    "a slip is recognised":                ({"on": "node_los"},             "did you mean node_lost"),
    "what is cancelled stays cancelled":   ({"on": "cancelled"},            "cancelled"),
    "a success is no failure":             ({"on": "0"},                    "1 to 255"),
    "a code that is none":                 ({"on": "256"},                  "1 to 255"),
    "codes from high to low":              ({"on": "9-1"},                  "lower one first"),
    "something else":                      ({"on": [7]},                    "node_lost"),
    "fewer than none":                     ({"retries": -1},                "retries"),
    "part of one":                         ({"retries": 1.5},               "retries"),
    "no number":                           ({"retries": True},              "retries"),
    "too many":                            ({"retries": 1_000},             "999"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "said"), WRONG.values(), ids=WRONG)
def test_a_policy_that_cannot_be_read(given, said):
    with pytest.raises(InvalidInput) as caught:
        RetryPolicy.of(**given)
    assert said in f"{caught.value} {caught.value.hint}"


def test_a_policy_made_by_hand_is_checked_too():
    for wrong in ({"tries": 0}, {"losses": -1}, {"delay_ms": -1}, {"most_delay_ms": 10**12}):
        with pytest.raises(InvalidInput):
            RetryPolicy(**wrong)
    with pytest.raises(InvalidInput):
        RetryPolicy(on=frozenset({Reason.CANCELLED}))


def test_an_attempt_that_never_began_is_always_retried_and_not_counted():
    never = RetryPolicy(on=frozenset())
    assert next_retry(never, attempts(Reason.RETURNED), REQUEST) == Retry(REQUEST, 0)
    twice = RetryPolicy(tries=2)
    assert next_retry(twice, attempts(Reason.RETURNED, Reason.EXIT), REQUEST) is not None
    assert next_retry(twice, attempts(Reason.RETURNED, Reason.EXIT, Reason.EXIT), REQUEST) is None
    with pytest.raises(InvalidInput):
        RetryPolicy.of(1, on="returned")


def test_every_cause_can_be_named():
    for cause in set(Reason) - FINAL - {Reason.RETURNED, Reason.GANG}:
        assert RetryPolicy.of(1, on=cause).on == {cause}
        assert next_retry(RetryPolicy.of(1, on=cause), attempts(cause), REQUEST) is not None
    assert not LOSSES & FINAL
