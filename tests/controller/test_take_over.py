"""Another machine takes over the store: it leaves alone what only the first one can reach."""

import asyncio

import pytest

from controller_place import Place
from gridhand.core.errors import MoveRefused, NodeElsewhere
from gridhand.core.jobs.job import JobSpec, JobState
from gridhand.core.ledger.allocations import Lifetime, Terms
from gridhand.core.model.nodes import Health, Node
from gridhand.core.model.requests import Request
from gridhand.core.operations import Allocate, GetStatus, Register, SetHealth, Submit

FIRST = ("1", 1)


class Machines:
    """Two machines with a node each, of which one at a time has the store."""

    def __init__(self, folder, names=("n1", "n2")):
        self.first = Place(folder / "first", machine="m1", name=names[0])
        self.second = Place(folder / "second", machine="m2", name=names[1])
        self.store = self.first.home.store

    async def hand_over(self, before, after):
        await before.close()
        await after.open(store=self.store)

    async def close(self):
        await self.first.close()
        await self.second.close()


def on_two_machines(test, tmp_path, **names):
    async def run():
        machines = Machines(tmp_path, **names)
        try:
            await machines.first.open(store=machines.store)
            await test(machines)
            for place in (machines.first, machines.second):
                if place.controller is not None:
                    await place.quiet()
                    await place.check()
                    assert place.controller.failure is None
        finally:
            await machines.close()

    asyncio.run(run())


def problems_of(place):
    return [problem for problem in place.controller.problems() if problem["node"] == "same"]


async def node(place, name):
    status = await place.controller.ask(GetStatus())
    [found] = [node for node in status.nodes if node.name == name]
    return found


def test_jobs_and_nodes_of_the_first_are_left_alone_until_it_is_back(tmp_path):
    """Row 95: neither ended nor started again, and nothing is granted where they run."""

    async def test(machines):
        first, second = machines.first, machines.second
        await first.submit(cpu=2)
        await first.submit(detached=False)
        await first.sent(FIRST, ("2", 1))
        await machines.hand_over(first, second)
        assert await second.running() == ["1", "2"]
        assert second.controller.attached._ending == {}, "cancelled after a while"
        found = await node(second, "n1")
        assert (found.node.health, found.allocated["cpu"]) == (Health.SUSPECT, 30_000)
        await second.controller.cancel("ann", ["2"])  # carried out by its own machine
        here = await second.submit(cpu=4)
        await second.sent((here, 1))
        waits = await second.submit()  # n1 has a free core
        await second.quiet()
        assert await second.state(waits) is JobState.QUEUED
        assert "machine is not connected" in (await second.controller.job(waits)).why
        assert await second.running() == ["1", "2", here]
        assert [order.job for order in second.engine.orders] == [here]
        assert (second.engine.stops, first.engine.stops) == ([], [])
        await machines.hand_over(second, first)
        assert (await first.ended("2")).state is JobState.CANCELLED
        assert first.engine.started(FIRST) == 1
        assert (await node(first, "n1")).node.health is Health.UP
        assert (await node(first, "n2")).node.health is Health.SUSPECT
        first.engine.end(FIRST)
        assert (await first.ended("1")).state is JobState.SUCCEEDED
        assert await first.state(here) is JobState.RUNNING

    on_two_machines(test, tmp_path)


def test_what_was_granted_and_never_sent_is_started_by_its_own_machine(tmp_path):
    async def test(machines):
        first, second = machines.first, machines.second
        first.engine.away = True
        await first.submit()
        await first.until(lambda: first.engine.asked == [FIRST])
        await machines.hand_over(first, second)
        await second.quiet()
        assert second.engine.asked == []
        await machines.hand_over(second, first)
        await first.sent(FIRST)

    on_two_machines(test, tmp_path)


def test_what_waits_and_has_its_environment_there_waits_on(tmp_path):
    async def test(machines):
        first, second = machines.first, machines.second
        await first.submit(cpu=4)
        waits = await first.submit(environment={"A": "1"})
        await first.sent(FIRST)
        await machines.hand_over(first, second)
        here = await second.submit(environment={"A": "2"})
        await second.sent((here, 1))
        assert await second.state(waits) is JobState.QUEUED
        assert "on the machine where it was submitted" in (await second.controller.job(waits)).why
        await machines.hand_over(second, first)
        first.engine.end(FIRST)
        await first.sent((waits, 1))

    on_two_machines(test, tmp_path)


def test_what_is_held_there_stays_held_and_nothing_new_runs_in_it(tmp_path):
    async def test(machines):
        first, second = machines.first, machines.second
        for cpu, lifetime in ((3, Lifetime.SESSION), (1, Lifetime.UNTIL_RELEASED)):
            terms = Terms("ann", lifetime=lifetime)
            ask = Allocate("ann", None, (Request.of(cpu=cpu),), terms)
            [held] = (await first.controller.ask(ask)).allocations
        await machines.hand_over(first, second)
        assert second.controller.sessions._holding == {}, "released after a while"
        work = JobSpec("ann", ("true",), "/", Request.of(cpu=1), detached=True, within=held.id)
        with pytest.raises(MoveRefused, match="not connected"):
            await second.controller.ask(Submit("ann", None, work))
        await second.controller.ask(SetHealth("ann", name="n1", health=Health.UP))
        found = await node(second, "n1")
        assert (found.node.health, found.allocated["cpu"]) == (Health.SUSPECT, 40_000)

    on_two_machines(test, tmp_path)


def test_a_node_that_was_declared_by_hand_belongs_to_its_machine_too(tmp_path):
    async def test(machines):
        first, second = machines.first, machines.second
        shop = Register("ann", nodes=(Node.of("shop", cpu=1, license=1),))
        await first.controller.ask(shop)
        work = JobSpec("ann", ("true",), "/", Request.of(cpu=1, license=1), detached=True)
        await first.controller.ask(Submit("ann", None, work))
        await first.sent(FIRST)
        await machines.hand_over(first, second)
        assert (await node(second, "shop")).node.health is Health.SUSPECT
        with pytest.raises(NodeElsewhere):
            await second.controller.ask(shop)
        assert second.engine.asked == []
        await machines.hand_over(second, first)
        assert (await node(first, "shop")).node.health is Health.UP
        assert first.engine.started(FIRST) == 1

    on_two_machines(test, tmp_path)


def test_a_machine_with_the_name_of_another_gets_its_node_once_nothing_is_held_there(tmp_path):
    async def test(machines):
        first, second = machines.first, machines.second
        await first.submit()
        await first.sent(FIRST)
        await machines.hand_over(first, second)
        [problem] = problems_of(second)
        assert "node same belongs to the machine m1" in problem["message"]
        assert "grid node remove --force same" in problem["hint"]
        assert (await node(second, "same")).node.health is Health.SUSPECT
        await machines.hand_over(second, first)
        first.engine.end(FIRST)
        await first.ended("1")
        await machines.hand_over(first, second)
        assert problems_of(second) == []
        await second.submit()
        await second.sent(("2", 1))

    on_two_machines(test, tmp_path, names=("same", "same"))
