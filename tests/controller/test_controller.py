"""The controller between a ledger and a node, either of which may stop at any point."""

import asyncio
import contextlib
import errno
import itertools
import os
import shutil
import sqlite3
import time

import pytest

from controller_place import Place, in_place
from fake_engine import report
from gridhand.controller import retention
from gridhand.controller.clients import connections
from gridhand.controller.keeper.questions import Read
from gridhand.core.errors import (
    InvalidDependency,
    JobsRunning,
    NotYours,
    OperationReused,
    OutcomeUnknown,
    StoreFenced,
    StoreInvalid,
    StoreUnavailable,
)
from gridhand.core.jobs.job import After, AttemptEnd, JobSpec, JobState, Reason
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.model.nodes import Health
from gridhand.core.model.requests import Request
from gridhand.core.operations import (
    Cancel,
    EndAttempts,
    Ended,
    ListEvents,
    SetHealth,
    Submit,
    Unregister,
)

FIRST = ("1", 1)


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch):
    """A store that does not come back at once is given up at once."""
    monkeypatch.setattr("gridhand.controller.keeper.write_batch._RECOVERY_S", 0.0)


# ---- killed between the ledger and the node


@in_place()
async def test_a_start_that_the_node_was_not_told_of_is_sent_by_the_next_controller_once(place):
    """Row 5."""
    place.engine.away = True
    id = await place.submit()
    await place.until(lambda: place.engine.asked)
    await place.restart()
    await place.sent(FIRST)
    assert place.engine.started(FIRST) == 1
    [order] = place.engine.orders
    assert order.fence == (await place.job(id)).attempt.allocation


@in_place()
async def test_what_was_started_and_not_noted_is_adopted(place):
    """Row 6."""
    id = await place.submit()
    await place.sent(FIRST)
    await place.restart()
    await place.until(lambda: is_started(place, id))
    assert place.engine.started(FIRST) == 1
    place.engine.end(FIRST, code=7)
    job = await place.ended(id)
    assert (job.state, job.attempts[0].exit_code) == (JobState.FAILED, 7)


@in_place()
async def test_who_looked_before_the_end_was_durable_starts_nothing_again(place):
    """A node has forgotten it by then, and would run it a second time."""
    id = await place.submit()
    await place.submit()  # which needs the same environment, so that is still there
    await place.sent(FIRST, ("2", 1))
    job = await place.job(id)
    held = await place.controller.ask(Read(lambda desk: desk.ledger.live[job.attempt.allocation]))
    place.engine.end(FIRST)
    await place.ended(id)
    await place.until(lambda: FIRST not in place.engine.ended)
    place.controller.runner.changed("job.started", job, held)
    other = await place.submit()
    await place.sent((other, 1))
    assert place.engine.started(FIRST) == 1


async def is_started(place, id):
    return (await place.job(id)).attempt.started is not None


@in_place()
async def test_what_ended_while_no_controller_was_there_is_written_and_then_forgotten(place):
    id, other = await place.submit(), await place.submit()
    await place.sent(FIRST, ("2", 1))
    await place.kill()
    place.engine.end(FIRST, code=3)
    await place.open()
    job = await place.ended(id)
    assert job.attempts[0].exit_code == 3
    assert await place.state(other) is JobState.RUNNING
    assert place.engine.started(("2", 1)) == 1


@in_place()
@pytest.mark.parametrize("days", [-4000, 4000])
async def test_the_clock_of_a_node_decides_nothing(place, days):
    """Row 34: what it says of the time is days off, in either direction."""
    off = {"begun_ms": place.controller._keeper.clock.now() + days * 86_400_000}
    id = await place.submit()
    await place.sent(FIRST)
    fence = (await place.job(id)).attempt.allocation
    place.controller.runner.spawned([report("1", 1, fence, state="running", pid=7, **off)])
    place.engine.running[FIRST].begun_ms = off["begun_ms"]
    place.engine.end(FIRST)
    job = await place.ended(id)
    last = job.attempts[-1]
    assert job.submitted <= last.placed <= last.started <= last.ended
    assert last.ended - job.submitted < 60_000


