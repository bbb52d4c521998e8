"""Lists of jobs in which the tasks of an array that are alike are one line, at any size."""

from controller_place import in_place
from gridhand.controller.jobs import job_reader
from gridhand.controller.jobs.job_reader import JobFilter
from gridhand.core.jobs.job import JobState


def told(lines):
    return [(line.summary()["named"], str(line.view.state), line.count) for line in lines]


@in_place()
async def test_tasks_that_are_alike_are_one_line_however_many_there_are(place):
    await place.submit(indices=range(1, 1501))
    await place.sent(*((f"1_{n}", 1) for n in range(1, 5)))
    single = await place.submit()
    lines = await place.controller.lines(JobFilter(limit=3))
    assert told(lines) == [
        (single, "queued", 1),
        ("1_[5-1500]", "queued", 1496),
        ("1_[1-4]", "running", 4),
    ]
    assert told(await place.controller.lines(JobFilter(limit=1))) == [(single, "queued", 1)]
    assert told(await place.controller.lines(JobFilter((JobState.RUNNING,)))) == [
        ("1_[1-4]", "running", 4)
    ]


@in_place()
async def test_ended_tasks_are_folded_across_the_pages_that_are_read(place, monkeypatch):
    monkeypatch.setattr(job_reader, "_PAGE", 3)
    ids = await place.submit(indices=range(1, 12), cpu=0.1)
    await place.sent(*((id, 1) for id in ids))
    for id in ids:
        place.engine.end((id, 1), code=int(id == "1_7"))
    await place.ended(*ids)
    assert told(await place.controller.lines(JobFilter(limit=5))) == [
        ("1_7", "failed", 1),
        ("1_[1-6,8-11]", "succeeded", 10),
    ]
    later = (await place.job("1_1")).ended + 1_000_000
    assert await place.controller.lines(JobFilter(limit=5), since=later) == []
