"""Who may use which route over the network: the table is made from the routes, so none is left out."""

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from api_server import JOB, Api, Server
from gridhand.api.access import ACCESS, route_keys
from gridhand.api.app import make_app
from gridhand.controller.listen_options import ListenOptions
from until import until

READ, SUBMIT, ADMIN = "read", "submit", "admin"
# The scopes with which a route of each scope must be refused.
TOO_NARROW = {
    READ: ("agent:n1", "agent:other"),
    SUBMIT: (READ, "agent:n1"),
    ADMIN: (SUBMIT, READ, "agent:n1"),
    "agent": ("agent:other", SUBMIT, READ),
}
# A body for each route that takes one, so that it is the scope and not the body that is refused.
BODIES = {
    "POST /api/v1/jobs": {"command": ["true"], "detached": True},
    "POST /api/v1/jobs/plan": {"command": ["true"]},
    "POST /api/v1/jobs/{id}/signal": {"signal": 15},
    "POST /api/v1/nodes": {"nodes": []},
    "POST /api/v1/nodes/{name}/health": {"health": "down"},
    "POST /api/v1/nodes/{name}/foreign": {"used": {}},
    "POST /api/v1/nodes/{name}/heartbeat": {"incarnation": 1},
    "POST /api/v1/allocations": {"request": {"cpu": 1}, "lifetime": "until_released"},
    "POST /api/v1/fits": {"request": {"cpu": 1}},
    "POST /api/v1/explain": {"cpu": 1},
    "POST /api/v1/prune": {"older_than_s": 1, "most": 1},
    **{
        f"POST /api/v1/resources/{move}": {"allocation_id": "a1-1"}
        for move in ("confirm", "renew", "release")
    },
    "POST /api/v1/stop": {"jobs": "kill"},
    "POST /api/v1/tokens": {"scope": "admin"},
}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network") / "home"
    with Server(folder, listen=ListenOptions(port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def root(network):
    """Ask over the unix socket."""
    return Api(network)


@pytest.fixture(scope="module")
def made(network, root):
    """Return a function that makes tokens, and what others own."""
    return lambda **body: root.ok("POST", "/tokens", body)


@pytest.fixture(scope="module")
def own(root):
    """The objects of another owner: their ids by the names in the paths."""
    other = {"x_gridhand_owner": "bob"}
    job = root.ok("POST", "/jobs", {**JOB, "request": {"cpu": 1}}, **other)["jobs"][0]
    order = {"request": {"cpu": 1}, "lifetime": "until_released", "holder": "bobs"}
    held = root.ok("POST", "/allocations", order, **other)
    token = root.ok("POST", "/tokens", {"scope": "read", "owner": "bob"})
    node = root.ok("GET", "/nodes")["nodes"][0]["name"]
    return {"jobs": job["id"], "allocations": held["id"], "tokens": token["id"], "nodes": node}


@pytest.fixture(scope="module")
def refused(root, made):
    """Tokens with which nothing may be done."""
    revoked, expired = made(scope="admin"), made(scope="admin", ttl_s=0.001)
    root.ok("DELETE", f"/tokens/{revoked['id']}")
    ids = {"id": expired["id"], "state": "expired"}
    until(lambda: any(ids.items() <= one.items() for one in root.ok("GET", "/tokens")["tokens"]))
    wrong = re.sub("[0-9a-f]{64}$", "0" * 64, made(scope="admin")["token"])
    return None, "", "nonsense", wrong, revoked["token"], expired["token"]


def as_token(network, made, scope, **more):
    return Api(network, network.url, made(scope=scope, **more)["token"])


def path_of(key, own):
    """Fill in the path of a route with the objects of another owner."""
    method, path = key.split()
    kind = path.split("/")[3] if path.startswith("/api/v1/") else ""
    filled = path.replace("{name}", own["nodes"]).replace("{move}", "release")
    id = {"sessions": "0" * 32, "uploads": "0" * 32, "calls": "r.1"}.get(kind) or own.get(kind, "")
    return method, filled.replace("{id}", id)


def state(root):
    """Everything that a refused request must leave as it was."""
    events = root.ok("GET", "/events?limit=10000")["events"]
    jobs = root.ok("GET", "/jobs?limit=1000")["jobs"]
    tokens = [{**one, "last_used_at": None} for one in root.ok("GET", "/tokens")["tokens"]]
    nodes = [
        (one["name"], one["health"], one["draining"]) for one in root.ok("GET", "/nodes")["nodes"]
    ]
    held = [(one["id"], one["expires_at"]) for one in root.ok("GET", "/allocations")["allocations"]]
    return len(events), [(one["id"], one["state"]) for one in jobs], tokens, nodes, held


def ask(api, key, own):
    method, path = path_of(key, own)
    body = None if key not in BODIES else json.dumps(BODIES[key]).encode()
    status, _, content = api.raw(method, path, body, prefix="")
    return status, content


def test_every_route_has_a_scope_and_every_scope_a_route(network):
    app = make_app(network.controller)
    found = {key for route in app.router.routes for key in route_keys(route)}
    assert found == set(ACCESS)
    assert {access.scope for access in ACCESS.values()} == {"open", *TOO_NARROW}


def test_an_application_with_another_route_is_not_served(network, monkeypatch):
    monkeypatch.delitem(ACCESS, "GET /api/v1/jobs/{id}/logs")
    with pytest.raises(KeyError, match="logs"):
        make_app(network.controller)


GUARDED = sorted(key for key, access in ACCESS.items() if access.scope != "open")


@pytest.mark.parametrize("key", GUARDED)
def test_without_a_valid_token_nothing_is_done(network, root, refused, own, key):
    before = state(root)
    for token in refused:
        status, content = ask(Api(network, network.url, token), key, own)
        assert (status, json.loads(content)["code"]) == (401, "token_refused"), token
        assert not re.search("[0-9a-f]{64}", content.decode())
    assert state(root) == before


@pytest.mark.parametrize("key", GUARDED)
def test_a_token_with_a_narrower_scope_does_nothing(network, root, made, own, key):
    tokens = [as_token(network, made, scope) for scope in TOO_NARROW[ACCESS[key].scope]]
    before = state(root)
    for api in tokens:
        status, content = ask(api, key, own)
        assert (status, json.loads(content)["code"]) == (403, "scope_too_narrow")
    assert state(root) == before


OF_OTHERS = [key for key in GUARDED if "{id}" in key and ACCESS[key].scope in (READ, SUBMIT)]


@pytest.mark.parametrize("key", OF_OTHERS)
def test_what_belongs_to_others_is_not_there(network, root, made, own, key):
    api = as_token(network, made, SUBMIT, owner="ann")
    before = state(root)
    status, content = ask(api, key, own)
    if key in ("DELETE /api/v1/sessions/{id}", "PUT /api/v1/uploads/{id}/{name}"):
        assert status == 200  # each owner has sessions and uploads of its own
    else:
        assert status in (403, 404, 422), content
    assert b"bob" not in content
    assert state(root) == before


LISTS = {"/jobs": "jobs", "/allocations": "allocations", "/calls": "calls", "/events": "events"}


@pytest.mark.parametrize("path", LISTS)
def test_lists_have_only_what_is_ones_own(network, made, own, path):
    for query in ("", "?owner=bob"):
        found = as_token(network, made, SUBMIT, owner="ann").ok("GET", f"{path}{query}")[path[1:]]
        assert [one for one in found if "bob" in json.dumps(one)] == []
    everything = as_token(network, made, ADMIN).ok("GET", path)[path[1:]]
    assert path == "/calls" or [one for one in everything if "bob" in json.dumps(one)]
    theirs = as_token(network, made, READ, owner="bob").ok("GET", path)[path[1:]]
    assert path == "/calls" or [one for one in theirs if "bob" in json.dumps(one)]


def test_an_agents_token_is_for_its_node(network, made, own):
    api = as_token(network, made, f"agent:{own['nodes']}")
    body = json.dumps(BODIES["POST /api/v1/nodes/{name}/heartbeat"]).encode()
    assert api.raw("POST", f"/nodes/{own['nodes']}/heartbeat", body)[0] != 403
    assert api.raw("POST", "/nodes/other/heartbeat", body)[0] == 403
    assert api.raw("GET", "/nodes")[0] == 403


def test_every_event_of_a_token_has_its_id(network, root, made):
    token = made(scope="submit", owner="eve")
    api = Api(network, network.url, token["token"])
    order = {"request": {"cpu": 1}, "lifetime": "until_released"}
    held = api.ok("POST", "/allocations", order)
    api.ok("POST", f"/allocations/{held['id']}/release")
    events = [one for one in root.ok("GET", "/events?limit=10000")["events"] if one["subject"] == held["id"]]  # fmt: skip
    assert [(one["owner"], one["token"]) for one in events] == [("eve", token["id"])] * 2
    about = [one for one in root.ok("GET", "/events?limit=10000")["events"] if one["subject"] == token["id"]]  # fmt: skip
    assert [(one["kind"], one["token"], one["row"]) for one in about] == [("admin.token_created", None, None)]  # fmt: skip


def test_the_secret_is_nowhere_on_disk(network, made):
    secret = made(scope="submit")["token"].rpartition("_")[2]
    written = [path for path in Path(network.home.folder).rglob("*") if path.is_file()]
    assert any("grid.db" in path.name for path in written)
    assert [path for path in written if secret.encode() in path.read_bytes()] == []


def test_another_secret_replaces_the_old_one(network, root, made):
    old = made(scope="read")
    new = root.ok("POST", f"/tokens/{old['id']}/rotate")
    assert (new["id"], new["scope"]) == (old["id"], "read")
    assert Api(network, network.url, old["token"])("GET", "/version")[0] == 401
    assert Api(network, network.url, new["token"])("GET", "/version")[0] == 200


def test_a_repeated_creation_makes_no_second_token(network, root):
    first = root.ok("POST", "/tokens", {"scope": "read"}, idempotency_key="once")
    status, told = root("POST", "/tokens", {"scope": "read"}, idempotency_key="once")
    assert (status, told["code"]) == (409, "token_shown")
    assert first["id"] in told["hint"]
    assert root("POST", "/tokens", {"scope": "admin"}, idempotency_key="once")[0] == 409


def test_revoking_cuts_what_is_open(network, root, made):
    token = made(scope="submit", owner="carl")
    api = Api(network, network.url, token["token"])
    job = root.ok("POST", "/jobs", JOB, x_gridhand_owner="carl")["jobs"][0]["id"]
    connection, frames = api.follow(job)
    with closing(connection):
        assert next(frames)["event"] == "job"
        root.ok("DELETE", f"/tokens/{token['id']}")
        assert [frame["event"] for frame in frames] in (
            [],
            ["job"],
        )  # it ends, and not with the job
    assert api("GET", "/version")[0] == 401
    root.ok("POST", f"/jobs/{job}/cancel")


def test_a_wait_for_room_ends_with_its_token(network, root, made):
    token = made(scope="submit", owner="dora", ttl_s=1.0)
    api = Api(network, network.url, token["token"])
    order = {"request": {"cpu": 4}, "lifetime": "until_released", "wait_s": 40}
    status, told = api("POST", "/allocations", order)
    assert (status, told["code"]) == (401, "token_refused")
    assert "dora" not in json.dumps(root.ok("GET", "/allocations"))


SCOPES = {
    "superuser": 422, "agent:": 422, "agent:a b": 422, "": 422, "admin ": 422, "agent:a": 201,
    "read": 201,
}  # fmt: skip


@pytest.mark.parametrize("scope", SCOPES)
def test_scopes_are_checked(root, scope):
    assert root("POST", "/tokens", {"scope": scope})[0] == SCOPES[scope]
