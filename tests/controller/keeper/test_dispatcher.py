"""Jobs in the keeper: submitted, started and ended in the transactions of what made room."""

import threading

import pytest

from gridhand import (
    InvalidDependency,
    MoveRefused,
    NeverFits,
    Node,
    NotYours,
    OperationReused,
    StoreUnavailable,
    UnknownJob,
)
from gridhand.core.errors import OutcomeUnknown
from gridhand.core.jobs.job import After, AttemptEnd, Condition, JobState, Reason
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.jobs.spec import Priority
from gridhand.core.model.nodes import Health
from gridhand.core.observations import NoteExit, NoteSpawned, Spawned
from gridhand.core.operations import (
    Cancel,
    EndAttempts,
    Ended,
    GetStatus,
    ListEvents,
    MoveAllocation,
    Register,
    SetDraining,
    SetHealth,
    Unregister,
)
from job_desk import START
from until import until


def test_a_job_with_room_is_written_and_started_in_one_transaction(desk):
    desk.nodes(a=2)
    before = desk.ask(ListEvents(0, 1000))
    id = desk.submit()
    assert id == "1"
    job = desk.job(id)
    assert job.state is JobState.RUNNING
    assert job.attempt.node == "a"
    events = desk.ask(ListEvents(before[-1].number, 1000))
    assert [event.kind for event in events] == [
        "job.submitted",
        "allocation.active",
        "job.started",
    ]
    assert len({event.at for event in events}) == 1
    assert desk.kinds() == [("job.submitted", "1"), ("job.started", "1")]


def test_an_end_gives_back_and_starts_the_next_in_the_same_transaction(desk):
    desk.nodes(a=1)
    first, second = desk.submit(), desk.submit()
    assert (desk.state(first), desk.state(second)) == (JobState.RUNNING, JobState.QUEUED)
    assert "Insufficient CPU" in desk.why(second)
    assert desk.end(first, code=3) == [first]
    assert desk.job(first).attempts[-1].exit_code == 3
    assert (desk.state(first), desk.state(second)) == (JobState.FAILED, JobState.RUNNING)
    (status,) = desk.ask(GetStatus()).nodes
    assert len(status.allocations) == 1


def test_the_same_end_twice_or_of_another_attempt_changes_nothing(desk):
    desk.nodes(a=2)
    id = desk.submit()
    attempt = desk.job(id).attempt
    how = AttemptEnd(1, attempt.allocation, Reason.EXIT, 0)
    late = AttemptEnd(2, attempt.allocation, Reason.EXIT, 1)
    strange = AttemptEnd(1, "a9-9", Reason.EXIT, 1)
    ask = lambda *all: desk.ask(EndAttempts("gridhand", ended=tuple(Ended(id, one) for one in all)))  # noqa: E731
    assert ask(late, strange) == []
    assert ask(how, how) == [id]
    assert ask(how) == []
    assert desk.ask(EndAttempts("gridhand", ended=(Ended("77", how),))) == []
    assert desk.state(id) is JobState.SUCCEEDED


def test_higher_priorities_and_lower_numbers_come_first(desk):
    desk.nodes(a=4)
    big = desk.submit(4)
    waiting = desk.submit(3)
    low, high = desk.submit(2, priority=Priority.LOW), desk.submit(2, priority=Priority.HIGH)
    desk.end(big)
    assert desk.running() == [high]  # 3 do not fit beside its 2, and are kept free of lower ones
    desk.end(high)
    assert desk.running() == [waiting]
    desk.end(waiting)
    assert desk.running() == [low]


def test_cancelling_what_waits_ends_it_and_what_runs_is_told_to_stop(desk):
    desk.nodes(a=1)
    first, second = desk.submit(), desk.submit()
    assert desk.ask(Cancel("ann", ids=(second, first))) == [second, first]
    assert desk.state(second) is JobState.CANCELLED
    job = desk.job(first)
    assert (job.state, job.attempt.stopping) == (JobState.RUNNING, Reason.CANCELLED)
    assert ("job.stopping", first) in desk.kinds()
    desk.end(first, reason=Reason.SIGNAL, code=None, signal=15)
    assert desk.job(first).reason is Reason.CANCELLED
    assert desk.ask(Cancel("ann", ids=(first,))) == [first]  # it stays as it ended
    with pytest.raises(UnknownJob):
        desk.ask(Cancel("ann", ids=("99",)))