@in_place()
async def test_an_end_told_twice_or_late_changes_nothing(place):
    """Rows 7 and 8."""
    id = await place.submit(retry=RetryPolicy.of(1))
    await place.sent(FIRST)
    attempt = (await place.job(id)).attempt
    first = report("1", 1, attempt.allocation, end={"reason": "node_lost"})
    place.engine.running.clear()
    place.controller.runner.ended([first, first])
    await place.sent(("1", 2))
    place.controller.runner.ended([first])
    place.controller.runner.ended([report("1", 2, "a9-9", end={"reason": "exit", "code": 1})])
    place.controller.runner.ended([report("77", 1, "a9-9", end={"reason": "exit", "code": 1})])
    await place.quiet()
    job = await place.job(id)
    assert (job.state, len(job.attempts)) == (JobState.RUNNING, 2)


@in_place()
async def test_a_node_that_was_booted_has_lost_its_attempts_and_they_are_requeued_once(place):
    """Row 43."""
    ids = [await place.submit() for _ in range(3)]
    await place.sent(*((id, 1) for id in ids))
    await place.kill()
    for id in ids:
        place.engine.end((id, 1), reason="node_lost", code=None, message="it was booted")
    await place.open()
    await place.sent(*((id, 2) for id in ids))
    for id in ids:
        job = await place.job(id)
        assert [one.reason for one in job.attempts] == [Reason.NODE_LOST, None]
        place.engine.end((id, 2))
    await place.ended(*ids)


@in_place()
async def test_a_reason_that_is_not_known_is_an_end_all_the_same(place):
    id = await place.submit()
    await place.sent(FIRST)
    place.engine.end(FIRST, reason="eaten", code=None)
    assert (await place.ended(id)).reason is Reason.AGENT_LOST


# ---- cancelling races everything


@in_place()
async def test_cancelled_before_the_node_was_told_and_never_started(place):
    """Row 13: the node knows nothing of it, and says so."""
    place.engine.away = True
    id = await place.submit()
    await place.controller.cancel("ann", [id])
    await place.until(lambda: place.engine.stops)
    await place.restart()
    job = await place.ended(id)
    assert (job.state, place.engine.orders) == (JobState.CANCELLED, [])


@in_place()
async def test_cancelled_between_the_start_and_its_process(place):
    id = await place.submit()
    await place.controller.cancel("ann", [id])  # the order is on its way, and goes first
    job = await place.ended(id)
    assert (job.state, job.reason) == (JobState.CANCELLED, Reason.CANCELLED)
    assert place.engine.running == {}


@in_place()
async def test_cancelled_while_its_end_is_on_its_way(place):
    id = await place.submit()
    await place.sent(FIRST)
    place.engine.end(FIRST, tell=False)
    await place.controller.cancel("ann", [id])
    job = await place.ended(id)
    assert job.state is JobState.CANCELLED
    place.engine.sink.ended([report("1", 1, job.attempts[0].allocation, end={"reason": "exit"})])


@in_place()
async def test_cancelled_and_then_nobody_is_there_to_stop_it(place):
    place.engine.immediate = False
    id = await place.submit()
    await place.sent(FIRST)
    await place.controller.cancel("ann", [id])
    await place.until(lambda: place.engine.stops)
    await place.restart()
    await place.until(lambda: len(place.engine.stops) == 2)  # told again by who comes after
    assert (await place.job(id)).attempt.stopping is Reason.CANCELLED
    place.engine.end(FIRST)  # it made it to the end, and is cancelled all the same
    assert (await place.ended(id)).state is JobState.CANCELLED


@in_place()
async def test_cancelled_while_the_node_is_away_and_comes_back_without_it(place):
    id = await place.submit()
    await place.sent(FIRST)
    place.engine.away = True
    await place.controller.cancel("ann", [id])
    await place.until(lambda: place.engine.stops)
    place.engine.running.clear()
    place.engine.come_back()
    assert (await place.ended(id)).state is JobState.CANCELLED


@in_place(cpu=1)
async def test_what_waits_is_cancelled_at_once_and_what_waited_for_its_place_is_started(place):
    first, second = await place.submit(), await place.submit()
    third = await place.submit()
    await place.sent((first, 1))
    await place.controller.cancel("ann", [second, first])
    await place.sent((third, 1))
    assert place.engine.started((second, 1)) == 0


