"""Several nodes that are one engine: each is told of its own, and all are heard."""

import asyncio
import os

import pytest

from fake_engine import FakeEngine
from gridhand.core.errors import InvalidInput
from gridhand.engines.virtual_nodes import (
    VirtualNodes,
    engine_of,
    read_virtual_nodes,
    write_virtual_nodes,
)
from gridhand.home import Home


class Both:
    """Two nodes with one engine in front of them."""

    def __init__(self, tools):
        self.a, self.b = FakeEngine(name="a"), FakeEngine(name="b")
        self.engine = VirtualNodes({"a": self.a, "b": self.b})
        self.sink, self._start_order = tools.Sink(), tools.start_order

    def order(self, job, node):
        return self._start_order(job, node=node)

    async def start(self, **nodes):
        await self.engine.start([self.order(job, node) for job, node in nodes.items()])


def on_both(test):
    def run(tools):
        async def inside():
            both = Both(tools)
            await both.engine.open(1, both.sink)
            await test(both)
            await both.engine.close(end=True)

        asyncio.run(inside())

    run.__name__ = test.__name__
    return run


@on_both
async def test_each_node_is_told_of_its_own_and_all_are_heard(both):
    assert [node["name"] for node in both.sink.nodes] == ["a", "b"]
    await both.start(j="a", k="b", m="b")
    assert [one.job for one in both.a.orders] == ["j"]
    assert [one.job for one in both.b.orders] == ["k", "m"]
    assert len(both.sink.spawned_facts) == 3
    both.b.end(("k", 1), code=4)
    assert (await both.sink.end_of(("k", 1))).code == 4


@on_both
async def test_stops_signals_and_forgetting_go_where_it_runs(both):
    await both.start(j="a", k="b")
    assert await both.engine.signal(("k", 1), 15)
    assert (both.a.signals, both.b.signals) == ([], [(("k", 1), 15)])
    await both.engine.stop(("k", 1), "cancelled", 0)
    assert (both.a.stops, both.b.stops) == ([], [(("k", 1), "cancelled")])
    await both.engine.forget([("k", 1), ("j", 1)])
    assert both.b.ended == {}
    assert list(both.a.running) == [("j", 1)]


@on_both
async def test_a_node_that_was_declared_by_hand_is_run_for_by_the_first(both):
    await both.start(j="elsewhere")
    assert [one.job for one in both.a.orders] == ["j"]


def test_what_both_know_is_found_by_the_next_controller(tools):
    async def run():
        both = Both(tools)
        await both.engine.open(1, both.sink)
        await both.start(j="a", k="b")
        both.b.end(("k", 1), tell=False)
        next_one = VirtualNodes({"a": both.a, "b": both.b})
        known = await next_one.open(2, both.sink)
        assert [one.job for one in known.running] == ["j"]
        assert [one.job for one in known.ended] == ["k"]
        await next_one.stop(("j", 1), "cancelled", 0)
        assert both.a.stops
        await next_one.forget([("k", 1)])
        assert both.b.ended == {}
        assert await next_one.look() == (2, [])

    asyncio.run(run())


@on_both
async def test_one_that_comes_back_is_heard_and_known(both):
    await both.start(j="a", k="b")
    both.engine._engine_of.clear()
    both.b.come_back()
    assert [one.job for one in both.sink.returns[0].running] == ["k"]
    await both.engine.stop(("k", 1), "cancelled", 0)
    assert both.b.stops


def test_virtual_nodes_are_written_down_and_wrong_ones_are_not(tmp_path):
    home = Home(str(tmp_path / "home"))
    home.make()
    assert read_virtual_nodes(home) == {}
    write_virtual_nodes(home, {"first": "cpu=4 memory=2000MB", "second": "cpu=4"})
    assert read_virtual_nodes(home) == {"first": "cpu=4 memory=2000MB", "second": "cpu=4"}
    assert isinstance(engine_of(home, read_virtual_nodes(home)), VirtualNodes)
    for wrong in ({"a b": "cpu=1"}, {"a": "cpu=x"}, {"a": ""}, {"../a": "cpu=1"}):
        with pytest.raises(InvalidInput):
            engine_of(home, wrong)
    assert list(read_virtual_nodes(home)) == ["first", "second"]
    with open(home.nodes, "w") as file:
        file.write("[")
    with pytest.raises(InvalidInput, match="nodes"):
        read_virtual_nodes(home)
    os.unlink(home.nodes)
