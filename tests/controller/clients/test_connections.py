"""Clients: what depends on a connection ends a moment after the last of them, and not before."""

import asyncio
import time

import pytest

from gridhand.controller.clients import connections
from gridhand.controller.clients.connections import ConnectionCounts


class Ended:
    """Collects what has ended, and lets a test wait for it."""

    def __init__(self):
        self.calls = []
        self.told = asyncio.Event()

    async def __call__(self, ids):
        self.calls.append(sorted(ids))
        self.told.set()

    async def wait(self):
        await asyncio.wait_for(self.told.wait(), 30)
        self.told.clear()


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(connections, "MOMENT_S", 0.02)


def test_what_had_several_connections_ends_after_the_last():
    async def run():
        ended = Ended()
        known = ConnectionCounts(ended)
        with known.connected("a"):
            with known.connected("a"), known.connected("b"):
                pass
            await ended.wait()
        assert ended.calls == [["b"]]
        await ended.wait()
        assert ended.calls == [["b"], ["a"]]

    asyncio.run(run())


def test_who_is_back_within_the_moment_has_never_been_gone():
    async def run():
        ended = Ended()
        known = ConnectionCounts(ended)
        known.join("a")
        known.leave("a")
        known.join("a")
        with known.connected("b"):
            pass
        await ended.wait()
        assert ended.calls == [["b"]]

    asyncio.run(run())


def test_who_is_back_in_the_very_turn_in_which_it_would_end_stays():
    async def run():
        ended = Ended()
        known = ConnectionCounts(ended)
        known._now("a")  # its time is over, and what follows is on its way
        known._now("b")
        known.join("a")
        await ended.wait()
        assert ended.calls == [["b"]]

    asyncio.run(run())


def test_after_a_restart_who_is_not_back_in_time_is_gone_and_all_of_them_at_once():
    async def run():
        ended = Ended()
        known = ConnectionCounts(ended)
        known.join("there")
        known.expect(["a", "b", "there", "over"], 0.02)
        known.forget("over")
        await ended.wait()
        assert [id for ids in ended.calls for id in ids] == ["a", "b"]

    asyncio.run(run())


def test_once_frozen_nothing_ends_any_more():
    async def run():
        ended = Ended()
        known = ConnectionCounts(ended)
        known.expect(["a"], 0.01)
        known.freeze()
        other = ConnectionCounts(ended)
        other.expect(["b"], 0.02)
        await ended.wait()
        assert ended.calls == [["b"]]
        assert known._ending == {}

    asyncio.run(run())


def test_nothing_is_kept_of_those_who_have_gone():
    async def run():
        ended = Ended()
        known = ConnectionCounts(ended)
        for number in range(100):
            with known.connected(str(number)):
                pass
        while sum(map(len, ended.calls)) < 100:
            await ended.wait()
        await asyncio.sleep(0)
        assert not known._connected
        assert not known._ending
        assert not known._due

    asyncio.run(run())


def test_a_controller_that_hangs_up_takes_nobody_for_gone():
    """Row 86: neither those who leave after it has begun to stop, nor those who left before."""

    async def run():
        ended = Ended()
        known = ConnectionCounts(ended)
        known.expect(["c"], 0.03)
        with known.connected("a"):
            with known.connected("b"):
                pass
            known.freeze()
        known.expect(["d"], 0.01)
        await asyncio.sleep(0.2)
        assert ended.calls == []

    asyncio.run(run())


def test_time_in_which_the_controller_could_not_hear_does_not_count():
    """Row 86: a controller that was stopped past the time of its clients gives it to them again."""

    async def run():
        ended = Ended()
        known = ConnectionCounts(ended)
        known.expect(["a"], 0.3)
        time.sleep(0.9)  # noqa: ASYNC251  as with SIGSTOP: the loop does not run
        await asyncio.sleep(0.1)
        known.join("a")
        await asyncio.sleep(0.5)
        assert ended.calls == []

    asyncio.run(run())