@in_place()
async def test_a_cancel_and_an_end_in_one_batch_name_the_job_all_the_same(place):
    """What ends in the same commit is neither open any more nor in the store yet."""
    id, other = await place.submit(), await place.submit()
    await place.sent(FIRST, (other, 1))
    attempt = (await place.job(id)).attempt
    end = Ended(id, AttemptEnd(1, attempt.allocation, Reason.EXIT, 0))
    ask, place.engine.running = place.controller.ask, {}
    work = JobSpec("ann", ("true",), "/", Request.of(cpu=1), detached=True)
    answers = await asyncio.gather(
        ask(EndAttempts("gridhand", ended=(end,))),
        ask(Cancel("ann", ids=(id,))),
        ask(Submit("ann", None, work, (), (After(id),))),
    )
    *changed, made = answers
    assert (changed, made.ids, made.fresh) == ([[id], [id]], ["3"], True)
    with pytest.raises(InvalidDependency):
        await ask(Submit("ann", None, work, (), (After("99"),)))


# ---- a store that is not the right one, and epochs


@in_place()
async def test_an_empty_store_is_refused_while_jobs_run_unless_they_are_to_be_stopped(place):
    """Row 25."""
    await place.submit()
    await place.submit()
    await place.sent(FIRST, ("2", 1))
    await place.kill()
    elsewhere = os.path.join(place.home.folder, "other.db")
    with pytest.raises(StoreInvalid, match="2 jobs run here of which the store knows nothing"):
        await place.open(store=elsewhere)
    assert set(place.engine.running) == {FIRST, ("2", 1)}
    assert place.engine.stops == []
    place.controller = None
    place.engine.epoch = 2**53 - 1  # however late it is, one step passes it
    place.engine.immediate = False
    await place.open(store=elsewhere, new_cluster=True)
    await place.until(lambda: len(place.engine.stops) == 2)
    # A job that has the id of one that still runs would never be started.
    id = await place.submit()
    assert id == "3"
    for key in (FIRST, ("2", 1)):
        place.engine.end(key)
    await place.sent((id, 1))
    await place.until(lambda: not place.engine.ended)
    assert await place.running() == [id]


@in_place()
async def test_an_epoch_that_is_over_is_refused_and_changes_nothing(place):
    """Row 26."""
    await place.submit()
    await place.sent(FIRST)
    await place.kill()
    place.engine.epoch = 1000
    with pytest.raises(StoreInvalid):
        await place.open()
    place.controller = None
    assert list(place.engine.running) == [FIRST]
    assert place.engine.stops == []


@in_place()
@pytest.mark.parametrize("running", [True, False])
async def test_a_start_that_is_refused_is_refused_again_and_changes_nothing(place, running):
    """Row 88: of a backup from before the last start, with and without jobs that run."""
    await place.close()
    backup = place.home.store + ".backup"
    shutil.copy(place.home.store, backup)
    await place.open()
    await place.submit(environment={"A": "1"})
    await place.sent(FIRST)
    await place.close()
    kept, epoch = place.environments(), place.engine.epoch
    if not running:
        place.engine.end(FIRST)
    right = place.home.store + ".right"
    os.rename(place.home.store, right)
    shutil.copy(backup, place.home.store)
    before = stored(place.home.store)
    for _ in range(epoch + 2):
        with pytest.raises(StoreInvalid, match="older"):
            await place.open()
        place.controller = None
    assert stored(place.home.store) == before
    assert place.environments() == kept
    assert (place.engine.epoch, place.engine.stops) == (epoch, [])
    os.rename(right, place.home.store)
    await place.open()
    assert (await place.job("1")).attempts[-1].number == 1


def stored(path):
    """All rows of a store."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


@in_place()
async def test_who_loses_the_store_to_another_ends(place):
    """Row 17: whoever notices first, be it a user's call."""
    controller = place.controller
    place.store.faults = [StoreFenced(1)]
    with pytest.raises(StoreFenced):
        await place.submit()
    assert controller.stopping.is_set()
    assert isinstance(controller.failure, StoreFenced)
    await place.close()


