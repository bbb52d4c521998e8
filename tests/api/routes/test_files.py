"""Jobs of clients on other machines: they run in folders of ours, with the files that were sent."""

import os
from pathlib import Path
from urllib.parse import unquote

import pytest

from api_server import Api, Server
from gridhand.controller.listen_options import ListenOptions

UPLOAD = "0123456789abcdef" * 2
JOB = {"command": ["true"], "detached": True}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files") / "home"
    with Server(folder, cpu=200, listen=ListenOptions(port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def ann(network):
    return client_of(network, "ann")


def client_of(network, owner):
    made = Api(network).ok("POST", "/tokens", {"scope": "submit", "owner": owner})
    return Api(network, network.url, made["token"])


def put(api, name, data, query=""):
    return api.raw("PUT", f"/uploads/{UPLOAD}/{name}{query}", data)


def test_files_go_into_the_folder_of_the_job_and_come_back(network, ann):
    assert put(ann, "data/in.csv", b"1,2")[0] == 200
    assert put(ann, "data/in.csv", b",3", "?offset=3")[0] == 200
    assert put(ann, "run.sh", b"#!/bin/sh\n", "?executable=true")[0] == 200
    job = ann.ok("POST", "/jobs", {**JOB, "upload": UPLOAD})["jobs"][0]
    folder = Path(job["folder"])
    assert folder.is_relative_to(network.home.uploads)
    assert (folder / "data/in.csv").read_bytes() == b"1,2,3"
    assert [os.access(folder / name, os.X_OK) for name in ("run.sh", "data/in.csv")] == [
        True,
        False,
    ]
    assert {path.stat().st_mode & 0o077 for path in folder.rglob("*")} == {0}
    (folder / "out").write_bytes(bytes(range(256)))
    listed = ann.ok("GET", f"/jobs/{job['id']}/files")["files"]
    assert {one["name"]: one["bytes"] for one in listed} == {
        "data/in.csv": 5,
        "out": 256,
        "run.sh": 10,
    }
    status, headers, data = ann.raw("GET", f"/jobs/{job['id']}/files/out?offset=254")
    assert (status, data, headers["x-gridhand-size"]) == (200, b"\xfe\xff", "256")
    assert headers["content-disposition"] == "attachment"
    network.end(job["id"])


def test_a_file_that_is_sent_again_is_replaced(ann):
    put(ann, "again", b"a long text")
    put(ann, "again", b"short")
    job = ann.ok("POST", "/jobs", {**JOB, "upload": UPLOAD})["jobs"][0]
    assert ann.raw("GET", f"/jobs/{job['id']}/files/again")[2] == b"short"


NAMES = [
    "../x", "%2e%2e/x", "%2e%2e%2fx", "a/../../x", "a/./b", "a//b", "/etc/passwd", "%2fetc/passwd", "..",
    "a/", "a%00b", "x" * 300,
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_cannot_lead_out_of_the_folder(network, ann, name):
    job = ann.ok("POST", "/jobs", {**JOB, "upload": UPLOAD})["jobs"][0]["id"]
    before = sorted(Path(network.home.folder).parent.rglob("*"))
    assert put(ann, name, b"x")[0] in (404, 405, 422)
    assert ann.raw("GET", f"/jobs/{job}/files/{name}")[0] in (404, 422)
    assert sorted(Path(network.home.folder).parent.rglob("*")) == before


@pytest.mark.parametrize("name", ["%252e%252e/x", "..%5cx", "%25252fetc/passwd", "~/x", "$HOME"])
def test_what_only_looks_like_a_way_out_is_a_plain_name(network, ann, name):
    """It is decoded once, and a backslash separates nothing here."""
    upload = os.urandom(16).hex()
    assert ann.raw("PUT", f"/uploads/{upload}/{name}", b"x")[0] == 200
    job = ann.ok("POST", "/jobs", {**JOB, "upload": upload})["jobs"][0]["id"]
    [listed] = ann.ok("GET", f"/jobs/{job}/files")["files"]
    assert listed == {"name": unquote(name), "bytes": 1}
    outside = Path(network.home.folder).parent.iterdir()
    assert [path.name for path in outside] == [Path(network.home.folder).name]


def test_a_link_in_the_folder_is_not_followed(network, ann, tmp_path):
    put(ann, "here", b"x")
    job = ann.ok("POST", "/jobs", {**JOB, "upload": UPLOAD})["jobs"][0]
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("hush")
    folder = Path(job["folder"])
    (folder / "file").symlink_to(secret / "key")
    (folder / "dir").symlink_to(secret)
    os.mkfifo(folder / "pipe")
    for name in ("file", "dir/key", "pipe", "dir", "here/x"):
        status, _, data = ann.raw("GET", f"/jobs/{job['id']}/files/{name}")
        assert (status in (404, 422), b"hush" in data) == (True, False), name
        assert put(ann, name, b"changed")[0] == 422, name
    names = {one["name"] for one in ann.ok("GET", f"/jobs/{job['id']}/files")["files"]}
    assert names.isdisjoint({"file", "dir/key", "pipe"})
    assert (secret / "key").read_text() == "hush"


@pytest.mark.parametrize("field", ["folder", "stdin", "stdout", "stderr"])
def test_paths_of_the_server_are_not_accepted(ann, field):
    for route in ("/jobs", "/jobs/plan"):
        status, told = ann("POST", route, {**JOB, field: "/tmp"})
        assert (status, told["field"]) == (422, field)


def test_on_the_socket_a_folder_is_needed(network):
    status, told = Api(network)("POST", "/jobs", JOB)
    assert (status, told["field"]) == (422, "folder")
    both = {**JOB, "folder": "/", "upload": UPLOAD}
    assert Api(network)("POST", "/jobs", both)[0] == 422


def test_files_of_others_cannot_be_reached(network, ann):
    """Not even with the id of their upload."""
    put(ann, "mine", b"hush")
    job = ann.ok("POST", "/jobs", {**JOB, "upload": UPLOAD})["jobs"][0]["id"]
    bob = client_of(network, "bob")
    assert bob("GET", f"/jobs/{job}/files")[0] == 404
    assert bob.raw("GET", f"/jobs/{job}/files/mine")[0] == 404
    own = bob.ok("POST", "/jobs", {**JOB, "upload": UPLOAD})["jobs"][0]["id"]
    assert bob.ok("GET", f"/jobs/{own}/files")["files"] == []


def test_a_job_of_the_socket_has_no_files_to_download(network):
    root = Api(network)
    job = root.ok("POST", "/jobs", {**JOB, "folder": network.home.folder})["jobs"][0]["id"]
    assert root("GET", f"/jobs/{job}/files")[0] == 422
    assert root("GET", f"/jobs/{job}/files/grid.db")[0] == 422


def test_a_repeated_submission_has_the_same_folder(ann):
    first, again = (ann.ok("POST", "/jobs", JOB, idempotency_key="same")["jobs"][0] for _ in "12")
    assert (first["id"], first["folder"]) == (again["id"], again["folder"])
    assert ann.ok("POST", "/jobs", JOB)["jobs"][0]["folder"] != first["folder"]


def test_the_environment_is_what_was_sent(network, ann, monkeypatch):
    monkeypatch.setenv("HUSH", "of the controller")
    sent = {**JOB, "environment": {"MODE": "fast"}}
    job = ann.ok("POST", "/jobs", sent)["jobs"][0]
    network.end(job["id"])
    [order] = [order for order in network.engine.orders if order.job == job["id"]]
    assert {"MODE": "fast", "HOME": job["folder"]}.items() <= order.env.items()
    assert "HUSH" not in order.env


def test_a_part_that_is_too_large_is_refused(ann):
    assert put(ann, "large", bytes((8 << 20) + 1))[0] == 413
    assert put(ann, "large", b"x", f"?offset={10**12}")[0] == 422
