"""The routes of the ledger: what they answer, what they refuse, and what a repeat does."""

import json
import threading
import time

import pytest

from gridhand.client.http1 import ConnectionLost
from gridhand.client.transport import Address
from nodeless_controller import Running

NODE = {"name": "n1", "resources": {"cpu": 8, "memory": "16GB"}, "labels": {"zone": "a"}}
GPUS = {"name": "g1", "resources": {"cpu": 4}, "gpus": [{"model": "A100", "memory": "40GB"}] * 2}


class Api:
    """Raw requests to a controller: bytes in, status and JSON out."""

    def __init__(self, path):
        self._address = Address(path)

    def raw(self, method, target, body=None, **headers):
        connection = self._address.open(10)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            named.setdefault("content-type", "application/json")
            reply = connection.ask(method, f"/api/v1{target}", named, body, 10)
            return reply.status, reply.headers["content-type"], json.loads(reply.body.read())
        finally:
            connection.close()

    def __call__(self, method, target, body=None, **headers):
        content = None if body is None else json.dumps(body).encode()
        status, _, told = self.raw(method, target, content, **headers)
        return status, told

    def ok(self, method, target, body=None, **headers):
        status, told = self(method, target, body, **headers)
        assert status < 300, told
        return told


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Running(tmp_path_factory.mktemp("api") / "home") as running:
        yield running


@pytest.fixture
def api(server):
    api = Api(server.home.socket)
    api.ok("POST", "/nodes", {"nodes": [NODE, GPUS]})
    yield api
    for held in api.ok("GET", "/allocations")["allocations"]:
        api.ok("POST", f"/allocations/{held['id']}/release", x_gridhand_owner=held["owner"])
    assert api.ok("GET", "/check") == {"clean": True, "violations": []}
    for node in api.ok("GET", "/nodes")["nodes"]:
        api.ok("DELETE", f"/nodes/{node['name']}")


# ---- what it answers


def test_nodes_are_told_in_numbers_and_in_exact_parts(api):
    [g1, n1] = api.ok("GET", "/nodes")["nodes"]
    assert n1["total"] == n1["available"] == {"cpu": 8, "memory": 16 * 10**9}
    assert n1["row"]["total"] == {"cpu": 80_000, "memory": 16 * 10**9}
    assert [gpu["id"] for gpu in g1["gpus"]] == ["g1/0", "g1/1"]
    assert api.ok("GET", "/nodes/n1") == n1


def test_an_allocation_is_told_in_numbers_and_in_exact_parts(api):
    asked = {"request": {"cpu": 0.1, "memory": "1GB", "node": "n1"}, "holder": "train"}
    held = api.ok("POST", "/allocations", asked)
    assert (held["resources"], held["node"]) == ({"cpu": 0.1, "memory": 10**9}, "n1")
    assert (held["state"], held["lifetime"], held["holder"]) == (
        "active",
        "until_released",
        "train",
    )
    assert held["row"]["amounts"] == {"cpu": 1000, "memory": 10**9}
    assert held["fresh"] is True
    again = api.ok("POST", "/allocations", asked)
    assert (again["id"], again["fresh"]) == (held["id"], False)
    assert [one["id"] for one in api.ok("GET", "/allocations")["allocations"]] == [held["id"]]


def test_an_allocation_can_be_looked_at_while_it_is_held_and_after(api):
    held = api.ok("POST", "/allocations", {"request": {"cpu": 1}})
    held.pop("fresh")
    target = f"/allocations/{held['id']}"
    assert api.ok("GET", target) == held
    released = api.ok("POST", f"{target}/release")
    assert api.ok("GET", target) == released


def test_a_request_may_be_given_exactly(api):
    row = {"amounts": {"cpu": 12_345}, "gpu": {"devices": 1, "share": 2500}}
    held = api.ok("POST", "/allocations", {"request_row": row})
    assert held["resources"]["cpu"] == 1.2345
    assert held["gpus"] == ["g1/0"]


