"""The engine of this machine, whose agent may fall, stand still, or say no."""

import asyncio
import functools
import os
import signal
from dataclasses import replace

import pytest

from gridhand.agent.bootstrap import ensure_agent
from gridhand.agent.link_errors import LinkRefused
from gridhand.engines import local as engines

ONE, TWO, THREE = ("1", 1), ("2", 1), ("3", 1)


@pytest.fixture
def impatient(monkeypatch):
    """An agent that does not answer for a second is not waited for."""
    monkeypatch.setattr(engines, "ensure_agent", functools.partial(ensure_agent, timeout_s=1.0))


def test_an_agent_that_is_killed_is_replaced_and_what_it_did_is_known(local, tools):
    async def run(box):
        async with tools.opened(box) as (engine, sink, _):
            await engine.start([box.order("1"), box.order("2")])
            await sink.spawn_of(TWO)
            pid = engine.facts()["pid"]
            os.kill(pid, signal.SIGKILL)
            box.finish(ONE, 4)
            known = (await sink.until(lambda: sink.returns))[0]
            sink.ended(known.ended)
            assert (await sink.end_of(ONE)).code == 4
            assert TWO in sink.keys(known.running)
            assert engine.facts()["pid"] != pid
            await engine.start([box.order("3")])
            await sink.spawn_of(THREE)

    local(run)


def test_an_agent_that_stood_still_says_what_it_knows_when_it_goes_on(local, tools, impatient):
    """Whoever asked it has given up meanwhile, and must not wait for ever for what was lost."""

    async def run(box):
        async with tools.opened(box) as (engine, sink, _):
            pid = engine.facts()["pid"]
            os.kill(pid, signal.SIGSTOP)
            try:
                many = [box.order(str(number)) for number in range(1, 100)]
                await asyncio.wait_for(engine.start(many), 20)
            finally:
                os.kill(pid, signal.SIGCONT)
            known = (await sink.until(lambda: sink.returns))[-1]
            assert len(known.running) < 99  # those behind the first were never sent
            await engine.start(many)
            for number in range(1, 100):
                await sink.spawn_of((str(number), 1))
            assert {box.started((str(number), 1)) for number in range(1, 100)} <= {0, 1}

    local(run)


def test_who_is_overruled_while_the_agent_is_away_is_told_that_it_is_over(local, tools):
    async def run(box):
        async with tools.opened(box) as (engine, sink, _), tools.opened(box, 9):
            engine._link.abort()
            [error] = await sink.until(lambda: sink.errors)
            assert isinstance(error, LinkRefused)

    local(run)


def test_an_order_that_cannot_be_read_ends_and_the_others_run(local, tools):
    async def run(box):
        async with tools.opened(box) as (engine, sink, _):
            bad = replace(box.order("2"), cores=-5)
            odd = box.order("4", 1, "/bin/echo", "\ud800")
            await engine.start([box.order("1"), bad, box.order("3"), odd])
            assert (await sink.end_of(TWO)).reason == "start_failed"
            assert (await sink.end_of(("4", 1))).reason == "start_failed"
            await sink.spawn_of(ONE)
            await sink.spawn_of(THREE)

    local(run)


REFUSALS = {
    "one that is malformed ends": ("malformed", ["3"]),
    "what nobody understands is found out by beginning anew": ("internal", []),
}


@pytest.mark.parametrize(("word", "over"), REFUSALS.values(), ids=REFUSALS)
def test_an_agent_that_refuses_a_batch_starts_all_that_can_be(
    local, tools, monkeypatch, word, over
):
    monkeypatch.setattr(engines, "_AGAIN_S", (0.05,))

    async def run(box):
        async with tools.opened(box) as (engine, sink, _):
            ask = engine._link.ask

            async def refusing(message):
                jobs = [order["job"] for order in message.get("jobs", ())]
                if "3" in jobs:
                    raise LinkRefused("agent", word, "one of them is not for me")
                return await ask(message)

            engine._link.ask = refusing
            await engine.start([box.order("1"), box.order("3"), box.order("2")])
            await sink.spawn_of(ONE)
            if over:
                assert (await sink.end_of(THREE)).reason == "start_failed"
                await sink.spawn_of(TWO)
            else:
                assert await sink.until(lambda: sink.returns)

    local(run)


def test_long_orders_are_sent_a_few_at_a_time(local, tools):
    """An agent hangs up on a message of 64 MB, and whoever sent it would send it again."""

    async def run(box):
        async with tools.opened(box) as (engine, sink, _):
            # The system takes variables of 128 KB at most each, and 2 MB in all.
            large = {f"V{number}": "x" * 100_000 for number in range(15)}
            orders = [box.order(str(number), 1, "/bin/true", env=large) for number in range(60)]
            await engine.start(orders)
            for number in range(60):
                assert (await sink.end_of((str(number), 1))).code == 0
            assert sink.returns == []

    local(run)


def test_batches_are_neither_many_nor_long(monkeypatch, tools):
    monkeypatch.setattr(engines, "_BATCH", 3)
    monkeypatch.setattr(engines, "_BATCH_BYTES", 100)

    def sizes(*lengths):
        orders = [
            tools.start_order("j", env={"A": "x" * (length - 1)}, argv=[]) for length in lengths
        ]
        return [len(batch) for batch in engines._batches(orders)]

    assert sizes() == []
    assert sizes(1, 1, 1, 1) == [3, 1]
    assert sizes(60, 60, 500, 1) == [1, 1, 1, 1]
    assert sizes(50, 50, 1) == [2, 1]


def cut(path):
    """A log whose middle was cut out."""
    with open(path, "wb") as file:
        file.write(b"a" * 4096)
        file.seek(5 * 4096)
        file.write(b"end")


def test_logs_are_read_in_ranges_with_what_was_cut_out(local, tools):
    async def run(box):
        path = box.folder / "log"
        cut(path)
        async with tools.opened(box) as (engine, _, _):
            assert await engine.log_size(str(path)) == 5 * 4096 + 3
            found = await engine.read_log(str(path), 4090, 100)
            assert found == [(4090, b"a" * 6), (4096, 4 * 4096), (5 * 4096, b"end")]
            assert await engine.read_log(str(path), 10**9, 100) == []
            for strange in (str(box.folder), "/dev/null", "/t/\ud800", f"{path}/x", "/a\0b"):
                assert await engine.read_log(strange, 0, 100) == []
                assert await engine.log_size(strange) >= 0

    local(run)
