"""Held jobs and jobs that begin later, decided by a keeper with a queue."""

import pytest

from gridhand import JobRefused, NotYours, UnknownJob
from gridhand.controller.keeper.questions import Read
from gridhand.core.jobs.job import JobPhase, JobState
from gridhand.core.operations import Cancel, SetHeld
from gridhand.core.queue.job_view import view_job
from job_desk import Desk


@pytest.fixture
def desk(tmp_path):
    desk = Desk(str(tmp_path / "grid.db"))
    desk.nodes(n1=2)
    yield desk
    desk.check()
    desk.backend.close()


def view(desk, id):
    return desk.ask(
        Read(
            lambda state: view_job(
                state.ledger.jobs.open[id], state.ledger, desk.dispatch.queue, state.now
            )
        )
    )


def held(desk, *ids, owner="ann", let_go=False, **more):
    return desk.ask(SetHeld(owner, ids=ids, held=not let_go, **more))


def test_a_held_job_starts_when_it_is_let_go(desk):
    desk.submit(2)
    id = desk.submit(2)
    assert held(desk, id) == [id]
    desk.end("1")
    assert desk.running() == []
    assert view(desk, id).phase is JobPhase.HELD
    assert view(desk, id).why == "held; `grid unhold 2` lets it start"
    assert held(desk, id, let_go=True) == [id]
    assert desk.running() == [id]


def test_a_hold_outlives_the_controller(desk):
    desk.submit(2)
    id = desk.submit(2)
    held(desk, id)
    desk.restart()
    desk.end("1")
    assert desk.running() == []
    assert held(desk, id, let_go=True) == [id]
    assert desk.running() == [id]


def test_the_queued_tasks_of_an_array_are_held_by_its_id(desk):
    ids = desk.submit(1, indices=range(1, 5))
    assert desk.running() == ids[:2]
    assert held(desk, "1") == ids[2:]
    assert held(desk, "1") == []
    desk.end(*ids[:2])
    assert desk.running() == []
    assert held(desk, "1", let_go=True) == ids[2:]
    assert desk.running() == ids[2:]


def test_a_held_job_can_be_cancelled(desk):
    desk.submit(2)
    id = desk.submit(2)
    held(desk, id)
    desk.ask(Cancel("ann", ids=(id,)))
    assert desk.state(id) is JobState.CANCELLED


def test_only_a_queued_job_of_one_s_own_can_be_held(desk):
    running = desk.submit(2)
    id = desk.submit(2)
    with pytest.raises(JobRefused, match="cannot hold job 1: it is running"):
        held(desk, running)
    with pytest.raises(NotYours):
        held(desk, id, owner="eve")
    with pytest.raises(UnknownJob):
        held(desk, "99")
    assert held(desk, id, owner="root", any_owner=True) == [id]


def test_a_job_begins_when_it_was_told_to(desk):
    id = desk.submit(1, begin_ms=5000)
    assert desk.running() == []
    assert view(desk, id).phase is JobPhase.SCHEDULED
    assert view(desk, id).why == "begins at 1970-01-01 00:16:45 UTC"
    desk.clock.ms += 4999
    desk.submit(1)
    assert desk.running() == ["2"]
    desk.clock.ms += 1
    desk.submit(1)
    assert desk.running() == ["1", "2"]
