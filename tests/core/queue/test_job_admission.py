"""What a named queue and quotas make of a submission, or why they refuse it."""

from dataclasses import replace

import pytest

from gridhand import OverLimit, QueueFull, QueueNotAllowed, QuotaExceeded, UnknownQueue
from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.job import JobSpec, JobState, Priority
from gridhand.core.jobs.scopes import Scope
from gridhand.core.ledger.job_tallies import JobTallies
from gridhand.core.model.names import JobId
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import read_amounts
from gridhand.core.queue import named_queues
from gridhand.core.queue.job_admission import check_quotas, complete, within_limits
from gridhand.core.queue.named_queues import NO_QUEUES, NamedQueues, QueueRules, Quota

OPEN = frozenset({"priority", "cpu"})


def work(queue=None, request=None, **wishes):
    wishes = {"owner": "ann", "command": ("true",), "folder": "/", **wishes}
    return JobSpec(request=request or Request.of(cpu=1), queue=queue, **wishes)


def queues(quotas=None, **rules):
    named = {name: QueueRules(name, **given) for name, given in rules.items()}
    return NamedQueues(named, quotas or {})


def tallies(*submitted):
    counted = JobTallies()
    for number, one in enumerate(submitted):
        counted.replace(None, jobs.submit(one, id=JobId(str(number)), number=number, now=0))
    return counted


# ---- which queue


def test_an_unknown_queue_is_refused_with_the_nearest_and_those_one_may_use():
    known = queues(gpu={}, short={}, bobs={"owners": frozenset({"bob"})})
    with pytest.raises(UnknownQueue, match=r"there is no queue 'gup'; did you mean gpu\?") as error:
        complete(work("gup"), known)
    assert error.value.hint == "You may use gpu, short."
    assert (error.value.field, error.value.nearest) == ("queue", "gpu")


def test_where_nothing_is_configured_no_queue_may_be_named():
    with pytest.raises(UnknownQueue) as error:
        complete(work("gpu"), NO_QUEUES)
    assert error.value.hint.startswith("Leave the queue out")


def test_owners_that_are_not_listed_are_refused():
    known = queues(gpu={"owners": frozenset({"bob"})}, short={})
    assert complete(work("gpu", owner="bob"), known).queue == "gpu"
    with pytest.raises(QueueNotAllowed, match="queue gpu is not open to ann") as error:
        complete(work("gpu"), known)
    assert error.value.hint == "You may use short."


def test_a_job_without_a_queue_goes_to_the_default_one_if_there_is_one():
    assert complete(work(), queues(default={})).queue == "default"
    assert complete(work(), queues(short={})).queue is None
    assert complete(work(within="a1-1"), queues(default={})).queue is None


def test_a_job_within_an_allocation_keeps_its_amounts():
    known = queues(q={"defaults": read_amounts({"memory": "1GB"}), "limits": {"cpu": 0}})
    inside = work("q", within="a1-1")
    assert within_limits(complete(inside, known), known).request == inside.request


# ---- priority

#    what it shows                            queue's   given     has
PRIORITIES = {
    "the queue's is the default":            ("high",   None,     "high"),
    "a lower one may be named":              ("high",   "low",    "low"),
    "the same may be named":                 ("high",   "high",   "high"),
    "a higher one is refused":               ("high",   "urgent", None),
    "a medium one is higher than low":       ("low",    "medium", None),
    "without a priority any may be named":   (None,     "urgent", "urgent"),
    "without a priority medium is usual":    (None,     None,     "medium"),
}  # fmt: skip


@pytest.mark.parametrize(("highest", "given", "has"), PRIORITIES.values(), ids=PRIORITIES)
def test_priority(highest, given, has):
    known = queues(q={"priority": highest and Priority(highest)})
    asked = work("q", priority=Priority(given or "medium"))
    left_open = frozenset() if given else OPEN
    if has is None:
        with pytest.raises(OverLimit, match=f"priority: {given} is more than queue q") as error:
            complete(asked, known, left_open)
        assert (error.value.field, error.value.allowed) == ("priority", f"at most {highest}")
    else:
        assert complete(asked, known, left_open).priority == has


# ---- amounts

