"""The order of waiting jobs: tables of cases, and a state machine against a plain dict."""

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from example_budget import examples
from gridhand import Grid, InvalidDependency, NoRoom, Request, UnknownJob
from gridhand.core.jobs.attempt import AttemptEnd, Reason
from gridhand.core.jobs.job import (
    After,
    Condition,
    JobSpec,
    JobState,
    Priority,
    cancel,
    end,
    start,
    submit,
)
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.queue.queue import Queue
from gridhand.core.queue.ready import ReadyJobs

QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED, LOST = JobState
RANKS = ["urgent", "high", "medium", "low"]


def job(id, number, cpu=1, *, priority="medium", owner="ann", after=(), array=None, **more):
    request = more.pop("request", None) or Request.of(cpu=cpu)
    work = JobSpec(owner, ("true",), "/", request, priority=Priority(priority), **more)
    return submit(work, id=id, number=number, now=0, after=after, array=array)


def begun(one, now=0):
    return start(one, node="n1", allocation=f"{one.id}/{len(one.attempts) + 1}", now=now)


def over(one, reason="exit", code=0, now=0):
    last = one.attempts[-1]
    return end(one, AttemptEnd(last.number, last.allocation, Reason(reason), code), now=now)


def pass_over(queue, free, now=0):
    """Run a pass with so many free CPUs; return the ids tried and the ids started."""
    tried, begins = [], []
    for one in queue.order(now):
        tried.append(one.id)
        cpu = one.request.amounts["cpu"] // 10_000
        if cpu <= free:
            free -= cpu
            begins.append(one.id)
            queue.put(begun(one, now))
        else:
            queue.refuse(one.id, f"{cpu} of {free}")
    return tried, begins


def queue_of(*jobs):
    queue = Queue()
    for one in jobs:
        assert queue.put(one) == []
    return queue


#    what it shows                                jobs: id, number, cpu, priority             free  tried     started
ORDERS = {
    "first come, first served":                  ([("b", 2, 1, "low"), ("a", 1, 1, "low")],   9,   "ab",     "ab"),
    "higher classes come first":                 ([("a", 1, 1, "low"), ("b", 2, 1, "medium"),
                                                   ("c", 3, 1, "high"), ("d", 4, 1, "urgent")], 9, "dcba",   "dcba"),
    "who cannot start blocks nobody (K1)":       ([("a", 1, 8, "high"), ("b", 2, 2, "high")], 4,   "ab",     "b"),
    "nor those of a lower class":                ([("a", 1, 8, "urgent"), ("b", 2, 2, "low")], 4,  "ab",     "b"),
    "the same is not asked twice":               ([("a", 1, 8, "low"), ("b", 2, 8, "low"),
                                                   ("c", 3, 8, "low"), ("d", 4, 1, "low")],   4,   "ad",     "d"),
    "nor for a lower class":                     ([("a", 1, 8, "high"), ("b", 2, 8, "low"),
                                                   ("c", 3, 1, "low")],                       4,   "ac",     "c"),
    "but until it is refused":                   ([("a", 1, 2, "low"), ("b", 2, 2, "low"),
                                                   ("c", 3, 2, "low"), ("d", 4, 2, "low")],   4,   "abc",    "ab"),
    "classes do not change the order":           ([("a", 1, 1, "low"), ("b", 2, 2, "low"),
                                                   ("c", 3, 1, "low"), ("d", 4, 2, "low")],   9,   "abcd",   "abcd"),
    "nobody waits, nobody is tried":             ([],                                         9,   "",       ""),
}  # fmt: skip


@pytest.mark.parametrize(("jobs", "free", "tried", "started"), ORDERS.values(), ids=ORDERS)
def test_a_pass_over_the_queue(jobs, free, tried, started):
    queue = queue_of(*(job(id, n, cpu, priority=priority) for id, n, cpu, priority in jobs))
    assert pass_over(queue, free) == (list(tried), list(started))
    assert len(queue) == len(jobs) - len(started)