def test_only_the_owner_may_cancel_and_nobody_releases_what_a_job_holds(desk):
    desk.nodes(a=1)
    id = desk.submit()
    with pytest.raises(NotYours, match="job 1 does not belong to 'bob'"):
        desk.ask(Cancel("bob", ids=(id,)))
    held = desk.job(id).attempt.allocation
    with pytest.raises(MoveRefused, match="job 1 holds it"):
        desk.ask(MoveAllocation("ann", id=held))
    assert desk.state(id) is JobState.RUNNING


def test_an_array_is_one_submission_with_a_limit_and_cancelled_as_one(desk):
    desk.nodes(a=4)
    ids = desk.submit(indices=(1, 2, 3, 7), at_once=2)
    assert ids == ["1_1", "1_2", "1_3", "1_7"]
    assert desk.running() == ["1_1", "1_2"]
    assert "of its array are running" in desk.why("1_3")
    desk.end("1_1")
    assert desk.running() == ["1_2", "1_3"]
    assert desk.submit() == "5"
    assert sorted(desk.ask(Cancel("ann", ids=("1",)))) == ["1_2", "1_3", "1_7"]
    desk.end("1_2", "1_3", reason=Reason.SIGNAL, code=None, signal=15)
    assert desk.running() == ["5"]
    assert desk.ask(Cancel("ann", ids=("1",)))  # though all of it has ended


def test_dependencies_hold_back_and_cancel(desk):
    desk.nodes(a=4)
    first = desk.submit()
    after = desk.submit(after=[After(first)])
    never = desk.submit(after=[After(first, Condition.NOT_OK)])
    later = desk.submit(after=[After(never, Condition.ANY)])
    assert desk.running() == [first]
    assert "waits for job 1 to succeed" in desk.why(after)
    desk.end(first)
    assert desk.running() == sorted([after, later])
    job = desk.job(never)
    assert (job.state, job.reason) == (JobState.CANCELLED, Reason.DEPENDENCY)
    assert desk.state(desk.submit(after=[After(first)])) is JobState.RUNNING  # it ended long ago
    assert desk.state(desk.submit(after=[After(never)])) is JobState.CANCELLED
    with pytest.raises(InvalidDependency):
        desk.submit(after=[After("99")])


def test_what_never_fits_is_refused_and_uses_up_no_number(desk):
    desk.nodes(a=2)
    with pytest.raises(NeverFits):
        desk.submit(3)
    assert desk.submit(2) == "1"


def test_a_repeat_of_a_submission_gets_the_same_ids(desk):
    desk.nodes(a=4)
    assert desk.submit(op_id="one") == desk.submit(op_id="one") == "1"
    assert len(desk.jobs()) == 1
    with pytest.raises(OperationReused):
        desk.submit(2, op_id="one")


def test_a_retry_waits_its_time_and_asks_for_more_after_running_out_of_memory(desk):
    desk.ask(Register("ann", nodes=(Node.of("a", cpu=1, memory="8GB"),)))
    policy = RetryPolicy(tries=2, delay_ms=5000)
    id = desk.submit(memory="1GB", retry=policy)
    desk.end(id, reason=Reason.OOM, code=None, signal=9, peak_bytes=10**9)
    job = desk.job(id)
    assert job.state is JobState.QUEUED
    assert job.request.amounts["memory"] == 1_200_000_000
    assert "retries in" in desk.why(id)
    desk.clock.ms += 5001
    desk.nodes(b=1)  # anything that wakes the keeper
    assert desk.job(id).attempt.number == 2
    assert desk.ask(GetStatus()).allocated["memory"] == 1_200_000_000


