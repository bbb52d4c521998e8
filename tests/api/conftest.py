"""A server of jobs for the tests of a file, and who asks it."""

import os

import pytest

from api_server import Api, Server
from until import until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("jobs") / "home") as running:
        yield running


@pytest.fixture
def api(server):
    api = Api(server)
    yield api
    for job in api.ok("GET", "/jobs?state=open&limit=10000")["jobs"]:
        api.ok("POST", f"/jobs/{job['id']}/cancel")
    until(lambda: not api.ok("GET", "/jobs?state=open")["jobs"])
    assert api.ok("GET", "/check") == {"clean": True, "violations": []}
    assert os.listdir(server.home.environments) == []