def test_a_reservation_is_confirmed_renewed_and_released(api):
    kept = api.ok("POST", "/allocations", {"request": {"cpu": 1}, "state": "reserved", "ttl_s": 60})
    assert kept["state"] == "reserved"
    assert kept["expires_at"].endswith("Z")
    move = f"/allocations/{kept['id']}"
    assert api.ok("POST", f"{move}/confirm", {"ttl_s": 60})["lifetime"] == "lease"
    assert api.ok("POST", f"{move}/renew")["state"] == "active"
    assert api.ok("POST", f"{move}/release", {})["state"] == "released"
    assert api.ok("POST", f"{move}/release", {})["state"] == "released"


@pytest.mark.parametrize("holder", ["mine", "a/b/release", "m" * 200])
def test_what_is_held_is_named_by_its_holder_too(api, holder):
    asked = {"request": {"cpu": 1}, "holder": holder, "ttl_s": 60}
    held = api.ok("POST", "/allocations", asked)
    named = f"/allocations/{holder.replace('/', '%2F')}"
    assert (
        api("POST", f"{named}/release", x_gridhand_owner="ada")[1]["code"] == "unknown_allocation"
    )
    assert api.ok("POST", f"{named}/renew", {"ttl_s": 90})["id"] == held["id"]
    released = api.ok("POST", f"{named}/release")
    assert (released["id"], released["state"]) == (held["id"], "released")
    status, told = api("POST", f"{named}/release")  # it holds nothing any more
    assert (status, told["code"]) == (404, "unknown_allocation")


def test_a_group_is_held_as_one(api):
    order = {"requests": [{"cpu": 1}, {"cpu": 2}], "layout": "apart", "ttl_s": 60}
    [one, other] = api.ok("POST", "/allocations/group", order)["allocations"]
    assert one["group"] == other["group"]
    assert one["node"] != other["node"]
    api.ok("POST", f"/allocations/{one['id']}/release", {})
    assert api.ok("GET", "/allocations")["allocations"] == []


def test_nodes_are_drained_resumed_marked_and_removed(api):
    assert api.ok("POST", "/nodes/n1/drain", {})["draining"] is True
    assert api.ok("POST", "/nodes/n1/resume", {})["draining"] is False
    assert api.ok("POST", "/nodes/n1/health", {"health": "suspect"})["health"] == "suspect"
    api.ok("POST", "/nodes/n1/health", {"health": "up"})
    api.ok("POST", "/nodes/g1/foreign", {"used": {"g1/0": 10**9}})
    assert api.ok("GET", "/nodes/g1")["gpus"][0]["foreign_memory_bytes"] == 10**9
    held = api.ok("POST", "/allocations", {"request": {"cpu": 1, "node": "n1"}})
    status, told = api("DELETE", "/nodes/n1")
    assert (status, told["code"], told["name"]) == (409, "node_in_use", "n1")
    assert api.ok("DELETE", "/nodes/n1?force=1") == {"removed": "n1"}
    assert api.ok("POST", f"/allocations/{held['id']}/release")["state"] == "lost"


def test_explain_and_fits_change_nothing(api):
    told = api.ok("POST", "/explain", {"cpu": 9})
    assert (told["fits"], told["ever"]) == (False, False)
    assert "can never fit" in told["text"]
    assert api.ok("POST", "/explain", {"cpu": 1})["fits"] is True
    assert api.ok("POST", "/fits", {"node": "n1", "request": {"cpu": 8}}) == {"fits": True}
    assert api.ok("POST", "/fits", {"request": {"cpu": 9}}) == {"fits": False}
    assert api.ok("GET", "/allocations")["allocations"] == []


def test_history_is_told_in_pages(api):
    first = api.ok("GET", "/events?limit=1")["events"]
    [event] = api.ok("GET", f"/events?after={first[0]['number']}&limit=1")["events"]
    assert event["number"] > first[0]["number"]
    assert {"at", "at_ms", "kind", "subject", "owner", "op_id", "why", "row"} <= event.keys()
    assert api.ok("GET", "/dump")["nodes"]
    assert ":" in api.ok("GET", "/identity")["identity"]
    assert api.ok("POST", "/prune", {"older_than_s": 3600}) == {"left": 0}