def test_the_order_does_not_depend_on_the_owner():
    queue = queue_of(*(job(f"j{n}", n, owner="ann" if n % 3 else "bob") for n in range(1, 10)))
    assert pass_over(queue, 99)[0] == [f"j{n}" for n in range(1, 10)]


def test_the_large_job_runs_when_there_is_room():
    queue = queue_of(job("large", 1, 8), job("small", 2, 2))
    assert pass_over(queue, 4)[1] == ["small"]
    queue.freed()
    assert pass_over(queue, 8)[1] == ["large"]


def test_refused_jobs_are_skipped_until_something_is_freed():
    queue = queue_of(job("a", 1, 8))
    assert pass_over(queue, 4) == (["a"], [])
    queue.put(job("b", 2, 8))
    assert pass_over(queue, 4) == ([], [])
    queue.freed()
    assert pass_over(queue, 4) == (["a"], [])


def test_a_job_of_a_higher_priority_is_tried_though_its_like_was_refused():
    """It may stop others, or have room kept for it."""
    queue = queue_of(job("a", 1, 8))
    assert pass_over(queue, 4) == (["a"], [])
    queue.put(job("c", 3, 8, owner="bob", priority="urgent"))
    assert pass_over(queue, 4) == (["c"], [])
    queue.put(job("d", 4, 8, owner="bob", priority="urgent"))
    assert pass_over(queue, 4) == ([], [])


def test_a_job_that_is_put_again_is_not_tried_again():
    queue = queue_of(job("a", 1, 8))
    assert pass_over(queue, 4) == (["a"], [])
    queue.put(job("a", 1, 8))
    assert pass_over(queue, 4) == ([], [])


def test_another_with_the_same_holder_in_mind_may_get_another_answer():
    near = Request.of(cpu=1, together_with="server")
    jobs = [job("a", 1, request=near), job("b", 2, request=near, owner="bob")]
    queue = queue_of(*jobs)
    tried = []
    for one in queue.order(0):
        tried.append(one.id)
        queue.refuse(one.id, "no")
    assert tried == ["a", "b"]


def test_a_retried_job_keeps_its_place():
    first, second, third = (job(name, n) for n, name in enumerate("abc", 1))
    queue = queue_of(first, second, third)
    assert pass_over(queue, 1)[1] == ["a"]
    queue.put(over(begun(first), "preempted"))
    queue.freed()
    assert pass_over(queue, 2)[1] == ["a", "b"]


def test_a_pass_may_end_early_or_do_nothing():
    queue = queue_of(*(job(f"j{n}", n, cpu=n % 2 + 1) for n in range(6)))
    names = [f"j{n}" for n in range(6)]
    assert [one.id for one in queue.order(0)] == names
    assert [one.id for one, _ in zip(queue.order(0), range(3), strict=False)] == names[:3]
    looking = queue.order(0)
    assert next(looking).id == "j0"
    assert next(looking).id == "j1"
    assert pass_over(queue, 99)[1] == names  # although the other pass is not over
    assert list(looking) == []


def test_a_job_that_started_in_an_abandoned_pass_is_not_offered_again():
    first, second = job("a", 1), job("b", 2)
    queue = queue_of(first, second)
    looking = queue.order(0)
    assert [next(looking).id, next(looking).id] == ["a", "b"]
    queue.put(begun(first))
    assert [one.id for one in queue.order(0)] == ["b"]


def test_a_job_that_comes_during_a_pass_is_tried_in_it():
    queue = queue_of(job("b", 2), job("c", 3))
    seen = []
    for one in queue.order(0):
        seen.append(one.id)
        if one.id == "b":
            queue.put(job("a", 1))
    assert seen == ["b", "a", "c"]


def test_backing_off_takes_its_time():
    failed = over(begun(job("a", 1, retry=RetryPolicy(tries=2))), code=1, now=1_000)
    queue = queue_of(failed, job("b", 2))
    assert queue.next_due() == 2_000
    assert [one.id for one in queue.order(1_999)] == ["b"]
    assert queue.why("a", 1_500) == "retries in 1 s, after exit"
    assert [one.id for one in queue.order(2_000)] == ["a", "b"]
    assert queue.next_due() == queue.ready.class_patience_ms  # then their priority comes first


