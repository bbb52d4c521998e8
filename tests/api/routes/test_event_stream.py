"""Events over HTTP: pages, filters, and streams that miss nothing."""

import json
from contextlib import closing, contextmanager

import pytest

from api_server import PATIENCE_S, Api
from gridhand.api.routes import event_stream
from gridhand.client.transport import Address
from nodeless_controller import Running
from until import until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Running(tmp_path_factory.mktemp("events") / "home") as running:
        Api(running).ok("POST", "/nodes", {"name": "n1", "capacity": {"cpu": 8}})
        yield running


@pytest.fixture
def api(server):
    return Api(server)


def newest(api):
    return api.ok("GET", "/events?limit=10000")["next"]


def change(api, count=1):
    """Make two events for each: an allocation that begins and ends."""
    for _ in range(count):
        held = api.ok("POST", "/resources/allocate", {"requirements": {"cpu": 1}})
        api.ok("POST", "/resources/release", {"allocation_id": held["allocation_id"]})


@contextmanager
def stream(server, query="", **headers):
    """Yield an iterator over the events of a stream, each as its fields."""
    named = {"accept": "text/event-stream", **{k.replace("_", "-"): v for k, v in headers.items()}}
    with closing(Address(server.home.socket).open(PATIENCE_S)) as connection:
        reply = connection.ask("GET", f"/api/v1/events{query}", named, None, PATIENCE_S)
        assert (reply.status, reply.headers["content-type"]) == (
            200,
            "text/event-stream; charset=utf-8",
        )
        assert reply.body.readline() == b": events follow\n"
        yield frames(reply.body)


def frames(body):
    found = {}
    while line := body.readline():
        text = line.decode().rstrip("\n")
        if text and not text.startswith(":"):
            name, _, value = text.partition(": ")
            found[name] = value
        elif not text and found:
            yield {**found, "data": json.loads(found["data"])}
            found = {}


# ---- pages


def test_pages_follow_each_other(api):
    begin = newest(api)
    change(api, 3)
    first = api.ok("GET", f"/events?after={begin}&limit=4")
    assert [event["number"] for event in first["events"]] == [begin + n for n in (1, 2, 3, 4)]
    rest = api.ok("GET", f"/events?after={first['next']}")
    assert [event["number"] for event in rest["events"]] == [begin + 5, begin + 6]
    assert api.ok("GET", f"/events?after={rest['next']}") == {"events": [], "next": begin + 6}


def test_a_page_has_only_the_kinds_and_owners_that_are_asked_for(api):
    begin = newest(api)
    change(api, 2)
    api.ok("POST", "/nodes/n1/drain")
    api.ok("POST", "/nodes/n1/resume")

    def kinds(query):
        found = api.ok("GET", f"/events?after={begin}&{query}")
        assert found["next"] == newest(api)
        return [event["kind"] for event in found["events"]]

    assert kinds("kind=node") == kinds("kind=node.*") == ["node.drained", "node.resumed"]
    assert kinds("kind=node.drained&kind=allocation.active") == ["allocation.active"] * 2 + ["node.drained"]  # fmt: skip
    owner = api.ok("GET", "/version")["owner"]
    assert len(kinds(f"owner={owner}")) == 6
    assert kinds("owner=somebody") == kinds("kind=nod") == kinds("kind=job") == []


@pytest.mark.parametrize("query", ["after=-1", "limit=0", "limit=10001", "after=x"])
def test_wrong_pages_are_refused(api, query):
    assert api("GET", f"/events?{query}")[0] == 422


# ---- streams


def test_a_stream_begins_with_what_happens_next(server, api):
    change(api)
    with stream(server) as events:
        change(api)
        first, second = next(events), next(events)
    assert (first["event"], second["event"]) == ("allocation.active", "allocation.released")
    assert first["id"] == str(first["data"]["number"])
    [page] = api.ok("GET", f"/events?after={first['data']['number'] - 1}&limit=1")["events"]
    assert first["data"] == page


def test_a_stream_goes_on_after_the_last_event_that_was_seen(server, api):
    begin = newest(api)
    change(api, 1200)  # more than a page of what is read at a time
    with stream(server, last_event_id=str(begin)) as events:
        numbers = [next(events)["data"]["number"] for _ in range(2400)]
        assert numbers == list(range(begin + 1, begin + 2401))
        change(api)
        assert next(events)["data"]["number"] == begin + 2401
    with stream(server, f"?after={begin + 2399}") as events:
        assert next(events)["data"]["number"] == begin + 2400


def test_a_stream_has_only_the_kinds_that_are_asked_for(server, api):
    with stream(server, "?kind=node") as events:
        change(api, 3)
        api.ok("POST", "/nodes/n1/drain")
        api.ok("POST", "/nodes/n1/resume")
        assert [next(events)["event"] for _ in range(2)] == ["node.drained", "node.resumed"]


def test_many_listeners_see_the_same_and_leave_nothing_behind(server, api):
    feed = server.controller.events
    with stream(server) as one, stream(server) as two:
        until(lambda: feed.followers == 2)
        change(api)
        assert [next(one) for _ in range(2)] == [next(two) for _ in range(2)]
    change(api)
    until(lambda: feed.followers == 0)
    with stream(server) as again:
        change(api)
        assert next(again)["event"] == "allocation.active"


def test_a_listener_that_does_not_read_holds_up_nobody_and_misses_nothing(server, api):
    """Row 81: what it has not read is not kept for it; it is read from the store when it goes on."""
    api.ok("POST", "/nodes", {"name": "many", "capacity": {"cpu": 1000}})
    with stream(server) as slow, stream(server) as quick:
        first = newest(api)
        for _ in range(12):
            many = [{"requirements": {"cpu": 1, "memory": 0}} for _ in range(500)]
            made = api.ok("POST", "/resources/allocate/batch", {"items": many})["results"]
            ids = [{"allocation_id": one["allocation_id"]} for one in made]
            api.ok("POST", "/resources/release/batch", {"items": ids})
        expected = list(range(first + 1, first + 12_001))
        assert [int(next(quick)["id"]) for _ in expected] == expected
        assert api.ok("GET", "/version")
        assert [int(next(slow)["id"]) for _ in expected] == expected


def test_too_many_streams_are_told_to_come_back_later(server, monkeypatch):
    monkeypatch.setattr(event_stream, "MOST_STREAMS", 1)
    with stream(server):
        until(lambda: server.controller.events.followers == 1)
        status, headers, body = Api(server).raw("GET", "/events", headers={"accept": "text/event-stream"})  # fmt: skip
    assert (status, headers["retry-after"]) == (503, "1")
    assert "streams of events" in json.loads(body)["detail"]


def test_a_stream_ends_with_the_controller(tmp_path):
    with Running(tmp_path / "home") as running, stream(running) as events:
        until(lambda: running.controller.events.followers == 1)
        running.loop.call_soon_threadsafe(running.controller.begin_stopping)
        assert list(events) == []
