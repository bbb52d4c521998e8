"""What the keeper tells about the queue: the order, the place of a job, and when it should start."""

import threading
from dataclasses import replace

from gridhand import Node
from gridhand.controller.keeper.questions import Read
from gridhand.controller.keeper.queue_questions import find_new_place, find_place, read_queue
from gridhand.core.jobs.job import After, JobSpec
from gridhand.core.jobs.spec import Priority
from gridhand.core.ledger.allocations import Terms
from gridhand.core.model.requests import Request
from gridhand.core.operations import Allocate, Register, Submit
from gridhand.core.queue import forecast
from job_desk import work_of
from until import until

MINUTE = 60_000


def reading(desk, limit=100, owner=None):
    return desk.ask(Read(lambda context: read_queue(desk.dispatch, context, limit, owner)))


def place(desk, id):
    job = desk.job(id)
    return desk.ask(Read(lambda context: find_place(desk.dispatch, context, job)))


def new_place(desk, cpu=1, **wishes):
    work = work_of(cpu, **wishes)
    return desk.ask(Read(lambda context: find_new_place(desk.dispatch, context, work)))


def ids(desk, **wanted):
    return [row.line.job.id for row in reading(desk, **wanted).rows]


def test_the_queue_is_read_in_the_order_in_which_it_is_tried(desk):
    desk.nodes(a=4)
    desk.submit(4, owner="ann", expect_ms=10 * MINUTE)
    of_ann = desk.submit(1, owner="ann")
    low = desk.submit(1, owner="cat", priority=Priority.LOW)
    of_bob = desk.submit(1, owner="bob")
    urgent = desk.submit(2, owner="ann", priority=Priority.URGENT)
    order = [urgent, of_bob, of_ann, low]
    assert ids(desk) == order
    assert ids(desk, limit=2) == order[:2]
    assert ids(desk, owner="ann") == [urgent, of_ann]
    positions = [row.line.position for row in reading(desk, owner="ann").rows]
    assert positions == [1, 3]
    first = reading(desk).rows[0]
    assert (first.share, first.why) == (1.0, "no CPU free")
    assert first.start[:2] == (desk.clock.ms + 10 * MINUTE, "a")


def test_who_waits_for_something_else_is_only_counted(desk):
    desk.nodes(a=1)
    first = desk.submit()
    desk.submit(after=[After(first)])
    desk.submit(begin_ms=MINUTE)
    waits = desk.submit()
    found = reading(desk)
    assert ([row.line.job.id for row in found.rows], found.ready, found.later) == ([waits], 1, 2)


def test_an_allocation_that_waits_is_in_the_queue(desk):
    desk.nodes(a=1)
    job = desk.submit()
    terms = Terms("bob", holder="upkeep")
    asked = Allocate("bob", None, (Request.of(cpu=1),), terms, wait_ms=MINUTE)
    waiting = threading.Thread(target=lambda: desk.ask(asked))
    waiting.start()
    until(lambda: len(reading(desk).rows) == 1)
    (row,) = reading(desk).rows
    assert (row.is_job, row.holder, row.line.job.work.owner) == (False, "upkeep", "bob")
    desk.end(job)
    waiting.join()
    assert reading(desk).rows == []


def test_the_place_of_a_job_says_who_is_ahead_and_why(desk):
    desk.nodes(a=4)
    desk.submit(4, owner="ann", expect_ms=10 * MINUTE)
    desk.submit(1, owner="bob", priority=Priority.HIGH)
    desk.submit(1, owner="bob")
    desk.submit(1, owner="ann")
    last = desk.submit(1, owner="ann")
    found = place(desk, last)
    assert (found.position, found.ready) == (4, 4)
    assert {(one.owner, one.why, one.jobs) for one in found.ahead} == {
        ("bob", "priority", 1),
        ("bob", "share", 1),
        ("ann", "own", 1),
    }
    assert found.share == 1.0
    assert "1 job of bob with priority high" in "\n".join(found.lines(desk.clock.ms))
    assert found.lines(desk.clock.ms)[-1] == "expected start: in 10m on a"


def test_a_job_that_is_not_ready_has_no_place(desk):
    desk.nodes(a=1)
    first = desk.submit()
    assert place(desk, desk.submit(after=[After(first)])) is None
    assert place(desk, first) is None


def test_a_job_behind_others_is_expected_after_them(desk):
    desk.nodes(a=1)
    desk.submit(expect_ms=10 * MINUTE)
    for _ in range(3):
        desk.submit(expect_ms=20 * MINUTE)
    last = desk.submit()
    assert place(desk, last).start[:2] == (desk.clock.ms + 70 * MINUTE, "a")


def test_the_forecast_uses_all_nodes_and_devices(desk):
    desk.ask(Register("ann", nodes=(Node.of("a", cpu=8, gpu=2), Node.of("b", cpu=8))))
    with_gpus = JobSpec("ann", ("true",), "/", Request.of(cpu=1, gpu=2), expect_ms=3 * MINUTE)
    desk.ask(Submit("ann", None, with_gpus))
    desk.submit(8, node="b", expect_ms=10 * MINUTE)
    desk.submit(7, node="a", expect_ms=20 * MINUTE)
    assert len(desk.running()) == 3
    assert new_place(desk, 4).start[:2] == (desk.clock.ms + 10 * MINUTE, "b")
    (waits,) = desk.ask(Submit("ann", None, with_gpus)).ids
    assert place(desk, waits).start[:2] == (desk.clock.ms + 3 * MINUTE, "a")
    work = replace(with_gpus, request=Request.of(cpu=1, gpu=1))
    found = desk.ask(Read(lambda context: find_new_place(desk.dispatch, context, work)))
    assert found.start[:2] == (desk.clock.ms + 6 * MINUTE, "a")


def test_without_an_expected_end_the_start_is_not_known(desk):
    desk.nodes(a=1)
    desk.ask(Allocate("ann", None, (Request.of(cpu=1),), Terms("ann", holder="for ever")))
    assert place(desk, desk.submit()).start is None


def test_a_forecast_that_takes_too_long_is_not_made(desk, monkeypatch):
    desk.nodes(a=1)
    for _ in range(10):
        desk.submit(expect_ms=MINUTE)
    last = desk.submit()
    assert place(desk, last).start is not None
    monkeypatch.setattr(forecast, "_MOST_WORK", 20)
    assert place(desk, last).start is None


def test_a_question_changes_nothing(desk):
    desk.nodes(a=2)
    running = desk.submit(2, owner="ann", expect_ms=MINUTE)
    waiting = [desk.submit(1, owner=owner) for owner in ("ann", "bob", "ann")]
    before = reading(desk)
    for cpu in (1, 2):
        new_place(desk, cpu, owner="cat")
    assert reading(desk) == before
    desk.end(running)
    assert len(desk.running()) == 2
    assert set(desk.running()) <= set(waiting)
    desk.check()


def test_a_new_job_is_placed_by_the_share_of_its_owner(desk):
    desk.nodes(a=1)
    desk.submit(owner="ann", expect_ms=MINUTE)
    desk.submit(owner="ann", expect_ms=MINUTE)
    assert new_place(desk, owner="bob").position == 1
    assert new_place(desk, owner="ann").position == 2