def test_a_time_that_looks_like_a_number_is_still_a_time():
    failed = over(begun(job("a", 1_001, retry=RetryPolicy(tries=2))), code=1, now=1)
    assert failed.not_before == failed.number
    assert list(queue_of(failed).order(1_000)) == []


# ---- arrays


def array(count, at_once, **more):
    return [job(f"x{n}", n, array="x", at_once=at_once, **more) for n in range(1, count + 1)]


def test_of_an_array_so_many_run_at_once():
    tasks = array(6, 2)
    queue = queue_of(*tasks, job("other", 9))
    assert pass_over(queue, 99)[1] == ["x1", "x2", "other"]
    assert queue.why("x3", 0) == "2 jobs of its array are running, which is its limit"
    assert pass_over(queue, 99)[1] == []
    queue.put(over(begun(tasks[0])))
    assert pass_over(queue, 99)[1] == ["x3"]
    queue.put(over(begun(tasks[1]), code=1))
    queue.put(over(begun(tasks[2])))
    assert pass_over(queue, 99)[1] == ["x4", "x5"]


def test_a_task_that_does_not_fit_does_not_block_its_array():
    large = job("x1", 1, 8, array="x", at_once=1)
    small = job("x2", 2, 1, array="x", at_once=1)
    assert pass_over(queue_of(large, small), 4) == (["x1", "x2"], ["x2"])


def test_the_limit_of_an_array_holds_back_nobody_else():
    queue = queue_of(*array(3, 1), *(job(f"y{n}", 10 + n, array="y") for n in range(3)))
    assert pass_over(queue, 99)[1] == ["x1", "y0", "y1", "y2"]


def test_an_array_without_room_is_tried_again_when_something_is_freed():
    tasks = array(3, 2, cpu=2)
    queue = queue_of(*tasks)
    assert pass_over(queue, 2)[1] == ["x1"]
    assert pass_over(queue, 2)[1] == []
    queue.put(over(begun(tasks[0])))
    queue.freed()
    assert pass_over(queue, 9)[1] == ["x2", "x3"]


def test_an_array_that_was_gone_for_a_while_has_its_limit_still():
    alone = job("x1", 1, array="x", at_once=1, retry=RetryPolicy(tries=2))
    other = job("other", 9, retry=RetryPolicy(tries=2))  # asks for the same all the time
    queue = queue_of(alone, other)
    next(queue.order(0))
    queue.put(begun(alone))
    queue.put(over(begun(alone), code=1))
    queue.put(job("x2", 2, array="x", at_once=1))
    assert pass_over(queue, 99, now=1_000)[1] == ["x1", "other"]


# ---- jobs after others


#    what it shows                            condition     how it ended                leads to
AFTER = {
    "after success, if it succeeded":        ("afterok",    {"code": 0},                "runs"),
    "after success, if it failed":           ("afterok",    {"code": 1},                "never"),
    "after any end, if it failed":           ("afterany",   {"code": 1},                "runs"),
    "after failure, if it failed":           ("afternotok", {"code": 1},                "runs"),
    "after failure, if it succeeded":        ("afternotok", {"code": 0},                "never"),
    "after success, if it was lost":         ("afterok",    {"reason": "agent_lost"},   "never"),
    "a first that comes back has not ended": ("afterok",    {"reason": "node_lost"},    "waits"),
}  # fmt: skip


@pytest.mark.parametrize(("condition", "how", "leads_to"), AFTER.values(), ids=AFTER)
def test_a_job_after_another(condition, how, leads_to):
    first, then = job("a", 1), job("b", 2, after=(After("a", Condition(condition)),))
    queue = queue_of(first, then)
    assert queue.waits_for("b") == ("a",)
    assert queue.why("b", 0).startswith("waits for job a to ")
    assert pass_over(queue, 99)[1] == ["a"]
    lost = queue.put(over(begun(first), **how))
    assert lost == (["b"] if leads_to == "never" else [])
    if leads_to == "never":
        assert queue.why("b", 0).startswith("can never run: job a ")
    assert (pass_over(queue, 99)[1] == ["b"]) == (leads_to == "runs")


