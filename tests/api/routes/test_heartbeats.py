"""The route of heartbeats: a scripted remote node over the socket."""

import os

import pytest

from gridhand.core.liveness.budget import DOWN_MS, SUSPECT_MS
from until import until

NODE = {"name": "r1", "resources": {"cpu": 4}, "labels": {"gridhand.engine": "external"}}


class RemoteNode:
    """The agent of r1, and the clock of the watcher, which can be set ahead tick by tick."""

    def __init__(self, server, api):
        self._server, self._api = server, api
        self.sequence = self.ahead_ms = 0
        watcher = server.controller.liveness
        self._watcher, clock = watcher, watcher._now
        watcher._now = lambda: clock() + self.ahead_ms
        api.ok("POST", "/nodes", {"nodes": [NODE]})
        self.beat()

    def beat(self, *running, **more):
        self.sequence += 1
        body = {"incarnation": 1, "sequence": self.sequence, "boot_id": "b1", "running": running}
        return self._api.ok("POST", "/nodes/r1/heartbeat", {**body, **more})

    def skip(self, ms):
        self._server.do(self._skip, ms)

    def _skip(self, ms):
        for _ in range(ms // 1000):
            self.ahead_ms += 1000
            self._watcher._known().tick(self._watcher._now())
        self._watcher.look_again()

    def facts(self):
        return self._api.ok("GET", "/nodes/r1")

    def until(self, health):
        until(lambda: self.facts()["health"] == health)


@pytest.fixture
def node(server, api):
    node = RemoteNode(server, api)
    yield node
    api.ok("DELETE", "/nodes/r1?force=1")
    until(lambda: "r1" not in server.controller.liveness._known())
    server.controller.liveness._now = server.controller._keeper.clock.now


def test_t10_a_remote_node_falls_silent_and_comes_back(api, node):
    """T10, with row 38: suspect, down, its allocation freed once, and up when it has stopped."""
    held = api.ok("POST", "/allocations", {"request": {"cpu": 4, "node": "r1"}})["id"]
    assert node.beat(held) == {"acknowledged": True, "stop": []}
    assert node.facts()["last_seen_at"] > "2020"
    node.skip(SUSPECT_MS)
    node.until("suspect")
    status, told = api("POST", "/allocations", {"request": {"cpu": 1, "node": "r1"}})
    assert (status, told["code"]) == (409, "no_room")
    node.skip(DOWN_MS - SUSPECT_MS)
    node.until("down")
    assert node.facts()["available"] == {"cpu": 4}
    assert node.beat(held) == {"acknowledged": True, "stop": [held]}
    assert node.facts()["health"] == "down"
    assert node.beat() == {"acknowledged": True, "stop": []}
    node.until("up")
    again = api.ok("POST", "/allocations", {"request": {"cpu": 4, "node": "r1"}})["id"]
    api.ok("POST", f"/allocations/{again}/release")
    events = api.ok("GET", "/events?limit=10000")["events"]
    assert [event["subject"] for event in events if event["kind"] == "allocation.lost"] == [held]
    whys = [event["why"] for event in events if event["kind"] in ("node.suspect", "node.down")]
    assert whys == ["no heartbeat for 10 s", "no heartbeat for 28 s"]


def test_41_a_heartbeat_that_comes_twice_is_not_acknowledged_again(node):
    """Row 41."""
    node.beat(sequence=10)
    assert node.beat(sequence=10) == {"acknowledged": False, "stop": []}


def test_46_an_agent_that_was_replaced_is_told_so(api, node):
    """Row 46."""
    node.beat(incarnation=7)
    body = {"incarnation": 6, "sequence": 99, "boot_id": "b1", "running": []}
    status, told = api("POST", "/nodes/r1/heartbeat", body)
    assert (status, told["code"], told["incarnation"]) == (409, "node_superseded", 7)


BAD = {
    "a sequence below nothing": ({"sequence": -1}, "sequence"),
    "a sequence in words": ({"sequence": "1"}, "sequence"),
    "an incarnation of true": ({"incarnation": True}, "incarnation"),
    "an incarnation without end": ({"incarnation": 2**63}, "incarnation"),
    "a boot id with a space": ({"boot_id": "a b"}, "boot_id"),
    "no boot id": ({"boot_id": ""}, "boot_id"),
    "running nothing in particular": ({"running": None}, "running"),
    "running numbers": ({"running": [1]}, "running.0"),
    "more than is known": ({"health": {}}, "health"),
    "a use that is no object": ({"usage": 3}, "usage"),
}


@pytest.mark.parametrize(("wrong", "field"), BAD.values(), ids=BAD)
def test_48_a_heartbeat_that_makes_no_sense_is_refused_and_not_counted(api, node, wrong, field):
    """Row 48, as far as heartbeats say anything yet."""
    seen = node.facts()["last_seen_at"]
    body = {"incarnation": 1, "sequence": 99, "boot_id": "b1", "running": [], **wrong}
    status, told = api("POST", "/nodes/r1/heartbeat", body)
    assert (status, told.get("field")) == (422, field)
    assert node.facts()["last_seen_at"] == seen


@pytest.mark.parametrize(
    ("name", "status", "code"), [("n1", 422, "invalid_input"), ("r9", 404, "unknown_node")]
)
def test_only_remote_nodes_have_heartbeats(api, node, name, status, code):
    body = {"incarnation": 1, "sequence": 1, "boot_id": "b1", "running": []}
    refused, told = api("POST", f"/nodes/{name}/heartbeat", body)
    assert (refused, told["code"]) == (status, code)


def test_only_administrators_may_send_heartbeats(api, node, monkeypatch):
    monkeypatch.setattr("gridhand.api.auth._uid", lambda request: os.geteuid() + 4321)
    body = {"incarnation": 1, "sequence": 99, "boot_id": "b1", "running": []}
    status, told = api("POST", "/nodes/r1/heartbeat", body)
    assert (status, told["code"]) == (403, "not_yours")