#    what it shows                                asked                                         defaults                     amounts of each choice
DEFAULTS = {
    "what is not named is filled in":            ({"cpu": 2},                                   {"memory": "4GB"},           ["cpu=2 memory=4GB"]),
    "what is named stays":                       ({"cpu": 2, "memory": "1GB"},                  {"memory": "4GB"},           ["cpu=2 memory=1GB"]),
    "a core that nobody named is replaced":      ({},                                           {"cpu": 4},                  ["cpu=4"]),
    "a core that somebody named stays":          ({"cpu": 1},                                   {"cpu": 4},                  ["cpu=1"]),
    "a device is filled in":                     ({"cpu": 1},                                   {"gpu": 1},                  ["cpu=1 gpu=1"]),
    "its memory belongs to the device":          ({"cpu": 1, "gpu": 1},                         {"gpu_memory": "8GB"},       ["cpu=1 gpu=1"]),
    "alternatives are filled in, too":           ({"cpu": 1, "alternatives": [{"cpu": 2}]},     {"memory": "4GB"},           ["cpu=1 memory=4GB", "cpu=2 memory=4GB"]),
    "one without a device stays without":        ({"cpu": 1, "gpu": 1, "fallback": "cpu"},      {"gpu": 2},                  ["cpu=1 gpu=1", "cpu=1"]),
    "alternatives without devices all get one":  ({"cpu": 1, "alternatives": [{"cpu": 2}]},     {"gpu": 1},                  ["cpu=1 gpu=1", "cpu=2 gpu=1"]),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "defaults", "choices"), DEFAULTS.values(), ids=DEFAULTS)
def test_defaults(asked, defaults, choices):
    known = queues(q={"defaults": read_amounts(defaults)})
    left_open = frozenset() if "cpu" in asked else OPEN
    request = complete(work("q", Request.of(**{"cpu": 1, **asked})), known, left_open).request
    assert [str(choice.resources) for choice in request.choices()] == choices


def test_a_request_over_the_limit_of_its_queue_is_refused():
    known = queues(q={"limits": read_amounts({"cpu": 4, "gpu": 0})})
    assert within_limits(work("q", Request.of(cpu=4)), known).request == Request.of(cpu=4)
    with pytest.raises(OverLimit, match="cpu: 8 is more than queue q allows") as error:
        within_limits(work("q", Request.of(cpu=8)), known)
    assert error.value.hint == "Queue q allows at most 4."
    assert (error.value.field, error.value.value, error.value.allowed) == ("cpu", "8", "at most 4")
    with pytest.raises(OverLimit, match="gpu: 1 is more than queue q allows"):
        within_limits(work("q", Request.of(cpu=1, gpu=1)), known)


#    what it shows                            whose quota
SCOPES = {
    "of its owner":                          ({"quotas": {"ann": Quota({"cpu": 20_000})}}, "ann"),
    "of everybody":                          ({"quotas": {"*": Quota({"cpu": 20_000})}}, "ann"),
    "of its queue":                          ({"q": {"quota": Quota({"cpu": 20_000})}}, "queue q"),
    "of its owner in the queue":             ({"q": {"owner_quota": Quota({"cpu": 20_000})}}, "ann .queue q."),
}  # fmt: skip


@pytest.mark.parametrize(("rules", "whose"), SCOPES.values(), ids=SCOPES)
def test_what_could_never_run_within_a_quota_is_refused(rules, whose):
    known = queues(**{"q": {}, **rules})
    within_limits(work("q", Request.of(cpu=2)), known)
    with pytest.raises(OverLimit, match=f"cpu: 3 is more than the quota of {whose} allows"):
        within_limits(work("q", Request.of(cpu=3)), known)


def test_alternatives_over_the_limit_are_left_out():
    known = queues(q={"limits": read_amounts({"gpu": 1, "cpu": 4})})
    request = Request.of(cpu=1, gpu=2, alternatives=[{"gpu": 1}, {"cpu": 8}])
    kept = within_limits(work("q", request, fallback_after_ms=5), known)
    assert str(kept.request.resources) == "gpu=1"
    assert (kept.request.alternatives, kept.fallback_after_ms) == ((), None)
    with pytest.raises(OverLimit, match="gpu: 2"):
        within_limits(work("q", replace(request, alternatives=())), known)


# ---- how much waits

