"""The original calls through HTTP: their bodies, their replies, and what goes with them."""

import json
import threading

import pytest

from api_server import Api
from nodeless_controller import Running

NODES = [
    {"name": "n1", "resources": {"cpu": 2, "memory": "4GB", "disk": "100GB"}},
    {"name": "g1", "resources": {"cpu": 4, "memory": "16GB"}, "gpus": [{"model": "A100", "memory": "24GB", "capability": "8.0"}] * 4},
]  # fmt: skip
# The body of the original story, in full.
SEED = {
    "task_id": "render-17",
    "requirements": {"cpu_cores": 2.0, "memory_gb": 4.0, "gpu_count": 0, "gpu_memory_gb": 0, "gpu_compute_capability": None, "disk_gb": 10.0, "network_bandwidth_mbps": None},
    "quality": None,
    "preferred_worker": None,
    "exclude_workers": [],
    "gpu_type": None,
    "duration_estimate": 120,
}  # fmt: skip
SPEC = {"cpu_cores", "memory_gb", "gpu_count", "gpu_memory_gb", "disk_gb", "network_bandwidth_mbps", "gpu_compute_capability"}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Running(tmp_path_factory.mktemp("leases") / "home") as running:
        yield running


@pytest.fixture
def bare(server):
    """The API of a cluster without nodes."""
    api = Api(server)
    yield api
    for held in api.ok("GET", "/allocations")["allocations"]:
        api.ok("POST", f"/allocations/{held['id']}/release")
    assert api.ok("GET", "/check") == {"clean": True, "violations": []}
    for node in api.ok("GET", "/nodes")["nodes"]:
        api.ok("DELETE", f"/nodes/{node['name']}")


@pytest.fixture
def api(bare):
    bare.ok("POST", "/nodes", {"nodes": NODES})
    return bare


def seconds_left(api, grant):
    held = api.ok("GET", f"/allocations/{grant['allocation_id']}")
    return held["row"]["ttl"] / 1000


# ---- the original calls


def test_the_original_call_gets_the_original_reply(api):
    grant = api.ok("POST", "/resources/allocate", SEED)
    assert grant["success"] is True
    assert grant["worker_id"] == "n1"
    assert grant["resources"] == {**dict.fromkeys(SPEC, 0), "cpu_cores": 2, "memory_gb": 4, "disk_gb": 10, "gpu_compute_capability": None}  # fmt: skip
    assert grant["expires_at"].endswith("Z")
    assert grant["allocation_id"]
    assert seconds_left(api, grant) == 240


def test_the_same_task_gets_the_same_allocation(api):
    first = api.ok("POST", "/resources/allocate", SEED)
    again = api.ok("POST", "/resources/allocate", SEED)
    assert again["allocation_id"] == first["allocation_id"]
    assert (first["fresh"], again["fresh"]) == (True, False)
    status, other = api("POST", "/resources/allocate", {**SEED, "requirements": {"cpu_cores": 1}})
    assert (status, other["code"]) == (409, "holder_busy")


def test_a_request_that_fits_nowhere_is_a_normal_answer(api):
    """T7: the texts of the original, and an explanation beside them."""
    body = {"requirements": {"cpu_cores": 3}, "exclude_workers": ["g1"]}
    refused = api.ok("POST", "/resources/allocate", body)
    assert refused["success"] is False
    assert refused["error"] == "No suitable worker found for requirements"
    text = "Insufficient CPU: worker has 2.00 available, task requires 3.00"
    assert refused["explanation"]["reasons"] == {"n1": [text]}
    assert refused["explanation"]["code"] == "never_fits"
    assert text in refused["explanation"]["text"]
    assert refused["explanation"]["hint"]


def test_storage_and_memory_are_explained_in_gb(api):
    for amount, text in (
        ({"memory_gb": 40}, "Insufficient Memory: worker has 4.00 GB available, task requires 40.00 GB"),
        ({"disk_gb": 400}, "Insufficient Storage: worker has 100.00 GB available, task requires 400.00 GB"),
    ):  # fmt: skip
        refused = api.ok("POST", "/resources/allocate", {"requirements": amount})
        assert refused["explanation"]["reasons"]["n1"] == [text]


def test_an_unknown_resource_is_explained_too(api):
    refused = api.ok("POST", "/resources/allocate", {"requirements": {"gpu_memori": 1}})
    assert refused["explanation"]["code"] == "unknown_resource"
    assert "gpu_memory" in refused["explanation"]["text"]


def test_an_empty_cluster_is_all_zeros_and_refuses_with_a_reason(bare):
    """P8."""
    status = bare.ok("GET", "/resources/status")
    assert status["workers"] == []
    for amounts in ("total", "allocated", "available"):
        assert {value for value in status["summary"][amounts].values() if value} == set()
    assert status["summary"]["overall_utilization"] == {"cpu": 0, "memory": 0, "gpu": 0}
    refused = bare.ok("POST", "/resources/allocate", SEED)
    assert refused["success"] is False
    assert "there are no nodes" in refused["explanation"]["text"]