@pytest.mark.parametrize(("condition", "how", "leads_to"), AFTER.values(), ids=AFTER)
def test_a_dependency_on_an_ended_job(condition, how, leads_to):
    first = over(begun(job("a", 1)), **how)
    if first.open:
        return
    queue = Queue()
    then = job("b", 2, after=(After("a", Condition(condition)),))
    assert queue.put(then, {"a": first.state}) == (["b"] if leads_to == "never" else [])
    assert pass_over(queue, 99)[1] == (["b"] if leads_to == "runs" else [])


def test_a_job_after_several_runs_after_the_last_of_them():
    firsts = [job("a", 1), job("b", 2), job("c", 3)]
    queue = queue_of(*firsts, job("d", 4, after=tuple(After(one.id) for one in firsts)))
    for left, one in zip(("b", "c", None), firsts, strict=True):
        queue.put(over(begun(one)))
        assert (left is None) or left in queue.waits_for("d")
        assert ("d" in [one.id for one in queue.order(0)]) == (left is None)
    assert pass_over(queue, 99)[1] == ["d"]


def test_a_job_that_can_never_run_stays_so_when_the_others_end():
    firsts = [job("a", 1), job("b", 2)]
    queue = queue_of(*firsts, job("c", 3, after=(After("a"), After("b"))))
    assert queue.put(over(begun(firsts[0]), code=1)) == ["c"]
    assert queue.put(over(begun(firsts[1]), code=1)) == []
    assert pass_over(queue, 99)[1] == []


def test_two_conditions_on_one_job_must_both_hold():
    first = job("a", 1)
    both = (After("a", Condition.ANY), After("a", Condition.NOT_OK))
    queue = queue_of(first, job("b", 2, after=both))
    assert queue.put(over(begun(first))) == ["b"]


def test_an_unknown_dependency_is_refused_and_changes_nothing():
    queue = queue_of(job("a", 1))
    for wanted in ("z", "b"):
        with pytest.raises(InvalidDependency, match=f"after: there is no job '{wanted}'"):
            queue.put(job("b", 2, after=(After("a"), After(wanted))))
    assert len(queue) == 1
    assert queue.put(cancel(job("a", 1), now=0)) == []


def test_a_dependency_on_an_ended_job_needs_its_final_state():
    queue = queue_of(job("a", 1))
    queue.put(begun(job("a", 1)))
    queue.put(over(begun(job("a", 1))))
    with pytest.raises(InvalidDependency):
        queue.put(job("b", 2, after=(After("a"),)))
    assert queue.put(job("b", 2, after=(After("a"),)), {"a": SUCCEEDED}) == []


def test_a_job_cancelled_while_it_waits_is_gone_when_the_other_ends():
    first, then = job("a", 1), job("b", 2, after=(After("a"),))
    queue = queue_of(first, then)
    queue.put(cancel(then, now=0))
    assert queue.put(over(begun(first), code=1)) == []
    assert len(queue) == 0


def test_a_job_with_an_attempt_has_no_dependencies():
    then = over(begun(job("b", 2, after=(After("long gone"),))), "node_lost")
    assert pass_over(queue_of(then), 99)[1] == ["b"]


def test_a_waiting_job_that_is_described_again_still_waits():
    first, second = job("a", 1), job("b", 2)
    then = job("c", 3, after=(After("a"), After("b")))
    queue = queue_of(first, second, then)
    queue.put(over(begun(first)))
    queue.put(then._replace(request=Request.of(cpu=2)))
    assert pass_over(queue, 99)[1] == ["b"]
    queue.put(over(begun(second)))
    assert pass_over(queue, 99)[1] == ["c"]


def test_many_dependencies_are_summarized():
    firsts = [job(f"a{n}", n) for n in range(9)]
    queue = queue_of(*firsts, job("b", 10, after=tuple(After(one.id) for one in firsts)))
    assert queue.why("b", 0).endswith("job a2 to succeed and 6 more")