def test_an_event_says_who_deleted_history_or_told_of_foreign_use(api):
    api.ok("POST", "/nodes", {"nodes": [{"name": "g2", "resources": {"cpu": 1, "gpu": 1}}]})
    api.ok("POST", "/nodes/g2/foreign", {"used": {"g2/0": 7}}, idempotency_key="f1")
    api.ok("POST", "/prune", {"older_than_s": 3600}, idempotency_key="p1")
    events = api.ok("GET", "/events")["events"]
    told = [(one["kind"], one["subject"], one["op_id"]) for one in events if one["kind"].startswith("admin.")]  # fmt: skip
    assert told[-2:] == [("admin.foreign", "g2", "f1"), ("admin.pruned", "history", "p1")]
    assert all(one["owner"] for one in events)
    assert api.ok("GET", "/check")["violations"] == []


# ---- refusals


def test_no_room_says_why_node_by_node_and_what_to_do(api):
    api.ok("POST", "/allocations", {"request": {"cpu": 8, "node": "n1"}})
    status, told = api("POST", "/allocations", {"request": {"cpu": 1, "node": "n1"}})
    assert (status, told["code"]) == (409, "no_room")
    assert told["reasons"]["n1"] == [
        "Insufficient CPU: worker has 0.00 available, task requires 1.00"
    ]
    assert told["hint"]
    assert told["type"] == "urn:gridhand:no_room"


def test_what_can_never_fit_is_told_at_once(api):
    status, told = api("POST", "/allocations", {"request": {"cpu": 1000}})
    assert (status, told["code"]) == (422, "never_fits")
    assert set(told["reasons"]) == {"g1", "n1"}


OF_OTHERS = {
    "an unknown node":        ("GET", "/nodes/nx", None, 404, "unknown_node"),
    "an unknown allocation":  ("POST", "/allocations/a9-9/release", {}, 404, "unknown_allocation"),
    "nothing to look at":     ("GET", "/allocations/a1-999999", None, 404, "unknown_allocation"),
    "what is no id":          ("GET", "/allocations/x-99999999999999999999", None, 404, "unknown_allocation"),
    "an unknown resource":    ("POST", "/allocations", {"request": {"fpga": 1}}, 422, "unknown_resource"),
    "an unknown route":       ("GET", "/nothing", None, 404, "not_found"),
    "a move there is not":    ("POST", "/allocations/a1-1/steal", {}, 422, "invalid_input"),
    "a strange id":           ("POST", "/allocations/..%2F..%2Fetc/release", {}, 404, None),
    "a session of nobody":    ("POST", "/allocations", {"request": {"cpu": 1}, "session": "0" * 32}, 422, "invalid_input"),
}  # fmt: skip


@pytest.mark.parametrize(("method", "target", "body", "status", "code"), OF_OTHERS.values(), ids=OF_OTHERS)  # fmt: skip
def test_what_is_not_there(api, method, target, body, status, code):
    found, told = api(method, target, body)
    assert found == status, told
    assert code in (None, told["code"])
    assert told["hint"]


def test_only_its_owner_may_move_an_allocation(api):
    held = api.ok("POST", "/allocations", {"request": {"cpu": 1}}, x_gridhand_owner="ann")
    target = f"/allocations/{held['id']}/release"
    status, told = api("POST", target, {}, x_gridhand_owner="bob")
    assert (status, told["code"], told["id"]) == (403, "not_yours", held["id"])
    assert api.ok("POST", target, {}, x_gridhand_owner="ann")["state"] == "released"


# ---- what cannot be read

