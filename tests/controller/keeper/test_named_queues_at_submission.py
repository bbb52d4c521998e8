"""Named queues and quotas, as the keeper applies them to submissions."""

import pytest

from controller_place import in_place
from gridhand import NeverFits, OverLimit, QuotaExceeded, StoreUnavailable, UnknownQueue
from gridhand.controller.jobs.dry_run import planned
from gridhand.controller.keeper.questions import Read
from gridhand.core.jobs.job import JobSpec, Priority, Reason
from gridhand.core.jobs.scopes import Scope
from gridhand.core.model.requests import Request
from gridhand.core.observations import UseGranularity, UseQueues
from gridhand.core.operations import Cancel, SetDraining, Submit
from gridhand.core.queue.named_queues import NamedQueues, QueueRules, Quota
from job_desk import work_of

MB = 10**6
OPEN = frozenset({"priority", "cpu"})


def use(desk, quotas=None, **rules):
    named = {name: QueueRules(name, **given) for name, given in rules.items()}
    desk.ask(UseQueues(NamedQueues(named, quotas or {})))


def tally(desk, owner="ann", queue=None):
    found = desk.ask(Read(lambda context: context.ledger.jobs.tallies[Scope(owner, queue)]))
    return found.open, found.queued, found.asked.get("cpu", 0) // 10_000


def test_a_queue_completes_a_job_and_a_repeat_after_a_reload_finds_it(desk):
    desk.nodes(a=8)
    use(desk, q={"priority": Priority.HIGH, "defaults": {"cpu": 20_000}})
    command = Submit("ann", "op1", work_of(1, queue="q"), left_open=OPEN)
    (id,) = desk.ask(command).ids
    job = desk.job(id)
    assert (job.work.queue, job.work.priority) == ("q", "high")
    assert job.request == Request.of(cpu=2)
    use(desk)
    assert desk.ask(command).ids == [id]
    with pytest.raises(UnknownQueue):
        desk.submit(1, queue="q")


def test_the_default_queue_takes_jobs_that_name_none(desk):
    desk.nodes(a=8)
    use(desk, default={"limits": {"cpu": 20_000}})
    assert desk.job(desk.submit(2)).work.queue == "default"
    with pytest.raises(OverLimit, match="queue default"):
        desk.submit(3)


def test_memory_is_rounded_before_the_limits_are_looked_at(desk):
    desk.nodes(a=8)
    desk.ask(UseGranularity(300 * MB))
    use(desk, q={"limits": {"memory": 1000 * MB}})
    with pytest.raises(OverLimit, match=r"memory: 1.2GB is more than queue q allows"):
        desk.submit(1, queue="q", memory="950MB")


def test_jobs_that_wait_are_counted_until_they_start_or_end(desk):
    desk.nodes(a=1)
    use(desk, quotas={"ann": Quota(max_queued_jobs=2)})
    first, second, third = (desk.submit(1) for _ in range(3))
    assert tally(desk) == (3, 2, 2)
    with pytest.raises(QuotaExceeded, match="ann has 2 of 2 queued jobs; 1 more"):
        desk.submit(1)
    desk.submit(1, owner="bob", priority=Priority.LOW)
    desk.end(first)
    fourth = desk.submit(1)
    assert tally(desk) == (3, 2, 2)
    desk.ask(Cancel("ann", ids=(third, fourth)))
    assert tally(desk) == (1, 0, 0)
    desk.ask(SetDraining("ann", name="a"))
    desk.end(second, reason=Reason.NODE_LOST)
    assert tally(desk) == (1, 1, 1)  # it waits again, and counts
    desk.check()


def test_an_array_is_refused_as_a_whole(desk):
    desk.nodes(a=1)
    use(desk, q={"max_length": 4})
    with pytest.raises(QuotaExceeded, match="queue q has 0 of 4 queued jobs; 5 more"):
        desk.submit(1, queue="q", indices=range(5))
    assert desk.jobs() == {}
    assert len(desk.submit(1, queue="q", indices=range(4))) == 4


def test_counts_are_the_same_after_a_restart(desk):
    desk.nodes(a=1)
    use(desk, q={})
    desk.submit(1, queue="q", indices=range(4))
    before = tally(desk), tally(desk, None, "q"), tally(desk, "ann", "q")
    assert before == ((4, 3, 3),) * 3
    desk.restart()
    assert (tally(desk), tally(desk, None, "q"), tally(desk, "ann", "q")) == before


def test_counts_are_undone_with_a_batch_that_could_not_be_written(desk):
    desk.nodes(a=1)
    desk.submit(1)
    before = tally(desk)
    for call in (lambda: desk.submit(1), lambda: desk.end(desk.running()[0])):
        desk.store.faults = [StoreUnavailable("full")]
        with pytest.raises(StoreUnavailable):
            call()
    assert tally(desk) == before


def test_the_rules_outlive_a_reading_of_the_ledger(desk):
    desk.nodes(a=1)
    use(desk, q={"max_length": 0})
    desk.keeper._load()
    with pytest.raises(QuotaExceeded):
        desk.submit(1, queue="q")


@in_place()
async def test_a_dry_run_is_refused_as_the_submission_would_be(place):
    rules = QueueRules("q", defaults={"cpu": 10_000_000}, max_length=2)
    await place.controller.ask(UseQueues(NamedQueues({"q": rules})))
    work = JobSpec("ann", ("true",), "/", Request.of(cpu=1), queue="q")
    assert (await planned(place.controller, work, ()))["starts"]
    with pytest.raises(QuotaExceeded, match="3 more"):
        await planned(place.controller, work, (), count=3)
    with pytest.raises(NeverFits, match="1000"):
        await planned(place.controller, work, (), left_open=OPEN)
