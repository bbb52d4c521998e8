"""Lists have an ETag: a client that has a list already is told so, and gets no second copy."""

import pytest

from api_server import Api

# Each list, and something that changes it.
LISTS = {
    "/jobs": ("POST", "/jobs", {"command": ["true"], "folder": "/", "detached": True}),
    "/nodes": ("POST", "/nodes", {"name": "n2", "capacity": {"cpu": 1}}),
    "/allocations": ("POST", "/allocations", {"request": {"cpu": 1}, "ttl_s": 600}),
    "/resources/status": ("POST", "/resources/allocate", {"requirements": {"cpu_cores": 1}}),
    "/tokens": ("POST", "/tokens", {"scope": "read"}),
}


@pytest.mark.parametrize("path", LISTS)
def test_a_list_is_sent_again_only_if_it_has_changed(server, path):
    api = Api(server)
    status, headers, _ = api.raw("GET", path)
    assert status == 200
    for known in (headers["etag"], f"W/{headers['etag']}", f'"other", {headers["etag"]}', "*"):
        status, _, content = api.raw("GET", path, headers={"if-none-match": known})
        assert (status, content) == (304, b"")
    api.ok(*LISTS[path])
    status, changed, _ = api.raw("GET", path, headers={"if-none-match": headers["etag"]})
    assert (status, changed["etag"] != headers["etag"]) == (200, True)


def test_an_empty_list_has_one_too(server):
    assert "etag" in Api(server).raw("GET", "/calls")[1]
