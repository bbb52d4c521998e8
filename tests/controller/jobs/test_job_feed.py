"""Feed: who listens hears of each change once, and only of what they asked for."""

import asyncio

from gridhand.controller.jobs import job_feed
from gridhand.controller.jobs.job_feed import Feed
from gridhand.core.jobs.job import Job, JobSpec, JobState
from gridhand.core.model.requests import Request

WORK = JobSpec("ann", ("true",), "/", Request.of(cpu=1))


def job(number, state=JobState.QUEUED):
    return Job(str(number), number, WORK, WORK.request, 0, state=state)


def test_each_hears_of_its_own_jobs_and_who_wants_all_of_all():
    async def hear():
        told = Feed()
        with told.listen("1", "2") as some, told.listen(None) as every, told.listen("3") as none:
            for number in (1, 2, 4):
                told.tell(job(number))
            assert await some.changes() == [job(1), job(2)]
            assert await every.changes() == [job(1), job(2), job(4)]
            assert await none.changes(0) == []

    asyncio.run(hear())


def test_a_job_that_changed_twice_is_told_as_it_is_now():
    async def hear():
        told = Feed()
        with told.listen("1") as listening:
            told.tell(job(1))
            told.tell(job(1, JobState.CANCELLED))
            assert await listening.changes() == [job(1, JobState.CANCELLED)]
            assert await listening.changes(0) == []
            told.tell(job(1))
            assert await listening.changes() == [job(1)]

    asyncio.run(hear())


def test_who_waits_is_woken_by_the_change():
    async def hear():
        told = Feed()
        with told.listen("1") as listening:
            waiting = asyncio.create_task(listening.changes(30))
            await asyncio.sleep(0)
            told.tell(job(1))
            assert await asyncio.wait_for(waiting, 30) == [job(1)]

    asyncio.run(hear())


def test_nothing_is_left_of_those_who_have_gone():
    told = Feed()
    with told.listen("1"), told.listen("1", None):
        assert set(told._of) == {"1", None}
    assert told._of == {}
    told.tell(job(1))


def test_who_never_reads_does_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(job_feed, "_MOST_UNREAD", 3)

    async def hear():
        told = Feed()
        with told.listen(None) as listening:
            for number in range(10):
                told.tell(job(number))
            told.tell(job(0, JobState.RUNNING))  # one that it knows of is still told anew
            assert await listening.changes() == [job(0, JobState.RUNNING), job(1), job(2)]

    asyncio.run(hear())
