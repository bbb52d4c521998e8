"""Gangs: all members start together on different nodes, and end together."""

import pytest

from gridhand import Node
from gridhand.core.errors import InvalidInput, NeverFits, StoreError
from gridhand.core.jobs.job import After, JobState, Priority, Reason
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.model.nodes import Health
from gridhand.core.operations import Cancel, Register, SetHealth, SetHeld
from job_desk import Desk

MINUTE = 60_000


@pytest.fixture
def desk(tmp_path):
    desk = Desk(str(tmp_path / "grid.db"))
    desk.nodes(n1=4, n2=4, n3=4)
    yield desk
    desk.check()
    desk.backend.close()


def gang(desk, nodes=3, cpu=4, **wishes):
    return desk.submit(cpu, indices=range(nodes), nodes=nodes, **wishes)


def states(desk, ids):
    return [str(desk.state(id)) for id in ids]


def test_members_start_together_on_different_nodes(desk):
    ids = gang(desk, 3, 1)
    assert ids == ["1_0", "1_1", "1_2"]
    jobs = [desk.job(id) for id in ids]
    assert sorted(job.attempt.node for job in jobs) == ["n1", "n2", "n3"]
    assert {job.attempt.master for job in jobs} == {"127.0.0.1:20001"}
    assert {job.attempt.placed for job in jobs} == {desk.clock.now()}


def test_all_or_nothing(desk):
    busy = desk.submit(1, node="n2")
    ids = gang(desk)
    assert desk.running() == [busy]
    assert desk.why(ids[0]) == (
        "3 nodes with room for cpu=4 each are needed, and 2 nodes have it now"
    )
    desk.end(busy)
    assert desk.running() == ids


def test_a_gang_that_needs_more_nodes_than_there_are_is_refused_at_once(desk):
    with pytest.raises(NeverFits) as caught:
        gang(desk, 4)
    assert str(caught.value) == "4 nodes with cpu=4 each are needed, but only 3 nodes have that"
    assert "Waiting will not help" in caught.value.hint
    with pytest.raises(NeverFits):
        gang(desk, 2, 5)
    assert desk.jobs() == {}


@pytest.mark.parametrize("indices", [(), (1, 2, 3), (0, 1)])
def test_a_gang_has_one_task_for_each_rank(desk, indices):
    with pytest.raises(InvalidInput, match="nodes"):
        desk.submit(1, indices=indices, nodes=3)


def test_a_member_that_fails_has_the_others_stopped(desk):
    ids = gang(desk)
    desk.end("1_1", code=7)
    assert states(desk, ids) == ["running", "failed", "running"]
    for id in ("1_0", "1_2"):
        attempt = desk.job(id).attempt
        assert attempt.stopping is Reason.GANG
        assert attempt.message == "stopped with its gang: rank 1 ended first (exit code 7)"
    desk.end("1_0", "1_2", reason=Reason.SIGNAL, code=None, signal=15, message="it was ended")
    assert states(desk, ids) == ["cancelled", "failed", "cancelled"]
    ended = desk.job("1_0")
    assert (ended.reason, ended.attempts[-1].message) == (
        Reason.GANG,
        "stopped with its gang: rank 1 ended first (exit code 7)",
    )


def test_members_that_succeed_leave_the_others_alone(desk):
    ids = gang(desk)
    desk.end("1_1")
    assert states(desk, ids) == ["running", "succeeded", "running"]
    assert desk.job("1_0").attempt.stopping is None
    assert desk.running() == ["1_0", "1_2"]
    other = desk.submit(4)
    assert desk.job(other).attempt.node == desk.job("1_1").attempts[0].node
    desk.end("1_0", "1_2", other)
    assert states(desk, ids) == ["succeeded"] * 3


def test_a_retry_is_one_of_the_whole_gang(desk):
    ids = gang(desk, retry=RetryPolicy(tries=2, delay_ms=0))
    later = desk.submit(4)
    desk.end("1_1", code=7)
    assert states(desk, ids) == ["running", "queued", "running"]
    assert desk.why("1_1") == "it waits for the other members of its gang to stop"
    # Its own number comes first, but its gang is not complete, so the room is for others.
    assert desk.state(later) is JobState.RUNNING
    desk.end("1_0", reason=Reason.SIGNAL, code=None, signal=15)
    desk.end("1_2", reason=Reason.SIGNAL, code=None, signal=15)
    assert states(desk, ids) == ["queued"] * 3
    desk.end(later)
    assert states(desk, ids) == ["running"] * 3
    assert {desk.job(id).attempt.number for id in ids} == {2}
    desk.end("1_0", code=7)  # the second failure, of another member
    desk.end("1_1", "1_2", reason=Reason.SIGNAL, code=None, signal=15)
    assert states(desk, ids) == ["failed", "cancelled", "cancelled"]


def test_the_back_off_is_that_of_all_members(desk):
    ids = gang(desk, retry=RetryPolicy(tries=2, delay_ms=5000))
    desk.end("1_1", code=7)
    desk.end("1_0", "1_2", reason=Reason.SIGNAL, code=None, signal=15)
    assert len({desk.job(id).not_before for id in ids}) == 1
    assert desk.running() == []
    desk.clock.ms += 5001
    desk.settle()
    assert desk.running() == ids


def test_more_memory_is_for_all_members(tmp_path):
    desk = Desk(str(tmp_path / "grid.db"))
    nodes = [Node.of(name, cpu=4, memory="8GB") for name in ("n1", "n2")]
    desk.ask(Register("ann", nodes=tuple(nodes)))
    ids = gang(desk, 2, 1, memory="1GB", retry=RetryPolicy(tries=2, delay_ms=0))
    desk.end("1_1", reason=Reason.OOM, code=None, peak_bytes=2 * 10**9)
    desk.end("1_0", reason=Reason.SIGNAL, code=None, signal=15)
    assert states(desk, ids) == ["running"] * 2
    asked = {desk.job(id).request.amounts["memory"] for id in ids}
    assert len(asked) == 1
    assert asked.pop() > 2 * 10**9
    desk.check()
    desk.backend.close()