ORDER = "/allocations"
BAD = {
    #                              route        body                                                        field
    "NaN":                        (ORDER, b'{"request":{"cpu":NaN}}',                                       None),
    "Infinity":                   (ORDER, b'{"request":{"cpu":Infinity}}',                                  None),
    "more than any float":        (ORDER, b'{"request":{"cpu":1e999}}',                                     "cpu"),
    "a negative amount":          (ORDER, b'{"request":{"cpu":-1}}',                                        "cpu"),
    "true is not 1":              (ORDER, b'{"request":{"cpu":true}}',                                      "cpu"),
    "text with an exponent":      (ORDER, b'{"request":{"cpu":"1e3"}}',                                     "cpu"),
    "a huge whole number":        (ORDER, b'{"request":{"cpu":' + b"9" * 400 + b"}}",                       "cpu"),
    "more digits than we read":   (ORDER, b'{"request":{"cpu":' + b"9" * 5000 + b"}}",                      None),
    "less than the smallest":     (ORDER, b'{"request":{"cpu":1e-320}}',                                    "cpu"),
    "a list for an amount":       (ORDER, b'{"request":{"cpu":[1]}}',                                       "cpu"),
    "nothing asked":              (ORDER, b'{"request":{}}',                                                "resources"),
    "no request":                 (ORDER, b"{}",                                                            None),
    "both spellings":             (ORDER, b'{"request":{"cpu":1},"request_row":{"amounts":{"cpu":1}}}',     None),
    "an unknown field":           (ORDER, b'{"request":{"cpu":1},"colour":"red"}',                          "colour"),
    "an unknown wish":            (ORDER, b'{"request":{"cpu":1,"colour":"red"}}',                          "colour"),
    "a ttl of nothing":           (ORDER, b'{"request":{"cpu":1},"ttl_s":0}',                               "ttl_s"),
    "a ttl below nothing":        (ORDER, b'{"request":{"cpu":1},"ttl_s":-1}',                              "ttl_s"),
    "a ttl of true":              (ORDER, b'{"request":{"cpu":1},"ttl_s":true}',                            "ttl_s"),
    "a ttl in words":             (ORDER, b'{"request":{"cpu":1},"ttl_s":"60"}',                            "ttl_s"),
    "a ttl of ages":              (ORDER, b'{"request":{"cpu":1},"ttl_s":1e300}',                           "ttl_s"),
    "a ttl beyond all":           (ORDER, b'{"request":{"cpu":1},"ttl_s":1e999}',                           "ttl_s"),
    "to wait below nothing":      (ORDER, b'{"request":{"cpu":1},"wait_s":-1}',                             "wait_s"),
    "to wait too long at once":   (ORDER, b'{"request":{"cpu":1},"wait_s":3600}',                           "wait_s"),
    "a reservation for ever":     (ORDER, b'{"request":{"cpu":1},"state":"reserved"}',                      "ttl_s"),
    "a lease for ever":           (ORDER, b'{"request":{"cpu":1},"lifetime":"lease"}',                      "lifetime"),
    "a session that is not said": (ORDER, b'{"request":{"cpu":1},"lifetime":"session"}',                    "session"),
    "the lifetime of a job":      (ORDER, b'{"request":{"cpu":1},"lifetime":"job"}',                        "lifetime"),
    "another state":              (ORDER, b'{"request":{"cpu":1},"state":"released"}',                      "state"),
    "a holder with a newline":    (ORDER, b'{"request":{"cpu":1},"holder":"a\\nb"}',                        "holder"),
    "a holder with a NUL":        (ORDER, b'{"request":{"cpu":1},"holder":"a\\u0000b"}',                    "holder"),
    "a holder without end":       (ORDER, b'{"request":{"cpu":1},"holder":"' + b"a" * 300 + b'"}',          "holder"),
    "half a character":           (ORDER, b'{"request":{"cpu":1},"holder":"\\ud800"}',                      "holder"),
    "no UTF-8":                   (ORDER, b'{"request":{"cpu":1},"holder":"\xff"}',                         None),
    "parts below nothing":        (ORDER, b'{"request_row":{"amounts":{"cpu":-1}}}',                        "request_row.amounts.cpu"),
    "parts of parts":             (ORDER, b'{"request_row":{"amounts":{"cpu":1.5}}}',                       "request_row.amounts.cpu"),
    "true parts":                 (ORDER, b'{"request_row":{"amounts":{"cpu":true}}}',                      "request_row.amounts.cpu"),
    "parts beyond all":           (ORDER, b'{"request_row":{"amounts":{"cpu":9007199254740992}}}',          "request_row.amounts.cpu"),
    "a resource of no name":      (ORDER, b'{"request_row":{"amounts":{"":1}}}',                            "resource name"),
    "rows without amounts":       (ORDER, b'{"request_row":{"amounts":{}}}',                                "resources"),
    "devices below nothing":      (ORDER, b'{"request_row":{"amounts":{},"gpu":{"devices":0,"share":1}}}',  "request_row.gpu.devices"),
    "a strange node":             (ORDER, b'{"request_row":{"amounts":{"cpu":1},"node":"../x"}}',           "node"),
    "a strange quality":          (ORDER, b'{"request_row":{"amounts":{"cpu":1},"quality":"best"}}',        "quality"),
    "a list":                     (ORDER, b"[]",                                                            None),
    "a text":                     (ORDER, b'"cpu=1"',                                                       None),
    "no JSON":                    (ORDER, b"{",                                                             None),
    "nothing at all":             (ORDER, b"",                                                              None),
    "lists in lists":             (ORDER, b"[" * 10_000 + b"]" * 10_000,                                    None),
    "objects in objects":         (ORDER, b'{"request":' * 5_000 + b"1" + b"}" * 5_000,                     None),
    "names without end":          (ORDER, json.dumps({"request": {f"r{n}": 1 for n in range(1000)}}).encode(), "request"),
    "nodes that are none":        ("/nodes", b'{"nodes":[1]}',                                              None),
    "a node without a name":      ("/nodes", b'{"nodes":[{"resources":{"cpu":1}}]}',                        None),
    "a node of NaN":              ("/nodes", b'{"nodes":[{"name":"x","resources":{"cpu":NaN}}]}',           None),
    "a node twice":               ("/nodes", b'{"nodes":[{"name":"x"},{"name":"x"}]}',                      "nodes"),
    "a node with a strange name": ("/nodes", b'{"nodes":[{"name":"a/b","resources":{"cpu":1}}]}',           "node"),
    "a misspelt resource":        ("/nodes", b'{"nodes":[{"name":"x","resources":{"cpus":1}}]}',            "resource name"),
    "health in other words":      ("/nodes/n1/health", b'{"health":"fine"}',                                "health"),
    "a reason without end":       ("/nodes/n1/health", b'{"health":"up","why":"' + b"a" * 501 + b'"}',      "why"),
    "strangers below nothing":    ("/nodes/g1/foreign", b'{"used":{"g1/0":-1}}',                            "used.g1/0"),
    "strangers elsewhere":        ("/nodes/g1/foreign", b'{"used":{"g9/0":1}}',                             "gpu id"),
    "to forget from NaN on":      ("/prune", b'{"older_than_s":NaN}',                                       None),
    "an empty group":             ("/allocations/group", b'{"requests":[]}',                                "requests"),
    "a group laid out oddly":     ("/allocations/group", b'{"requests":[{"cpu":1}],"layout":"heap"}',       "layout"),
    "to explain nothing":         ("/explain", b"{}",                                                       "resources"),
    "to explain half a row":      ("/explain", b'{"request_row":{}}',                                       "request_row.amounts"),
    "a session by another name":  ("/sessions", b'{"session":"../x"}',                                      "session"),
    "jobs that are none":         (f"/sessions/{'0' * 32}/jobs", b'{"jobs":["x"]}',                         "jobs.0"),
}  # fmt: skip


