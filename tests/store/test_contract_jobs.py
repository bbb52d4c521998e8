"""What every store promises of jobs, whichever database is behind it."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_budget import examples
from gridhand.core.errors import StoreError, StoreFenced
from gridhand.core.jobs.attempt import Attempt, Reason
from gridhand.core.jobs.job import After, Condition, JobState
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.jobs.spec import Priority
from gridhand.core.ledger.ledger import Change
from gridhand.core.model.requests import Request
from gridhand.core.rows.jobs import job_row
from gridhand.store.base import Batch, StoredOperation
from store_writer import Negative, lawful

ODD = ('x":-1', "\udcff\ud800", "a\nb\t", "'; DROP TABLE jobs; --", "%s ? :x $1", "ü🚀", "", "\\")
RICH = Request.of(
    cpu=2, memory="4GB", gpu=0.5, gpu_model=["A100", "T4"], gpu_capability="8.6", fpga=1,
    prefer=["n", "m"], exclude=["x", "y"], labels={"zone": "a"}, apart_from=["h"],
    together_with="g", quality="auto", alternatives=[{"cpu": 1}],
)  # fmt: skip
RETRY = RetryPolicy.of(3, "oom,node_lost,75,100-109")


@pytest.fixture
def writer(store, tools):
    made = tools.Writer(store)
    made.register("n", cpu=8, memory="8GB")
    return made


def open_jobs(store):
    return {job.id: job for job in store.load().jobs}


def ids(jobs):
    return [job.id for job in jobs]


def put(kind, before, after):
    return Change(kind, after.id, before, after, ""), "ann", None


# ---- writing and reading


def test_jobs_come_back_as_they_were_submitted(store, writer):
    rich = writer.work(
        RICH, owner="bob", command=("run", *ODD), name="n/1", priority=Priority.URGENT,
        task_type="train", time_limit_ms=5, grace_ms=0, detached=True, retry=RETRY,
        at_once=2, environment='e":-1', stdin="/in", stdout="/out", stderr="/er\udcffr",
        processes=7,
    )  # fmt: skip
    writer.submit()
    writer.submit(rich, after=(After("1"), After("7_1", Condition.NOT_OK)))
    writer.submit_array([3, 1, 1_000_000], rich)
    writer.commit()
    assert open_jobs(store) == writer.ledger.jobs.open
    assert ids(store.load().jobs) == ["1", "2", "3_3", "3_1", "3_1000000"]
    assert store.load().next_job == 6


def test_jobs_with_one_work_share_it_when_loaded(store, writer):
    writer.submit_array(range(50))
    writer.submit(writer.work(command=("other",)))
    writer.commit()
    assert len({id(job.work) for job in store.load().jobs}) == 2
    assert len({id(job.work) for job in store.jobs()}) == 2
    assert len({id(job.work) for job in store.find_jobs(ids(store.jobs()))}) == 2


def test_moves_change_what_is_loaded(store, writer, tools):
    jobs = [writer.submit(writer.work("cpu=1 memory=1GB", retry=RETRY)) for _ in range(7)]
    writer.commit()
    writer.now += 10
    jobs = [writer.start(job) for job in jobs[:6]] + jobs[6:]
    writer.commit()
    assert open_jobs(store) == writer.ledger.jobs.open
    writer.now += 10
    ended = [
        writer.end(jobs[0]),
        writer.end(jobs[1], code=3, peak_bytes=5, message='it said ":-1'),
        writer.cancel(jobs[6]),
        writer.end(jobs[5], Reason.SIGNAL, signal=9, ran_ms=0),
    ]
    writer.stop(jobs[2])
    again = writer.end(jobs[3], Reason.OOM, peak_bytes=2 * 10**9)
    writer.commit()
    assert open_jobs(store) == writer.ledger.jobs.open
    assert again.state is JobState.QUEUED
    assert again.request != again.work.request
    assert again.not_before == writer.now + 1_000
    assert sorted(store.find_jobs(ids(ended))) == sorted(ended)
    lawful(store)


def test_many_moves_in_one_batch_leave_the_last(store, writer, tools):
    """And a job that is submitted and over in one batch is history."""
    brief = writer.end(writer.start(writer.submit()))
    longer = writer.submit(writer.work(retry=RETRY))
    for _ in range(3):
        longer = writer.end(writer.start(longer), Reason.NODE_LOST)
    longer = writer.start(longer)
    writer.commit()
    assert open_jobs(store) == {longer.id: longer}
    assert store.find_jobs([brief.id]) == [brief]
    assert [event.kind for event in tools.all_events(store) if event.subject == longer.id] == [
        "job.submitted", *["job.started", "job.requeued"] * 3, "job.started",
    ]  # fmt: skip
    lawful(store)
    ended = writer.end(writer.stop(longer))
    writer.commit()
    assert open_jobs(store) == {}
    assert store.find_jobs([longer.id]) == [ended]
    lawful(store)


@pytest.mark.parametrize("count", [1, 7, 31, 33, 600, 1101])
def test_batches_of_any_size_are_written_whole(store, writer, tools, count):
    jobs = writer.submit_array(range(count))
    jobs += [writer.submit(writer.work(command=("x", str(n)))) for n in range(count)]
    writer.commit()
    assert open_jobs(store) == writer.ledger.jobs.open
    gone = [writer.cancel(job) for job in jobs[::2]]
    for job in jobs[1::2]:
        if (started := writer.start(job)) is None:
            break
        gone.append(writer.end(started))
    writer.commit()
    assert open_jobs(store) == writer.ledger.jobs.open
    wanted = [job.id for job in gone] + [str(n) for n in range(50_000, 50_000 + count)]
    assert sorted(store.find_jobs(wanted)) == sorted(gone)
    lawful(store)


def test_jobs_are_found_by_id(store, writer):
    made = [writer.submit(), *writer.submit_array([0, 5])]
    writer.commit()
    assert store.find_jobs(["2_5", "1", "2", "17", "x", "", "1'--"]) != []
    assert sorted(store.find_jobs(["2_5", "1", "2", "x"])) == sorted([made[0], made[2]])
    assert store.find_jobs([]) == []


# ---- events


def test_only_the_first_event_of_a_job_tells_its_work(store, writer, tools):
    job = writer.submit(writer.work(RICH, name="mine"))
    queued = job
    writer.commit(owner="ann", op_id="op")
    other = writer.end(writer.start(writer.submit()), message="all is well")
    writer.commit()
    first, *later = [event for event in tools.all_events(store) if event.kind[:4] == "job."]
    assert (first.kind, first.subject, first.owner, first.op_id) == ("job.submitted", "1", "ann", "op")  # fmt: skip
    assert first.row == job_row(queued)
    assert [event.kind for event in later] == ["job.submitted", "job.started", "job.ended"]
    assert ["work" in event.row for event in later] == [True, False, False]
    rest = job_row(other)
    del rest["work"]
    assert later[-1].row == rest
    assert later[-1].row["attempts"][0]["message"] == "all is well"


# ---- listing


@pytest.fixture
def listed(store, writer):
    """Jobs of two owners in every state; the ids in the order of their numbers."""
    jobs = []
    for n in range(12):
        job = writer.submit(writer.work(owner="ann" if n % 2 else "bob"))
        if n % 4 == 0:
            job = writer.end(writer.start(job))
        elif n % 4 == 1:
            job = writer.end(writer.start(job), code=1)
        elif n % 4 == 2:
            job = writer.cancel(job) if n < 6 else writer.start(job)
        jobs.append(job)
    jobs += writer.submit_array([1, 2, 3], writer.work(owner="bob"))
    jobs[-2] = writer.cancel(jobs[-2])
    writer.commit()
    return jobs


FILTERS = [
    {},
    {"limit": 4},
    {"limit": 0},
    {"before": 6},
    {"before": 1},
    {"owner": "ann"},
    {"owner": "nobody"},
    {"owner": "ann", "before": 9, "limit": 2},
    {"states": ["queued", "running"]},
    {"states": ["running"]},
    {"states": ["queued"], "owner": "bob"},
    {"states": ["queued", "running"], "owner": "bob", "limit": 2},
    {"states": ["succeeded"]},
    {"states": ("succeeded", "failed", "cancelled", "lost")},
    {"states": ["failed", "failed", "queued"], "limit": 3},
    {"states": ["failed", "queued"], "before": 8, "owner": "ann"},
    {"states": ["failed"], "owner": "ann", "limit": 1},
    {"states": ["lost"]},
    {"states": list(JobState)},
    {"states": ["dreaming"]},
    {"array": "13"},
    {"array": "13", "states": ["cancelled"]},
    {"array": "13", "states": ["queued"], "owner": "bob", "limit": 1},
    {"array": "13", "owner": "ann"},
    {"array": "13", "before": 14},
    {"array": "1"},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_jobs_are_listed_the_newest_first(store, listed, filters):
    wanted = [
        job
        for job in reversed(listed)
        if not filters.get("states") or job.state in filters["states"]
        if filters.get("owner") in (None, job.work.owner)
        if filters.get("array") in (None, job.array)
        if filters.get("before") is None or job.number < filters["before"]
    ]
    assert store.jobs(**filters) == wanted[: filters.get("limit", 100)]


def test_a_list_goes_on_where_it_ended(store, listed):
    seen, before = [], None
    while some := store.jobs(before=before, limit=4):
        seen += some
        before = some[-1].number
    assert seen == listed[::-1]


# ---- what survives


def test_a_new_owner_finds_jobs_and_their_numbers(durable, tools):
    store = durable.store()
    store.open()
    store.load()
    writer = tools.Writer(store)
    writer.register("n", cpu=8)
    running = writer.start(writer.submit())
    gone = writer.cancel(writer.submit())
    writer.submit_array([1, 2])
    writer.commit()
    store.close()
    again = durable.store()
    again.open()
    contents = again.load()
    assert {job.id: job for job in contents.jobs} == writer.ledger.jobs.open
    assert contents.jobs[0] == running
    assert contents.next_job == 5
    assert again.find_jobs([gone.id]) == [gone]
    lawful(again)
    again.close()


def test_numbers_of_jobs_are_never_given_twice(durable, tools):
    """Neither by a new owner, nor when all that had them is forgotten, nor by one in a hurry."""
    store = durable.store()
    store.open()
    store.load()
    writer = tools.Writer(store)
    for _ in range(5):
        writer.cancel(writer.submit())
    writer.commit()
    assert store.prune(before=writer.now + 1, most=1_000) == 0
    assert store.jobs() == []
    store.close()
    for hasty in (lambda store: store.prune(before=500, most=10), lambda store: store.commit(Batch(9_000))):  # fmt: skip
        store = durable.store()
        store.open()
        hasty(store)
        store.close()
    store = durable.store()
    store.open()
    assert store.load().next_job == 6
    store.close()


@pytest.mark.parametrize("written", [True, False])
def test_recovering_knows_a_batch_of_jobs(durable, tools, written):
    store = durable.store()
    store.open()
    store.load()
    writer = tools.Writer(store)
    first = writer.submit()
    writer.commit()
    second = writer.submit()
    believed = dict(vars(store))
    if written:
        writer.commit()
        known = ("_high_water_ms", "_next_number", "_next_job", "_next_event")
        vars(store).update({name: believed[name] for name in known})
    else:
        clash = put("job.submitted", None, first)
        with pytest.raises(StoreError):
            store.commit(Batch(writer.now, [*writer.batch().entries, clash]))
    assert store.recover() is written
    if not written:
        writer.commit()
    writer.cancel(first)
    writer.commit()
    assert open_jobs(store) == {second.id: second}
    assert store.load().next_job == 3
    lawful(store)
    store.close()


# ---- all or nothing, and the guards

GONE = {"state": JobState.FAILED, "ended": 5, "reason": Reason.EXIT}
TRY = Attempt(1, "n", "a1-1", 0, 5)
BROKEN = {
    "a number that was given before": {"number": 1, "id": "1_9", "array": "1", "array_index": 9},
    "an id that was given before": {"id": "1_1", "array": "1", "array_index": 1},
    "an id that is not its number": {"id": "98"},
    "an id that is not of its array": {"array": "3", "array_index": 1},
    "an array without an index": {"array": "99"},
    "an index without an array": {"array_index": 1},
    "a negative index": {"id": "99_-1", "array": "99", "array_index": -1},
    "a number of nothing": {"number": 0, "id": "0"},
    "a negative number": {"number": -5, "id": "-5"},
    "a time before all times": {"submitted": -1},
    "a wait before all times": {"not_before": -1},
    "an end before all times": GONE | {"ended": -1},
    "queued, but ended": {"ended": 5, "reason": Reason.EXIT},
    "over, but not ended": GONE | {"ended": None, "reason": None},
    "over for no reason": GONE | {"reason": None},
    "a reason while it is open": {"reason": Reason.OOM},
    "running and waiting": {"state": JobState.RUNNING, "not_before": 9, "attempts": (TRY,)},
    "running without an attempt": {"state": JobState.RUNNING},
    "a negative amount": {"request": Request(Negative(cpu=-1))},
    "a negative amount of an alternative": {"request": Request(Negative(cpu=1), alternatives=(Request(Negative(memory=-1)),))},
    "a negative time of an attempt": {"attempts": (TRY._replace(placed=-1),)},
    "a negative peak": {"attempts": (TRY._replace(ended=5, reason=Reason.OOM, peak_bytes=-1),)},
}  # fmt: skip


def refused(store, writer, tools, bad):
    """Nothing of a batch with this in it is written, and the store goes on."""
    before = open_jobs(store), store.events(), store.load().next_job
    good = [writer.submit() for _ in range(3)]
    sound = writer.batch(operations=[StoredOperation("ann", "op", "b", "r")])
    entries = [*sound.entries[:1], bad, *sound.entries[1:]]
    with pytest.raises(StoreError) as caught:
        store.commit(Batch(writer.now + 7, entries, sound.operations))
    assert not isinstance(caught.value, StoreFenced)
    assert (open_jobs(store), store.events(), store.load().next_job) == before
    assert store.operations([("ann", "op")]) == []
    store.commit(sound)
    assert {job.id for job in good} < open_jobs(store).keys()
    lawful(store)


@pytest.mark.parametrize("changes", BROKEN.values(), ids=BROKEN)
def test_the_store_itself_refuses_a_job(store, writer, tools, changes):
    (kept,) = writer.submit_array([1])
    writer.commit()
    fresh = kept._replace(id="99", number=99, array=None, array_index=None)
    if changes.get("attempts") and "state" not in changes:
        changes = {"state": JobState.RUNNING, **changes}
    refused(store, writer, tools, put("job.submitted", None, fresh._replace(**changes)))


def test_the_store_itself_refuses_a_work_of_less_than_nothing(store, writer, tools):
    work = writer.work(Request(Negative(cpu=-1)))
    bad = writer.submit()._replace(id="99", number=99, work=work, request=work.request)
    refused(store, writer, tools, put("job.submitted", None, bad))


MOVES = {
    "a move of a job that is not there": (99, {"state": JobState.RUNNING, "attempts": (TRY,)}),
    "an end of a job that is not there": (99, GONE),
    "a move of a job that is over": (1, {"not_before": 9}),
    "a second end": (1, GONE),
    "a move to nonsense": (2, {"state": JobState.RUNNING}),
    "an end for no reason": (2, GONE | {"reason": None}),
}


@pytest.mark.parametrize(("number", "changes"), MOVES.values(), ids=MOVES)
def test_the_store_itself_refuses_a_move(store, writer, tools, number, changes):
    over, kept = writer.submit(), writer.submit()
    writer.cancel(over)
    writer.commit()
    before = kept._replace(id=str(number), number=number)
    refused(store, writer, tools, put("job.x", before, before._replace(**changes)))


# ---- forgetting


def test_ended_jobs_are_forgotten_with_their_last_event_and_open_ones_never(store, writer, tools):
    kept, early, late = (writer.submit(writer.work(command=(name,))) for name in "abc")
    running = writer.start(writer.submit())
    writer.cancel(early)
    writer.commit()
    writer.now += 100
    writer.cancel(late)
    writer.commit()
    assert store.prune(before=writer.now, most=100) == 0
    lawful(store)
    assert ids(store.jobs()) == [running.id, late.id, kept.id]
    rows = {row["id"]: row for row in store.checkpoint() if "attempts" in row}
    assert rows == {job.id: job_row(job) for job in (kept, late, running)}
    assert store.prune(before=writer.now + 1, most=100) == 0
    lawful(store)
    assert ids(store.jobs()) == [running.id, kept.id]
    assert store.find_jobs([early.id, late.id]) == []
    assert store.events() == []
    writer.end(writer.stop(running))
    writer.commit()
    lawful(store)


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_the_work_of_a_job_outlives_the_event_that_told_it(store, writer, tools, most):
    """However its events are cut: the checkpoint has all of it, so the rest can be replayed."""
    jobs = [writer.submit(writer.work(RICH, command=("x", *ODD))) for _ in range(2)]
    jobs = [writer.submit(writer.work(retry=RETRY, command=("x", *ODD))) for _ in range(2)]
    for _ in range(2):
        writer.now += 10
        jobs = [writer.end(writer.start(job), Reason.NODE_LOST) for job in jobs]
        writer.commit()
    jobs = [writer.start(job) for job in jobs]
    writer.commit()
    left = 1
    while left:
        left = store.prune(before=writer.now + 1, most=most)
        lawful(store)
    rows = {row["id"]: row for row in store.checkpoint() if "attempts" in row}
    assert rows == {job.id: job_row(job) for job in writer.ledger.jobs.open.values()}


def test_pruning_takes_bounded_steps(store, writer, tools):
    for job in [writer.submit() for _ in range(20)]:
        writer.cancel(job)
    writer.commit()
    events, left = len(tools.all_events(store)), 1
    steps = 0
    while left:
        left = store.prune(before=writer.now + 1, most=7)
        steps += 1
        assert len(tools.all_events(store)) == max(0, events - 7 * steps)
        lawful(store)
    assert store.jobs() == []


# ---- whatever happens

COUNT = st.integers(0, 9)
STEP = st.one_of(
    st.tuples(st.just("submit"), COUNT, st.booleans()),
    st.tuples(st.just("array"), st.integers(1, 4), st.none()),
    st.tuples(st.sampled_from(["start", "start", "cancel", "stop"]), COUNT, st.none()),
    st.tuples(st.just("end"), COUNT, st.sampled_from(["exit", "fail", *Reason])),
    st.tuples(st.just("wait"), st.integers(1, 3_000), st.none()),
    st.tuples(st.just("commit"), st.none(), st.none()),
    st.tuples(st.just("prune"), st.integers(0, 3_000), st.integers(1, 9)),
)


class History:
    """Carries steps out on a ledger and its store, and remembers every job that there was."""

    def __init__(self, store, tools):
        self.store, self.tools = store, tools
        self.writer = tools.Writer(store)
        self.writer.register("n", cpu=3)
        self.ended = {}

    def step(self, name, one, two):
        writer = self.writer
        if name == "submit":
            writer.submit(writer.work("cpu=1", retry=RETRY if two else RetryPolicy(), command=("x", str(one))))  # fmt: skip
        elif name == "array":
            writer.submit_array(range(one))
        elif name == "wait":
            writer.now += one
        elif name == "commit":
            writer.commit()
        elif name == "prune":
            self.prune(writer.now - one, two)
        elif writer.ledger.jobs.open:
            book = list(writer.ledger.jobs.open.values())
            self.move(name, book[one % len(book)], two)

    def move(self, name, job, reason):
        writer = self.writer
        if name == "start" and job.state is JobState.QUEUED and (job.not_before or 0) <= writer.now:
            writer.start(job)
        elif name == "cancel" and not (job.attempt and job.attempt.stopping):
            self.note(writer.cancel(job))
        elif job.attempt is None:
            return
        elif name == "stop" and not job.attempt.stopping:
            writer.stop(job)
        elif name == "end" and reason in ("exit", "fail"):
            self.note(writer.end(job, code=0 if reason == "exit" else 75))
        elif name == "end" and reason not in (Reason.CANCELLED, Reason.DEPENDENCY):
            self.note(writer.end(job, reason, code=1))

    def note(self, job):
        if not job.open:
            self.ended[job.id] = job

    def prune(self, before, most):
        self.writer.commit()
        store, events = self.store, self.tools.all_events(self.store)
        old = [event for event in events if event.at < before]
        assert store.prune(before=before, most=most) == max(0, len(old) - most)
        for event in old[:most]:
            if event.kind == "job.ended":
                del self.ended[event.subject]
        self.check()

    def check(self):
        store = self.store
        everything = {**self.writer.ledger.jobs.open, **self.ended}
        assert {job.id: job for job in store.jobs(limit=1_000)} == everything
        assert {job.id: job for job in store.find_jobs(everything)} == everything
        assert open_jobs(store) == self.writer.ledger.jobs.open
        lawful(store)


@settings(max_examples=examples(20))
@given(steps=st.lists(STEP, min_size=5, max_size=60))
def test_whatever_happened_to_jobs_and_was_forgotten_the_rest_can_be_replayed(tools, kind, steps):
    with tools.new_place(kind) as place, contextlib.closing(place.store()) as store:
        store.open()
        store.load()
        history = History(store, tools)
        for step in steps:
            history.step(*step)
        history.prune(history.writer.now - 5, 3)
        history.prune(history.writer.now + 1, 1_000)
