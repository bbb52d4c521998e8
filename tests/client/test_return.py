"""A controller that is gone for a while: whoever waits for it says so."""

import threading

import pytest

from fake_controller import FakeController, reply
from gridhand import __version__
from gridhand.client import connect, controller_finder
from until import until

FACTS = reply({"version": __version__, "pid": 1, "protocol": 1, "idle": True})


@pytest.fixture
def path(home):
    return f"{home}/socket"


@pytest.fixture
def client(path):
    """A client of a controller that has just gone."""
    with FakeController(path, lambda asked: FACTS):
        client = connect(f"unix:{path}")
    yield client
    client.close()


def ask(what):
    thread = threading.Thread(target=what, daemon=True)
    thread.start()
    return thread


def test_a_request_that_waits_says_so_once_and_goes_on(client, path):
    said, answers = [], []
    client.on_wait = said.append
    thread = ask(lambda: answers.append(client.version()))
    until(lambda: said)
    with FakeController(path, lambda asked: FACTS):
        thread.join(60)
    assert [answer["pid"] for answer in answers] == [1]
    wait = "waiting up to 60 s for it to come back"
    assert said == [f"the controller at unix:{path} is gone; {wait}"]


def test_it_is_said_on_stderr_where_nobody_listens(client, path, capfd):
    thread = ask(client.version)
    seen = []
    until(lambda: seen.append(capfd.readouterr().err) or "".join(seen))
    with FakeController(path, lambda asked: FACTS):
        thread.join(60)
    assert "".join(seen).startswith(f"grid: the controller at unix:{path} is gone; waiting ")


def test_one_that_is_back_at_once_is_not_mentioned(client, path, monkeypatch):
    monkeypatch.setattr(controller_finder, "REPORT_S", 60.0)
    said = []
    client.on_wait = said.append
    thread = ask(client.version)
    with FakeController(path, lambda asked: FACTS):
        thread.join(60)
    assert not thread.is_alive()
    assert said == []


def test_a_session_in_the_background_says_nothing(client, path, monkeypatch):
    monkeypatch.setattr(controller_finder, "PATIENCE_S", 2.0)
    said = []
    client.on_wait = said.append
    with pytest.raises(Exception, match="no controller listens"):
        client.reconnect(start=False)
    assert said == []
