"""Every route has somebody it is for: a new one is refused here until that is decided.

On a machine-wide controller all users can send every request. `tests/end_to_end/
test_machine_users.py` tries them as another user.
"""

from gridhand.api.app import make_app

ALL = """
    GET /version GET /status GET /nodes GET /nodes/{name} GET /check GET /identity
    POST /fits POST /explain POST /jobs/plan GET /resources/status
"""  # names, owners and amounts, or nothing of anybody's
IN_PART = """
    GET /jobs GET /jobs/{id} GET /jobs/{id}/why GET /jobs/{id}/follow GET /calls GET /calls/{id}
    GET /events GET /allocations GET /allocations/{id} GET /queue GET /history
    GET /predict/{task_type}
"""  # of others only names, owners and amounts
OWN = """
    POST /jobs POST /jobs/{id}/cancel POST /jobs/{id}/signal GET /jobs/{id}/logs
    POST /jobs/{id}/hold POST /jobs/{id}/unhold
    GET /jobs/{id}/files GET /jobs/{id}/files/{name} PUT /uploads/{id}/{name}
    POST /calls POST /calls/waiting POST /allocations POST /allocations/group
    POST /resources/allocate POST /resources/reserve POST /resources/confirm POST /resources/renew
    POST /resources/release POST /resources/allocate/batch POST /resources/reserve/batch
    POST /resources/confirm/batch POST /resources/renew/batch POST /resources/release/batch
    POST /allocations/{id}/{move} POST /sessions POST /sessions/{id}/jobs DELETE /sessions/{id}
    GET /tokens POST /tokens POST /tokens/{id}/rotate DELETE /tokens/{id}
"""
ADMINISTRATORS = """
    POST /stop GET /config POST /config/reload POST /repair GET /dump POST /prune POST /nodes
    POST /nodes/{name}/foreign POST /nodes/{name}/drain POST /nodes/{name}/resume
    POST /nodes/{name}/health POST /nodes/{name}/heartbeat DELETE /nodes/{name}
    POST /nodes/{name}/join POST /nodes/{name}/orders POST /nodes/{name}/reports
    POST /nodes/{name}/output GET /nodes/{name}/input POST /nodes/{name}/leave
    GET /nodes/{name}/files GET /nodes/{name}/file POST /nodes/{name}/file
"""


def routes(table):
    words = table.split()
    return {f"{method} /api/v1{path}" for method, path in zip(words[::2], words[1::2], strict=True)}


def test_it_is_decided_for_every_route_who_may_use_it(server):
    found = {
        f"{method.upper()} {path}"
        for path, methods in make_app(server.controller).openapi()["paths"].items()
        for method in methods
        if path.startswith("/api/")
    }
    tables = [routes(table) for table in (ALL, IN_PART, OWN, ADMINISTRATORS)]
    assert found == set().union(*tables)
    assert len(found) == sum(map(len, tables))