# ---- reasons


def test_why_tells_the_latest_answer_and_forgets_it_at_the_start():
    large = job("a", 1, 8)
    queue = queue_of(large, job("b", 2, 8))
    assert queue.why("a", 0) == "it has not been tried yet"
    pass_over(queue, 4)
    assert queue.why("a", 0) == queue.why("b", 0) == "8 of 4"
    queue.freed()
    assert queue.why("b", 0) == "8 of 4"  # the latest there is
    pass_over(queue, 9)
    with pytest.raises(UnknownJob, match="there is no job 'a'"):
        queue.why("a", 0)
    queue.put(over(begun(large), "node_lost"))
    assert queue.why("b", 0) == "8 of 1"


def test_why_can_be_a_refusal_that_explains_itself():
    with Grid.in_memory(owner="ann") as grid:
        grid.register_node("n1", cpu=1)
        with pytest.raises(NoRoom) as caught:
            grid.allocate(cpu=2)
    queue = queue_of(job("a", 1))
    queue.refuse("a", caught.value.refusal)
    assert "n1" in queue.why("a", 0)


def test_only_a_ready_job_can_be_refused():
    queue = queue_of(job("a", 1), job("b", 2, after=(After("a"),)))
    with pytest.raises(ValueError, match="not offered"):
        queue.refuse("b", "no")
    with pytest.raises(UnknownJob):
        queue.refuse("z", "no")


# ---- size


@pytest.mark.parametrize("kinds", [1, 300])
def test_a_hundred_thousand_jobs_cost_no_more_than_their_classes(kinds):
    requests = [Request.of(cpu=1, memory=100 + n) for n in range(kinds)]
    jobs = [job(f"j{n}", n, request=requests[n % kinds]) for n in range(100_000)]
    queue = queue_of(*jobs)
    assert len(pass_over(queue, 0)[0]) == kinds  # of which each was tried once
    queue.freed()
    tried, started = pass_over(queue, 50)[:2]
    assert len(tried) < kinds + 100
    assert started == [f"j{n}" for n in range(50)]


def waiting_of_many_owners(chance, count):
    return [
        job(
            f"j{n}",
            n,
            chance.randrange(1, 6),
            owner=f"u{chance.randrange(8)}",
            priority=chance.choice(RANKS),
            expect_ms=chance.choice([None, 1000]),
        )
        for n in range(count)
    ]


def test_a_start_touches_no_queue_but_its_own(monkeypatch):
    touched = []
    offer = ReadyJobs._offer
    monkeypatch.setattr(
        ReadyJobs,
        "_offer",
        lambda self, queue, **how: (touched.append(1), offer(self, queue, **how)),
    )
    counts = []
    for owners in (10, 1000):
        queue = queue_of(*(job(f"j{n}", n, 1 + n % 5, owner=f"u{n % owners}") for n in range(5000)))
        pass_over(queue, 0)
        touched.clear()
        free = [3]
        queue.freed(lambda asked, free=free: asked.amounts["cpu"] <= free[0] * 10_000)
        for one in queue.order(0):
            cpu = one.request.amounts["cpu"] // 10_000
            assert cpu <= free[0]  # what no longer fits is not tried
            free[0] -= cpu
            queue.put(begun(one))
            queue.ready.close_filled()
        counts.append(len(touched))
    assert counts[0] == counts[1] < 20


