"""A session with a controller: how long it lasts, and how it goes on after a restart."""

import json
import threading
import time

import pytest

from fake_controller import FakeController, chunked, problem, reply
from gridhand.client import Client
from gridhand.client.session import Session
from gridhand.core import errors
from until import until


class Controller:
    """Opens sessions, and ends their connections when it is told to."""

    def __init__(self, path):
        self.refusals = []  # to answer before a session is opened
        self.ended = threading.Event()  # by the client
        self._fake = FakeController(path, self._answer)

    def bodies(self):
        return [one.json for one in self._fake.asked if one.path == "/api/v1/sessions"]

    def hang_up(self):
        self._fake.hang_up()

    def close(self):
        self._fake.close()

    def _answer(self, asked):
        if asked.method == "DELETE":
            self.ended.set()
            return reply({})
        if asked.path != "/api/v1/sessions":
            return reply({"pid": 1, "jobs": asked.json["jobs"] if asked.body else []})
        if self.refusals:
            return self.refusals.pop(0)
        opened = {"session": "s1", "held": asked.json["held"], "jobs": asked.json["jobs"]}
        return chunked(self._lines(opened))

    def _lines(self, opened):
        yield json.dumps(opened).encode() + b"\n"
        while not self.ended.wait(0.01):
            yield b'{"event":"alive"}\n'


@pytest.fixture
def controller(home):
    made = Controller(f"{home}/socket")
    yield made
    made.ended.set()
    made.close()


@pytest.fixture
def client(home):
    with Client(f"unix:{home}/socket") as client:
        client.revive = lambda start: time.sleep(0.01)
        yield client


def test_it_lasts_until_it_is_closed(controller, client):
    with Session(client) as session:
        assert session.id == "s1"
        assert not controller.ended.is_set()
    assert controller.ended.is_set()
    until(lambda: session.id is None)


def test_it_is_opened_when_it_is_first_used(controller, client):
    session = Session(client)
    assert session.id is None
    assert controller.bodies() == []
    session.attach(["17"])
    assert controller.bodies() == [{"session": None, "held": [], "jobs": []}]
    session.close()


def test_one_that_comes_back_says_what_it_has(controller, client):
    session = Session(client)
    session.attach(["17", "18"])
    session.hold("a1-1")
    session.hold("a1-2")
    session.let_go("a1-2")
    session.report_on("r1")
    controller.hang_up()
    until(lambda: len(controller.bodies()) == 2)
    assert session.ready() == "s1"
    has = {"session": "s1", "held": ["a1-1"], "jobs": ["17", "18"], "runs": ["r1"]}
    assert controller.bodies()[1] == has
    session.close()


def test_one_that_comes_back_waits_for_the_store(controller, client):
    away = problem(503, code="store_unavailable", detail="away")
    session = Session(client)
    session.attach(["17"])
    controller.refusals += [away, away]
    controller.hang_up()
    until(lambda: len(controller.bodies()) == 4)
    assert session.ready() == "s1"
    session.close()


def test_a_refusal_is_told(controller, client):
    controller.refusals += [problem(403, code="not_yours", detail="no")]
    with pytest.raises(errors.NotYours):
        Session(client).ready()


def test_a_controller_that_is_gone_for_good(controller, client):
    session = Session(client)
    session.ready()
    client.revive = None
    controller.hang_up()
    until(lambda: session._failure is not None)
    assert session.id is None
    session.close()


def test_after_an_error_it_ends_with_the_process_and_not_before(controller, client):
    session = Session(client)
    with pytest.raises(KeyError), session:
        raise KeyError
    assert session.id == "s1"
    assert not controller.ended.is_set()
    session.close()
