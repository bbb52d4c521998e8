"""Predictions over HTTP, from the stored jobs of the caller."""

from api_server import JOB
from until import until


def run(api, server, owner, **more):
    body = {**JOB, "request": {"cpu": 1}, **more}
    id = api.ok("POST", "/jobs", body, x_gridhand_owner=owner)["jobs"][0]["id"]
    server.end(id, peak_bytes=300_000_000, ran_ms=2000)
    until(lambda: api.ok("GET", f"/jobs/{id}")["state"] == "succeeded")


def test_a_kind_of_task_is_predicted_from_the_callers_own_runs(api, server):
    for _ in range(3):
        run(api, server, "ann", task_type="small")
    run(api, server, "bob", task_type="small")
    found = api.ok("GET", "/predict/small", x_gridhand_owner="ann")
    assert (found["task_type"], found["runs"]) == ("small", 3)
    assert found["memory"]["bytes"] == 309_000_000  # 3 % above what they all needed
    assert found["memory"]["confidence"] == 0.75
    assert [one["quantile"] for one in found["durations"]] == [0.5, 0.9, 0.95]
    assert api.ok("GET", "/predict/small", x_gridhand_owner="bob")["runs"] == 1
    assert api.ok("GET", "/predict/other", x_gridhand_owner="ann")["memory"] is None


def test_a_type_that_is_too_long_is_refused(api):
    assert api("GET", f"/predict/{'x' * 201}")[0] == 422
