"""The watcher of remote nodes: heartbeats in, changes of health out, and nothing else touched."""

import asyncio
from contextlib import suppress

import pytest

from controller_place import Place, in_place
from gridhand.core.errors import (
    InvalidInput,
    NodeSuperseded,
    NoRoom,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    UnknownNode,
)
from gridhand.core.jobs.job import JobState
from gridhand.core.ledger.allocations import Terms
from gridhand.core.liveness.budget import DOWN_MS, SUSPECT_MS
from gridhand.core.liveness.heartbeats import Heartbeat
from gridhand.core.model.nodes import BOOT_LABEL, CEILING_LABEL, ENGINE_LABEL, Health, Node
from gridhand.core.model.requests import Request
from gridhand.core.operations import (
    Allocate,
    GetNode,
    ListEvents,
    MoveAllocation,
    Register,
    ReportHealth,
    SetHealth,
    Unregister,
)

REMOTE = {ENGINE_LABEL: "external"}


class Agent:
    """Whoever serves the remote node r1; the clock of the watcher can be set ahead."""

    def __init__(self, place):
        self.place = place
        self.sequence = 0
        self.ahead_ms = 0
        watcher = place.controller.liveness
        clock = watcher._now
        watcher._now = lambda: clock() + self.ahead_ms
        self.watcher = watcher

    async def register(self, name="r1", **more):
        node = Node.of(name, labels=REMOTE, **{"cpu": 4, **more})
        await self.place.controller.declared.run(Register("root", nodes=(node,)))
        await self.place.until(lambda: name in self.watcher._known())

    async def beat(self, incarnation=1, boot="b1", running=(), name="r1"):
        self.sequence += 1
        beat = Heartbeat(name, incarnation, self.sequence, boot, frozenset(running))
        return await self.watcher.heartbeat(beat)

    def skip(self, ms):
        """Let time pass for the watcher, tick by tick."""
        for _ in range(ms // 1000):
            self.ahead_ms += 1000
            self.watcher._known().tick(self.watcher._now())
        self.watcher.look_again()

    async def until(self, health, name="r1"):
        async def has():
            with suppress(StoreError):
                return str((await self.status(name)).node.health) == health

        await self.place.until(has)

    async def status(self, name="r1"):
        return await self.place.controller.ask(GetNode(name))

    async def hold(self, cpu=1):
        command = Allocate("ann", None, (Request.of(cpu=cpu, node="r1"),), Terms("ann"))
        return (await self.place.controller.ask(command)).allocations[0]

    async def kinds(self, *prefixes):
        events = await self.place.controller.ask(ListEvents(0, 100_000))
        return [event.kind for event in events if event.kind.startswith(prefixes)]


def with_agent(test):
    @in_place()
    async def run(place):
        agent = Agent(place)
        await agent.register()
        await agent.beat()
        await test(place, agent)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@with_agent
async def test_t10_a_silent_node_is_suspect_then_down_and_its_allocation_is_freed_once(
    place, agent
):
    """T10 and row 38, with the ledger."""
    held = await agent.hold(4)
    agent.skip(SUSPECT_MS)
    await agent.until("suspect")
    with pytest.raises(NoRoom):
        await agent.hold(1)
    agent.skip(DOWN_MS - SUSPECT_MS)
    await agent.until("down")
    status = await agent.status()
    assert (status.allocations, status.available["cpu"]) == ((), 40_000)
    assert (await agent.beat(running=[held.id])).stop == (held.id,)
    await agent.until("down")
    await agent.beat()
    await agent.until("up")
    await agent.hold(4)
    assert (await agent.kinds("allocation.lost")).count("allocation.lost") == 1
    kinds = await agent.kinds("node.suspect", "node.down")
    assert kinds == ["node.suspect", "node.down"]


@with_agent
async def test_37_a_node_that_returns_in_time_keeps_what_it_holds(place, agent):
    """Row 37."""
    held = await agent.hold(4)
    agent.skip(DOWN_MS - 5000)
    await agent.until("suspect")
    assert (await agent.beat(running=[held.id])).stop == ()
    await agent.until("up")
    assert (await agent.status()).allocations == (held.id,)


@with_agent
async def test_38_the_job_of_a_lost_node_is_requeued_once(place, agent):
    """Row 38: it runs again elsewhere, and no further attempt follows when the node returns."""
    jobs = [await place.submit(4), await place.submit(4)]

    async def both_run():
        return await place.running() == jobs

    await place.until(both_run)
    on = {(await place.job(id)).attempt.node: id for id in jobs}
    lost = on["r1"]
    await place.sent((on["n1"], 1))
    agent.skip(DOWN_MS)
    await place.until(lambda: (lost, 1) not in place.controller.external.engine._node_of)
    assert (lost, 1) not in place.engine.asked  # nobody here starts the jobs of a node elsewhere
    place.engine.end((on["n1"], 1))
    await place.sent((lost, 2))
    assert (await place.job(lost)).attempt.node == "n1"
    await agent.beat()
    await agent.until("up")
    place.engine.end((lost, 2))
    ended = await place.ended(lost)
    assert (ended.state, len(ended.attempts)) == (JobState.SUCCEEDED, 2)


@with_agent
async def test_43_a_reboot_loses_what_was_held_and_is_remembered_across_a_restart(place, agent):
    """Row 43."""
    await agent.hold()
    await place.until(lambda: recorded_boot(agent, "b1"))
    agent.skip(4000)
    await agent.beat(incarnation=2, boot="b2")
    await agent.until("suspect")
    agent.skip(DOWN_MS)
    await agent.beat(incarnation=2, boot="b2")
    await agent.until("down")
    assert (await agent.status()).allocations == ()
    await agent.beat(incarnation=2, boot="b2")
    await agent.until("up")
    await place.restart()
    agent = Agent(place)
    await agent.beat(incarnation=3, boot="b3")
    await agent.until("suspect")


async def recorded_boot(agent, boot):
    return (await agent.status()).node.labels.get(BOOT_LABEL) == boot


@with_agent
async def test_44_a_node_that_registers_again_with_less_keeps_what_it_holds(place, agent):
    """Row 44: heartbeats do not open it before it fits, and registering does not heal it."""
    held = await agent.hold(4)
    agent.skip(SUSPECT_MS)
    await agent.until("suspect")
    await agent.register(cpu=2)
    status = await agent.status()
    assert status.overcommitted
    assert (str(status.health), status.allocations) == ("suspect", (held.id,))
    await agent.beat()
    await agent.until("up")
    with pytest.raises(NoRoom):
        await agent.hold(1)
    await place.controller.ask(MoveAllocation("ann", id=held.id))
    await agent.hold(2)


@with_agent
async def test_a_node_that_is_down_and_registers_is_up_only_by_its_heartbeats(place, agent):
    held = await agent.hold()
    agent.skip(DOWN_MS)
    await agent.until("down")
    await agent.register()
    assert str((await agent.status()).health) == "down"
    await agent.beat(running=[held.id])
    await agent.register()
    assert str((await agent.status()).health) == "down"
    await agent.beat()
    await agent.until("up")


@with_agent
async def test_46_an_agent_that_was_replaced_is_refused(place, agent):
    """Row 46."""
    await agent.beat(incarnation=2)
    with pytest.raises(NodeSuperseded, match="incarnation 2 came after"):
        await agent.beat(incarnation=1)


@with_agent
async def test_19_heartbeats_are_acknowledged_while_the_store_is_away_but_not_for_ever(
    place, agent
):
    """Row 19."""
    held = await agent.hold()
    store = place.store._store
    events, store.events = store.events, away
    agent.skip(119_000)
    await agent.beat(running=[held.id])
    agent.skip(2_000)
    with pytest.raises(StoreUnavailable, match="not answered for 120 s"):
        await agent.beat()
    agent.skip(DOWN_MS)
    assert str((await agent.status()).health) == "up"
    store.events = events
    await agent.until("down")
    await agent.beat()
    await agent.until("up")


def away(**_):
    raise StoreUnavailable("gone")


@with_agent
async def test_a_change_whose_outcome_is_unknown_is_made_once(place, agent):
    held = await agent.hold()
    place.store.faults = [StoreUnavailable("no"), (OutcomeUnknown("lost"), True)]
    agent.skip(DOWN_MS)
    await agent.until("down")
    assert held.id not in (await agent.status()).allocations
    assert await agent.kinds("allocation.lost") == ["allocation.lost"]


@with_agent
async def test_what_an_administrator_sets_stays_across_heartbeats_restarts_and_registering(
    place, agent
):
    ask = place.controller.ask
    await ask(SetHealth("root", None, "r1", Health.SUSPECT, "disk"))
    await agent.beat()
    await agent.register()
    assert (await agent.status()).node.labels[CEILING_LABEL] == "suspect"
    await place.restart()
    agent = Agent(place)
    await agent.beat(incarnation=2)
    node = Heartbeat("r1", 2, 5, "b1")
    await place.controller.liveness.heartbeat(node)
    assert await place.controller.ask(ReportHealth("x", None, "r1", Health.SUSPECT)) == []
    await agent.until("suspect")
    await place.controller.ask(SetHealth("root", None, "r1", Health.UP))
    await agent.until("up")
    assert CEILING_LABEL not in (await agent.status()).node.labels


@with_agent
async def test_a_report_about_a_node_that_has_changed_meanwhile_changes_nothing(place, agent):
    ask = place.controller.ask
    assert await ask(ReportHealth("x", None, "r1", Health.SUSPECT, Health.DOWN)) == []
    assert await ask(ReportHealth("x", None, "n1", Health.UP, Health.DOWN)) == []
    assert await ask(ReportHealth("x", None, "gone", Health.UP, Health.DOWN)) == []
    assert await agent.kinds("node.down") == []


@with_agent
async def test_nodes_of_the_controller_and_declared_ones_are_never_touched(place, agent):
    await place.controller.ask(Register("root", nodes=(Node.of("d1", cpu=2),)))
    agent.skip(10 * DOWN_MS)
    await agent.until("down")
    for name in ("n1", "d1"):
        assert str((await agent.status(name)).health) == "up"
        with pytest.raises(InvalidInput, match=ENGINE_LABEL):
            await agent.beat(name=name)
    with pytest.raises(UnknownNode):
        await agent.beat(name="r2")


@with_agent
async def test_our_own_machine_cannot_be_declared_as_served_elsewhere(place, agent):
    with pytest.raises(InvalidInput, match="n1 is served by this controller"):
        await agent.register("n1")
    with pytest.raises(InvalidInput, match="external or ray"):
        Node.of("r2", cpu=1, labels={ENGINE_LABEL: "slurm"})
    assert not (await agent.status("n1")).node.remote


@with_agent
async def test_a_node_that_is_removed_is_no_longer_heard(place, agent):
    await place.controller.ask(Unregister("root", None, "r1"))
    agent.skip(2000)
    await place.until(lambda: "r1" not in agent.watcher._known())
    with pytest.raises(UnknownNode):
        await agent.beat()


@with_agent
async def test_a_loop_that_stood_still_blames_nobody(place, agent):
    """Row 35, on the side of the controller."""
    liveness = agent.watcher._known()
    stood_still_until = agent.watcher._now() + 2 * DOWN_MS
    agent.ahead_ms += 2 * DOWN_MS
    agent.watcher.look_again()
    await place.until(lambda: liveness._store_answered >= stood_still_until)
    await agent.beat()
    assert await agent.kinds("node.suspect", "node.down") == []


@with_agent
async def test_39_orders_that_are_not_answered_make_a_node_suspect(place, agent):
    """Row 39."""
    for _ in range(3):
        agent.watcher.order_unanswered("r1")
    await agent.until("suspect")
    agent.watcher.order_answered("r1")
    await agent.beat()
    await agent.until("up")


@with_agent
async def test_49_hundreds_of_nodes_that_fall_silent_are_recorded_in_few_transactions(place, agent):
    """Rows 47 and 49: what happens to all at once is written at once."""
    nodes = tuple(Node.of(f"w{n}", cpu=1, labels=REMOTE) for n in range(300))
    await place.controller.declared.run(Register("root", nodes=nodes))
    await place.until(lambda: len(agent.watcher._known()) == 301)
    await asyncio.gather(*(agent.beat(name=node.name) for node in nodes))
    await place.until(lambda: recorded_boot_of(agent, "w299"))
    commits = []
    commit = place.store._store.commit
    place.store._store.commit = lambda batch: commits.append(len(batch.entries)) or commit(batch)
    agent.skip(DOWN_MS)
    await agent.until("down", "w299")
    assert sum(commits) >= 300
    assert len(commits) < 20


async def recorded_boot_of(agent, name):
    return BOOT_LABEL in (await agent.status(name)).node.labels


def test_a_remote_node_belongs_to_no_machine_of_a_shared_store(tmp_path):
    """Row 95 does not concern it: whichever controller has the store hears its heartbeats."""

    async def run():
        place = Place(tmp_path / "home", machine="m1")
        await place.open()
        agent = Agent(place)
        await agent.register()
        place.machine = "m2"
        await place.restart()
        status = await Agent(place).status()
        assert (status.node.machine, str(status.health)) == ("", "up")
        assert str((await Agent(place).status("n1")).health) == "up"
        await Agent(place).beat()
        await place.check()
        await place.close()

    asyncio.run(run())
