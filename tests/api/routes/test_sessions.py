"""Sessions: what is held in one ends with its connection, and with nothing else."""

import json
import time
from contextlib import closing

import pytest

from gridhand.client.transport import Address
from gridhand.core.errors import InvalidInput
from nodeless_controller import Running

PATIENCE_S = 20  # `make soak` measures how long it takes


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def server(home):
    with Running(home) as running:
        with running.client() as client:
            client.register([{"name": "n1", "resources": {"cpu": 8}}])
        yield running


def connect(server, body=None, owner="ann"):
    """A session: its connection, and the first line that it was told."""
    connection = Address(server.home.socket).open(10)
    headers = {"content-type": "application/json", "x-gridhand-owner": owner}
    content = json.dumps(body or {}).encode()
    reply = connection.ask("POST", "/api/v1/sessions", headers, content, 20)
    assert reply.status == 200
    return connection, json.loads(reply.body.readline()), reply.body


def hold(server, session, owner="ann", **more):
    with server.client().for_owner(owner) as client:
        return client.allocate({"request": {"cpu": 1}, "session": session, **more})


def ids(server):
    with server.client() as client:
        return [held["id"] for held in client.allocations()]


def gone_within(server, seconds, id):
    """How long it took until `id` was given back."""
    begin = time.monotonic()
    while id in ids(server):
        assert time.monotonic() - begin < seconds, f"{id} is still held"
        time.sleep(0.01)
    return time.monotonic() - begin


def test_what_a_session_holds_ends_with_its_connection(server):
    connection, told, _ = connect(server)
    held = hold(server, told["session"])
    assert held["lifetime"] == "session"
    connection.close()
    gone_within(server, PATIENCE_S, held["id"])
    with server.client().for_owner("ann") as client:
        assert client.move(held["id"], "release")["state"] == "released"
        assert client.check()["clean"]
        [event] = [one for one in client.events() if one["kind"] == "allocation.released"]
        assert event["why"] == "the session that held it has ended"


def test_others_keep_theirs(server):
    first, told, _ = connect(server)
    second, other, _ = connect(server)
    mine, theirs = hold(server, told["session"]), hold(server, other["session"])
    lease = hold(server, None, ttl_s=60)
    by_hand = hold(server, None)
    with closing(second):
        first.close()
        gone_within(server, PATIENCE_S, mine["id"])
        assert set(ids(server)) == {theirs["id"], lease["id"], by_hand["id"]}


def test_a_session_that_is_ended_gives_back_at_once(server):
    connection, told, body = connect(server)
    with closing(connection), server.client().for_owner("ann") as client:
        for _ in range(3):
            hold(server, told["session"])
        client.end_session(told["session"])
        assert ids(server) == []
        while body.readline():  # and the stream ends in good order
            pass
        with pytest.raises(InvalidInput) as caught:
            hold(server, told["session"])
        assert caught.value.field == "session"


def test_a_session_of_another_owner_is_not_ours(server):
    connection, told, _ = connect(server, owner="ann")
    with closing(connection):
        held = hold(server, told["session"], owner="ann")
        with pytest.raises(InvalidInput):
            hold(server, told["session"], owner="bob")
        with server.client().for_owner("bob") as bob:
            bob.end_session(told["session"])
        assert ids(server) == [held["id"]]


def test_what_becomes_a_lease_outlasts_the_session(server):
    connection, told, _ = connect(server)
    kept = hold(server, told["session"], state="reserved", ttl_s=60)
    gone = hold(server, told["session"])
    with server.client().for_owner("ann") as client:
        assert client.move(kept["id"], "confirm", ttl_s=60)["lifetime"] == "lease"
    connection.close()
    gone_within(server, PATIENCE_S, gone["id"])
    assert ids(server) == [kept["id"]]


def test_a_reservation_ends_with_its_session_and_by_its_time(server):
    connection, told, _ = connect(server)
    short = hold(server, told["session"], state="reserved", ttl_s=0.2)
    long = hold(server, told["session"], state="reserved", ttl_s=60)
    confirmed = hold(server, told["session"], state="reserved", ttl_s=60)
    with server.client().for_owner("ann") as client:
        assert client.move(confirmed["id"], "confirm")["lifetime"] == "session"
    gone_within(server, PATIENCE_S, short["id"])
    connection.close()
    gone_within(server, PATIENCE_S, long["id"])
    gone_within(server, PATIENCE_S, confirmed["id"])


def test_a_connection_that_comes_back_at_once_loses_nothing(server):
    connection, told, _ = connect(server)
    held = hold(server, told["session"])
    connection.close()
    again, back, _ = connect(server, {"session": told["session"], "held": [held["id"]]})
    with closing(again):
        assert back == {"session": told["session"], "held": [held["id"]], "jobs": []}
        time.sleep(1)  # longer than the moment within which it had to be back
        assert ids(server) == [held["id"]]
    gone_within(server, PATIENCE_S, held["id"])


def test_after_a_restart_a_client_says_what_was_its_own(home):
    with Running(home) as server:
        with server.client() as client:
            client.register([{"name": "n1", "resources": {"cpu": 8}}])
        connection, told, body = connect(server)
        kept = [hold(server, told["session"])["id"] for _ in range(2)]
        other, others, _ = connect(server, owner="bob")
        theirs = hold(server, others["session"], owner="bob")["id"]
        lease = hold(server, None, ttl_s=60)["id"]
    while body.readline():  # the controller said good-bye
        pass
    connection.close()
    other.close()
    with Running(home) as server:
        assert set(ids(server)) == {*kept, theirs, lease}
        claimed = {"session": told["session"], "held": [*kept, theirs, lease, "a9-9"]}
        again, back, _ = connect(server, claimed)
        assert back["held"] == kept  # not what another owner has, nor what is no session's
        again.close()
        gone_within(server, PATIENCE_S, kept[0])
        assert set(ids(server)) == {theirs, lease}


def test_many_allocations_of_one_session_are_given_back_together(server):
    connection, told, _ = connect(server)
    with server.client().for_owner("ann") as client:
        for _ in range(200):
            order = {"request": {"cpu": 0.01}, "session": told["session"]}
            client.allocate(order)
    assert len(ids(server)) == 200
    connection.close()
    begin = time.monotonic()
    while ids(server):
        assert time.monotonic() - begin < 30
        time.sleep(0.02)


def test_a_session_tells_that_it_is_alive(server, monkeypatch):
    monkeypatch.setattr("gridhand.api.routes.sessions.ALIVE_S", 0.05)
    connection, _, body = connect(server)
    with closing(connection):
        assert json.loads(body.readline()) == json.loads(body.readline()) == {"event": "alive"}
