"""What others use of nodes, from samples to the keeper: only changes, only where it is respected."""

from pathlib import Path

from controller_place import in_place
from gridhand.controller.keeper.questions import Read
from gridhand.controller.nodes.foreign_use import ForeignUse
from gridhand.core.jobs.job import JobState
from gridhand.core.model.resources import UNIT
from gridhand.core.operations import GetNode, GetStatus, Unregister

GB = 10**9


def sample(memory=0, cpu=0.0, pid=4711, foreign=(), machine=8 * GB):
    process = {"pid": pid, "name": "blender", "user": "bob", "cpu": cpu, "memory_bytes": memory}
    others = {
        "cpu": cpu,
        "memory_bytes": memory,
        "machine_cpu": 4,
        "machine_bytes": machine,
        "processes": [process],
    }
    return {"foreign": dict(foreign), "node": {}, "jobs": {}, "others": others}


def amounts(changes):
    return [observed.used.amounts for observed in changes]


def test_only_changes_are_told():
    use = ForeignUse(None, lambda node: True)
    [first] = use.changes("n1", sample(2 * GB))
    assert first.used.memory >= 2 * GB
    assert first.machine == {"cpu": 4 * UNIT, "memory": 8 * GB}
    for memory in range(2 * GB - 10**8, 2 * GB, 10**6):
        assert list(use.changes("n1", sample(memory))) == []
    [other] = use.changes("n1", sample(2 * GB, pid=5))  # somebody else
    assert [one.pid for one in other.used.strangers] == [5]
    assert len(list(use.changes("n1", sample(3 * GB, pid=5)))) == 1
    use.forget("n1")  # the node was registered again, and the keeper has forgotten it
    assert len(list(use.changes("n1", sample(3 * GB, pid=5)))) == 1


def test_use_of_devices_is_told_when_it_changes_whatever_is_respected():
    use = ForeignUse(None, lambda node: False)
    [first] = use.changes("n1", sample(2 * GB, foreign={"G": 5}))
    assert first.used == {"G": 5}
    assert list(use.changes("n1", sample(3 * GB, foreign={"G": 5}))) == []
    [last] = use.changes("n1", sample(3 * GB))
    assert last.used == {}


def test_what_is_respected_may_change():
    respected = {"n1"}
    use = ForeignUse(None, respected.__contains__)
    assert amounts(use.changes("n2", sample(2 * GB))) == []
    [on] = amounts(use.changes("n1", sample(2 * GB)))
    assert on["memory"] >= 2 * GB
    respected.clear()
    assert amounts(use.changes("n1", sample(2 * GB))) == [{}]
    assert amounts(use.changes("n1", sample(2 * GB))) == []


async def available(place):
    return (await place.controller.ask(GetNode("n1"))).available["memory"]


async def reload(place, text):
    """Have the controller read another configuration, as `grid config reload` does."""
    file = Path(place.home.folder) / "lab.yaml"
    file.write_text(text)
    place.controller.settings.path = str(file)
    told = await place.controller.settings.reload(place.controller.ask)
    place.controller.runner.plan_again()
    return told


@in_place()
async def test_samples_reach_placement_only_where_the_configuration_says_so(place):
    place.engine.sink.measured("n1", sample(2 * GB))
    await place.controller.ask(GetStatus())
    assert await available(place) == 8 * GB
    told = await reload(place, "respect_foreign_use: true")
    assert told["changed"] == ["respect_foreign_use"]
    assert told["not_used_yet"] == []
    await place.until(lambda: less_than(place, 7 * GB))
    # The node goes and comes back: the next sample counts, though it is the same.
    await place.controller.ask(Unregister("ann", name="n1"))
    place.engine.sink.node_changed(place.engine.node, [])
    await place.until(lambda: is_there(place))
    assert await is_all(place)
    place.engine.sink.measured("n1", sample(2 * GB))
    await place.until(lambda: less_than(place, 7 * GB))
    await reload(
        place, "respect_foreign_use: true\nnodes: [{name: n1, respect_foreign_use: false}]"
    )
    await place.until(lambda: is_all(place))
    await reload(place, "nodes: [{name: n1, respect_foreign_use: true}]")
    await place.until(lambda: less_than(place, 7 * GB))
    await reload(place, "name: gridhand")
    await place.until(lambda: is_all(place))


@in_place()
async def test_a_broken_agent_changes_nothing_and_is_counted(place):
    """Row 48 of docs/reliability.md."""
    await reload(place, "respect_foreign_use: true")
    for memory in (float("nan"), -5, 2**60, "much", True):
        place.engine.sink.measured("n1", sample(memory))
    place.engine.sink.measured("n1", None)
    place.engine.sink.measured("n1", {"foreign": {"G": -1}})
    assert place.controller.samples.refused["n1"] == 7
    assert await available(place) == 8 * GB
    assert not await place.controller.ask(Read(lambda context: dict(context.snapshot.foreign)))
    [told] = [one["message"] for one in place.controller.problems() if one["node"] == "n1"]
    assert told.startswith("ignored samples: 7; the last because of usage.foreign.G")
    place.engine.sink.measured("n1", sample(2 * GB))  # it was mended
    await place.until(lambda: less_than(place, 7 * GB))


@in_place()
async def test_a_job_waits_for_others_to_leave(place):
    await reload(place, "respect_foreign_use: true")
    place.engine.sink.measured("n1", sample(2 * GB, cpu=1.5))
    await place.until(lambda: less_than(place, 7 * GB))
    id = await place.submit(3)
    await place.controller.ask(GetStatus())
    assert await place.state(id) is JobState.QUEUED
    place.engine.sink.measured("n1", sample(2 * GB, cpu=0.1))
    await place.sent((id, 1))
    place.engine.sink.measured("n1", sample(2 * GB, cpu=3.5))  # they take nothing back
    await place.controller.ask(GetStatus())
    assert await place.state(id) is JobState.RUNNING
    place.engine.end((id, 1))


async def is_there(place):
    return await place.controller.ask(Read(lambda context: "n1" in context.ledger.nodes))


async def less_than(place, amount):
    return await available(place) < amount


async def is_all(place):
    return await available(place) == 8 * GB
