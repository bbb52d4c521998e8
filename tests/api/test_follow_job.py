"""Following a job: everything of it once, whatever comes in between."""

import threading
from contextlib import closing

import pytest

from api_server import JOB
from gridhand.api import follow_job
from gridhand.controller.clients import connections
from gridhand.core.errors import OutcomeUnknown, StoreUnavailable
from until import until


def test_a_job_is_followed_from_its_start_to_its_end(api, server):
    id = api.submit()
    connection, frames = api.follow(id)
    with closing(connection):
        first = next(frames)
        assert (first["event"], first["job"]["state"]) == ("job", "running")
        server.log(id).write_bytes(b"one\n")
        told = frames.until("output")
        assert (told["stream"], told["offset"], told["text"]) == ("stdout", 0, b"one\n")
        server.log(id, "stderr").write_bytes(b"oops\n")
        assert frames.until("output")["stream"] == "stderr"
        server.log(id).write_bytes(b"one\ntwo\n")
        server.end(id, code=4)
        told = frames.until("output")
        assert (told["offset"], told["text"]) == (4, b"two\n")
        end = frames.until("end")
        assert (end["job"]["state"], end["job"]["exit_code"]) == ("failed", 4)
        assert list(frames) == []


def test_who_comes_back_with_offsets_gets_the_rest_and_nothing_twice(api, server):
    id = api.submit()
    server.log(id).write_bytes(b"0123456789")
    server.log(id, "stderr").write_bytes(b"abc")
    server.end(id)
    until(lambda: api.job(id)["state"] == "succeeded")
    connection, frames = api.follow(id, stdout=7, stderr=3)
    with closing(connection):
        told = list(frames)
    assert [frame["event"] for frame in told] == ["output", "end"]
    assert (told[0]["offset"], told[0]["text"]) == (7, b"789")
    connection, frames = api.follow(id, output=0)
    with closing(connection):
        assert [frame["event"] for frame in frames] == ["end"]


def test_every_phase_is_told_be_it_written_or_not(api, server):
    blocker = api.submit(request={"cpu": 4})
    id = api.submit()
    server.engine.immediate = False
    try:
        connection, frames = api.follow(id, output=0)
        with closing(connection):
            assert next(frames)["job"]["phase"] == "queued"
            server.end(blocker)
            phases = [frames.until("job")["job"]["phase"]]
            while phases[-1] != "running":  # of which nobody tells but the node
                phases.append(frames.until("job")["job"]["phase"])
            api.ok("POST", f"/jobs/{id}/cancel")
            assert frames.until("job")["job"]["phase"] == "stopping"
            server.do(server.engine.end, (id, 1), reason="cancelled", code=None)
            assert frames.until("end")["job"]["state"] == "cancelled"
    finally:
        server.engine.immediate = True


def test_a_change_that_nobody_told_of_is_seen_all_the_same(api, server, monkeypatch):
    """As after a commit of which nobody knew whether it had been made."""
    monkeypatch.setattr(follow_job, "_REFRESH_S", 0.05)
    id = api.submit()
    until(lambda: (id, 1) in server.engine.running)
    connection, frames = api.follow(id)
    with closing(connection):
        next(frames)
        monkeypatch.setattr(server.controller.feed, "tell", lambda job: None)
        server.end(id, code=0)
        assert frames.until("end")["job"]["state"] == "succeeded"


def test_a_follower_is_told_that_the_controller_is_there(api, monkeypatch):
    monkeypatch.setattr(follow_job, "_ALIVE_S", 0.05)
    connection, frames = api.follow(api.submit())
    with closing(connection):
        assert frames.until("alive")


def test_an_attached_job_ends_with_its_last_connection(api, server, monkeypatch):
    monkeypatch.setattr(connections, "MOMENT_S", 0.05)
    id, other = api.submit(detached=False), api.submit(detached=False)
    watching = [api.follow(one, attach=1)[0] for one in (id, id, other)]
    until(lambda: server.controller.attached._connected[id] == 2)
    looking, _ = api.follow(other)  # who only looks on keeps nothing alive, and ends nothing
    looking.close()
    watching[0].close()
    watching[1].close()
    until(lambda: api.job(id)["state"] == "cancelled")
    assert api.job(id)["reason"] == "client_gone"
    assert api.job(other)["state"] == "running"
    watching[2].close()
    until(lambda: api.job(other)["state"] == "cancelled")


