"""The checker finds and names each fault that is planted in jobs."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand.audit import (
    check_ended_job,
    check_history,
    check_rebuild,
    check_state,
    replay,
    same_state,
)
from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.job import After, AttemptEnd, JobSpec, Reason
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.ledger.allocations import AllocationMove, Lifetime, Terms
from gridhand.core.ledger.devices import DeviceHold
from gridhand.core.ledger.ledger import Ledger, Placement
from gridhand.core.ledger.status import dump
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.core.rows.jobs import job_row
from gridhand.core.rows.ledger import allocation_row, node_row

ASKED = Request.of(cpu=1, memory="1GB", alternatives=[{"cpu": 2}])
WORK = JobSpec("ann", ("true",), "/", ASKED, name="t", retry=RetryPolicy.of(2))
GPU = JobSpec("ann", ("true",), "/", Request.of(gpu=1))


class World:
    """A ledger with jobs, and the events it would have written."""

    def __init__(self):
        self.ledger, self.now = Ledger(), 100
        self.ledger.register(Node.of("n", cpu=9, memory="9GB", gpus=[{"id": "d", "memory": "9GB"}]))
        self.ledger.register(Node.of("m", cpu=9, memory="9GB"))
        self.events = []

    def submit(self, work=WORK, **more):
        number = self.ledger.jobs.next_number
        self.ledger.jobs.next_number += 1
        job = jobs.submit(work, **{"id": str(number), "number": number, "now": self.now, **more})
        return self.ledger.put_job("job.submitted", job)

    def start(self, job, node="n", choice=0):
        asked = list(job.request.choices())[choice]
        gpu = self.ledger.nodes[node].node.gpus
        devices = (DeviceHold.of(asked.gpu, gpu[0]),) if asked.gpu else ()
        terms = Terms(job.work.owner, lifetime=Lifetime.JOB)
        (held,) = self.ledger.grant([Placement(asked, node, devices)], terms, now=self.now)
        moved = jobs.start(job, node=node, allocation=held.id, now=self.now, choice=choice)
        return self.ledger.put_job("job.started", moved)

    def end(self, job, reason=Reason.EXIT, code=0):
        attempt = job.attempt
        how = AttemptEnd(
            attempt.number, attempt.allocation, reason, code if reason is Reason.EXIT else None
        )
        after = jobs.end(job, how, now=self.now)
        self.ledger.move(attempt.allocation, AllocationMove.RELEASE, now=self.now)
        return self.ledger.put_job("job.requeued" if after.open else "job.ended", after)

    def stop(self, job, reason=Reason.TIMEOUT):
        return self.ledger.put_job("job.stopping", jobs.stop(job, job.attempt.number, reason))

    def cancel(self, job):
        after = jobs.cancel(job, now=self.now)
        return self.ledger.put_job("job.stopping" if after.open else "job.ended", after)

    def log(self):
        """Return the events so far as a store has them: only the first of a job has its work."""
        for kind, subject, _, after, _ in self.ledger.changes:
            row = {"n": node_row, "a": allocation_row, "j": job_row}[kind[0]](after)
            if kind[0] == "j" and kind != "job.submitted":
                del row["work"]
            number = len(self.events) + 1
            event = {"number": number, "at": self.now, "kind": kind, "subject": subject, "row": row}
            self.events.append(event)
        self.ledger.settle()
        return copy.deepcopy(self.events)

    def dump(self):
        return json.loads(json.dumps(dump(self.ledger, {}, now=self.now)))


def world():
    """Jobs 1 to 5: queued, running on its second choice, stopping, tried again, on a device;
    then an array, a job that has ended well, and one that has not."""
    made = World()
    made.submit(after=(After("9"),))
    made.start(made.submit(), "m", choice=1)
    made.stop(made.start(made.submit()))
    made.start(made.end(made.start(made.submit()), Reason.NODE_LOST), "m")
    made.start(made.submit(GPU))
    made.submit(id="6_3", array="6", array_index=3)
    made.submit(id="6_1", array="6", array_index=1)
    made.end(made.start(made.submit()))
    made.cancel(made.submit())
    return made


def findings(violations):
    return {(each.invariant, each.subject) for each in violations}


def test_honest_jobs_have_no_violations():
    made = world()
    events, state = made.log(), made.dump()
    assert len(state["jobs"]) == 7
    assert check_state(state) == []
    assert check_history(events) == []
    assert check_rebuild(events, state) == []
    assert same_state(state, made.dump()) == []


def test_a_dump_that_tells_nothing_of_jobs_is_not_judged_by_them():
    state = world().dump()
    del state["jobs"]
    assert check_state(state) == []
    assert findings(check_state(state | {"jobs": []})) == {("I6", f"a1-{n}") for n in (1, 2, 4, 5)}


# ---- a state


def at(path, value):
    """Plant a fault: set the value at `path`, such as "jobs.1.state", or delete it with `...`."""

    def plant(state):
        *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        for key in way:
            state = state[key]
        if value is ...:
            del state[last]
        else:
            state[last] = value

    return plant


def by_id(state, id):
    return next(row for row in state["jobs"] if row["id"] == id)


def job(id, /, **changes):
    return lambda state: by_id(state, id).update(changes)


def attempt(id, place, /, **changes):
    return lambda state: by_id(state, id)["attempts"][place].update(changes)


def held(id, /, **changes):
    def plant(state):
        next(row for row in state["allocations"] if row["id"] == id).update(changes)

    return plant


def without(table, id):
    def plant(state):
        state[table] = [row for row in state[table] if row["id"] != id]

    return plant


def again(id, /, **changes):
    return lambda state: state["jobs"].append(copy.deepcopy(by_id(state, id)) | changes)


GONE = {"state": "failed", "ended": 100, "reason": "oom"}
FAULTS = {
    "a running job holds nothing": (without("allocations", "a1-1"), "I6", "2"),
    "what a running job holds was released": (held("a1-1", state="released"), "I6", "2"),
    "what a running job holds is not for a job": (held("a1-1", lifetime="until_released"), "I6", "2"),
    "what a running job holds is on another node": (held("a1-1", node="n"), "I6", "2"),
    "what a running job holds is another's": (held("a1-1", owner="eve"), "I6", "2"),
    "a running job holds less than it asked for": (held("a1-1", amounts={"cpu": 10_000}), "I6", "2"),
    "a running job holds a device too few": (held("a1-5", devices=[]), "I6", "5"),
    "a running job has a choice there is not": (attempt("2", 0, choice=2), "I6", "2"),
    "a running job has another choice": (attempt("2", 0, choice=0), "I6", "2"),
    "two jobs hold the same": (again("2", id="20", number=20), "I6", "20"),
    "a job is gone and what it held is not": (without("jobs", "2"), "I6", "a1-1"),
    "a queued job holds something": (job("2", state="queued"), "I6", "a1-1"),
    "a job that ended holds something": (job("2", **GONE), "I6", "a1-1"),
    "an attempt that is over holds something": (attempt("4", 1, allocation="a1-3"), "I6", "a1-4"),
    "what a running job holds belongs to a group": (held("a1-1", group="g1-9"), "I6", "2"),
    "a number twice": (job("2", id="3_9", array="3", array_index=9, number=3), "I6", "3"),
    "an id twice": (again("1"), "I6", "1"),
    "an id that is not the number": (job("1", id="17"), "I6", "17"),
    "an id that is not of the array": (job("6_3", array_index=4), "I6", "6_3"),
    "an array that began later": (job("6_3", array="9", id="9_3"), "I6", "9_3"),
    "an array that is no number": (job("6_3", array="x", id="x_3"), "I6", "x_3"),
    "an index without an array": (job("1", array_index=3), "I6", "1"),
    "an array without an index": (job("6_3", array_index=None), "I6", "6_3"),
    "attempts that do not count from one": (attempt("2", 0, number=2), "I6", "2"),
    "attempts with a gap": (attempt("4", 1, number=3), "I6", "4"),
    "two attempts under way": (attempt("4", 0, ended=None, reason=None), "I6", "4"),
    "running, but its attempt is over": (attempt("2", 0, ended=100, reason="exit"), "I6", "2"),
    "running without an attempt": (job("2", attempts=[]), "I6", "2"),
    "queued with an attempt under way": (job("4", state="queued"), "I6", "4"),
    "an attempt that ended for no reason": (attempt("4", 0, reason=None), "I6", "4"),
    "a reason while it is under way": (attempt("2", 0, reason="oom"), "I6", "2"),
    "two attempts with one allocation": (attempt("4", 0, allocation="a1-4"), "I6", "4"),
    "queued, but ended": (job("1", ended=5), "I6", "1"),
    "queued, with a reason": (job("1", reason="oom"), "I6", "1"),
    "over, but not ended": (job("1", state="cancelled", reason="cancelled"), "I6", "1"),
    "running and waiting": (job("2", not_before=5), "I6", "2"),
    "succeeded without an attempt": (job("1", state="succeeded", ended=5, reason="exit"), "I6", "1"),
    "lost for an exit": (job("1", state="lost", ended=5, reason="exit"), "I6", "1"),
    "cancelled for lack of memory": (job("1", state="cancelled", ended=5, reason="oom"), "I6", "1"),
    "a state that there is not": (job("1", state="dreaming"), "I6", "1"),
    "a reason that there is not": (job("1", reason="boredom"), "I6", "1"),
    "a reason to stop that there is not": (attempt("3", 0, stopping="boredom"), "I6", "3"),
    "a number that is a text": (job("1", number="1"), "I6", "1"),
    "a time before all times": (job("1", submitted=-1), "I6", "1"),
    "a negative peak": (attempt("4", 0, peak_bytes=-1), "I6", "4"),
    "an attempt that is no table": (job("2", attempts=[7]), "I6", "2"),
    "attempts that are no list": (job("2", attempts="[]"), "I6", "2"),
    "after nothing known": (job("1", after=[["9"]]), "I6", "1"),
    "no work": (lambda state: by_id(state, "1").pop("work"), "I6", "1"),
    "a work that is no table": (job("1", work="{"), "I6", "1"),
    "the work of another owner": (job("1", owner="eve"), "I6", "1"),
    "a command that is no text": (lambda state: by_id(state, "1")["work"].update(command=[1]), "I6", "1"),
    "a negative amount is asked for": (job("1", request={"amounts": {"cpu": -1}}), "I6", "1"),
    "an alternative that is no table": (job("1", request={"amounts": {"cpu": 1}, "alternatives": [7]}), "I6", "1"),
    "devices that are no number": (job("1", request={"amounts": {}, "gpu": {"devices": "two"}}), "I6", "1"),
    "a row that is no table": (at("jobs.0", 7), "I6", "jobs[0]"),
    "jobs that are no list": (at("jobs", 7), "I6", "dump"),
}  # fmt: skip


@pytest.mark.parametrize(("plant", "invariant", "subject"), FAULTS.values(), ids=FAULTS)
def test_a_fault_in_the_jobs_is_found_and_named(plant, invariant, subject):
    state = world().dump()
    plant(state)
    assert (invariant, subject) in findings(check_state(state))


def lined_up(first, second):
    """Two jobs that name the same allocation."""
    made = World()
    one, other = (made.submit(WORK, **names) for names in (first, second))
    attempt = made.start(one).attempt
    moved = jobs.start(other, node="n", allocation=attempt.allocation, now=made.now)
    made.ledger.put_job("job.started", moved)
    return made


def test_tasks_of_one_array_may_share_what_they_hold():
    names = [{"id": f"1_{n}", "array": "1", "array_index": n} for n in (1, 2)]
    made = lined_up(*names)
    events, state = made.log(), made.dump()
    assert check_state(state) == []
    assert check_history(events) == []
    assert check_rebuild(events, state) == []


def test_other_jobs_may_not_share_an_allocation():
    task = {"id": "1_1", "array": "1", "array_index": 1}
    of_another = {"id": "2_1", "number": 2, "array": "2", "array_index": 1}
    for first, second in (({}, {}), (task, {}), (task, of_another)):
        found = check_state(lined_up(first, second).dump())
        assert [(one.invariant, one.subject) for one in found] == [("I6", second.get("id", "2"))]
        assert "as does" in found[0].message


def test_a_job_that_waits_for_its_time_is_well():
    made = World()
    again = made.end(made.start(made.submit()), code=1)
    assert again.not_before is not None
    assert check_state(made.dump()) == []


# ---- ended jobs, one by one


ENDED_FAULTS = {
    "it is open after all": {"state": "queued", "ended": None, "reason": None, "attempts": []},
    "its attempt did not succeed": {"state": "succeeded", "reason": "exit", "attempts": []},
    "it ended for another reason than its attempt": {"state": "failed", "reason": "timeout"},
    "no time": {"ended": None},
    "no work": {"work": None},
    "nonsense": {"state": "odd"},
}


@pytest.mark.parametrize("changes", ENDED_FAULTS.values(), ids=ENDED_FAULTS)
def test_a_job_that_ended_is_checked_by_itself(changes):
    """Each of these faults is found in a failed job."""
    made = World()
    ended = [made.end(made.start(made.submit())), made.cancel(made.submit())]
    ended.append(made.end(made.start(made.submit(GPU)), Reason.SIGNAL))
    for row in map(job_row, ended):
        assert check_ended_job(row) == []
    row = job_row(ended[2])
    assert ("I6", ended[2].id) in findings(check_ended_job(row | changes))
    assert check_ended_job(7) != []
    well = job_row(ended[0]) | {"state": "failed"}
    assert ("I6", ended[0].id) in findings(check_ended_job(well))


# ---- a history


def events_of(made, id):
    return [event for event in made.log() if event["subject"] == id]


def lifetime():
    """The events of one job that was lost once, stopped, and has ended."""
    made = World()
    job = made.end(made.start(made.submit()), Reason.NODE_LOST)
    made.end(made.stop(made.start(job, "m")))
    return events_of(made, "1")


def test_a_whole_life_has_no_violation():
    kinds = ["submitted", "started", "requeued", "started", "stopping", "ended"]
    events = lifetime()
    assert [event["kind"] for event in events] == [f"job.{kind}" for kind in kinds]
    assert check_history(events) == []


def last(place, change):
    """Plant a fault in an event and drop the later ones, which must not be what reveals it."""

    def plant(events):
        del events[place + 1 :]
        change(events[place])

    return plant


def event(place, **changes):
    return last(place, lambda one: one.update(changes))


def row(place, **changes):
    return last(place, lambda one: one["row"].update(changes))


def tried(place, which, **changes):
    return last(place, lambda one: one["row"]["attempts"][which].update(changes))


def drop(place):
    return lambda events: events.pop(place)


def repeat(place):
    def plant(events):
        events.insert(place + 1, copy.deepcopy(events[place]))
        for number, one in enumerate(events, 1):
            one["number"] = number

    return plant


UNLAWFUL = {
    "it was never submitted": drop(0),
    "it was requeued without a start": drop(1),
    "it was started while it ran": drop(2),
    "it was stopped while it was queued": drop(3),
    "it was submitted twice": repeat(0),
    "it was started twice": repeat(1),
    "it ended twice": repeat(5),
    "it went on after its end": lambda events: events.append(events.pop(4) | {"number": 99}),
    "a kind that there is not": event(1, kind="job.dreamt"),
    "a kind that its row denies": event(1, kind="job.ended"),
    "an end that its row denies": event(5, kind="job.requeued"),
    "submitted as running": row(0, state="running"),
    "submitted with an attempt": row(0, attempts=[{"number": 1, "node": "n", "allocation": "a", "choice": 0, "placed": 1, "ended": 2, "reason": "oom"}]),
    "submitted without its work": last(0, lambda one: one["row"].pop("work")),
    "its owner changed": row(1, owner="eve"),
    "its number changed": row(1, number=2),
    "the time of its submission changed": row(1, submitted=7),
    "it came into an array": row(1, array="1", array_index=1),
    "its attempt moved to another node": tried(2, 0, node="elsewhere"),
    "its attempt has another allocation": tried(2, 0, allocation="a9-9"),
    "its attempt has another choice": tried(2, 0, choice=1),
    "an attempt that is over changed": tried(3, 0, reason="oom"),
    "an attempt that is over has another end": tried(4, 0, ended=7),
    "an attempt was forgotten": last(3, lambda one: one["row"]["attempts"].pop(0)),
    "requeued with an attempt that nobody started": last(2, lambda one: one["row"]["attempts"].append(one["row"]["attempts"][0] | {"number": 2, "allocation": "a9-9"})),
    "it was stopped for no reason": tried(4, 1, stopping=None),
    "it was stopped for one reason and ended for another": last(5, lambda one: (one["row"].update(reason="oom"), one["row"]["attempts"][1].update(reason="oom"))),
    "a row that makes no sense": row(3, state="odd"),
    "a row that is another's": row(3, id="9"),
    "no row": event(3, row=None),
}  # fmt: skip


@pytest.mark.parametrize("plant", UNLAWFUL.values(), ids=UNLAWFUL)
def test_an_unlawful_step_is_found_and_named(plant):
    events = lifetime()
    plant(events)
    found = check_history(events)
    assert any(one.subject == "1" and one.invariant in ("I6", "I7") for one in found), found


def test_a_number_is_given_once_whatever_became_of_it():
    made = World()
    made.cancel(made.submit())
    made.submit()
    events = made.log()
    submitted = next(event for event in events if event["subject"] == "1")
    assert check_history(events) == []
    assert findings(check_history([*events, submitted | {"number": 99}])) == {("I6", "1")}


def test_a_job_that_ended_may_have_been_stopped_for_something_graver_meanwhile():
    made = World()
    job = made.stop(made.start(made.submit()), Reason.PREEMPTED)
    made.end(made.cancel(job))
    assert check_history(made.log()) == []


# ---- replaying


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_replay_goes_on_from_a_checkpoint(cut):
    """The rows have the work that later events leave out, in any form."""
    made = world()
    events, state = made.log(), made.dump()
    start = replay(events[:cut])
    rows = [row for table in start.values() for row in table.values()]
    for initial in (start, rows):
        assert check_history(events[cut:], initial) == []
        assert check_rebuild(events[cut:], state, initial) == []
        assert replay(events[cut:], initial)["jobs"] == replay(events)["jobs"]


def test_an_event_goes_on_from_the_row_before_it():
    made = World()
    made.start(made.submit())
    found = replay(made.log())["jobs"]
    assert found == {"1": made.dump()["jobs"][0]}
    made.end(made.ledger.jobs.open["1"])
    assert replay(made.log())["jobs"] == {}


DIFFERENCES = {
    "a job is missing": without("jobs", "1"),
    "a job too many": again("1", id="77"),
    "a job has ended": job("2", **GONE),
    "a state differs": job("2", state="queued"),
    "a request differs": job("2", request={"amounts": {"cpu": 1}}),
    "a wait differs": job("1", not_before=5),
    "a name differs": job("1", name="other"),
    "what it waits for differs": job("1", after=[]),
    "a command differs": lambda state: by_id(state, "1")["work"].update(command=["false"]),
    "an attempt differs": attempt("2", 0, node="elsewhere"),
    "an attempt that is over started at another time": attempt("4", 0, started=5),
    "an attempt is to stop": attempt("2", 0, stopping="timeout"),
}


@pytest.mark.parametrize("plant", DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_difference_in_jobs_is_named(plant):
    made = world()
    events, state = made.log(), made.dump()
    plant(state)
    assert check_rebuild(events, state) != []
    assert same_state(made.dump(), state, invariant="I4") != []


def test_when_an_attempt_under_way_has_started_need_not_be_written():
    made = World()
    job = made.start(made.submit())
    events = made.log()
    made.ledger.jobs.note(jobs.spawned(job, 1, now=150))
    assert made.dump()["jobs"][0]["attempts"][0]["started"] == 150
    assert check_rebuild(events, made.dump()) == []
    assert check_state(made.dump()) == []


# ---- whatever is in it


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def spots(value):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from spots(inner)


SAMPLE = world()
SAMPLE_EVENTS, SAMPLE_STATE = SAMPLE.log(), SAMPLE.dump()


@given(JSON, st.randoms(use_true_random=False))
def test_no_input_makes_the_checker_raise(junk, random):
    state, events = copy.deepcopy(SAMPLE_STATE), copy.deepcopy(SAMPLE_EVENTS)
    for sound in (state["jobs"], events):
        container, key = random.choice(list(spots(sound)))
        container[key] = junk
    check_state(state)
    check_history(events, state)
    check_rebuild(events, state, state["jobs"])
    check_ended_job(random.choice(state["jobs"]))
    check_ended_job(junk)
    check_history([{"number": 1, "at": 1, "kind": "job.ended", "subject": "1", "row": junk}])


GANG = JobSpec("ann", ("true",), "/", Request.of(cpu=1), nodes=2)


def members(world):
    more = [{"id": f"1_{rank}", "array": "1", "array_index": rank} for rank in (0, 1)]
    return [world.submit(GANG, **one) for one in more]


def test_members_of_a_gang_run_together_on_different_nodes():
    world = World()
    first, second = members(world)
    world.start(first, "n")
    texts = [one.message for one in check_state(world.dump())]
    assert texts == ["runs, but its member 1_1 is queued"]
    world.start(second, "n")
    texts = [one.message for one in check_state(world.dump())]
    assert texts == ["has 2 members on n"]


def test_a_gang_that_is_stopped_comes_back_member_by_member():
    world = World()
    first, second = (world.start(one, node) for one, node in zip(members(world), "nm", strict=True))
    assert check_state(world.dump()) == []
    world.stop(second, Reason.GANG)
    how = AttemptEnd(1, first.attempt.allocation, Reason.NODE_LOST)
    world.ledger.put_job("job.requeued", jobs.end(first, how, now=world.now, others=[second]))
    world.ledger.move(first.attempt.allocation, AllocationMove.RELEASE, now=world.now)
    assert check_state(world.dump()) == []