@in_place()
async def test_strangers_are_stopped_and_forgotten_and_end_nothing_of_ours(place):
    id = await place.submit()
    await place.sent(FIRST)
    await place.kill()
    engine = place.engine
    engine.running["1", 7] = report("1", 7, "a0-7", state="running")
    engine.ended["1", 6] = report("1", 6, "a0-6", end={"reason": "exit", "code": 1})
    await place.open()
    await place.until(lambda: list(engine.running) == [FIRST] and not engine.ended)
    assert engine.stops == [(("1", 7), "node_lost")]
    assert await place.state(id) is JobState.RUNNING


# ---- the store is away


@in_place(cpu=2)
async def test_while_the_store_is_away_nothing_starts_and_ends_are_kept(place):
    """Row 19."""
    first, second = await place.submit(), await place.submit()
    waiting = await place.submit()
    await place.sent((first, 1), (second, 1))
    place.store.down = StoreUnavailable("away")
    place.engine.end((first, 1), code=4)
    place.engine.end((second, 1), code=5)
    await place.until(lambda: place.store.refused >= 2)
    with pytest.raises(StoreUnavailable):
        await place.submit()
    assert set(place.engine.ended) == {(first, 1), (second, 1)}  # not forgotten
    assert place.engine.started((waiting, 1)) == 0
    place.store.down = None
    jobs = await place.ended(first, second)
    assert [job.attempts[0].exit_code for job in jobs] == [4, 5]
    await place.sent((waiting, 1))


@in_place(cpu=1)
async def test_a_start_whose_commit_was_in_doubt_is_sent_once_it_is_known(place):
    """Row 20: it was written, but whoever wrote it was not told."""
    first, second = await place.submit(), await place.submit()
    await place.sent((first, 1))
    place.store.faults = [(OutcomeUnknown("gone"), True)]
    place.engine.end((first, 1))
    await place.sent((second, 1))
    await place.ended(first)
    assert place.engine.started((second, 1)) == 1


@in_place()
async def test_a_submission_in_doubt_keeps_its_environment_and_is_repeated(place):
    place.store.faults = [(OutcomeUnknown("gone"), True)]
    with pytest.raises(StoreUnavailable):
        await place.submit(op_id="one", environment={"A": "1"})
    id = await place.submit(op_id="one", environment={"A": "1"})
    await place.sent((id, 1))
    assert place.engine.orders[0].env["A"] == "1"


@in_place()
async def test_a_reconciliation_is_tried_until_the_ledger_answers(place):
    id = await place.submit()
    await place.sent(FIRST)
    place.engine.away = True
    place.engine.running.clear()
    ask, place.controller.runner._ask = place.controller.ask, failing(place.controller.ask, 2)
    place.engine.come_back()
    await place.until(lambda: FIRST in place.engine.running)
    place.controller.runner._ask = ask
    assert await place.state(id) is JobState.RUNNING
    assert place.engine.started(FIRST) == 2  # the node had lost it


def failing(ask, times):
    """Questions that the store does not answer so often."""
    left = itertools.count(1)

    async def failing(call):
        if isinstance(call, Read) and next(left) <= times:
            raise StoreUnavailable("away")
        return await ask(call)

    return failing


# ---- the node is away


@in_place()
async def test_what_was_ordered_while_the_node_was_away_is_ordered_again(place):
    id = await place.submit()
    await place.sent(FIRST)
    place.engine.away = True
    late = await place.submit()
    await place.until(lambda: (late, 1) in place.engine.asked)
    place.engine.end(FIRST, code=9, tell=False)
    place.engine.come_back()
    await place.sent((late, 1))
    assert (await place.ended(id)).attempts[0].exit_code == 9


@in_place()
async def test_a_node_that_came_back_does_not_start_again_what_has_ended_meanwhile(place):
    """Its list is older than the ledger: what it did not know then has been run, and is over."""
    old = place.engine.known()
    id = await place.submit()
    await place.sent(FIRST)
    engine, runner = place.engine, place.controller.runner
    gate = asyncio.Event()
    start = engine.start

    async def slow(orders):
        await gate.wait()
        await start(orders)

    engine.start = slow
    other = await place.submit()  # keeps those behind it waiting
    await place.until(lambda: not runner._outbox)
    engine.sink.returned(old)
    await place.until(lambda: runner._outbox)
    engine.end(FIRST)
    await place.ended(id)
    gate.set()
    await place.sent((other, 1))
    await place.quiet()
    assert engine.started(FIRST) == 1


