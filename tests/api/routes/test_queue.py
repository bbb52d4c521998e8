"""The queue over HTTP: its order, the place of a job, and what others may see of it."""

import pytest

from api_server import JOB, Api, Server
from gridhand.controller.listen_options import ListenOptions
from until import until


def submit(api, owner, cpu, **more):
    body = {**JOB, "request": {"cpu": cpu}, **more}
    return api.ok("POST", "/jobs", body, x_gridhand_owner=owner)["jobs"][0]["id"]


def test_the_queue_is_listed_in_its_order(api):
    running = submit(api, "ann", 4, expect_s=600)
    of_ann = submit(api, "ann", 1, name="mine")
    of_bob = submit(api, "bob", 2)
    array = submit(api, "bob", 1, array="1-3", priority="low").partition("_")[0]
    found = api.ok("GET", "/queue")
    assert [entry["id"] for entry in found["entries"]] == [of_bob, of_ann, f"{array}_1"]
    first, second, tasks = found["entries"]
    assert (first["position"], first["owner"], first["share"]) == (1, "bob", 0.0)
    assert (second["position"], second["name"], second["share"]) == (2, "mine", 1.0)
    assert second["request"] == {"cpu": 1}
    assert (tasks["kind"], tasks["tasks"], tasks["last_task"]) == ("array", 3, 3)
    # The node has one claim, that of the first who waited.
    assert [entry["expected_start_at"] is not None for entry in found["entries"]] == [
        False, True, False,
    ]  # fmt: skip
    assert {entry["why"] for entry in found["entries"]} == {"no CPU free"}
    assert (found["ready"], found["later"]) == (5, 0)
    assert len(api.ok("GET", "/queue?limit=1")["entries"]) == 1
    assert [one["id"] for one in api.ok("GET", "/queue?owner=ann")["entries"]] == [of_ann]
    assert api("GET", "/queue?limit=0")[0] == 422
    shares = {one["owner"]: one["share"] for one in api.ok("GET", "/status")["shares"]}
    assert shares["ann"] == 1.0
    assert running not in [entry["id"] for entry in found["entries"]]


def test_why_says_who_is_ahead_and_when_a_job_should_start(api):
    running = submit(api, "ann", 4, expect_s=600)
    submit(api, "bob", 2, expect_s=600)
    waits = submit(api, "ann", 4)
    told = api.ok("GET", f"/jobs/{waits}/why")["queue"]
    assert (told["position"], told["ready"]) == (2, 2)
    assert [(one["owner"], one["jobs"], one["why"]) for one in told["ahead"]] == [
        ("bob", 1, "share")
    ]
    assert told["expected_start_at"] is not None
    assert "expected start: in " in told["text"]
    assert api.ok("GET", f"/jobs/{running}/why")["queue"] is None


def test_a_plan_and_an_explanation_say_when_it_would_start(api):
    submit(api, "ann", 4, expect_s=600)
    plan = api.ok("POST", "/jobs/plan", {**JOB, "request": {"cpu": 2}})
    assert (plan["starts"], plan["node"]) == (False, None)
    assert 590 < plan["starts_in_s"] <= 600
    found = api.ok("POST", "/explain", {"cpu": 2})
    assert 590 < found["starts_in_s"] <= 600
    assert f"a job would start in 10m on {found['starts_on']}" in found["text"]


def test_a_plan_and_why_say_whom_an_urgent_job_would_stop(api):
    low = submit(api, "bob", 4, priority="low")
    urgent = {**JOB, "request": {"cpu": 2}, "priority": "urgent"}
    plan = api.ok("POST", "/jobs/plan", urgent)
    (stops,) = plan["stops"]
    assert (stops["id"], stops["owner"], stops["stopping"]) == (low, "bob", False)
    assert plan["starts_in_s"] < 600
    waits = submit(api, "ann", 2, priority="urgent")
    told = api.ok("GET", f"/jobs/{waits}/why")["queue"]
    assert [one["id"] for one in told["stops"]] == [low]
    assert f"1 job of bob ({low}), which has run for" in told["text"]


def test_a_plan_does_not_use_room_that_is_kept_for_others(api):
    submit(api, "ann", 3, expect_s=600)
    large = submit(api, "ann", 4, priority="high")
    plan = api.ok("POST", "/jobs/plan", {**JOB, "request": {"cpu": 1}})
    assert not plan["starts"]
    assert f"kept for job {large}" in plan["why"]
    short = api.ok("POST", "/jobs/plan", {**JOB, "request": {"cpu": 1}, "time_limit_s": 5})
    assert short["starts"]


def test_a_job_shows_what_it_has_waited_for(api, server):
    first = submit(api, "ann", 4)
    second = submit(api, "ann", 4)
    until(lambda: api.job(second)["waited"]["seconds"] > 0)
    so_far = api.job(second)["waited"]
    assert [one["text"] for one in so_far["causes"]] == ["no CPU free"]
    server.end(first)
    until(lambda: api.job(second)["attempts"])
    job = api.job(second)
    assert job["waited"] == job["attempts"][0]["waited"]
    assert job["waited"]["seconds"] >= so_far["seconds"]
    assert [one["cause"] for one in job["waited"]["causes"]] == ["room:cpu"]


@pytest.fixture
def network(tmp_path):
    with Server(tmp_path / "home", listen=ListenOptions(port=0)) as running:
        yield running


def test_over_the_network_only_administrators_see_what_others_wait_for(network):
    local = Api(network)
    submit(local, "bob", 4)
    of_bob, of_ann = submit(local, "bob", 1, priority="high"), submit(local, "ann", 1)
    made = local.ok("POST", "/tokens", {"scope": "read", "owner": "ann"})
    ann = Api(network, network.url, made["token"])
    found = ann.ok("GET", "/queue")
    assert [(one["id"], one["position"]) for one in found["entries"]] == [(of_ann, 2)]
    assert ann.ok("GET", "/queue?owner=bob")["entries"] == []
    told = ann.ok("GET", f"/jobs/{of_ann}/why")["queue"]
    assert [one["owner"] for one in told["ahead"]] == ["others"]
    assert "bob" not in told["text"]
    assert [one["owner"] for one in ann.ok("GET", "/status")["shares"]] in ([], ["ann"])
    assert [one["id"] for one in local.ok("GET", "/queue")["entries"]] == [of_bob, of_ann]
