"""The order in which the jobs of several owners start."""

from gridhand.core.jobs.spec import Priority
from gridhand.core.operations import Cancel


def owners_of(desk, ids):
    return [desk.job(id).work.owner for id in ids]


def test_the_second_owner_does_not_wait_behind_the_hundred_of_the_first(desk):
    desk.nodes(a=2)
    desk.submit(indices=range(100), at_once=100, stdin="/dev/null")
    theirs = [desk.submit(owner="bob") for _ in range(2)]
    first = desk.running()
    desk.end(first[0])
    assert theirs[0] in desk.running()
    desk.end(first[1])
    assert owners_of(desk, desk.running()).count("bob") == 1  # equal shares: one core each


def test_equal_owners_get_equal_shares_of_unequal_numbers_of_jobs(desk):
    desk.nodes(a=4)
    for owner, count in (("ann", 60), ("bob", 20)):
        for _ in range(count):
            desk.submit(owner=owner)
    for _ in range(8):
        desk.end(desk.running()[0])
    assert owners_of(desk, desk.running()).count("bob") == 2


def test_larger_jobs_count_for_more(desk):
    """Dominant shares differ by at most one job's share."""
    desk.nodes(a=8)
    for _ in range(10):
        desk.submit(2, owner="ann")
        desk.submit(1, owner="bob")
    for _ in range(12):
        desk.end(desk.running()[0])
        held = {"ann": 0, "bob": 0}
        for id in desk.running():
            job = desk.job(id)
            held[job.work.owner] += job.request.amounts["cpu"] // 10_000
        if all(
            any(job.work.owner == owner and job.attempt is None for job in desk.jobs().values())
            for owner in held
        ):
            assert abs(held["ann"] - held["bob"]) <= 2


def test_priorities_come_before_shares(desk):
    desk.nodes(a=1)
    running = desk.submit(owner="ann")
    low = desk.submit(owner="bob", priority=Priority.LOW)
    high = desk.submit(owner="ann", priority=Priority.HIGH)
    desk.end(running)
    assert desk.running() == [high]
    desk.end(high)
    assert desk.running() == [low]


def test_a_priority_that_waits_for_an_hour_gets_a_turn(desk):
    desk.nodes(a=1)
    low = desk.submit(priority=Priority.LOW, owner="bob")
    desk.end(low)
    low = desk.submit(priority=Priority.LOW, owner="bob")
    desk.end(low)
    running = desk.submit(priority=Priority.HIGH)
    low = desk.submit(priority=Priority.LOW, owner="bob")
    others = [desk.submit(priority=Priority.HIGH) for _ in range(3)]
    desk.clock.ms += 3_599_000
    desk.end(running)
    assert desk.running() == others[:1]
    desk.clock.ms += 1_000
    desk.end(others[0])
    assert desk.running() == [low]
    desk.end(low)
    assert desk.running() == others[1:2]


def test_a_job_that_cannot_end_in_time_is_cancelled(desk):
    desk.nodes(a=1)
    running = desk.submit()
    late = desk.submit(deadline_ms=10_000, time_limit_ms=4_000)
    desk.clock.ms += 6_000
    desk.submit()
    assert desk.job(late).open
    desk.clock.ms += 1
    desk.submit()
    assert (desk.job(late).state, desk.job(late).reason) == ("cancelled", "deadline")
    desk.end(running)


def test_what_owners_had_is_known_after_a_restart(desk):
    desk.nodes(a=2)
    long = desk.submit(owner="ann")
    desk.clock.ms += 4 * 86_400_000
    desk.end(long)
    desk.submit(2, owner="eve")
    desk.clock.ms += 60_000
    desk.ask(Cancel("eve", ids=(desk.submit(owner="eve"),)))
    before = desk.dispatch.shares.past_share("ann")
    assert before > 0.1
    now = desk.clock.ms
    desk.restart()
    desk.clock.ms = now
    assert desk.dispatch.shares.past_share("ann") == before
    anns, bobs = desk.submit(2, owner="ann"), desk.submit(2, owner="bob")
    desk.end("2")
    assert desk.running() == [bobs]
    assert desk.job(anns).open
