"""The account of a wait: each millisecond has one cause."""

import random

import pytest

from gridhand.core.queue.wait_causes import JobClock, QueueClock, cause_text, room_cause

TEXTS = {
    "room:gpu": "no GPU free",
    "room:cpu+memory": "no CPU and memory free",
    "room:license": "no license free",
    "room": "no room",
    "turn": "behind others",
    "back_off": "between retries",
}


@pytest.mark.parametrize("cause", TEXTS)
def test_causes_in_words(cause):
    assert cause_text(cause) == TEXTS[cause]


def test_a_job_that_joins_late_gets_only_its_own_time():
    queue = QueueClock(0)
    first, second = JobClock(0, 0), JobClock(100, 100)
    first.join(queue, 0)
    queue.switch(room_cause(["gpu"]), 40)
    second.join(queue, 100)
    queue.switch("kept", 150)
    assert first.waited(170) == (("turn", 40), ("room:gpu", 110), ("kept", 20))
    assert second.waited(170) == (("room:gpu", 50), ("kept", 20))


def test_time_that_nobody_has_seen_is_told_apart():
    clock = JobClock(100, 130)
    clock.wait_for("held", 130)
    clock.wait_for("dependency", 150)
    assert clock.waited(160) == (("unknown", 30), ("held", 20), ("dependency", 10))


@pytest.mark.parametrize("seed", range(50))
def test_the_causes_of_a_wait_add_up_to_it(seed):
    chance, now = random.Random(seed), 1000
    queues = [QueueClock(now) for _ in range(3)]
    clocks: dict[int, JobClock] = {}
    for _ in range(300):
        now += chance.choice([0, 0, 1, 7, 1000])
        kind = chance.randrange(4)
        if kind == 0 or not clocks:
            clocks[now * 1000 + len(clocks)] = JobClock(now, now)
        elif kind == 1:
            chance.choice(queues).switch(chance.choice(["turn", "room:cpu", "kept"]), now)
        elif kind == 2:
            chance.choice(list(clocks.values())).join(chance.choice(queues), now)
        else:
            chance.choice(list(clocks.values())).wait_for(chance.choice(["held", "begin"]), now)
        for since, clock in clocks.items():
            waited = clock.waited(now)
            assert sum(ms for _, ms in waited) == now - since // 1000
            assert all(ms > 0 for _, ms in waited)