# ---- a store that is away


class Errors(list):
    refused = 0


@pytest.fixture
def away(server, monkeypatch):
    """Has every look at the jobs fail, until it is told that the store is back."""
    monkeypatch.setattr("gridhand.controller.store_retry.PAUSE_S", 0.01)
    looking, errors = server.controller.find, Errors()

    async def find(ids):
        if errors:
            errors.refused += 1
            raise errors[0]
        return await looking(ids)

    monkeypatch.setattr(server.controller, "find", find)
    return errors


AWAY = [StoreUnavailable("away"), OutcomeUnknown("away")]


@pytest.mark.parametrize("error", AWAY, ids=["away", "unknown"])
def test_who_follows_does_so_after_the_store_was_away(api, server, away, error):
    id = api.submit(detached=False)
    connection, frames = api.follow(id, attach=1)
    with closing(connection):
        assert next(frames)["job"]["state"] == "running"
        away.append(error)
        server.end(id, code=4)  # of which the follower is told, and cannot be sure
        until(lambda: away.refused > 2)
        server.log(id).write_bytes(b"meanwhile\n")
        assert frames.until("output")["text"] == b"meanwhile\n"
        away.clear()
        assert frames.until("end")["job"]["exit_code"] == 4
        assert list(frames) == []


def test_a_submission_is_answered_with_its_jobs_though_the_store_has_gone_since(api, server, away):
    away += AWAY
    [job] = api.ok("POST", "/jobs", JOB)["jobs"]
    assert not away.refused
    away.clear()
    assert job["state"] == api.job(job["id"])["state"] == "running"


def test_what_was_cancelled_is_not_denied_because_the_store_has_gone_since(api, server, away):
    id = api.submit()
    away += AWAY
    back = threading.Timer(0.2, away.clear)
    back.start()
    [job] = api.ok("POST", f"/jobs/{id}/cancel")["jobs"]
    assert away.refused
    assert job["id"] == id


def test_who_comes_back_while_the_store_is_away_has_not_gone(api, server, monkeypatch):
    """The end of its job could not be written; by the time it could, the client was there."""
    monkeypatch.setattr(connections, "MOMENT_S", 0.01)
    monkeypatch.setattr("gridhand.controller.store_retry.PAUSE_S", 0.2)
    id, other = api.submit(detached=False), api.submit(detached=False)
    lost = [api.follow(one, attach=1)[0] for one in (id, other)]
    until(lambda: server.controller.attached.has(id))
    until(lambda: server.controller.attached.has(other))
    server.store.down = StoreUnavailable("away")
    for connection in lost:
        connection.close()
    until(lambda: server.store.refused)
    back, frames = api.follow(id, attach=1)
    until(lambda: server.controller.attached.has(id))
    server.store.down = None
    with closing(back):
        until(lambda: api.job(other)["state"] == "cancelled")
        assert api.job(id)["state"] == "running"
        server.end(id)
        assert frames.until("end")["job"]["state"] == "succeeded"


def test_the_node_is_told_how_far_an_attached_client_has_read(server, api):
    id = api.submit(detached=False)
    until(lambda: (id, 1) in server.engine.running)
    server.log(id).write_bytes(b"x" * (20 << 20))
    connection, frames = api.follow(id, attach=1)
    for _ in range(40):
        frames.until("output")
    until(lambda: any(read.get("stdout", 0) > 2 << 20 for _, read in server.engine.readers))
    connection.close()
    until(lambda: server.engine.readers[-1] == ((id, 1), {}))
    known = len(server.engine.readers)
    other = api.submit()
    connection, frames = api.follow(other)
    frames.until("job")
    connection.close()
    assert len(server.engine.readers) == known  # nothing waits for a client that only looks
