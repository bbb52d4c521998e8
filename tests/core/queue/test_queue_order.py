"""The order as it is read is the order of a pass."""

import random

import pytest

from gridhand.core.jobs.job import JobSpec, Priority, submit
from gridhand.core.model.requests import Request
from gridhand.core.queue import queue_order
from gridhand.core.queue.queue import Queue
from gridhand.core.queue.queue_order import order_of, queue_lines

SHARES = {"ann": 0.5, "bob": 0.1, "cat": 0.3}


def job(number, owner="ann", priority="medium", cpu=1, array=None, submitted=0, **more):
    work = JobSpec(owner, ("true",), "/", Request.of(cpu=cpu), priority=Priority(priority), **more)
    return submit(work, id=str(number), number=number, now=submitted, array=array)


def queue_with(*jobs):
    queue = Queue()
    queue.ready.owner_order = lambda owner, since, now: SHARES[owner] - (now - since) / 1000
    for one in jobs:
        queue.put(one)
    return queue


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_it_is_the_order_of_a_pass(seed, refused):
    chance = random.Random(seed)
    jobs = [
        job(
            number,
            chance.choice(list(SHARES)),
            chance.choice(list(Priority)),
            chance.randrange(1, 4),
            submitted=number,
        )
        for number in range(1, 40)
    ]
    queue = queue_with(*jobs)
    queue.ready.class_patience_ms = chance.choice([50, 10**9])
    if refused:
        for one in queue.order(100):
            queue.refuse(one.id, "no")
    else:
        list(queue.order(100))
    read = [entry.job.id for entry in order_of(queue.ready, 100)]
    again = [entry.job.id for entry in order_of(queue.ready, 100)]
    queue.freed()
    assert read == again == [one.id for one in queue.order(100)]


def test_a_newcomer_is_read_in_its_place_and_not_kept():
    queue = queue_with(job(1, "ann"), job(2, "bob"), job(3, "cat"))
    newcomer = job(4, "cat")
    assert [one.job.number for one in order_of(queue.ready, 0, newcomer)] == [2, 3, 4, 1]
    assert [one.job.number for one in order_of(queue.ready, 0)] == [2, 3, 1]


def test_tasks_of_an_array_are_one_line():
    tasks = [job(number, array="2") for number in (2, 3, 4)]
    queue = queue_with(job(1), *tasks, job(5), job(6, array="6", cpu=2))
    lines = list(queue_lines(queue.ready, 0))
    assert [(one.position, one.job.number, one.last.number, one.tasks) for one in lines] == [
        (1, 1, 1, 1),
        (2, 2, 4, 3),
        (5, 5, 5, 1),
        (6, 6, 6, 1),
    ]


def test_only_so_many_are_read(monkeypatch):
    monkeypatch.setattr(queue_order, "MOST_READ", 10)
    queue = queue_with(*(job(number, array="1") for number in range(1, 30)))
    (line,) = queue_lines(queue.ready, 0)
    assert (line.tasks, line.complete) == (10, False)
