"""Room for gangs that wait, on a fake clock: kept on as many nodes as they need."""

from gridhand.controller.keeper import job_commands
from gridhand.core.jobs.job import JobSpec, JobState, Priority, Reason
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.model.nodes import Health
from gridhand.core.model.requests import Request
from gridhand.core.operations import Submit
from gridhand.core.queue.named_queues import NamedQueues, Quota
from queue_world import SECOND, QueueWorld

MINUTE = 60 * SECOND


def gang(world, nodes, cpu=4, *, owner="ann", run_ms=60 * SECOND, **wishes):
    work = JobSpec(owner, ("true",), "/", Request.of(cpu=cpu), nodes=nodes, **wishes)
    command = Submit(owner, None, work, tuple(range(nodes)))
    ids = job_commands.submit(command, world.context).ids
    world.number = world.context.ledger.jobs.next_number - 1
    world.run_ms.update(dict.fromkeys(ids, run_ms))
    return ids


def single(world, cpu=1, **wishes):
    world.number = world.context.ledger.jobs.next_number - 1
    id = world.submit(cpu, **wishes)
    world.context.ledger.jobs.next_number = world.number + 1
    return id


def started(world):
    return {id: at - 1_000_000_000 for at, id, _ in world.starts}


def test_a_stream_of_small_jobs_does_not_starve_a_gang():
    world = QueueWorld(n1=4, n2=4, n3=4)
    for number in range(6):
        single(world, 2, owner="bob", run_ms=(5 + number) * MINUTE, expect_ms=(5 + number) * MINUTE)
    world.decide()
    ids = gang(world, 3, owner="ann", expect_ms=MINUTE)
    for _ in range(80):  # without claims there would never be three free nodes
        single(world, 2, owner="bob", run_ms=7 * MINUTE, expect_ms=7 * MINUTE)
        world.decide()
        world.advance(world.now + 20 * SECOND)
    assert {started(world)[id] for id in ids} == {started(world)[ids[0]]}
    assert started(world)[ids[0]] <= 20 * MINUTE


def test_room_is_kept_on_as_many_nodes_from_one_time():
    world = QueueWorld(n1=4, n2=4, n3=4)
    for number in (1, 2, 3):
        single(world, 4, run_ms=number * MINUTE, expect_ms=number * MINUTE)
    world.decide()
    ids = gang(world, 2)
    world.decide()
    claims = {claim.job: claim for claim in world.dispatch.timeline}
    assert sorted(claims) == ids
    assert {claim.start - world.now for claim in claims.values()} == {2 * MINUTE}
    assert len({claim.node for claim in claims.values()}) == 2
    end = next(id for id in ("1", "2", "3") if world.open[id].attempt.node == claims[ids[1]].node)
    world.end(end)  # earlier than expected
    world.decide()
    starts = {claim.start - world.now for claim in world.dispatch.timeline}
    assert starts == {MINUTE}


def test_short_jobs_use_the_kept_nodes_until_then():
    world = QueueWorld(n1=4, n2=4)
    world.dispatch.timeline.patience_ms = 0
    single(world, 4, run_ms=10 * MINUTE, expect_ms=10 * MINUTE)
    world.decide()
    ids = gang(world, 2)
    world.decide()
    short = single(world, 4, owner="bob", run_ms=MINUTE, expect_ms=MINUTE)
    long = single(world, 4, owner="eve", run_ms=20 * MINUTE, expect_ms=20 * MINUTE)
    world.decide()
    assert started(world)[short] == 0
    assert long not in started(world)
    world.advance(world.now + 11 * MINUTE)
    assert started(world)[ids[0]] == started(world)[ids[1]] == 10 * MINUTE


def test_claims_of_a_gang_go_with_a_node_that_it_needs():
    world = QueueWorld(n1=4, n2=4)
    world.dispatch.timeline.patience_ms = 0
    busy = single(world, 4)
    world.decide()
    gang(world, 2)
    world.decide()
    assert len(world.dispatch.timeline) == 2
    lost = world.open[busy].attempt.node
    world.context.ledger.set_health(lost, Health.DOWN, now=world.now, why="gone", labels={})
    other = single(world, 4, owner="bob")
    world.decide()
    assert not [claim for claim in world.dispatch.timeline if claim.gang]
    assert len({busy, other} & set(world.running())) == 1


def test_a_gang_that_comes_back_has_its_old_place_before_claims_made_since():
    world = QueueWorld(n1=4, n2=4)
    world.dispatch.timeline.patience_ms = 0
    retry = RetryPolicy(tries=2, delay_ms=0)
    first = gang(world, 2, retry=retry, grace_ms=2 * SECOND)
    world.decide()
    second = gang(world, 2)
    world.decide()
    assert len(world.dispatch.timeline) == 2
    world.end(first[1], Reason.EXIT, 7)
    world.decide()
    world.advance(world.now + 2 * SECOND)
    assert {world.open[id].state for id in first} == {JobState.RUNNING}
    assert {world.open[id].state for id in second} == {JobState.QUEUED}


def test_quotas_count_all_members():
    world = QueueWorld(n1=4, n2=4, n3=4)
    world.context.queues = NamedQueues(quotas={"ann": Quota(running={"cpu": 60_000})})
    one = single(world, 3)
    ids = gang(world, 2, 2)
    world.decide()
    assert world.running() == [one]
    why = world.dispatch.queue.why(ids[0], world.now)
    assert why == "quota: ann runs 3 of 6 cpu; this needs 4"
    world.end(one)
    world.decide()
    assert world.running() == ids


def test_an_urgent_gang_stops_nobody_and_is_next():
    world = QueueWorld(n1=4, n2=4)
    low = [single(world, 4, priority=Priority.LOW, expect_ms=MINUTE) for _ in range(2)]
    world.decide()
    world.advance(world.now + 30 * SECOND)
    ids = gang(world, 2, priority=Priority.URGENT)
    world.decide()
    assert world.stops == []
    assert world.running() == low
    world.advance(world.now + MINUTE)
    assert world.running() == ids or all(id in world.over for id in ids)
