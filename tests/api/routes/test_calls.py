"""The routes of calls: what clients report of them, what is refused, and what ends with a client."""

import json
import time
from contextlib import closing

import pytest

from gridhand.api.routes.calls import LONGEST_ERROR, MOST_LISTED, MOST_REPORTED
from gridhand.client import routes
from gridhand.client.transport import Address
from gridhand.controller.clients import call_recorder, client_sessions, connections
from gridhand.core.errors import GridError, InvalidInput, NotYours, UnknownCall
from nodeless_controller import Running
from until import until


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def server(home):
    with Running(home) as running:
        yield running


class Session:
    """A connection that calls are reported in."""

    def __init__(self, server, owner="ann", **body):
        self.server, self.owner = server, owner
        self.connection = Address(server.home.socket).open(10)
        headers = {"content-type": "application/json", "x-gridhand-owner": owner}
        content = json.dumps(body).encode()
        reply = self.connection.ask("POST", "/api/v1/sessions", headers, content, 20)
        assert reply.status == 200
        self.id = json.loads(reply.body.readline())["session"]

    def report(self, *calls, run="r1", **more):
        with self.server.client().for_owner(self.owner) as client:
            return client.report_calls({"session": self.id, "run": run, "calls": calls, **more})

    def close(self):
        self.connection.close()


@pytest.fixture
def session(server):
    with closing(Session(server)) as made:
        yield made


def alike(numbers=(1,), state="succeeded", **more):
    """Calls in one state, at times that go with it."""
    count = len(numbers)
    begun = state not in ("queued", "cancelled")
    over = state not in ("queued", "running")
    return {
        "name": "f", "state": state, "numbers": list(numbers), "submitted_ms": [1000] * count,
        "started_ms": [1001 if begun else None] * count,
        "ended_ms": [1002 if over else None] * count,
        "error": "ValueError: no" if state in ("failed", "lost") else None, **more,
    }  # fmt: skip


def listed(server, **wishes):
    with server.client() as client:
        return client.calls(**wishes)


def states(server, **wishes):
    return {one["id"]: one["state"] for one in listed(server, **wishes)}


# ---- reporting and asking


def test_what_was_reported_is_told_again(server, session):
    where = {"node": "n1", "job": "7_2", "allocation": "a1-5"}
    assert session.report(alike([1, 2]), alike([3], "running", name="g h", **where)) == 3
    with server.client() as client:
        assert client.call("r1.3") == {
            "id": "r1.3", "run": "r1", "number": 3, "owner": "ann", "name": "g h",
            "state": "running", **where, "submitted_at": "1970-01-01T00:00:01.000Z",
            "started_at": "1970-01-01T00:00:01.001Z", "ended_at": None, "error": None,
        }  # fmt: skip
    assert [one["id"] for one in listed(server)] == ["r1.3", "r1.2", "r1.1"]
    assert session.report(alike([3], "failed")) == 1
    with server.client() as client:
        assert client.call("r1.3")["error"] == "ValueError: no"


def test_a_report_may_be_repeated_and_what_ended_stays(server, session):
    for _ in range(2):
        session.report(alike([1]), alike([2], "queued"))
    session.report(alike([1, 2], "running"))
    assert states(server) == {"r1.1": "succeeded", "r1.2": "running"}


def test_many_are_taken_at_once(server, session):
    assert session.report(alike(range(1, MOST_REPORTED + 1))) == MOST_REPORTED
    assert len(listed(server, limit=MOST_LISTED)) == MOST_REPORTED
    assert len(listed(server)) == 100


def test_of_many_that_failed_each_has_its_error(server, session):
    """Their brackets are more than a body may be deep; they are not nested."""
    failed = [alike([n], "failed", error=f'no [[{{\\" {n}') for n in range(1, 301)]
    assert session.report(*failed) == 300
    assert len({one["error"] for one in listed(server, limit=1000)}) == 300


def test_they_are_found_by_state_name_run_and_owner(server, session):
    session.report(alike([1]), alike([2], "failed"), alike([3], "queued", name="g"))
    with closing(Session(server, "bob")) as bobs:
        bobs.report(alike([1]), run="r2")
        assert states(server, states=["open"]) == {"r1.3": "queued"}
        assert states(server, states=["failed", "queued"]).keys() == {"r1.2", "r1.3"}
        assert states(server, name="g").keys() == {"r1.3"}
        assert states(server, run="r2").keys() == {"r2.1"}
        assert states(server, owner="bob").keys() == {"r2.1"}
        assert len(listed(server, limit=2)) == 2