@pytest.mark.parametrize(("target", "body", "field"), BAD.values(), ids=BAD)
def test_what_cannot_be_read_is_refused_and_changes_nothing(api, target, body, field):
    before = {k: v for k, v in api.ok("GET", "/dump").items() if k != "now"}
    status, kind, told = api.raw("POST", target, body)
    assert (status, kind) == (422, "application/problem+json"), told
    assert told["detail"]
    assert told["hint"]
    if field is not None:
        assert told["field"] == field
        assert told["allowed"]
    assert len(json.dumps(told)) < 20_000
    assert {k: v for k, v in api.ok("GET", "/dump").items() if k != "now"} == before


BAD_TARGETS = [
    "/events?after=-1", "/events?limit=0", "/events?limit=10001", "/events?after=x",
    "/events?after=99999999999999999999", f"/nodes/{'n' * 101}",
]  # fmt: skip


@pytest.mark.parametrize("target", BAD_TARGETS)
def test_what_cannot_be_read_in_a_target_is_refused(api, target):
    status, told = api("GET", target)
    assert status == 422
    assert told["code"] == "invalid_input"


def test_a_body_that_is_too_large_is_refused_before_it_is_read(api):
    try:
        status, told = api("POST", "/allocations", {"request": {"cpu": "1" * (2 << 20)}})
    except ConnectionLost:
        return  # it hung up on us while we were still talking
    assert (status, told["code"]) == (413, "too_large")


