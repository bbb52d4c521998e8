"""Requests whose bodies name what belongs to another owner: nothing is told of it or done to it.

`test_access.py` does the same for what is named in a path. Which routes there are to try is found
in the OpenAPI document: every field that may hold an id has to be in the table here.
"""

import json

import pytest

from api_server import JOB, Api, Server
from gridhand.api.app import make_app
from gridhand.controller.listen_options import ListenOptions

# Fields of bodies that name an object of somebody.
NAMING = {
    "allocation_id", "task_id", "allocation", "held", "jobs", "runs", "after", "within", "upload", "session",
    "queued", "running", "job", "holder", "owner", "id", "together_with", "apart_from",
}  # fmt: skip


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others") / "home"
    with Server(folder, listen=ListenOptions(port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def root(network):
    return Api(network)


@pytest.fixture(scope="module")
def bobs(network, root):
    """A job, an allocation, a session and an upload of bob's."""
    other = {"x_gridhand_owner": "bob"}
    job = root.ok("POST", "/jobs", JOB, **other)["jobs"][0]["id"]
    array = root.ok("POST", "/jobs", {**JOB, "array": "1-2"}, **other)["jobs"][0]["id"]
    order = {"request": {"cpu": 1}, "holder": "bobs", "ttl_s": 3600}
    held = root.ok("POST", "/allocations", order, **other)["id"]
    token = root.ok("POST", "/tokens", {"scope": "submit", "owner": "bob"})["token"]
    upload = "b" * 32
    bob = Api(network, network.url, token)
    assert bob.raw("PUT", f"/uploads/{upload}/secret.txt", b"the secret of bob")[0] == 200
    return {"job": job, "array": array.partition("_")[0], "held": held, "upload": upload}


@pytest.fixture
def ann(network, root):
    token = root.ok("POST", "/tokens", {"scope": "submit", "owner": "ann"})["token"]
    return Api(network, network.url, token)


def state(root):
    events = root.ok("GET", "/events?limit=10000")["events"]
    held = root.ok("GET", "/allocations")["allocations"]
    return len(events), [(one["id"], one["state"], one["expires_at"]) for one in held]


REMOTE_JOB = {"command": ["true"], "detached": True}
RUN = {"session": "a" * 32, "run": "r", "calls": []}
#    what is named                    route                       body, with the ids of bob's
REFUSED = {
    "an allocation to confirm":       ("/resources/confirm",      {"allocation_id": "{held}"}),
    "an allocation to renew":         ("/resources/renew",        {"allocation_id": "{held}"}),
    "an allocation to release":       ("/resources/release",      {"allocation_id": "{held}"}),
    "a task to release":              ("/resources/release",      {"task_id": "bobs"}),
    "a job to wait for":              ("/jobs",                   {**REMOTE_JOB, "after": [{"id": "{job}"}]}),
    "an array to wait for":           ("/jobs",                   {**REMOTE_JOB, "after": [{"id": "{array}"}]}),
    "a task of an array to wait for": ("/jobs",                   {**REMOTE_JOB, "after": [{"id": "{array}_1"}]}),
    "an allocation to run in":        ("/jobs",                   {**REMOTE_JOB, "within": "{held}"}),
    "a holder to run in":             ("/jobs",                   {**REMOTE_JOB, "within": "bobs"}),
    "a session to hold in":           ("/allocations",            {"request": {"cpu": 1}, "session": "{upload}"}),
    "a holder to be with":            ("/allocations",            {"request": {"cpu": 1, "together_with": "bobs"}}),
    "a session to report in":         ("/calls",                  {"session": "{upload}", "run": "r", "calls": [
        {"name": "f", "state": "queued", "numbers": [1], "submitted_ms": [1], "started_ms": [None], "ended_ms": [None]}]}),
    "a session to attach jobs to":    ("/sessions/{upload}/jobs", {"jobs": ["{job}"]}),
    "the owner of a token":           ("/tokens",                 {"scope": "read", "owner": "bob"}),
}  # fmt: skip


def filled(text, bobs):
    for name, id in bobs.items():
        text = text.replace(f"{{{name}}}", id)
    return text


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_and_nothing_changes(root, ann, bobs, case):
    path, body = REFUSED[case]
    before = state(root)
    content = filled(json.dumps(body), bobs).encode()
    status, _, told = ann.raw("POST", filled(path, bobs), content)
    assert status in (403, 404, 409, 422), told
    assert b"bob" not in told.replace(b'"bobs"', b"").replace(b"bobs", b"").replace(b"'bob'", b"")
    assert state(root) == before


def test_a_job_of_others_to_wait_for_is_told_as_one_that_is_not_there(ann, bobs):
    """Whether there is such a job, and how it ends, cannot be told from the answer."""
    answers = []
    for id in (bobs["job"], "987654"):
        body = {**REMOTE_JOB, "after": [{"id": id}]}
        status, _, told = ann.raw("POST", "/jobs", json.dumps(body).encode())
        answers.append(
            (status, told.replace(f'"{id}"'.encode(), b"ID").replace(f"'{id}'".encode(), b"ID"))
        )
    assert answers[0] == answers[1]
    assert answers[0][0] == 422


@pytest.mark.parametrize("move", ["confirm", "renew", "release"])
def test_of_several_those_of_others_fail(root, ann, bobs, move):
    before = state(root)[1]
    body = {"items": [{"allocation_id": bobs["held"]}, {"task_id": "bobs"}]}
    results = ann.ok("POST", f"/resources/{move}/batch", body)["results"]
    assert [one["success"] for one in results] == [False, False]
    assert state(root)[1] == before


def test_a_session_gets_nothing_of_others_back(root, ann, bobs):
    before = state(root)
    connection = ann._address.open(20)
    body = {"session": bobs["upload"], "held": [bobs["held"]], "jobs": [bobs["job"]]}
    headers = {"content-type": "application/json", **ann._own}
    try:
        reply = connection.ask("POST", "/api/v1/sessions", headers, json.dumps(body).encode(), 20)
        opened = json.loads(reply.body.readline())
    finally:
        connection.close()
    assert (opened["held"], opened["jobs"]) == ([], [])
    assert state(root) == before


def test_files_that_others_have_sent_are_not_in_ones_folder(network, ann, bobs):
    """Each owner has uploads of its own, so another's id is an empty one."""
    job = ann.ok("POST", "/jobs", {**REMOTE_JOB, "upload": bobs["upload"]})["jobs"][0]["id"]
    assert ann.ok("GET", f"/jobs/{job}/files") == {"files": []}


def test_a_slot_of_others_cannot_be_said_to_wait(ann, bobs):
    body = {"allocation": bobs["held"], "queued": [bobs["job"]], "running": [], "blocked": True}
    status, _, told = ann.raw("POST", "/calls/waiting", json.dumps(body).encode())
    assert status == 200, told
    assert json.loads(told) == {"refused": {}}


def test_every_field_that_may_name_something_is_known_here(network):
    """A new field of a body with an id in it needs a case above."""
    schemas = make_app(network.controller).openapi()["components"]["schemas"]
    ids = (
        "_id",
        "session",
        "job",
        "holder",
        "owner",
        "within",
        "after",
        "held",
        "upload",
        "allocation",
    )
    found = {
        field
        for schema in schemas.values()
        for field in schema.get("properties", {})
        if field == "id" or any(field.endswith(word) for word in ids)
    }
    answers = {"worker_id", "boot_id"}  # of replies, and of machines
    assert found <= NAMING | answers