def test_a_clock_that_is_ahead_writes_nothing_into_the_future(server, session):
    far = 2**52
    session.report(alike([1], submitted_ms=[5], started_ms=[far], ended_ms=[far + 9]))
    with server.client() as client:
        told = client.call("r1.1")
    assert told["submitted_at"] == "1970-01-01T00:00:00.005Z"
    assert told["started_at"] == told["ended_at"]
    assert 2020 < int(told["ended_at"][:4]) < 2100


# ---- what is refused

#    what it shows                          what is given                                                  the field
BAD = {
    "no calls":                            ({"calls": []},                                                "calls"),
    "a run that is none":                  ({"run": "R 1"},                                               "run"),
    "a run that is too long":              ({"run": "r" * 33},                                            "run"),
    "a session that is none":              ({"session": "mine"},                                          "session"),
    "a field that there is not":           ({"speed": 1},                                                 "speed"),
    "a state that is none":                ({"calls": [alike(state="asleep")]},                           "calls.0.state"),
    "no numbers":                          ({"calls": [alike([])]},                                       "calls.0.numbers"),
    "number 0":                            ({"calls": [alike([0])]},                                      "calls.0.numbers.0"),
    "a number that is a text":             ({"calls": [alike(["1"])]},                                    "calls.0.numbers.0"),
    "a number that is true":               ({"calls": [alike([True])]},                                   "calls.0.numbers.0"),
    "a number twice":                      ({"calls": [alike([1]), alike([2, 1])]},                       "numbers"),
    "too many":                            ({"calls": [alike(range(1, 3000)), alike(range(3000, 6000))]}, "calls"),
    "too few times":                       ({"calls": [alike([1, 2], submitted_ms=[1])]},                 "calls.0"),
    "a time before all time":              ({"calls": [alike(submitted_ms=[-1])]},                        "calls.0.submitted_ms.0"),
    "times that are not in order":         ({"calls": [alike(started_ms=[999])]},                         "submitted_ms, started_ms, ended_ms"),
    "an end before the beginning":         ({"calls": [alike(ended_ms=[1000])]},                          "submitted_ms, started_ms, ended_ms"),
    "open, and over":                      ({"calls": [alike(state="running", ended_ms=[1002])]},         "calls.0"),
    "over, and no end":                    ({"calls": [alike(ended_ms=[None])]},                          "calls.0"),
    "running, and not begun":              ({"calls": [alike(state="running", started_ms=[None])]},       "calls.0"),
    "a failure that says nothing":         ({"calls": [alike(state="failed", error=None)]},               "calls.0"),
    "a success that has failed":           ({"calls": [alike(error="no")]},                               "calls.0"),
    "an error that is too long":           ({"calls": [alike(state="failed", error="x" * (LONGEST_ERROR + 1))]}, "calls.0.error"),
    "an error that cannot be shown":       ({"calls": [alike(state="failed", error="a\0b")]},             "error"),
    "no name":                             ({"calls": [alike(name="")]},                                  "calls.0.name"),
    "a name that cannot be shown":         ({"calls": [alike(name="\ud800")]},                            "calls.0.name"),
    "a name of two lines":                 ({"calls": [alike(name="a\nb")]},                              "name"),
    "a node that is no name":              ({"calls": [alike(node="a/b")]},                               "node"),
    "a job that is none":                  ({"calls": [alike(job="../1")]},                               "calls.0.job"),
    "an allocation that is no name":       ({"calls": [alike(allocation="a b")]},                         "allocation"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "field"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_refused_by_its_name_and_nothing_is_written(server, session, given, field):
    body = {"session": session.id, "run": "r1", "calls": [alike([7])], **given}
    with server.client().for_owner("ann") as client, pytest.raises(InvalidInput) as caught:
        client.report_calls(body)
    assert caught.value.field == field
    assert caught.value.allowed
    assert listed(server) == []


@pytest.mark.parametrize("wishes", [{"states": ["asleep"]}, {"limit": 0}, {"limit": MOST_LISTED + 1}, {"run": "R"}, {"name": "\0"}, {"owner": "a b"}], ids=str)  # fmt: skip
def test_a_question_that_makes_no_sense_is_refused(server, wishes):
    with pytest.raises(InvalidInput):
        listed(server, **wishes)


def test_a_call_that_is_not_there(server, session):
    session.report(alike([1]))
    with server.client() as client:
        for id in ("r1.2", "r2.1"):
            with pytest.raises(UnknownCall, match=id):
                client.call(id)
        for id in ("r1", "r1.", "r1.0", "r1.01", ".1", "R.1", "r1.1.1", f"r1.{2**53}"):
            with pytest.raises(GridError) as caught:
                client.call(id)
            assert caught.value.code == "invalid_input"


def test_the_run_of_another_owner_is_not_written_to(server, session):
    session.report(alike([1], "running"))
    with closing(Session(server, "bob")) as bobs:
        with pytest.raises(NotYours):
            bobs.report(alike([2]))
        assert states(server) == {"r1.1": "running"}


# ---- those who are gone


@pytest.fixture
def brief(monkeypatch):
    monkeypatch.setattr(connections, "MOMENT_S", 0.05)


def test_what_is_open_is_lost_with_its_session_and_what_ended_is_not(server, session, brief):
    with closing(Session(server)) as other:
        other.report(alike([1]), alike([2], "queued"), alike([3], "running"), run="r2")
        session.report(alike([1], "running"))
    until(lambda: not listed(server, states=["open"], run="r2"))
    assert states(server) == {"r1.1": "running", "r2.1": "succeeded", "r2.2": "lost", "r2.3": "lost"}  # fmt: skip
    with server.client() as client:
        assert client.call("r2.3")["error"] == call_recorder.GONE
        assert client.call("r2.2")["started_at"] is None


def test_a_session_that_was_ended_loses_them_at_once(server, session):
    session.report(alike([1], "running"))
    with server.client().for_owner("ann") as client:
        client.end_session(session.id)
    assert states(server) == {"r1.1": "lost"}
    with pytest.raises(InvalidInput) as caught:
        session.report(alike([2]))
    assert caught.value.field == "session"
    with closing(Session(server)) as again:  # the run may go on, but what was lost stays so
        again.report(alike([1, 2]))
    assert states(server) == {"r1.1": "lost", "r1.2": "succeeded"}


def test_nobody_ends_the_calls_of_another_by_a_session_of_their_own(server, session, brief):
    session.report(alike([1], "running"))
    with closing(Session(server, "bob", runs=["r1"])) as bobs:
        bobs.report(alike([1], "running"), run="r2")
    until(lambda: states(server, run="r2") == {"r2.1": "lost"})
    assert states(server, run="r1") == {"r1.1": "running"}


def test_many_are_lost_in_steps(server, session, monkeypatch):
    monkeypatch.setattr(call_recorder, "_STEP", 10)
    session.report(alike(range(1, 36), "queued"))
    with server.client().for_owner("ann") as client:
        client.end_session(session.id)
    assert set(states(server).values()) == {"lost"}


def test_after_a_restart_those_who_come_back_go_on_and_the_others_calls_are_lost(home):
    with Running(home) as server:
        mine, other = Session(server), Session(server)
        mine.report(alike([1], "running"), run="r1")
        other.report(alike([1], "running"), run="r2")
        id = mine.id
    for one in (mine, other):
        one.close()
    with Running(home) as server, closing(Session(server, session=id, runs=["r1"])) as back:
        assert states(server) == {"r1.1": "running", "r2.1": "running"}
        before = client_sessions._name("", client_sessions._BEFORE)
        waiting = server.controller.sessions._clients
        server.loop.call_soon_threadsafe(waiting._now, before)  # their time is over
        until(lambda: states(server)["r2.1"] == "lost")
        assert states(server)["r1.1"] == "running"
        back.report(alike([1]))
        assert states(server) == {"r1.1": "succeeded", "r2.1": "lost"}


def test_the_ledger_and_its_events_know_nothing_of_them(server, session):
    with server.client() as client:
        before = client.events(), client.dump()
        session.report(alike(range(1, 50)), alike([50], "running"))
        events, dump = client.events(), client.dump()
        assert (events, {**dump, "now": 0}) == (before[0], {**before[1], "now": 0})
        assert client.check()["clean"]


# ---- how many are kept


def test_of_too_many_the_oldest_are_forgotten_while_more_are_written(server, session, monkeypatch):
    monkeypatch.setattr(call_recorder, "KEPT_CALLS", 100)
    monkeypatch.setattr(call_recorder, "_BETWEEN", 50)
    monkeypatch.setattr(call_recorder, "_STEP", 20)
    session.report(alike([1000], "running"))
    for first in range(1, 400, 40):
        numbers = range(first, first + 40)
        ended = [time.time_ns() // 10**6 - 5000 + number for number in numbers]
        session.report(alike(numbers, ended_ms=ended))
    until(lambda: len(listed(server, limit=1000)) <= 200)
    kept = [one["number"] for one in listed(server, limit=1000)]
    assert kept[0] == 1000
    assert kept[1:] == sorted(kept[1:], reverse=True)
    assert kept[1] == 400


# ---- slots that wait


def test_a_slot_that_waits_is_told_what_never_starts(server):
    wait = {"allocation": "a1-1", "queued": ["7"], "running": [], "blocked": True}
    with server.client() as client:
        assert client.ask(routes.report_wait(wait)) == {}  # nothing is known of these
        for wrong in (
            {"queued": ["../x"]},
            {"allocation": "x" * 1000},
            {"blocked": 1},
            {"more": 1},
        ):
            with pytest.raises(InvalidInput):
                client.ask(routes.report_wait({**wait, **wrong}))