@pytest.mark.parametrize("seed", range(20))
def test_what_is_opened_and_closed_starts_as_if_all_were_tried(seed):
    """Random releases: those who start, and in which order, are those of a queue without parking."""
    chance = random.Random(seed)
    jobs = waiting_of_many_owners(chance, 120)
    held = dict.fromkeys((one.work.owner for one in jobs), 0)
    queue, plain = queue_of(*jobs), queue_of(*jobs)
    for each in (queue, plain):
        each.ready.owner_order = lambda owner, since, now: held[owner]
    pass_over(queue, 0)
    free = [0]
    while len(queue):
        before, free[0] = dict(held), free[0] + chance.randrange(1, 9)
        room, expected = free[0], []
        plain.freed()
        for one in plain.order(0):
            cpu = one.request.amounts["cpu"] // 10_000
            if cpu <= room:
                room -= cpu
                held[one.work.owner] += cpu
                expected.append(one.id)
                plain.put(begun(one))
            else:
                plain.refuse(one.id, "no")
        held.update(before)
        queue.freed(lambda asked: asked.amounts["cpu"] <= free[0] * 10_000)
        found = []
        for one in queue.order(0):
            cpu = one.request.amounts["cpu"] // 10_000
            free[0] -= cpu
            held[one.work.owner] += cpu
            found.append(one.id)
            queue.put(begun(one))
            queue.ready.close_filled()
        assert found == expected


def test_removed_jobs_do_not_pile_up():
    queue = queue_of(*(job(f"j{n}", n, 9) for n in range(5_000)))
    queue.refuse("j0", "no")
    for n in range(1, 5_000):
        queue.put(cancel(job(f"j{n}", n, 9), now=0))
    [request_class] = queue.ready._classes.values()
    [jobs] = request_class.queues.values()
    assert len(jobs._entries) < 200
    queue.put(cancel(job("j0", 0, 9), now=0))
    assert not queue.ready._classes
    assert not queue.ready._refused


def test_removed_candidates_do_not_pile_up_behind_a_pass_that_ends_early():
    queue = queue_of(job("first", 1, priority="urgent"), job("last", 2))
    for n in range(5_000):
        ahead = job("ahead", -n)
        queue.put(ahead)
        assert next(queue.order(0)).id == "first"
        queue.put(cancel(ahead, now=0))
    assert all(len(line.candidates) < 200 for line in queue.ready.lines)
    assert [one.id for one in queue.order(0)] == ["first", "last"]


# ---- any order of calls


