"""Sessions: what a client holds ends with its connection, and what it has claimed again does not."""

import asyncio

import pytest

from gridhand.controller.clients import client_sessions, connections
from gridhand.controller.clients.client_sessions import Sessions
from gridhand.controller.clients.connections import ConnectionCounts
from gridhand.core.errors import ControllerStopping


class Ended:
    """Records what is released, which runs are lost, and which jobs are cancelled."""

    def __init__(self):
        self.released = []
        self.lost = []
        self.cancelled = []
        self.attached = ConnectionCounts(self._cancel)
        self.sessions = Sessions(self._release, self.attached, self._lose)

    async def _release(self, ends):
        self.released += [(end.owner, end.id) for end in ends]

    async def _lose(self, runs):
        self.lost += runs

    async def _cancel(self, jobs):
        self.cancelled += jobs


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(connections, "MOMENT_S", 0.02)
    monkeypatch.setattr(client_sessions, "AFTER_RESTART_S", 0.04)


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def test_after_a_restart_what_is_claimed_again_outlasts_the_time_of_the_old_session():
    async def run():
        ended = Ended()
        sessions = ended.sessions
        sessions.expect([("ann", "a1-1"), ("ann", "a1-2")], [("ann", "r1"), ("ann", "r2")])
        with sessions.connected("ann", "new"):
            assert sessions.hold("ann", "new", "a1-1")
            assert sessions.report_on("ann", "new", "r1")
            await until(lambda: ended.lost)
            assert ended.released == [("ann", "a1-2")]
            assert ended.lost == [("ann", "r2")]
            await asyncio.sleep(0.05)
            assert ended.released == [("ann", "a1-2")]
        await until(lambda: len(ended.released) == 2)
        assert ended.released[1] == ("ann", "a1-1")

    asyncio.run(run())


def test_after_a_restart_clients_have_all_of_the_time_to_come_back(monkeypatch):
    """Row 86: more than the moment that a broken connection has."""
    monkeypatch.setattr(client_sessions, "AFTER_RESTART_S", 3600)

    async def run():
        ended = Ended()
        ended.sessions.expect([("ann", "a1-1")], [("ann", "r1")])
        await asyncio.sleep(5 * connections.MOMENT_S)
        assert (ended.released, ended.lost) == ([], [])
        with ended.sessions.connected("ann", "new"):
            assert ended.sessions.hold("ann", "new", "a1-1")

    asyncio.run(run())


def test_what_another_session_of_the_owner_takes_over_stays_when_the_first_ends():
    async def run():
        ended = Ended()
        sessions = ended.sessions
        with sessions.connected("ann", "second"):
            with sessions.connected("ann", "first"):
                assert sessions.hold("ann", "first", "a1-1")
                assert sessions.hold("ann", "first", "a1-2")
                assert sessions.attach("ann", "first", "7")
                assert sessions.hold("ann", "second", "a1-1")
                assert sessions.attach("ann", "second", "7")
            await until(lambda: ended.released)
            await asyncio.sleep(0.05)
            assert ended.released == [("ann", "a1-2")]
            assert ended.cancelled == []
        await until(lambda: ended.cancelled and len(ended.released) == 2)

    asyncio.run(run())


def test_what_is_let_go_outlasts_its_session():
    async def run():
        ended = Ended()
        with ended.sessions.connected("ann", "one"):
            ended.sessions.hold("ann", "one", "a1-1")
            ended.sessions.hold("ann", "one", "a1-2")
            ended.sessions.let_go("ann", "a1-1")
        await until(lambda: ended.released)
        assert ended.released == [("ann", "a1-2")]

    asyncio.run(run())


def test_a_session_that_has_ended_holds_and_attaches_nothing():
    async def run():
        ended = Ended()
        sessions = ended.sessions
        with sessions.connected("ann", "one"):
            await sessions.end("ann", "one")
            assert not sessions.alive("ann", "one")
            assert not sessions.hold("ann", "one", "a1-1")
            assert not sessions.attach("ann", "one", "7")
            assert not sessions.report_on("ann", "one", "r1")
        assert not sessions.hold("bob", "one", "a1-1")

    asyncio.run(run())


def test_a_session_of_another_owner_with_the_same_id_is_another():
    async def run():
        ended = Ended()
        with ended.sessions.connected("bob", "one"):
            with ended.sessions.connected("ann", "one"):
                ended.sessions.hold("ann", "one", "a1-1")
                ended.sessions.hold("bob", "one", "a1-2")
            await until(lambda: ended.released)
            assert ended.released == [("ann", "a1-1")]

    asyncio.run(run())


def test_a_controller_that_ends_releases_nothing():
    async def run():
        ended = Ended()
        with ended.sessions.connected("ann", "one"):
            ended.sessions.hold("ann", "one", "a1-1")
            ended.sessions.freeze()
            with pytest.raises(ControllerStopping):
                await ended.sessions.end("ann", "one")
        await asyncio.sleep(0.06)
        assert (ended.released, ended.cancelled, ended.lost) == ([], [], [])

    asyncio.run(run())