def test_a_gang_does_not_run_again_once_a_member_has_succeeded(desk):
    ids = gang(desk, retry=RetryPolicy(tries=5, delay_ms=0))
    desk.end("1_0")
    desk.end("1_1", code=7)
    desk.end("1_2", reason=Reason.SIGNAL, code=None, signal=15)
    assert states(desk, ids) == ["succeeded", "failed", "cancelled"]


def test_two_ends_in_one_batch(desk):
    ids = gang(desk)
    desk.end("1_1", "1_2", code=7)
    assert states(desk, ids) == ["running", "failed", "cancelled"]
    desk.end("1_0", reason=Reason.SIGNAL, code=None, signal=15)


def test_a_lost_node_requeues_the_whole_gang(desk):
    ids = gang(desk, 2)
    lost = desk.job("1_0").attempt.node
    desk.ask(SetHealth("ann", None, lost, Health.DOWN, "silent"))
    assert states(desk, ids) == ["queued", "running"]
    assert desk.job("1_1").attempt.stopping is Reason.GANG
    desk.end("1_1", reason=Reason.SIGNAL, code=None, signal=15)
    assert states(desk, ids) == ["running"] * 2
    assert lost not in {desk.job(id).attempt.node for id in ids}


def test_cancelling_one_member_cancels_all(desk):
    ids = gang(desk)
    waiting = gang(desk)
    assert sorted(desk.ask(Cancel("ann", None, (waiting[1],)))) == waiting
    assert states(desk, waiting) == ["cancelled"] * 3
    desk.ask(Cancel("ann", None, (ids[2],)))
    assert {desk.job(id).attempt.stopping for id in ids} == {Reason.CANCELLED}
    desk.end(*ids, reason=Reason.SIGNAL, code=None, signal=15)
    assert states(desk, ids) == ["cancelled"] * 3


def test_cancelling_a_gang_that_is_stopping_ends_it_for_good(desk):
    ids = gang(desk, retry=RetryPolicy(tries=5, delay_ms=0))
    desk.end("1_1", code=7)
    desk.ask(Cancel("ann", None, ("1",)))
    desk.end("1_0", "1_2", reason=Reason.SIGNAL, code=None, signal=15)
    assert states(desk, ids) == ["cancelled"] * 3


def test_a_gang_is_held_and_let_go_as_a_whole(desk):
    busy = desk.submit(4)
    ids = gang(desk)
    assert sorted(desk.ask(SetHeld("ann", None, ("2_1",), True))) == ids
    desk.end(busy)
    assert desk.running() == []
    assert sorted(desk.ask(SetHeld("ann", None, ("2_2",), False))) == ids
    desk.settle()
    assert desk.running() == ids


def test_dependencies_on_a_gang_and_of_one(desk):
    before = desk.submit(4)
    ids = gang(desk, 2, after=[After(before)])
    assert desk.running() == [before]
    desk.end(before)
    assert desk.running() == ids
    after = desk.submit(1, after=[After(id) for id in ids])
    desk.end("2_0", code=7)
    assert desk.state(after) is JobState.CANCELLED
    desk.end("2_1", reason=Reason.SIGNAL, code=None, signal=15)


def test_a_waiting_and_a_running_gang_survive_a_restart(desk):
    running = gang(desk, retry=RetryPolicy(tries=2, delay_ms=0))
    waiting = gang(desk)
    desk.restart()
    desk.settle()
    assert desk.running() == running
    desk.end("1_1", code=7)
    desk.restart()
    desk.settle()
    assert states(desk, running) == ["running", "queued", "running"]
    desk.end("1_0", "1_2", reason=Reason.SIGNAL, code=None, signal=15)
    assert desk.running() == running  # in its old place, before the one that waited
    desk.end(*running)
    assert desk.running() == waiting
    desk.end(*waiting)


def test_a_gang_is_one_victim_of_preemption(desk):
    ids = gang(desk, priority=Priority.LOW)
    desk.clock.ms += 2 * MINUTE
    urgent = desk.submit(2, priority=Priority.URGENT)
    assert {desk.job(id).attempt.stopping for id in ids} == {Reason.PREEMPTED}
    desk.end("1_0", reason=Reason.SIGNAL, code=None, signal=15)
    desk.end("1_1", "1_2", reason=Reason.SIGNAL, code=None, signal=15)
    assert desk.running() == [urgent]
    assert states(desk, ids) == ["queued"] * 3
    desk.end(urgent)
    assert desk.running() == ids


def test_a_gang_with_an_ended_member_is_not_preempted(desk):
    ids = gang(desk, priority=Priority.LOW)
    desk.end("1_0")
    taken = desk.submit(4, priority=Priority.HIGH)
    desk.clock.ms += 2 * MINUTE
    desk.submit(2, priority=Priority.URGENT)
    assert {desk.job(id).attempt.stopping for id in ids[1:]} == {None}
    assert desk.running() == [*ids[1:], taken]


def test_a_batch_that_is_not_written_starts_no_part_of_a_gang(desk):
    busy = desk.submit(4)
    ids = gang(desk)
    desk.store.faults = [StoreError("the disk is full")]
    with pytest.raises(StoreError):
        desk.end(busy)
    assert desk.running() == [busy]
    desk.end(busy)
    assert desk.running() == ids