@in_place()
async def test_a_node_that_is_taken_away_from_the_ledger_must_not_run_on(place):
    """What is freed by force must not be in use."""
    ids = [await place.submit(), await place.submit(2)]
    await place.sent(*((id, 1) for id in ids))
    await place.controller.ask(Unregister("ann", name="n1", force=True))
    await place.until(lambda: not place.engine.running)
    assert [await place.state(id) for id in ids] == [JobState.QUEUED] * 2
    place.engine.sink.node_changed(place.engine.node, [])
    await place.sent(*((id, 2) for id in ids))
    await place.controller.ask(SetHealth("ann", name="n1", health=Health.DOWN))
    await place.until(lambda: not place.engine.running and not place.engine.ended)


@in_place()
async def test_strangers_on_a_device_are_planned_around_until_they_leave(place):
    from gridhand.core.model.nodes import Node
    from gridhand.core.rows.ledger import node_row

    gpu = [{"model": "A100", "memory": "40GB"}]
    place.engine.sink.node_changed(node_row(Node.of("g1", cpu=1, gpus=gpu)), [])
    await place.until(lambda: sees(place, "g1"))
    place.engine.sink.measured("g1", {"foreign": {"g1/0": 10**9}})
    await place.until(lambda: foreign(place))
    place.engine.sink.measured("g1", {"foreign": {}})
    await place.until(lambda: is_not(foreign(place)))


async def sees(place, name):
    return await place.controller.ask(Read(lambda desk: name in desk.ledger.nodes))


async def foreign(place):
    return await place.controller.ask(Read(lambda desk: dict(desk.snapshot.foreign)))


async def is_not(answer):
    return not await answer


# ---- what cannot be prepared


@in_place()
async def test_an_environment_that_is_gone_ends_the_job_and_says_so(place):
    place.engine.away = True
    id = await place.submit(environment={"A": "1"})
    await place.kill()
    for name in place.environments():
        os.unlink(os.path.join(place.home.environments, name))
    await place.open()
    job = await place.ended(id)
    assert (job.state, job.reason) == (JobState.FAILED, Reason.START_FAILED)
    assert "cannot be prepared" in job.attempts[0].message
    assert place.engine.orders == []


@in_place()
async def test_a_folder_that_cannot_be_made_ends_the_job_and_not_the_controller(place):
    os.symlink(os.devnull, place.home.jobs)
    job = await place.ended(await place.submit())
    assert job.reason is Reason.START_FAILED
    os.unlink(place.home.jobs)
    await place.submit()
    await place.sent(("2", 1))


@in_place()
async def test_a_start_waits_while_the_controller_is_out_of_descriptors(place, monkeypatch):
    """Row 91: what the controller is short of is not the job's failure."""
    load, refused = place.controller.environments.load, []

    def short(name):
        if len(refused) < 2:
            refused.append(name)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return load(name)

    monkeypatch.setattr(place.controller.environments, "load", short)
    await place.submit()
    await place.sent(("1", 1))
    assert len(refused) == 2


@in_place()
async def test_a_fault_of_our_own_ends_the_controller_and_the_next_one_adopts(place):
    id = await place.submit()
    await place.sent(FIRST)
    controller, forget = place.controller, place.engine.forget

    async def faulty(keys):
        raise ZeroDivisionError("ours")

    place.engine.forget = faulty
    place.engine.end(FIRST, code=2)
    await asyncio.wait_for(controller.stopping.wait(), 10)
    assert isinstance(controller.failure, ZeroDivisionError)
    place.engine.forget = forget
    await place.close()
    await place.open()
    assert (await place.ended(id)).attempts[0].exit_code == 2


@in_place()
async def test_a_background_task_that_fails_is_noticed(place):
    async def faulty():
        raise ZeroDivisionError("ours")

    controller = place.controller
    controller._in_background(faulty())
    await asyncio.wait_for(controller.stopping.wait(), 10)
    assert isinstance(controller.failure, ZeroDivisionError)
    await place.close()


# ---- environments


@in_place(cpu=2)
async def test_an_array_shares_its_environment_which_goes_with_the_last_of_them(place):
    ids = await place.submit(indices=(1, 2, 3), environment={"TOKEN": "secret"})
    [name] = place.environments()
    for id in ids:
        await place.sent((id, 1))
        place.engine.end((id, 1))
        await place.ended(id)
        assert place.environments() == ([name] if id != ids[-1] else [])