def test_a_node_that_is_lost_requeues_its_jobs_once_and_frees_it_once(desk):
    desk.nodes(a=1, b=1)
    one, two = desk.submit(node="a"), desk.submit(node="b")
    desk.ask(SetHealth("ann", name="a", health=Health.DOWN, why="gone"))
    job = desk.job(one)
    assert (job.state, job.attempts[0].reason) == (JobState.QUEUED, Reason.NODE_LOST)
    assert desk.state(two) is JobState.RUNNING
    desk.ask(SetHealth("ann", name="a", health=Health.UP))
    assert desk.state(one) is JobState.QUEUED  # its first attempt may still have processes there
    desk.ask(NoteExit(((one, 1),)))
    assert desk.job(one).attempt.number == 2
    stale = AttemptEnd(1, job.attempts[0].allocation, Reason.EXIT, 0)
    assert desk.ask(EndAttempts("gridhand", ended=(Ended(one, stale),))) == []


def test_a_node_that_comes_or_resumes_starts_what_waits(desk):
    desk.nodes(a=1)
    desk.ask(SetDraining("ann", name="a"))
    id = desk.submit()
    assert desk.state(id) is JobState.QUEUED
    desk.ask(SetDraining("ann", name="a", draining=False))
    assert desk.state(id) is JobState.RUNNING


def test_that_a_process_is_there_is_noted_but_not_written(desk):
    desk.nodes(a=1)
    id = desk.submit()
    before = desk.ask(ListEvents(0, 1000))
    desk.ask(NoteSpawned((Spawned(id, 1, 0), Spawned("9", 1, 0))))
    assert desk.job(id).attempt.started is not None
    assert desk.ask(ListEvents(0, 1000)) == before
    desk.clock.ms += 9
    desk.end(id, ran_ms=8)
    last = desk.job(id).attempts[-1]
    assert (last.started, last.ended) == (START, START + 8)  # as it was noted first


#   what is known of it                    noted as   ended    ran    shown as
ENDS = {
    "all":                                 (10,        50,      40,    (10, 50)),
    "how long it ran alone":               (None,      None,    40,    (50, 90)),
    "its start was noted late":            (80,        50,      40,    (10, 50)),
    "its start was not noted":             (None,      50,      40,    (10, 50)),
    "its end was heard of late":           (10,        None,    40,    (10, 50)),
    "a clock of another speed":            (10,        50,      60,    (0, 60)),
    "a clock of quite another speed":      (10,        50,      600,   (0, 90)),
    "an end in the time to come":          (10,        5000,    40,    (10, 50)),
    "an end before it was placed":         (None,      -99,     40,    (0, 40)),
    "when it started, not how long it ran": (10,       50,      None,  (10, 50)),
    "nothing":                             (None,      None,    None,  (None, 90)),
}  # fmt: skip


@pytest.mark.parametrize(("noted", "ended", "ran", "shown"), ENDS.values(), ids=ENDS)
def test_an_end_that_is_written_late_has_the_time_at_which_it_was(desk, noted, ended, ran, shown):
    """As after the store was away: 90 ms after it was placed the end can be written."""
    desk.nodes(a=1)
    id = desk.submit()
    desk.clock.ms += 90
    if noted is not None:
        desk.ask(NoteSpawned((Spawned(id, 1, 90 - noted),)))
    desk.end(id, ran_ms=ran, ended=None if ended is None else START + ended)
    job = desk.job(id)
    times = [None if at is None else at - START for at in (job.attempts[-1].started, job.ended)]
    assert tuple(times) == shown
    assert job.attempts[-1].ended == job.ended


def test_one_that_is_told_of_late_has_run_since_it_began(desk):
    """As after a restart: the node knows how long it has been there."""
    desk.nodes(a=1)
    id = desk.submit()
    desk.clock.ms += 5000
    desk.ask(NoteSpawned((Spawned(id, 1, 4000),)))
    assert desk.job(id).attempt.started == START + 1000
    desk.end(id)
    early = desk.submit()
    desk.ask(
        NoteSpawned((Spawned(early, 1, 60_000),))
    )  # by another clock: not before it was placed
    assert desk.job(early).attempt.started == START + 5000


def test_jobs_are_there_after_a_restart_and_go_on(desk):
    desk.nodes(a=1)
    first = desk.submit()
    second = desk.submit(after=[After(first)])
    third = desk.submit()
    desk.restart()
    assert desk.running() == [first]
    desk.end(first)
    assert desk.running() == [second]  # the lower number goes first
    desk.restart()
    desk.end(second)
    assert desk.running() == [third]
    assert desk.submit() == "4"


