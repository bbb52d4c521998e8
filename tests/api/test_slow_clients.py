"""Row 81: clients that are slow, or many, keep nobody else from being answered."""

import asyncio
import contextlib
import socket

import pytest

from gridhand.api import slow_clients
from gridhand.api.http import MOST_LARGE_BODIES, SMALL_BYTES, LimitBodies
from until import PATIENCE_S, until

VERSION = b"GET /api/v1/version HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
def connect(server):
    with contextlib.ExitStack() as opened:

        def connect(said=b""):
            one = opened.enter_context(socket.socket(socket.AF_UNIX))
            one.settimeout(PATIENCE_S)
            one.connect(server.home.socket)
            one.sendall(said)
            return one

        yield connect


def is_closed(one):
    try:
        return one.recv(65536) == b""
    except ConnectionError:
        return True


SLOW = {
    "says nothing": b"",
    "does not end its headers": b"GET /api/v1/version HTTP/1.1\r\nhost: x\r\n",
    "does not end its body": b"POST /api/v1/stop HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{",
}


@pytest.mark.parametrize("said", SLOW.values(), ids=SLOW)
def test_a_request_that_does_not_arrive_in_time_is_given_up(connect, api, monkeypatch, said):
    monkeypatch.setattr(slow_clients, "HEADER_S", 0.1)
    monkeypatch.setattr(slow_clients, "BODY_S", 0.1)
    assert is_closed(connect(said))
    assert api.ok("GET", "/version")


def test_a_second_request_that_does_not_arrive_in_time_is_given_up(connect, monkeypatch):
    one = connect(VERSION)
    answer = b""
    while not answer.endswith(b"}"):  # it may come in pieces
        answer += one.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200")
    monkeypatch.setattr(slow_clients, "HEADER_S", 0.1)
    one.sendall(VERSION[:-2])
    assert is_closed(one)


def test_an_answer_may_take_longer_than_a_request(server, connect, api, monkeypatch):
    monkeypatch.setattr(slow_clients, "HEADER_S", 0.1)
    monkeypatch.setattr(slow_clients, "BODY_S", 0.1)
    id = api.submit()
    connection, frames = api.follow(id)
    with contextlib.closing(connection):
        assert is_closed(connect())  # so the time of a request is over
        server.end(id, code=0)
        assert list(frames)[-1]


def test_the_longest_idle_connection_makes_room(connect, api, monkeypatch):
    monkeypatch.setattr(slow_clients, "MOST_CONNECTIONS", 20)
    idle = [connect() for _ in range(60)]
    assert is_closed(idle[0])
    assert api.ok("GET", "/version")
    until(lambda: is_closed(idle[1]))


def test_few_large_bodies_are_read_at_a_time():
    """The others wait, and small ones need not."""
    reading, done, small_is_read = [], asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        message = await receive()
        while message.get("more_body"):
            message = await receive()

    async def send(_):
        pass

    async def one(size):
        async def receive():
            reading.append(size)
            if size == SMALL_BYTES:
                small_is_read.set()
            await done.wait()
            return {"type": "http.request", "body": b"", "more_body": False}

        headers = [(b"content-length", b"%d" % size)]
        scope = {"type": "http", "path": "/", "headers": headers, "method": "POST"}
        await limit(scope, receive, send)

    async def everybody():
        large = [asyncio.create_task(one(SMALL_BYTES + 1)) for _ in range(MOST_LARGE_BODIES + 9)]
        small = asyncio.create_task(one(SMALL_BYTES))
        await small_is_read.wait()
        assert len(reading) == MOST_LARGE_BODIES + 1
        done.set()
        await asyncio.gather(small, *large)
        assert len(reading) == MOST_LARGE_BODIES + 10

    limit = LimitBodies(app)
    asyncio.run(everybody())