# ---- repeats


def test_the_same_key_again_gives_the_same_reply_and_changes_nothing(api):
    order = {"request": {"cpu": 1}}
    first = api.ok("POST", "/allocations", order, idempotency_key="op-1")
    again = api.ok("POST", "/allocations", order, idempotency_key="op-1")
    assert again == {**first, "fresh": False}
    assert len(api.ok("GET", "/allocations")["allocations"]) == 1
    status, told = api("POST", "/allocations", {"request": {"cpu": 2}}, idempotency_key="op-1")
    assert (status, told["code"]) == (409, "operation_reused")


REPEATED = {
    "register": ("POST", "/nodes", {"nodes": [{"name": "n2", "resources": {"cpu": 1}}]}),
    "drain": ("POST", "/nodes/n1/drain", {}),
    "health": ("POST", "/nodes/n1/health", {"health": "suspect"}),
    "remove": ("DELETE", "/nodes/n1", None),
    "a group": ("POST", "/allocations/group", {"requests": [{"cpu": 1}] * 2}),
}


@pytest.mark.parametrize(("method", "target", "body"), REPEATED.values(), ids=REPEATED)
def test_a_change_is_made_once_for_each_key(api, method, target, body):
    key = f"op-{method}-{target}".replace("/", "-")
    first = api.ok(method, target, body, idempotency_key=key)
    events = api.ok("GET", "/events?limit=10000")["events"]
    again = api.ok(method, target, body, idempotency_key=key)
    for held in (*first.get("allocations", ()), *again.get("allocations", ())):
        held.pop("fresh")
    assert again == first
    assert api.ok("GET", "/events?limit=10000")["events"] == events


@pytest.mark.parametrize("key", ["a b", "x" * 201, "-"])
def test_a_key_that_is_none_is_refused(api, key):
    status, told = api("POST", "/allocations", {"request": {"cpu": 1}}, idempotency_key=key)
    assert (status, told["code"]) in {(422, "invalid_name"), (422, "invalid_input")}


def test_many_at_once_with_one_key_make_one_allocation(api):
    made = []

    def ask():
        order = {"request": {"cpu": 1}}
        made.append(api.ok("POST", "/allocations", order, idempotency_key="op-many")["id"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(made) == 8
    assert len(set(made)) == 1


# ---- waiting


def test_a_client_that_is_gone_when_its_turn_comes_is_given_nothing(api):
    held = api.ok("POST", "/allocations", {"request": {"cpu": 8, "node": "n1"}})
    waiting = Address(api._address.path).open(10)
    order = {"request": {"cpu": 1, "node": "n1"}, "wait_s": 20, "ttl_s": 60}
    with pytest.raises(TimeoutError):
        waiting.ask(
            "POST",
            "/api/v1/allocations",
            {"content-type": "application/json"},
            json.dumps(order).encode(),
            0.2,
        )
    waiting.close()
    api.ok("POST", f"/allocations/{held['id']}/release")
    deadline = time.monotonic() + 5
    while api.ok("GET", "/allocations")["allocations"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    kinds = [event["kind"] for event in api.ok("GET", "/events?limit=10000")["events"]]
    assert kinds[-1] == "allocation.released"