def test_status_adds_up_every_node(api):
    """4 + 4 GPUs are 8, and one in use leaves 7."""
    more = {
        "name": "g2",
        "capacity": {"cpu": 4, "gpu": 4, "gpu_memory_gb": 96},
        "labels": {"a": "b"},
    }
    api.ok("POST", "/nodes", more)
    api.ok(
        "POST",
        "/resources/allocate",
        {"requirements": {"gpu_count": 1, "cpu_cores": 1}, "preferred_worker": "g1"},
    )
    status = api.ok("GET", "/resources/status")
    summary = status["summary"]
    assert (summary["total"]["gpu_count"], summary["available"]["gpu_count"]) == (8, 7)
    assert (summary["total"]["cpu_cores"], summary["allocated"]["cpu_cores"]) == (10, 1)
    assert summary["overall_utilization"] == {"cpu": 10.0, "memory": 0.0, "gpu": 12.5}
    workers = {worker["worker_id"]: worker for worker in status["workers"]}
    assert workers["g1"]["utilization"] == {"cpu": 25.0, "memory": 0.0, "gpu": 25.0}
    assert workers["g1"]["total"]["gpu_compute_capability"] == "8.0"
    assert workers["n1"]["utilization"]["gpu"] == 0
    assert workers.keys() == {"n1", "g1", "g2"}
    assert all(worker["total"].keys() == SPEC for worker in workers.values())


# ---- the time of a lease


TIMES = {
    "an hour if nothing is said":                  ({}, 3600),
    "as long as it says":                          ({"ttl": 5}, 5),
    "its own time before an estimate":             ({"ttl": 5, "duration_estimate": 900}, 5),
    "twice the estimate":                          ({"duration_estimate": 100}, 200),
    "at least a minute":                           ({"duration_estimate": 1}, 60),
    "longer for better quality":                   ({"duration_estimate": 100, "quality": "high"}, 400),
    "shorter for a draft":                         ({"duration_estimate": 100, "quality": "draft"}, 100),
    "long enough for whatever quality there is":   ({"duration_estimate": 100, "quality": "auto"}, 800),
}  # fmt: skip


@pytest.mark.parametrize(("terms", "expected"), TIMES.values(), ids=TIMES)
def test_a_grant_is_a_lease(api, terms, expected):
    grant = api.ok("POST", "/resources/allocate", {"requirements": {"cpu": 1}, **terms})
    assert seconds_left(api, grant) == expected
    assert api.ok("GET", f"/allocations/{grant['allocation_id']}")["lifetime"] == "lease"


def test_quality_scales_the_requirements(api):
    grant = api.ok(
        "POST",
        "/resources/allocate",
        {"requirements": {"cpu_cores": 2, "memory_gb": 4}, "quality": "high"},
    )
    assert (grant["resources"]["cpu_cores"], grant["resources"]["memory_gb"]) == (3, 5.2)
    assert (grant["quality"], grant["worker_id"]) == ("high", "g1")


def test_a_preferred_worker_is_a_wish_and_an_excluded_one_never_taken(api):
    wanted = {"requirements": {"cpu_cores": 2}, "preferred_worker": "n1"}
    taken = [api.ok("POST", "/resources/allocate", wanted)["worker_id"] for _ in range(2)]
    assert taken == ["n1", "g1"]
    both = {**wanted, "requirements": {"cpu_cores": 1}, "exclude_workers": ["n1"]}
    assert api.ok("POST", "/resources/allocate", both)["worker_id"] == "g1"


# ---- what goes with them


def test_a_reservation_is_confirmed_renewed_and_released_once(api):
    kept = api.ok("POST", "/resources/reserve", {**SEED, "ttl": 30})
    assert (kept["state"], seconds_left(api, kept)) == ("reserved", 30)
    id = {"allocation_id": kept["allocation_id"]}
    confirmed = api.ok("POST", "/resources/confirm", id)
    assert (confirmed["state"], seconds_left(api, kept)) == ("active", 3600)
    api.ok("POST", "/resources/renew", {"task_id": "render-17", "ttl": 90})
    assert seconds_left(api, kept) == 90
    released = [api.ok("POST", "/resources/release", id) for _ in range(2)]
    assert [one["state"] for one in released] == ["released"] * 2
    status, told = api("POST", "/resources/confirm", id)
    assert (status, told["code"]) == (409, "move_refused")


REFUSED = {
    "a negative amount":        ("allocate", {"requirements": {"cpu_cores": -1}}, 422),
    "a bool":                   ("allocate", {"requirements": {"cpu_cores": True}}, 422),
    "less than a part":         ("allocate", {"requirements": {"cpu_cores": 1e-320}}, 422),
    "a huge integer":           ("allocate", {"requirements": {"cpu_cores": 10**400}}, 422),
    "a number as text":         ("allocate", {"requirements": {"cpu_cores": 1}, "ttl": "1e3"}, 422),
    "no amount":                ("allocate", {"requirements": {}}, 422),
    "no requirements":          ("allocate", {"task_id": "t"}, 422),
    "an unknown quality":       ("allocate", {"requirements": {"cpu": 1}, "quality": "best"}, 422),
    "an unknown field":         ("allocate", {"requirements": {"cpu": 1}, "taskid": "t"}, 422),
    "a task with a line break": ("allocate", {"requirements": {"cpu": 1}, "task_id": "a\nb"}, 422),
    "no time":                  ("reserve", {"requirements": {"cpu": 1}, "ttl": 0}, 422),
    "nothing to release":       ("release", {}, 422),
    "two things to release":    ("release", {"allocation_id": "a1-1", "task_id": "t"}, 422),
    "an unknown allocation":    ("release", {"allocation_id": "a9-999"}, 404),
    "an empty batch":           ("allocate/batch", {"items": []}, 422),
    "too large a batch":        ("release/batch", {"items": [{"task_id": "t"}] * 1001}, 422),
}  # fmt: skip


