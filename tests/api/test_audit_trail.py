"""Every route that changes something leaves an event with the owner and the token that did it.

The list of routes is the table of `access`: a new one fails here until it is decided.
"""

import json

import pytest

from api_server import Api, Server
from gridhand.api.access import ACCESS
from gridhand.controller.listen_options import ListenOptions
from until import until

NODE = {"name": "n2", "capacity": {"cpu": 4}}
HELD = {"request": {"cpu": 1}, "lifetime": "until_released"}
LEASE = {"requirements": {"cpu_cores": 1}}
JOB = {"command": ["true"], "detached": True}
#    route, its body, and the kind of the event. {job}, {held} … are made for each case.
CHANGES = {
    "POST /api/v1/nodes":                    (NODE, "node.registered"),
    "POST /api/v1/nodes/{name}/drain":       (None, "node.drained"),
    "POST /api/v1/nodes/{name}/resume":      (None, "node.resumed"),
    "POST /api/v1/nodes/{name}/health":      ({"health": "suspect"}, "node.suspect"),
    "POST /api/v1/nodes/{name}/foreign":     ({"used": {}}, "admin.foreign"),
    "DELETE /api/v1/nodes/{name}":           (None, "node.removed"),
    "POST /api/v1/allocations":              (HELD, "allocation.active"),
    "POST /api/v1/allocations/group":        ({"requests": [{"cpu": 1}]}, "allocation.active"),
    "POST /api/v1/allocations/{id}/{move}":  (None, "allocation.released"),
    "POST /api/v1/resources/allocate":       (LEASE, "allocation.active"),
    "POST /api/v1/resources/allocate/batch": ({"items": [LEASE]}, "allocation.active"),
    "POST /api/v1/resources/reserve":        (LEASE, "allocation.reserved"),
    "POST /api/v1/resources/reserve/batch":  ({"items": [LEASE]}, "allocation.reserved"),
    "POST /api/v1/resources/confirm":        ({"allocation_id": "{reserved}"}, "allocation.confirmed"),
    "POST /api/v1/resources/confirm/batch":  ({"items": [{"allocation_id": "{reserved}"}]}, "allocation.confirmed"),
    "POST /api/v1/resources/renew":          ({"allocation_id": "{lease}"}, "allocation.renewed"),
    "POST /api/v1/resources/renew/batch":    ({"items": [{"allocation_id": "{lease}"}]}, "allocation.renewed"),
    "POST /api/v1/resources/release":        ({"allocation_id": "{lease}"}, "allocation.released"),
    "POST /api/v1/resources/release/batch":  ({"items": [{"allocation_id": "{lease}"}]}, "allocation.released"),
    "POST /api/v1/jobs":                     (JOB, "job.submitted"),
    "POST /api/v1/jobs/{id}/cancel":         (None, "job.stopping"),
    "POST /api/v1/jobs/{id}/hold":           (None, "job.held"),
    "POST /api/v1/jobs/{id}/unhold":         (None, "job.unheld"),
    "POST /api/v1/jobs/{id}/signal":         ({"signal": 10}, "job.signalled"),
    "POST /api/v1/tokens":                   ({"scope": "read"}, "admin.token_created"),
    "POST /api/v1/tokens/{id}/rotate":       (None, "admin.token_rotated"),
    "DELETE /api/v1/tokens/{id}":            (None, "admin.token_revoked"),
    "POST /api/v1/prune":                    ({"older_than_s": 1000}, "admin.pruned"),
    "POST /api/v1/config/reload":            (None, "admin.config_reloaded"),
    "POST /api/v1/repair":                   (None, "admin.store_repaired"),
    "POST /api/v1/stop":                     ({"jobs": "keep"}, "admin.stopped"),
}  # fmt: skip
# They may be repeated as they are: nothing is done twice.
WITHOUT_KEY = {"POST /api/v1/config/reload", "POST /api/v1/repair", "POST /api/v1/stop"}
# Questions, connections, and what is kept outside of the ledger: signs of life, records of calls,
# files that no job has yet. What workers report is recorded in the name of the controller, like
# the reports of its own agents.
NO_CHANGE = {
    "POST /api/v1/fits", "POST /api/v1/explain", "POST /api/v1/jobs/plan", "POST /logout",
    "POST /api/v1/nodes/{name}/heartbeat", "POST /api/v1/sessions", "DELETE /api/v1/sessions/{id}",
    "POST /api/v1/sessions/{id}/jobs", "POST /api/v1/calls", "POST /api/v1/calls/waiting",
    "PUT /api/v1/uploads/{id}/{name}",
    *(f"POST /api/v1/nodes/{{name}}/{what}" for what in ("join", "orders", "reports", "output", "file", "leave")),
}  # fmt: skip
# Reports of a worker about its own node: the changes that follow are the controller's.
REPORTS = {
    f"POST /api/v1/nodes/{{name}}/{what}"
    for what in ("join", "orders", "reports", "output", "leave", "file")
}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit") / "home"
    with Server(folder, cpu=100, listen=ListenOptions(port=0)) as running:
        stop, running.controller.begin_stopping = running.controller.begin_stopping, lambda: None
        yield running  # it stays, for the other cases
        running.controller.begin_stopping = stop


def test_of_every_route_it_is_decided_whether_it_changes_something():
    changing = {key for key in ACCESS if not key.startswith("GET ")}
    assert changing == {*CHANGES, *NO_CHANGE, *REPORTS}
    assert not NO_CHANGE & set(CHANGES)


def made_for(case, network, api):
    """Make what the request of a case names."""
    if "/nodes/" in case:
        api.ok("POST", "/nodes", NODE)
        return {"name": "n2"}
    if "/jobs/{id}" in case:
        id = api.ok("POST", "/jobs", {**JOB, **({"begin_s": 900} if "hold" in case else {})})["jobs"][0]["id"]  # fmt: skip
        if "/unhold" in case:
            api.ok("POST", f"/jobs/{id}/hold")
        return {"id": id}
    if "/tokens/" in case:
        return {"id": api.ok("POST", "/tokens", {"scope": "read"})["id"]}
    if "/allocations/{id}" in case:
        return {"id": api.ok("POST", "/allocations", HELD)["id"], "move": "release"}
    return {
        "lease": api.ok("POST", "/resources/allocate", LEASE)["allocation_id"],
        "reserved": api.ok("POST", "/resources/reserve", LEASE)["allocation_id"],
    }


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_leaves_an_event_with_its_owner_token_and_operation(network, case):
    body, kind = CHANGES[case]
    token = Api(network).ok("POST", "/tokens", {"scope": "admin", "owner": "eve"})
    api = Api(network, network.url, token["token"])
    ids = made_for(case, network, Api(network, network.url, token["token"]))
    method, path = case.split()
    content = json.dumps(body)
    for name, id in ids.items():
        path, content = path.replace(f"{{{name}}}", id), content.replace(f"{{{name}}}", id)
    before = Api(network).ok("GET", "/events?last=0")["next"]
    headers = {"idempotency-key": case.translate({ord("{"): None, ord("}"): None, ord(" "): "-"})}
    status, _, told = api.raw(method, path, None if body is None else content.encode(), headers, prefix="")  # fmt: skip
    assert status < 300, told

    def recorded():
        events = Api(network).ok("GET", f"/events?after={before}")["events"]
        return [one for one in events if one["kind"] == kind]

    [event] = until(recorded)  # a signal is sent before it is recorded
    assert (event["owner"], event["token"]) == ("eve", token["id"])
    assert event["op_id"] == (None if case in WITHOUT_KEY else headers["idempotency-key"])