class Jobs(RuleBasedStateMachine):
    """Jobs and their queue on 8 CPUs, compared with a dict and a loop that tries every job."""

    def __init__(self):
        super().__init__()
        self.queue, self.jobs, self.model, self.held = Queue(), {}, {}, {}
        self.now, self.grants, self.finished = 0, 0, {}

    # what the controller will do

    def put(self, one, ended=None):
        self.jobs[one.id] = one
        if not one.open:
            self.finished.setdefault(one.id, one)
        for id in self.queue.put(one, ended or {}):
            self.put(cancel(self.jobs[id], now=self.now, reason=Reason.DEPENDENCY))

    def ends(self, id, how):
        before = self.jobs[id]
        after = end(before, how, now=self.now)
        if after is not before:
            del self.held[how.allocation]
            self.put(after)
            self.queue.freed()
        return after is not before

    def dispatch(self, most):
        """Run a pass; return the ids that started, at most so many."""
        begins, tried, free = [], [], self.free()
        for one in self.queue.order(self.now):
            assert self.may_run(one.id)
            tried.append(one)
            cpu = one.request.amounts["cpu"] // 10_000
            if cpu > free:
                self.queue.refuse(one.id, "no room")
                continue
            free -= cpu
            self.grants += 1
            self.held[f"h{self.grants}"] = one.id, cpu
            self.put(start(one, node="n1", allocation=f"h{self.grants}", now=self.now))
            self.model[one.id]["state"] = "running"
            self.model[one.id]["attempts"] += 1
            begins.append(one.id)
            if len(begins) == most:
                break
        places = [(RANKS.index(one.work.priority), one.number) for one in tried]
        assert places == sorted(set(places))
        refused = [one.request for one in tried if one.id not in begins]
        assert len(refused) == len(set(refused))
        return begins

    def free(self):
        return 8 - sum(cpu for _, cpu in self.held.values())

    # the model: nothing in it looks at the jobs

    def ended(self, id, state):
        self.model[id]["state"] = state
        for row in self.model.values():
            if row["state"] == "queued" and not row["attempts"]:
                for wanted, condition in row["after"]:
                    good = {"afterok": state == "succeeded", "afternotok": state != "succeeded"}
                    if wanted == id and not good.get(condition, True):
                        row["state"] = "doomed"
        for other, row in list(self.model.items()):
            if row["state"] == "doomed":
                row["state"] = "cancelled"
                self.ended(other, "cancelled")

    def may_run(self, id, begun=()):
        row = self.model[id]
        beside = [
            other
            for other, one in self.model.items()
            if (one["state"] == "running" or other in begun) and one["array"] == row["array"]
        ]
        return (
            row["state"] == "queued"
            and row["due"] <= self.now
            and all(self.model[id]["state"] not in ("queued", "running") for id, _ in row["after"])
            and (row["limit"] is None or len(beside) < row["limit"])
        )

    def all_that_may_run(self):
        return sorted(
            filter(self.may_run, self.model),
            key=lambda id: (RANKS.index(self.model[id]["priority"]), self.model[id]["number"]),
        )

    def should_start(self, most):
        free, begun = self.free(), []
        for id in self.all_that_may_run():
            cpu = self.model[id]["cpu"]
            if cpu <= free and len(begun) < most and self.may_run(id, begun):
                free -= cpu
                begun.append(id)
        return begun

    # the rules

    @rule(
        priority=st.sampled_from(RANKS),
        cpu=st.sampled_from([1, 2, 4, 8]),
        owner=st.sampled_from(["ann", "bob"]),
        tries=st.integers(1, 3),
        limit=st.sampled_from([None, None, None, 1, 2]),
        after=st.lists(st.tuples(st.integers(1, 8), st.sampled_from(Condition)), max_size=3),
    )
    def submit(self, priority, cpu, owner, tries, limit, after):
        number = len(self.jobs) + 1
        after = [After(f"j{number - n}", kind) for n, kind in after if n < number]
        known = {id: one.state for id, one in self.jobs.items() if not one.open}
        array = None if limit is None else f"array{limit}"
        one = job(
            f"j{number}", number, cpu, priority=priority, owner=owner, after=tuple(after),
            array=array, at_once=limit, retry=RetryPolicy(tries=tries, losses=2),
        )  # fmt: skip
        self.model[one.id] = {
            "state": "queued", "number": number, "cpu": cpu, "priority": priority, "due": 0,
            "limit": limit, "array": array, "attempts": 0, "failed": 0, "lost": 0, "tries": tries,
            "after": [(a.id, a.condition.value) for a in after], "unwanted": False,
        }  # fmt: skip
        for dependency in after:
            if dependency.id in known:
                ended = self.model[dependency.id]["state"]
                if dependency.condition != "afterany" and (ended == "succeeded") != (
                    dependency.condition == "afterok"
                ):
                    self.model[one.id]["state"] = "cancelled"
        self.put(one, known)

    @rule(most=st.sampled_from([1, 2, 99, 99]))
    def run(self, most):
        should = self.should_start(most)
        assert self.dispatch(most) == should

    @precondition(lambda self: self.held)
    @rule(
        pick=st.integers(0, 99),
        how=st.sampled_from(["ok", "fail", "oom", "node_lost", "preempted"]),
        twice=st.booleans(),
    )
    def finish(self, pick, how, twice):
        allocation = list(self.held)[pick % len(self.held)]
        id, _ = self.held[allocation]
        told = {
            "ok": AttemptEnd(len(self.jobs[id].attempts), allocation, Reason.EXIT, 0),
            "fail": AttemptEnd(len(self.jobs[id].attempts), allocation, Reason.EXIT, 1),
            "oom": AttemptEnd(
                len(self.jobs[id].attempts), allocation, Reason.OOM, peak_bytes=10**9
            ),
        }.get(how) or AttemptEnd(len(self.jobs[id].attempts), allocation, Reason(how))
        self.expect(id, how)
        assert self.ends(id, told)
        if twice:
            assert not self.ends(id, told)

    def expect(self, id, how):
        row = self.model[id]
        row["failed"] += how in ("fail", "oom")
        row["lost"] += how == "node_lost"
        row["state"] = "queued"
        if row["unwanted"]:
            self.ended(id, "cancelled")
        elif how == "ok":
            self.ended(id, "succeeded")
        elif how in ("fail", "oom"):
            if row["failed"] >= row["tries"]:
                self.ended(id, "failed")
            else:
                row["due"] = self.now + 1_000 * 2 ** (row["failed"] - 1)
        elif how == "node_lost" and row["lost"] > 2:
            self.ended(id, "lost")

    @precondition(lambda self: self.jobs)
    @rule(pick=st.integers(0, 99), attempt=st.integers(0, 9), allocation=st.integers(0, 40))
    def hear_of_something_else(self, pick, attempt, allocation):
        id = f"j{pick % len(self.jobs) + 1}"
        current = self.jobs[id].attempt
        if current is None or (attempt, f"h{allocation}") != (current.number, current.allocation):
            assert not self.ends(id, AttemptEnd(attempt, f"h{allocation}", Reason.EXIT, 0))

    @precondition(lambda self: self.jobs)
    @rule(pick=st.integers(0, 99))
    def cancel(self, pick):
        id = f"j{pick % len(self.jobs) + 1}"
        if self.model[id]["state"] == "queued":
            self.ended(id, "cancelled")
        elif self.model[id]["state"] == "running":
            self.model[id]["unwanted"] = True
        once = cancel(self.jobs[id], now=self.now)
        assert cancel(once, now=self.now + 1) is once
        self.put(once)

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds):
        self.now += seconds * 1_000

    @rule()
    def look(self):
        self.queue.freed()
        assert [one.id for one in self.queue.order(self.now)] == self.all_that_may_run()

    @rule()
    def tell_again(self):
        for one in self.jobs.values():
            if one.open:
                assert self.queue.put(one) == []

    @rule()
    def restart(self):
        self.queue = Queue()
        ended = {id: one.state for id, one in self.jobs.items() if not one.open}
        open_jobs = [one for one in self.jobs.values() if one.open]
        for one in sorted(open_jobs, key=lambda one: (one.state is QUEUED, one.number)):
            assert self.queue.put(one, ended) == []

    # what always holds

    @invariant()
    def jobs_are_where_the_model_has_them(self):
        states = {id: one.state.value for id, one in self.jobs.items()}
        assert states == {id: row["state"] for id, row in self.model.items()}
        waiting = {id for id, row in self.model.items() if row["state"] == "queued"}
        assert len(self.queue) == len(waiting)
        assert {one.id for one in self.queue} == waiting
        assert all(self.queue.why(id, self.now) for id in waiting)

    @invariant()
    def a_running_attempt_has_one_allocation_and_a_finished_job_none(self):
        running = {
            one.attempt.allocation: id for id, one in self.jobs.items() if one.attempt is not None
        }
        assert running == {allocation: id for allocation, (id, _) in self.held.items()}
        assert self.free() >= 0
        every = [attempt.allocation for one in self.jobs.values() for attempt in one.attempts]
        assert len(every) == len(set(every))

    @invariant()
    def what_is_finished_never_moves(self):
        assert all(self.jobs[id] is one for id, one in self.finished.items())

    def teardown(self):
        """Everything that can run is offered in the end."""
        for _ in range(3 * len(self.jobs)):
            for allocation, (id, _) in list(self.held.items()):
                self.expect(id, "ok")
                number = len(self.jobs[id].attempts)
                self.ends(id, AttemptEnd(number, allocation, Reason.EXIT, 0))
            self.now += 10_000
            self.run(99)
        self.jobs_are_where_the_model_has_them()
        assert len(self.queue) == 0
        assert not self.held
        assert not self.queue.ready._classes
        assert not self.queue.ready._limits
        assert not any(vars(self.queue._after).values())


Jobs.TestCase.settings = settings(
    max_examples=examples(40),
    stateful_step_count=50,
    suppress_health_check=list(HealthCheck),
)
test_any_order_of_calls = Jobs.TestCase