@pytest.mark.parametrize("fault", [StoreUnavailable("full"), OutcomeUnknown("gone")])
def test_a_commit_that_fails_leaves_queue_and_ledger_as_they_were(desk, fault):
    desk.nodes(a=1)
    first = desk.submit()
    second, third = desk.submit(after=[After(first, Condition.ANY)]), desk.submit()
    told = len(desk.told)
    desk.store.faults = [fault]
    with pytest.raises(StoreUnavailable):
        desk.end(first)
    assert desk.running() == [first]
    assert len(desk.told) == told
    desk.store.faults = [fault]
    with pytest.raises(StoreUnavailable):
        desk.submit()
    assert sorted(desk.jobs()) == [first, second, third]
    desk.end(first)
    assert desk.running() == [second]
    desk.end(second)
    assert desk.running() == [third]


def test_nothing_is_started_while_paused(desk):
    desk.nodes(a=1)
    desk.dispatch.pause()
    id = desk.submit()
    assert desk.state(id) is JobState.QUEUED
    desk.dispatch.resume()
    desk.nodes(b=1)
    assert desk.state(id) is JobState.RUNNING


def test_a_thousand_jobs_run_each_once_and_never_more_than_fit(desk):
    desk.nodes(a=2, b=1)
    desk.submit(indices=range(500))
    ended = []
    while running := desk.running():
        assert len(running) <= 3
        ended += desk.end(*running)
    assert len(ended) == len(set(ended)) == 500


def started(desk):
    """The jobs that were started, as the listener heard: to ask the keeper would be an event."""
    return [change.subject for change in desk.told if change.kind == "job.started"]


def test_400_jobs_that_can_start_at_once_all_do_without_another_event(desk):
    desk.nodes(a=400)
    desk.dispatch.pause()
    desk.submit(indices=range(400))
    desk.dispatch.resume()
    desk.nodes(b=1)  # the one event: it starts at most so many as go into one commit
    until(lambda: len(started(desk)) == 400, 10)
    assert len(set(started(desk))) == 400


def test_the_queue_is_looked_at_again_after_a_failed_commit(desk):
    desk.nodes(a=2)
    first = desk.submit()
    desk.submit()
    waiting = desk.submit()
    desk.dispatch.pause()
    desk.end(first)
    desk.store.faults = [StoreUnavailable("locked")]
    desk.dispatch.resume()
    with pytest.raises(StoreUnavailable):
        desk.nodes(b=1)  # it would have started what waits, too
    until(lambda: waiting in started(desk), 10)
    assert desk.store.refused == 1


def test_what_had_no_room_in_a_batch_that_failed_is_tried_again(desk):
    """The failed batch gave the room to a job that is not there any more."""
    desk.nodes(a=1)
    desk.dispatch.pause()
    waiting = desk.submit()
    desk.dispatch.resume()
    desk.store.faults = [StoreUnavailable("locked")]
    with pytest.raises(StoreUnavailable):
        desk.submit(priority=Priority.URGENT)
    until(lambda: waiting in started(desk), 10)
    assert desk.running() == [waiting]


def test_submissions_from_many_threads_are_all_there_with_numbers_of_their_own(desk):
    desk.nodes(a=8)
    ids = []
    threads = [threading.Thread(target=lambda: ids.append(desk.submit())) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, ids)) == list(range(1, 41))
    assert len(desk.running()) == 8


def test_a_node_that_a_waiting_job_is_pinned_to_can_be_removed_and_come_back(desk):
    desk.nodes(a=1, b=1)
    running = desk.submit(node="a")
    waits = desk.submit(node="a")
    desk.end(running)
    second = desk.submit(node="a")
    desk.ask(Unregister("ann", name="a", force=True))
    assert desk.state(second) is JobState.QUEUED
    assert "no node named" in desk.why(second)
    assert desk.state(desk.submit()) is JobState.RUNNING  # nobody else is kept from anything
    desk.nodes(a=1)
    given_up = tuple((id, 1) for id in (waits, second) if desk.job(id).attempts)
    desk.ask(NoteExit(given_up))
    states = {desk.state(waits), desk.state(second)}
    assert JobState.RUNNING in states