@in_place(cpu=1)
async def test_after_a_restart_those_who_still_wait_have_their_environment(place):
    """One of them has ended meanwhile, and must not take it from the others."""
    ids = [await place.submit(environment={"A": "1"}) for _ in range(3)]
    await place.sent((ids[0], 1))
    await place.kill()
    place.engine.end((ids[0], 1))
    await place.open()
    for id in ids[1:]:
        await place.sent((id, 1))
        assert place.engine.orders[-1].env["A"] == "1"
        place.engine.end((id, 1))
    await place.ended(*ids)
    assert place.environments() == []


@in_place()
async def test_what_was_not_submitted_leaves_no_environment_behind(place):
    id = await place.submit(op_id="one", environment={"A": "1"})
    assert await place.submit(op_id="one", environment={"A": "1"}) == id
    with pytest.raises(OperationReused):
        await place.submit(2, op_id="one", environment={"B": "1"})
    place.store.faults = [StoreUnavailable("full")]
    with pytest.raises(StoreUnavailable):
        await place.submit(environment={"C": "1"}, indices=(1, 2))
    assert len(place.environments()) == 1
    await place.sent(FIRST)
    place.engine.end(FIRST)
    await place.ended(id)
    assert place.environments() == []


# ---- clients


@in_place()
async def test_an_attached_job_ends_with_its_client_but_not_if_that_is_back_in_time(
    place, monkeypatch
):
    monkeypatch.setattr(connections, "MOMENT_S", 0.05)
    id, kept = await place.submit(detached=False), await place.submit(detached=False)
    await place.sent(FIRST, (kept, 1))
    controller = place.controller
    for one in (id, kept):
        with controller.attached.connected(one):
            pass
    with controller.attached.connected(kept):
        job = await place.ended(id)
        assert (job.state, job.reason) == (JobState.CANCELLED, Reason.CLIENT_GONE)
        assert await place.state(kept) is JobState.RUNNING
        assert kept not in controller.attached._ending


@in_place()
async def test_after_a_restart_clients_have_a_while_to_come_back(place, monkeypatch):
    monkeypatch.setattr(connections.ConnectionCounts.expect, "__defaults__", (0.05,))
    gone, back = await place.submit(detached=False), await place.submit(detached=False)
    detached = await place.submit()
    await place.sent((gone, 1), (back, 1), (detached, 1))
    controller = await place.restart()
    with controller.attached.connected(back):
        assert (await place.ended(gone)).reason is Reason.CLIENT_GONE
        assert await place.running() == sorted([back, detached])


# ---- ending


@in_place(cpu=1)
async def test_stopping_is_refused_while_jobs_are_open_or_keeps_or_kills_them(place):
    ids = [await place.submit(), await place.submit()]
    await place.sent(FIRST)
    controller = place.controller
    with pytest.raises(JobsRunning):
        await controller.stop("refuse", "ann")
    assert not controller.stopping.is_set()
    await controller.stop("keep", "ann")
    assert controller.stopping.is_set()
    await place.close()
    controller = await place.open()
    assert place.engine.started(FIRST) == 1
    await controller.stop("kill", "ann")
    assert [await place.state(id) for id in ids] == [JobState.CANCELLED] * 2
    assert place.engine.running == {}


@in_place(cpu=1)
async def test_killing_that_fails_leaves_a_controller_that_starts_jobs(place):
    await place.submit()
    await place.sent(FIRST)
    place.store.faults = [StoreUnavailable("full")]
    with pytest.raises(StoreUnavailable):
        await place.controller.stop("kill", "ann")
    assert not place.controller.stopping.is_set()
    place.engine.end(FIRST)
    id = await place.submit()
    await place.sent((id, 1))


@in_place()
async def test_a_job_that_ended_while_the_store_was_away_has_run_only_until_then(place):
    id = await place.submit()
    await place.sent(FIRST)
    place.store.faults = [StoreUnavailable("away"), StoreUnavailable("away")]
    place.engine.end(FIRST, ran_ms=5)
    await place.ended(id)
    job = (await place.controller.job(id)).job
    assert place.store.faults == []
    assert job.ended - job.attempts[-1].started == 5
    assert job.ended < place.controller._keeper.clock.now() - 5


