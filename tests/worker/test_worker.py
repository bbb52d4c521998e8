"""The functions that a worker has been sent, and the calls that wait in it."""

import pickle
from collections import deque

import pytest

from gridhand.core.model.requests import Request
from gridhand.library.functions.pickled_function import PickledFunction
from gridhand.library.pool import event_loop, shape
from gridhand.library.pool.call_log import Notes
from gridhand.library.pool.event_loop import WorkerConnection
from gridhand.library.pool.shape import CallFuture, PendingCall, Shape, WorkerHandle
from gridhand.worker import wire
from gridhand.worker.worker import Worker


def worker():
    """A worker without a connection, which learns functions and is given calls."""
    made = object.__new__(Worker)
    made._functions, made._calls = {}, deque()
    return made


def take(worker, frame):
    (body,) = wire.Frames().take(frame)
    worker._obey([body])


class Client:
    """The other end: one worker of a shape, and functions that each are called once or more."""

    def __init__(self):
        self.shape = Shape(1, Request.of(cpu=1), Notes(lambda: None))
        self.handle = WorkerHandle(1, 0, self.shape, ["j", "1", "n", "a1-1"])
        self.handle.connection = WorkerConnection(None)
        self.functions = {}
        self.count = 0

    def call(self, number):
        function = self.functions.setdefault(number, PickledFunction(number, b"code %d" % number))
        self.count += 1
        packed = wire.INLINE, pickle.dumps(((), None))
        call = PendingCall(self.count, CallFuture(), function, packed, "f", None, ())
        call.shape = self.shape
        return call

    def frame(self, *numbers):
        return self.handle.connection.frame([self.call(number) for number in numbers])


def test_after_500_functions_the_calls_that_wait_still_have_theirs():
    client, there = Client(), worker()
    for first in range(1, 500, 50):
        take(there, client.frame(*range(first, first + 50)))
    assert len(there._functions) == 500
    there._calls = deque(call for call in there._calls if call[1] in (7, 499))  # the rest is done
    take(there, client.frame(501, 502))
    assert there._functions.keys() - {wire.FORGET} == {7, 499, 501, 502}
    assert [call[1] for call in there._calls] == [7, 499, 501, 502]
    for _, function, _, _ in there._calls:
        assert there._functions[function] == b"code %d" % function
    take(there, client.frame(7, 8))  # the client sends again what it no longer counts as sent
    assert there._functions.keys() - {wire.FORGET} == {7, 8, 499, 501, 502}


def test_every_call_finds_its_function_however_many_there_are():
    client, there = Client(), worker()
    for number in range(1, 1700):
        take(there, client.frame(number, number % 13 + 1))
        while len(there._calls) > 5:
            _, function, _, _ = there._calls.popleft()
            assert there._functions[function] == b"code %d" % function
        assert len(there._functions) <= event_loop._MOST_SENT + 6


def test_a_function_is_sent_once():
    client = Client()
    assert client.frame(1).count(b"code 1") == 1
    assert b"code 1" not in client.frame(1, 1)


# ---- calls that wait in a worker


@pytest.fixture
def client():
    made = Client()
    made.shape.workers.add(made.handle)
    return made


def test_a_worker_has_at_most_so_many_calls_ahead(client):
    client.shape.waiting.extend(client.call(1) for _ in range(200))
    client.functions[1].seconds = 0.0
    assert len(client.shape.take(client.handle)) == shape.AHEAD
    assert client.shape.take(client.handle) == []
    for number in list(client.handle.running)[:10]:
        del client.handle.running[number]
    assert len(client.shape.take(client.handle)) == 10
    assert len(client.shape.waiting) == 200 - shape.AHEAD - 10


def test_long_calls_do_not_wait_behind_another(client):
    client.shape.waiting.extend(client.call(1) for _ in range(10))
    client.functions[1].seconds = 1.0
    assert len(client.shape.take(client.handle)) == 1
    assert client.shape.take(client.handle) == []


def test_several_workers_share_what_waits(client):
    other = WorkerHandle(2, 0, client.shape, ["k", "1", "n", "a1-2"])
    client.shape.workers.add(other)
    client.shape.waiting.extend(client.call(1) for _ in range(10))
    client.functions[1].seconds = 0.0
    assert len(client.shape.take(client.handle)) == 5
    assert len(client.shape.take(other)) == 3


def test_what_was_cancelled_while_it_waited_is_not_given_to_a_worker(client):
    calls = [client.call(1) for _ in range(3)]
    client.shape.waiting.extend(calls)
    client.functions[1].seconds = 0.0
    calls[0].future.cancel()
    assert client.shape.take(client.handle) == calls[1:]
    assert list(client.handle.running.values()) == calls[1:]


def test_what_is_put_back_comes_first_and_can_be_cancelled(client):
    calls = [client.call(1) for _ in range(4)]
    client.shape.waiting.extend(calls)
    client.functions[1].seconds = 0.0
    taken = client.shape.take(client.handle)
    late = client.call(1)
    client.shape.waiting.append(late)
    client.shape.put_back(taken[2:])
    assert list(client.shape.waiting) == [*taken[2:], late]
    assert taken[2].future.cancel()
    assert not taken[0].future.cancel()