QUEUED = {"queued": {"cpu": 40_000}}
#    what it shows                                   rules                                               there  more  error
FULL = {
    "a queue takes as many as its length":          ({"q": {"max_length": 3}},                           2,     1,    None),
    "a queue is full":                              ({"q": {"max_length": 3}},                           3,     1,    "queue q has 3 of 3 queued jobs; 1 more"),
    "an array counts with all its tasks":           ({"q": {"max_length": 3}},                           1,     3,    "queue q has 1 of 3 queued jobs; 3 more"),
    "an owner may have so many waiting":            ({"quotas": {"ann": Quota(max_queued_jobs=3)}},      2,     1,    None),
    "an owner has too many waiting":                ({"quotas": {"ann": Quota(max_queued_jobs=3)}},      3,     1,    "ann has 3 of 3 queued jobs"),
    "everybody has the quota of everybody":         ({"quotas": {"*": Quota(max_queued_jobs=3)}},        3,     1,    "ann has 3 of 3 queued jobs"),
    "none may wait":                                ({"quotas": {"*": Quota(max_queued_jobs=0)}},        0,     1,    "ann has 0 of 0 queued jobs"),
    "a quota of the queue":                         ({"q": {"quota": Quota(max_queued_jobs=3)}},         3,     1,    "queue q has 3 of 3"),
    "a quota of each owner in the queue":           ({"q": {"owner_quota": Quota(max_queued_jobs=3)}},   3,     1,    "ann .queue q. has 3 of 3"),
    "amounts that still fit":                       ({"quotas": {"ann": Quota(**QUEUED)}},               1,     1,    None),
    "amounts that are too much":                    ({"quotas": {"ann": Quota(**QUEUED)}},               1,     2,    "ann has 2 of 4 cpu of queued jobs; 4 more"),
    "amounts without a limit":                      ({"quotas": {"ann": Quota(queued={"gpu": 0})}},      9,     9,    None),
}  # fmt: skip


@pytest.mark.parametrize(("rules", "there", "more", "error"), FULL.values(), ids=FULL)
def test_how_much_may_wait(rules, there, more, error):
    known, asked = queues(**{"q": {}, **rules}), work("q", Request.of(cpu=2))
    counted = tallies(*[asked] * there)
    if error is None:
        check_quotas(asked, more, known, counted)
    else:
        kind = QueueFull if "max_length" in rules.get("q", {}) else QuotaExceeded
        with pytest.raises(kind, match=f"quota: {error}"):
            check_quotas(asked, more, known, counted)
        check_quotas(replace(asked, within="a1-1"), more, known, counted)


def test_the_jobs_of_others_do_not_count():
    known = queues(
        quotas={"*": Quota(max_queued_jobs=1)}, q={"owner_quota": Quota(max_queued_jobs=1)}
    )
    check_quotas(work("q"), 1, known, tallies(work("q", owner="bob")))


def test_one_owner_cannot_fill_the_controller(monkeypatch):
    monkeypatch.setattr("gridhand.core.queue.job_admission.MOST_OPEN_OF_OWNER", 3)
    counted = tallies(*[work()] * 3)
    with pytest.raises(QuotaExceeded, match="ann has 3 of 3 open jobs") as error:
        check_quotas(work(), 1, NO_QUEUES, counted)
    assert (error.value.used, error.value.asked, error.value.most) == (3, 1, 3)
    check_quotas(work(owner="bob"), 3, NO_QUEUES, counted)
    assert named_queues.MOST_OPEN_OF_OWNER == 500_000


def test_tallies_follow_every_change_and_forget_what_is_over():
    counted, asked = JobTallies(), work("q", Request.of(cpu=2))
    queued = jobs.submit(asked, id=JobId("1"), number=1, now=0)
    counted.replace(None, queued)
    counted.replace(queued, queued)
    tally = counted[Scope("ann", "q")]
    assert (tally.open, tally.queued, tally.asked) == (1, 1, {"cpu": 20_000})
    running = jobs.start(queued, node="n1", allocation="a1-1", now=1)
    counted.replace(queued, running)
    assert (tally.open, tally.queued, tally.asked) == (1, 0, {})
    larger = queued._replace(request=Request.of(cpu=3))  # retried with more
    counted.replace(running, larger)
    assert (tally.queued, tally.asked) == (1, {"cpu": 30_000})
    counted.replace(larger, larger._replace(state=JobState.CANCELLED))
    assert counted._by_scope == {}