@pytest.mark.parametrize(("who", "admin"), [("ann", False), ("root", True)])
@in_place()
async def test_an_event_says_who_has_sent_a_signal(place, who, admin):
    id = await place.submit()
    await place.sent(FIRST)
    assert await place.controller.signal(who, id, 10, "op-1", any_owner=admin)

    async def told():
        events = await place.controller.ask(ListEvents(0, 100))
        return [event for event in events if event.kind == "job.signalled"]

    (event,) = await place.until(told)
    assert (event.subject, event.owner, event.op_id, event.why) == (id, who, "op-1", "signal 10")
    assert place.engine.stops == []
    with pytest.raises(NotYours):
        await place.controller.signal("bob", id, 10)


@in_place()
async def test_a_signal_is_sent_while_the_store_is_away_and_recorded_afterwards(place):
    id = await place.submit()
    await place.sent(FIRST)
    place.store.down = StoreUnavailable("away")
    assert await place.controller.signal("ann", id, 10)
    await place.until(lambda: place.store.refused)
    place.store.down = None

    async def told():
        events = await place.controller.ask(ListEvents(0, 100))
        return [event for event in events if event.kind == "job.signalled"]

    await place.until(told)


@in_place()
async def test_what_is_old_is_forgotten_with_what_it_wrote_and_nothing_else(place, monkeypatch):
    ids = [await place.submit() for _ in range(3)]
    await place.sent(*((id, 1) for id in ids))
    place.engine.end((ids[0], 1))
    place.engine.end((ids[1], 1))
    await place.ended(*ids[:2])
    jobs = place.home.jobs
    for name in ("1", "2", "3", "88", "notes"):  # 88 is of another store, and young
        os.makedirs(os.path.join(jobs, name), exist_ok=True)
    for name in ("1", "3", "notes"):
        os.utime(os.path.join(jobs, name), (0, 0))
    await place.controller._retention.forget()
    assert sorted(os.listdir(jobs)) == ["1", "2", "3", "88", "notes"]  # the store knows them all
    monkeypatch.setattr(retention, "find_stored", lambda ids: Read(lambda desk: []))
    await place.controller._retention.forget()
    assert sorted(os.listdir(jobs)) == ["2", "3", "88", "notes"]


@pytest.mark.parametrize(
    ("changed", "ledger", "old"),
    [
        (-31, 0, True),
        (-29, 0, False),
        (-31, 10, False),  # 31 days ago, of which a jump of the clock is not counted
        (-1, -400, False),  # the wall clock was years ahead before
        (40, 0, False),
        (40, -400, True),  # written while it was ahead, and passed by ledger time since
    ],
)
def test_a_folder_is_old_if_it_is_by_wall_clock_and_ledger_time(tmp_path, changed, ledger, old):
    """Row 96; `ledger` is how many days later ledger time has what is 30 days old."""
    now, folder = time.time(), tmp_path / "88"
    folder.mkdir()
    os.utime(folder, (now + changed * 86_400,) * 2)
    cut = now - (30 + ledger) * 86_400
    assert retention._older(str(tmp_path), cut, 30 * 86_400) == (["88"] if old else [])


def test_a_controller_that_could_not_open_leaves_the_store_to_others(tmp_path):
    async def twice():
        place = Place(tmp_path / "home")
        place.engine.epoch = 99
        with pytest.raises(StoreInvalid):
            await place.open()
        place.engine.epoch = 0
        await place.open()
        await place.close()

    asyncio.run(twice())


@in_place()
async def test_on_a_full_disk_ends_are_written_though_a_job_waits_for_the_room(place, monkeypatch):
    """Row 23: the start that an end makes room for must not make the end count as new."""
    await place.submit(4)
    await place.sent(FIRST)
    queued = await place.submit(4)
    with monkeypatch.context() as full:
        full.setattr("gridhand.store.sql.sqlite.fill_reserve", lambda *_: False)
        assert place.store.relieve()  # the space that was kept for releasing is being used up
        place.engine.end(FIRST)
        await place.until(lambda: not place.engine.ended)
        assert await place.state("1") is JobState.SUCCEEDED
        assert await place.state(queued) is JobState.QUEUED
    await place.sent((queued, 1))
