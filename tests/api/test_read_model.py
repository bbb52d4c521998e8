"""Lists and status are answered while the keeper is busy, and show what was last committed."""

import threading
from contextlib import contextmanager

import pytest

from api_server import PATIENCE_S
from gridhand.controller.keeper.questions import Read
from gridhand.core.errors import StoreUnavailable
from until import until


@contextmanager
def busy_keeper(server):
    """Have the keeper do something that lasts until the end of the block."""
    begun, over = threading.Event(), threading.Event()

    def wait(_):
        begun.set()
        assert over.wait(PATIENCE_S)

    server.do(lambda: server.controller.ask(Read(wait)))
    assert begun.wait(PATIENCE_S)
    try:
        yield
    finally:
        over.set()


def test_lists_are_read_while_the_keeper_is_busy(server, api):
    running = api.submit(request={"cpu": 2})
    ended = api.submit(request={"cpu": 1})
    server.end(ended)
    until(lambda: api.job(ended)["state"] == "succeeded")
    held = api.ok("POST", "/allocations", {"request": {"cpu": 1}})
    with busy_keeper(server):
        assert [job["id"] for job in api.ok("GET", "/jobs")["jobs"]][:2] == [ended, running]
        assert api.job(running)["state"] == "running"
        assert api.job(ended)["exit_code"] == 0
        assert [job["id"] for job in api.ok("GET", "/jobs?state=running")["jobs"]] == [running]
        assert held["id"] in str(api.ok("GET", "/allocations"))
        assert api.ok("GET", f"/allocations/{held['id']}")["state"] == "active"
        assert api.ok("GET", "/status")["jobs"] == {"queued": 0, "running": 1}
        [node] = api.ok("GET", "/nodes")["nodes"]
        assert (node["allocated"], node["jobs"]) == ({"cpu": 3}, 1)
        assert api.ok("GET", "/resources/status")["summary"]["allocated"]["cpu_cores"] == 3
        assert api.ok("GET", "/events")["events"]
    api.ok("POST", f"/allocations/{held['id']}/release")


def test_each_change_is_seen_by_whoever_reads_next(api):
    for _ in range(50):
        held = api.ok("POST", "/allocations", {"request": {"cpu": 1}})
        assert [one["id"] for one in api.ok("GET", "/allocations")["allocations"]] == [held["id"]]
        api.ok("POST", f"/allocations/{held['id']}/release")
        assert api.ok("GET", "/allocations")["allocations"] == []
        assert api.ok("GET", f"/allocations/{held['id']}")["state"] == "released"


def test_a_lost_connection_for_reading_is_made_anew(server, api):
    ended = api.submit()
    server.end(ended)
    until(lambda: api.job(ended)["state"] == "succeeded")
    reads, faults = server.controller._reads, [StoreUnavailable("cut")]
    whole = reads._reader.find_jobs

    def cut(ids):
        if faults:
            raise faults.pop()
        return whole(ids)

    reads._reader.find_jobs = cut
    assert api.job(ended)["state"] == "succeeded"
    assert faults == []
    assert reads._reader.find_jobs is not cut


@pytest.mark.parametrize("state", ["queued", "running", "open", "succeeded"])
def test_pages_by_state_follow_each_other(server, api, state):
    jobs = [api.submit(request={"cpu": 3}) for _ in range(6)]
    server.end(jobs[0])
    until(lambda: api.job(jobs[1])["state"] == "running")
    expected = {"succeeded": jobs[:1], "running": jobs[1:2], "queued": jobs[2:], "open": jobs[1:]}
    pages, before = [], ""
    while page := api.ok("GET", f"/jobs?state={state}&limit=2{before}")["jobs"]:
        pages += [job["id"] for job in page if job["id"] in jobs]
        before = f"&before={page[-1]['id']}"
    assert pages == expected[state][::-1]