@pytest.mark.parametrize(("verb", "body", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_refused_and_changes_nothing(api, verb, body, expected):
    before = api.ok("GET", "/allocations")
    status, told = api("POST", f"/resources/{verb}", body)
    assert (status, bool(told["detail"])) == (expected, True)
    assert api.ok("GET", "/allocations") == before


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-1"])
def test_no_number_of_json_breaks_it(api, number):
    body = json.dumps({"requirements": {"cpu_cores": 0}}).replace(": 0", f": {number}")
    status, _, _ = api.raw("POST", "/resources/allocate", body.encode())
    assert status == 422


# ---- batches


def test_a_batch_is_decided_in_order_and_each_item_has_its_outcome(api):
    items = [
        {"task_id": "a", "requirements": {"cpu_cores": 4}},
        {"task_id": "b", "requirements": {"cpu_cores": 4}},
        {"task_id": "c", "requirements": {"cpu_cores": 2}},
        {"task_id": "a", "requirements": {"cpu_cores": 4}},
        {"task_id": "c", "requirements": {"cpu_cores": 1}},
    ]
    last = api.ok("GET", "/events?limit=10000")["events"][-1]["number"]
    results = api.ok("POST", "/resources/allocate/batch", {"items": items})["results"]
    assert [one["success"] for one in results] == [True, False, True, True, False]
    assert results[1]["error"] == "No suitable worker found for requirements"
    assert results[3]["allocation_id"] == results[0]["allocation_id"]
    assert results[4]["explanation"]["code"] == "holder_busy"
    events = api.ok("GET", f"/events?after={last}")["events"]
    assert [event["kind"] for event in events] == ["allocation.active"] * 2
    assert len({event["at_ms"] for event in events}) == 1  # one commit
    ids = [{"allocation_id": results[0]["allocation_id"]}, {"task_id": "c"}, {"task_id": "d"}]
    ended = api.ok("POST", "/resources/release/batch", {"items": ids})["results"]
    assert [one["success"] for one in ended] == [True, True, False]
    assert ended[2]["explanation"]["code"] == "unknown_allocation"


def test_a_repeated_batch_has_the_same_outcomes_and_one_effect(api):
    items = [{"requirements": {"cpu_cores": 2}}] * 4
    body = {"items": items}
    first = api.ok("POST", "/resources/allocate/batch", body, idempotency_key="batch-1")
    again = api.ok("POST", "/resources/allocate/batch", body, idempotency_key="batch-1")
    ids = [one.get("allocation_id") for one in first["results"]]
    assert [one.get("allocation_id") for one in again["results"]] == ids
    assert ids.count(None) == 1
    assert again["results"][3]["error"] == first["results"][3]["error"]
    assert len(api.ok("GET", "/allocations")["allocations"]) == 3
    status, told = api(
        "POST", "/resources/allocate/batch", {"items": items[:1]}, idempotency_key="batch-1"
    )
    assert (status, told["code"]) == (409, "operation_reused")


def test_reservations_are_confirmed_and_renewed_in_batches(api):
    items = [{"task_id": f"t{i}", "requirements": {"cpu_cores": 1}} for i in range(3)]
    api.ok("POST", "/resources/reserve/batch", {"items": items})
    named = {"items": [{"task_id": f"t{i}", "ttl": 50} for i in range(4)]}
    for verb in ("confirm", "renew"):
        done = api.ok("POST", f"/resources/{verb}/batch", named)["results"]
        assert [one["success"] for one in done] == [True] * 3 + [False]


def test_claims_that_race_are_never_granted_twice(api):
    """T5: of a hundred that want one of six cores, six get one."""
    won = []

    def ask():
        reply = api.ok("POST", "/resources/allocate", {"requirements": {"cpu_cores": 1}})
        won.append(reply["success"])

    threads = [threading.Thread(target=ask) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (won.count(True), len(won)) == (6, 100)


# ---- lists that did not change


def test_a_list_that_did_not_change_is_not_sent_again(api):
    _, headers, _ = api.raw("GET", "/resources/status")
    known = {"if-none-match": headers["etag"]}
    assert api.raw("GET", "/resources/status", headers=known)[0] == 304
    api.ok("POST", "/resources/allocate", {"requirements": {"cpu_cores": 1}})
    assert api.raw("GET", "/resources/status", headers=known)[0] == 200
