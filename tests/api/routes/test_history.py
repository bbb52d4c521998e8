"""Ended jobs, added up over HTTP, and what others may see of them."""

import time

import pytest

from api_server import JOB, Api, Server
from gridhand.controller.jobs import job_history
from gridhand.controller.listen_options import ListenOptions


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("history"), listen=ListenOptions(port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def past(network):
    """Five jobs: three of ann, one of which failed, and two of bob, one of which never ran."""
    api, ids = Api(network), []
    for owner, kind, code in (("ann", "train", 0), ("ann", "train", 3), ("ann", None, 0), ("bob", "train", 0)):  # fmt: skip
        body = {**JOB, "request": {"cpu": 4}} | ({"task_type": kind} if kind else {})
        ids += [api.ok("POST", "/jobs", body, x_gridhand_owner=owner)["jobs"][0]["id"]]
        network.end(ids[-1], code=code)
    body = {**JOB, "after": [{"id": ids[1]}]}
    api.ok("POST", "/jobs", body, x_gridhand_owner="bob")
    return api, ids


def jobs(found):
    return {group[found["group_by"]]: group["jobs"] for group in found["groups"]}


def test_jobs_are_added_up_by_owner_type_queue_and_node(past):
    api, _ = past
    found = api.ok("GET", "/history")
    assert jobs(found) == {"ann": 3, "bob": 2}
    assert found["groups"][0]["outcomes"] == {"failed": 1, "succeeded": 2}
    assert found["total"]["jobs"] == found["read"] == 5
    assert found["total"]["wait_s"]["mean"] >= 0
    assert found["before"] is None
    assert jobs(api.ok("GET", "/history?group_by=type")) == {"train": 3, "true": 2}
    assert jobs(api.ok("GET", "/history?group_by=queue")) == {None: 5}
    [node] = set(jobs(api.ok("GET", "/history?group_by=node"))) - {None}
    assert jobs(api.ok("GET", f"/history?group_by=node&node={node}")) == {node: 4}


def test_filters_narrow_it(past):
    api, _ = past
    now = time.time()
    assert jobs(api.ok("GET", "/history?owner=ann&type=train")) == {"ann": 2}
    assert jobs(api.ok("GET", f"/history?since={now - 600}&until={now + 600}")) == {"ann": 3, "bob": 2}  # fmt: skip
    assert jobs(api.ok("GET", f"/history?since={now + 600}")) == {}
    assert jobs(api.ok("GET", f"/history?until={now - 600}")) == {}


@pytest.mark.parametrize(
    "query",
    ["group_by=colour", "limit=0", "limit=20001", "since=-1", "before=x", "since=5&until=5"],
)
def test_bad_filters_are_refused(past, query):
    api, _ = past
    status, problem = api("GET", f"/history?{query}")[:2]
    assert status == 422
    assert query.rpartition("&")[2].partition("=")[0] in str(problem)


def test_so_many_jobs_are_read_at_once_and_the_next_request_goes_on(past, monkeypatch):
    api, ids = past
    monkeypatch.setattr(job_history, "_PAGE", 2)
    first = api.ok("GET", "/history?limit=3")
    assert (first["read"], first["total"]["jobs"], first["before"]) == (3, 3, ids[2])
    second = api.ok("GET", f"/history?before={first['before']}")
    assert (second["read"], second["before"]) == (2, None)


def test_over_the_network_only_administrators_see_the_jobs_of_others(network, past):
    local, _ = past
    made = local.ok("POST", "/tokens", {"scope": "read", "owner": "ann"})
    ann = Api(network, network.url, made["token"])
    assert jobs(ann.ok("GET", "/history")) == {"ann": 3}
    assert jobs(ann.ok("GET", "/history?group_by=node&owner=bob")) == {}
    admin = local.ok("POST", "/tokens", {"scope": "admin", "owner": "root"})
    assert jobs(Api(network, network.url, admin["token"]).ok("GET", "/history")) == {"ann": 3, "bob": 2}  # fmt: skip
