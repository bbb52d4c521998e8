"""What monitors ask for: metrics that add up, and whether the controller is ready."""

import json
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api_server import JOB
from gridhand.api import readiness
from gridhand.core.errors import StoreUnavailable
from gridhand.posix.boot_clock import wall_ms
from until import until


def page(api):
    status, headers, content = api.raw("GET", "/metrics", prefix="")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    return content.decode()


def values(api):
    """Every sample of the page: its value by its name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page(api))
        for sample in family.samples
    }


def value(api, name, **labels):
    return values(api)[name, *sorted(labels.items())]


def test_resources_of_nodes_are_in_base_units(server, api):
    held = {"request": {"cpu": 1.5, "memory": "2GB"}, "lifetime": "until_released"}
    id = api.ok("POST", "/allocations", held)["id"]
    found = values(api)
    for name, resource, amount in [
        ("capacity", "cpu", 4),
        ("capacity", "memory", 8e9),
        ("allocated", "cpu", 1.5),
        ("allocated", "memory", 2e9),
    ]:
        key = (f"gridhand_resource_{name}", ("node", "n1"), ("resource", resource))
        assert found[key] == amount
    assert found["gridhand_nodes", ("health", "up")] == 1
    assert found["gridhand_nodes", ("health", "down")] == 0
    api.ok("POST", f"/allocations/{id}/release")
    assert value(api, "gridhand_resource_allocated", node="n1", resource="cpu") == 0


def sample(**more):
    return {"event": "usage", "node": {"cpu": 1.25, "memory_bytes": 3}, "jobs": {}, "foreign": {}, **more}  # fmt: skip


def test_measurements_are_shown_as_measured(server, api):
    others = {"cpu": 0.5, "memory_bytes": 7, "machine_cpu": 4, "machine_bytes": 9, "processes": []}
    server.do(server.controller.samples.latest.update, {"n1": sample(others=others)})
    assert value(api, "gridhand_resource_used", node="n1", resource="cpu") == 1.25
    assert value(api, "gridhand_resource_used", node="n1", resource="memory") == 3
    assert value(api, "gridhand_resource_foreign", node="n1", resource="memory") == 7
    server.do(server.controller.samples.latest.clear)
    assert "gridhand_resource_used{" not in page(api)


def test_devices_have_their_memory_by_state(server, api):
    gpus = [{"id": "GPU-1", "model": "A100", "memory": "40GB"}]
    api.ok("POST", "/nodes", {"name": "g1", "capacity": {"cpu": 1}, "gpus": gpus})
    load = {"GPU-1": {"utilization": 50.0, "memory_bytes": 11, "temperature_c": None, "power_w": None, "processes": []}}  # fmt: skip
    server.do(server.controller.samples.latest.update, {"g1": sample(gpus=load)})
    order = {"request": {"gpu": 0.25, "gpu_memory": "10GB"}, "lifetime": "until_released"}
    id = api.ok("POST", "/allocations", order)["id"]
    device = {"node": "g1", "gpu_uuid": "GPU-1"}
    states = {"capacity": 40e9, "allocated": 10e9, "foreign": 0, "used": 11}
    found = values(api)
    for state, amount in states.items():
        key = ("gridhand_gpu_memory_bytes", *sorted({**device, "state": state}.items()))
        assert found[key] == amount
    assert found["gridhand_gpu_utilization_ratio", *sorted(device.items())] == 0.5
    assert found["gridhand_gpu_allocated_ratio", *sorted(device.items())] == 0.25
    assert found["gridhand_gpus", ("health", "ok")] == 1
    api.ok("POST", f"/allocations/{id}/release")
    server.do(server.controller.samples.latest.clear)
    api.ok("DELETE", "/nodes/g1?force=true")


def test_jobs_are_counted_from_submission_to_end(server, api):
    before = values(api)
    big = [api.submit(request={"cpu": 4}, priority="high") for _ in range(3)]
    until(lambda: value(api, "gridhand_jobs", state="running") == 1)
    assert value(api, "gridhand_jobs", state="queued") == 2
    assert value(api, "gridhand_queue_jobs", priority="high") == 2
    assert value(api, "gridhand_queue_jobs", priority="low") == 0
    server.end(big[0], code=1)
    server.end(big[1], reason="oom", code=None)
    server.end(big[2], code=0)
    until(lambda: value(api, "gridhand_jobs", state="running") == 0)
    found = values(api)
    grown = {
        key: found[key] - before.get(key, 0)
        for key in found
        if key[0].startswith(("gridhand_job", "gridhand_oom", "gridhand_queue_wait_seconds_count"))
        and found[key] != before.get(key, 0)
    }
    assert grown == {
        ("gridhand_jobs_submitted_total",): 3,
        ("gridhand_jobs_finished_total", ("outcome", "failed")): 2,
        ("gridhand_jobs_finished_total", ("outcome", "succeeded")): 1,
        ("gridhand_oom_total", ("kind", "host")): 1,
        ("gridhand_queue_wait_seconds_count", ("priority", "high")): 3,
    }


def test_a_job_that_makes_room_counts_as_a_preemption_and_as_a_retry(server, api, monkeypatch):
    monkeypatch.setattr(server.controller._dispatch.preemption, "minimum_run_ms", 0)
    before = values(api)["gridhand_preemptions_total",]
    low = api.submit(request={"cpu": 4}, priority="low")
    until(lambda: (low, 1) in server.engine.running)
    urgent = api.submit(request={"cpu": 4}, priority="urgent")
    until(lambda: (urgent, 1) in server.engine.running)
    assert value(api, "gridhand_preemptions_total") == before + 1
    assert value(api, "gridhand_job_retries_total", reason="preempted") == before + 1
    assert value(api, "gridhand_queue_jobs", priority="low") == 1


def test_leases_are_counted_and_so_are_those_that_end_by_themselves(api):
    order = {"request": {"cpu": 1}, "ttl_s": 0.2}
    api.ok("POST", "/allocations", order)
    until(lambda: value(api, "gridhand_reclaimed_total", cause="expired") == 1)
    assert value(api, "gridhand_leases", state="active") == 0
    held = api.ok("POST", "/allocations", {**order, "ttl_s": 60})["id"]
    assert value(api, "gridhand_leases", state="active") == 1
    api.ok("POST", f"/allocations/{held}/release")


def test_decisions_commits_and_failures_of_the_store_are_counted(server, api):
    before = values(api)
    server.store.down = StoreUnavailable("the disk is gone")
    assert api("POST", "/jobs", JOB)[0] == 503
    server.store.down = None
    api.submit()
    found = values(api)
    for name in ("gridhand_placement_decision_seconds", "gridhand_store_commit_seconds"):
        assert found[f"{name}_count",] > before[f"{name}_count",]
        assert found[f"{name}_sum",] > before[f"{name}_sum",]
        assert found[f"{name}_bucket", ("le", "+Inf")] == found[f"{name}_count",]
    assert found["gridhand_store_errors_total", ("code", "store_unavailable")] >= 1


def test_requests_are_counted_by_route_and_never_by_path(api):
    api.raw("GET", "/jobs/4711")
    api.raw("GET", "/no/such/4711", prefix="")
    api.raw("DELETE", "/jobs/4711")
    found = page(api)
    assert "4711" not in found
    route = {"method": "GET", "route": "/api/v1/jobs/{id}", "status": "4xx"}
    assert value(api, "gridhand_http_requests_total", **route) >= 1
    nowhere = {"method": "", "route": "unmatched", "status": "4xx"}
    assert value(api, "gridhand_http_requests_total", **nowhere) >= 2


def test_no_label_names_a_job_or_a_user(server, api):
    api.submit(name="secret-name")
    api.ok("POST", "/jobs", JOB, x_gridhand_owner="owner-name")
    found = page(api)
    assert "secret-name" not in found
    assert "owner-name" not in found
    labels = {name for key in values(api) for name, _ in key[1:]}
    assert labels <= {
        "node", "gpu_uuid", "resource", "health", "flag", "state", "priority", "outcome", "reason", "kind",
        "cause", "code", "le", "method", "route", "status", "version",
    }  # fmt: skip


# ---- ready or not


def ready(api):
    status, _, content = api.raw("GET", "/readyz", prefix="")
    told = json.loads(content)
    return status, told.get("reasons", told.get("status"))


@pytest.fixture
def seen(server):
    """The moment at which the node was last heard, which a fake engine never says again."""
    server.do(server.controller.samples.seen.update, {"n1": wall_ms()})


def test_a_controller_whose_store_and_node_answer_is_ready(api, seen):
    assert ready(api) == (200, "ready")


def test_a_store_that_does_not_answer_is_a_reason(server, api, seen, monkeypatch):
    def events(**_):
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(server.store, "events", events, raising=False)
    status, [reason] = ready(api)
    assert (status, "the database is away" in reason) == (503, True)


def test_a_store_that_hangs_is_a_reason(server, api, seen, monkeypatch):
    monkeypatch.setattr(readiness, "STORE_S", 0.05)
    monkeypatch.setattr(server.controller, "touch_store", server.controller.stopping.wait)
    assert ready(api) == (503, ["the store has not answered within 0.05 s"])


def test_a_removed_store_is_a_reason(server, api, seen, monkeypatch):
    monkeypatch.setattr(server.store, "lost_file", lambda: "/gone.db", raising=False)
    status, reasons = ready(api)
    assert (status, "/gone.db" in reasons[0]) == (503, True)


def test_nodes_that_are_all_away_are_a_reason(server, api, seen):
    assert ready(api)[0] == 200
    silent = wall_ms() - readiness.SILENT_MS - 1
    server.do(server.controller.samples.seen.update, {"n1": silent})
    assert ready(api) == (503, ["no node is up: n1"])
    api.ok("POST", "/nodes", {"name": "n2", "capacity": {"cpu": 1}})
    assert ready(api)[0] == 200  # the others go on
    api.ok("DELETE", "/nodes/n2")


# ---- the page about the API


def test_the_page_about_the_api_needs_nothing_from_elsewhere(api):
    status, headers, content = api.raw("GET", "/docs", prefix="")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/html")
    assert "unsafe" not in headers["content-security-policy"]
    parts = re.findall('(?:src|href)="([^"]+)"', content.decode())
    assert len(parts) == 4
    for path in parts:
        assert path.startswith("/docs/")
        status, headers, part = api.raw("GET", path, prefix="")
        assert (status, bool(part)) == (200, True)
    assert b"<script>" not in content
    assert b"SwaggerUIBundle" in api.raw("GET", "/docs/swagger-ui-bundle.js", prefix="")[2]
    assert api.raw("GET", "/openapi.json", prefix="")[0] == 200


@pytest.mark.parametrize("name", ["main.py", "..%2fmain.py", "__init__.py"])
def test_nothing_else_of_the_package_is_served(api, name):
    assert api.raw("GET", f"/docs/{name}", prefix="")[0] in (404, 422)
