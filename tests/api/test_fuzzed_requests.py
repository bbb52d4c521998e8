"""Requests made from the OpenAPI document, valid and not: every answer is as the document says.

The document comes from the running controller, so a new route is covered as soon as it exists. In
`make soak` there are 20,000 requests and more.
"""

import contextlib
from collections import Counter

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from api_server import JOB, Api, Server
from gridhand.api.access import ACCESS
from gridhand.controller.listen_options import ListenOptions

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    checks.negative_data_rejection,
]  # what is valid may still be refused: that a request fits is no matter of its form
REJECTION = checks.negative_data_rejection  # holds only for a request as it was made
LEASE = {"requirements": {"cpu_cores": 1}}
# Requests that succeed, into which fields of generated ones are put.
GOOD = {
    "POST /api/v1/jobs": {"command": ["true"], "detached": True},
    "POST /api/v1/jobs/plan": {"command": ["true"]},
    "POST /api/v1/allocations": {"request": {"cpu": 1}, "ttl_s": 60},
    "POST /api/v1/allocations/group": {"requests": [{"cpu": 1}] * 2},
    "POST /api/v1/resources/allocate": LEASE,
    "POST /api/v1/resources/reserve": LEASE,
    "POST /api/v1/resources/allocate/batch": {"items": [LEASE] * 2},
    "POST /api/v1/resources/reserve/batch": {"items": [LEASE] * 2},
    "POST /api/v1/fits": {"request": {"cpu": 1}},
    "POST /api/v1/tokens": {"scope": "read"},
    "POST /api/v1/nodes": {"name": "more", "capacity": {"cpu": 10_000, "memory": "1TB"}},
}
OUTSIDE = {"GET /openapi.json", "GET /docs", "GET /docs/{file}"}  # not in the document
KEYS = sorted(set(ACCESS) - OUTSIDE)
LASTING = {key for key in KEYS if ACCESS[key].lasts}
FEW, MANY = 2, 170  # of valid ones, and of others, for each route
PATIENCE_S = 30


class Fuzzer:
    """A controller, the document of its interface, and everything that may be named in a path."""

    def __init__(self, server):
        self.server, self.root = server, Api(server)
        self.token = self.root.ok("POST", "/tokens", {"scope": "admin"})["token"]
        self.session = requests.Session()
        told = self.session.get(
            f"{server.url}/openapi.json", headers=self.headers, timeout=PATIENCE_S
        )
        self.document = told.json()
        self.schema = schemathesis.openapi.from_dict(self.document)
        self.schema.config.update(base_url=server.url)
        self.statuses = Counter()

    @property
    def headers(self):
        return {"Authorization": f"Bearer {self.token}"}

    def operation(self, key):
        method, path = key.split()
        return self.schema[path][method]

    def ids(self, key):
        """Ids of what there is, by the word that stands for them in the path."""
        kind = key.split("/")[3] if "/api/v1/" in key else ""
        listed = self.root.ok("GET", f"/{kind}")[kind] if kind in ("jobs", "allocations") else []
        return {"id": [one["id"] for one in listed][:20], "name": ["n1", "more"]}

    def send(self, key, case, checked):
        """Send a request and check its answer."""
        if key in LASTING:  # only how the answer begins
            asked = case.as_transport_kwargs(base_url=self.server.url)
            with self.session.request(**asked, stream=True, timeout=PATIENCE_S) as reply:
                assert reply.status_code < 500
        else:
            reply = case.call(session=self.session, timeout=PATIENCE_S)
            case.validate_response(reply, checks=checked)
        self.statuses[reply.status_code] += 1

    def run(self, key, count):
        for mode in GenerationMode.POSITIVE, GenerationMode.NEGATIVE:
            if key != "GET /healthz" or mode is GenerationMode.POSITIVE:  # nothing to get wrong
                self._run(key, count, mode)

    def _run(self, key, count, mode):
        known, valid = self.ids(key), mode is GenerationMode.POSITIVE

        @settings(
            max_examples=count, deadline=None, database=None, derandomize=True,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate],
        )  # fmt: skip
        @given(case=self.operation(key).as_strategy(generation_mode=mode), data=st.data())
        def requests_of_one_route(case, data):
            for name, ids in known.items():
                if name in case.path_parameters and ids and data.draw(st.booleans()):
                    case.path_parameters[name] = data.draw(st.sampled_from(ids))
            checked = list(CHECKS)
            if valid and key in GOOD and data.draw(st.booleans()):
                fields = sorted(case.body) if isinstance(case.body, dict) else []
                put = data.draw(st.sets(st.sampled_from(fields), max_size=2)) if fields else ()
                case.body = {**GOOD[key], **{name: case.body[name] for name in put}}
                case.headers.pop("Idempotency-Key", None)  # most are no valid ones
                checked.remove(REJECTION)
            if valid or data.draw(st.booleans()):
                case.headers.update(self.headers)
                if not valid:  # what was wrong may have been the token alone
                    checked = [check for check in CHECKS if check is not REJECTION]
            self.send(key, case, checked)

        requests_of_one_route()


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    config = folder / "c.yaml"
    config.write_text("http: {requests_per_s: 1000000}\n")
    with Server(folder / "home", listen=ListenOptions(port=0), config=str(config)) as server:

        async def stop(jobs, owner):
            """Stay: it is the request that is tested."""

        server.controller.stop = stop
        api = Api(server)
        api.ok("POST", "/nodes", {"name": "more", "capacity": {"cpu": 10_000, "memory": "1TB"}})
        for _ in range(3):
            api.ok("POST", "/jobs", JOB)
            api.ok("POST", "/resources/allocate", {"requirements": {"cpu_cores": 1}})
        with contextlib.closing((fuzzer := Fuzzer(server)).session):
            yield fuzzer
        assert api.ok("GET", "/check") == {"clean": True, "violations": []}


def test_the_document_has_every_route(fuzzer):
    found = {
        f"{method.upper()} {path}"
        for path, methods in fuzzer.document["paths"].items()
        for method in methods
    }
    assert found == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_every_answer_is_as_the_document_says(fuzzer, key):
    fuzzer.run(key, FEW)


@pytest.mark.soak
def test_20_000_requests_leave_a_clean_ledger(fuzzer):
    rounds = 0
    while fuzzer.statuses.total() < 20_000:
        rounds += 1
        for key in KEYS:
            fuzzer.run(key, MANY)
        assert fuzzer.root.ok("GET", "/check") == {"clean": True, "violations": []}
    print(f"{fuzzer.statuses.total()} requests, rounds {rounds}: {dict(fuzzer.statuses)}")
    assert not [status for status in fuzzer.statuses if status >= 500]
