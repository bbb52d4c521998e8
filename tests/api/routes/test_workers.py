"""The life of an external worker over HTTP, from joining to leaving, and what it may not do."""

import json
import os
from contextlib import closing

import pytest

from api_server import JOB, Server
from gridhand.controller.listen_options import ListenOptions
from gridhand.core.liveness.budget import DOWN_MS, SUSPECT_MS
from scripted_worker import ScriptedWorker, ended, node_row
from until import until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers") / "home"
    with Server(folder, listen=ListenOptions(port=0)) as running:
        yield running


@pytest.fixture
def hired(server, api):
    """Return a function that makes workers with a token of their own; they are removed again."""
    names = []

    def hire(name="w1", **has):
        token = api.ok("POST", "/tokens", {"scope": f"agent:{name}"})["token"]
        names.append(name)
        return ScriptedWorker(server, token, name, **has)

    yield hire
    for job in api.ok("GET", "/jobs?state=open&limit=10000")["jobs"]:
        api.ok("POST", f"/jobs/{job['id']}/cancel")
    for name in set(names):
        api("DELETE", f"/nodes/{name}?force=true")
    until(lambda: not api.ok("GET", "/jobs?state=open")["jobs"])
    until(lambda: not set(names) & set(server.controller.liveness._known()._nodes))
    server.controller.declared._declared.clear()
    engine = server.controller.external.engine
    for known in (engine._workers, engine._outboxes):
        known.clear()


def submit(api, node="w1", cpu=1, **more):
    return api.submit(request={"cpu": cpu, "node": node, **more})


def state(api, id):
    return api.job(id)["state"]


def free(api, name):
    return api.ok("GET", f"/nodes/{name}")["available"]


# ---- CloudAI's worker life cycle


def test_cloudai_a_worker_gets_tasks_until_it_is_full(api, hired):
    """Tests 1 and 2 of the seed, with its words for what does not fit."""
    worker = hired(cpu=4, memory_gb=8).come()
    assert free(api, "w1") == {"cpu": 4, "memory": 8 * 10**9}
    first = submit(api, cpu=2, memory="4GB")
    assert free(api, "w1") == {"cpu": 2, "memory": 4 * 10**9}
    second = submit(api, cpu=2, memory="4GB")
    assert free(api, "w1") == {}
    assert [order["job"] for order in worker.starts()] == [first, second]
    api.ok("POST", f"/jobs/{second}/cancel")
    [stop] = worker.orders()
    assert (stop["do"], stop["job"], stop["reason"]) == ("stop", second, "cancelled")
    worker.report(ended(second, 1, None, reason="cancelled"))
    until(lambda: free(api, "w1") == {"cpu": 2, "memory": 4 * 10**9})
    told = api.ok("POST", "/explain", {"cpu": 3, "node": "w1"})
    assert "worker has 2.00 available, task requires 3.00" in json.dumps(told)
    third = submit(api, cpu=3)
    assert state(api, third) == "queued"
    assert worker.starts() == []


@pytest.mark.parametrize(("code", "over"), [(0, "succeeded"), (3, "failed")])
def test_cloudai_resources_are_released_when_a_task_ends(api, hired, code, over):
    """Tests 3 and 4 of the seed, with reports that come twice."""
    worker = hired(cpu=4).come()
    id = submit(api, cpu=2)
    [order] = worker.starts()
    worker.begin(order)
    until(lambda: api.job(id)["started_at"])
    assert worker.beat(order["fence"], usage={"node": {"cpu": 1.5}}) == {"acknowledged": True, "stop": []}  # fmt: skip
    assert worker.send(order, b"half ") == (200, {"end": 5, "pause": False})
    assert worker.send(order, b"half done\n") == (200, {"end": 10, "pause": False})
    worker.end(order, code=code, ran_ms=1)
    worker.end(order, code=code, ran_ms=1)
    until(lambda: state(api, id) == over)
    assert free(api, "w1")["cpu"] == 4
    assert api.job(id)["exit_code"] == code
    assert api.raw("GET", f"/jobs/{id}/logs")[2] == b"half done\n"
    assert {one["do"] for one in worker.orders()} == {"forget"}
    worker.end(order, code=99)  # it may still come, from a worker that was not told in time
    assert api.job(id)["exit_code"] == code
    kinds = [one["kind"] for one in api.ok("GET", "/events?limit=10000")["events"] if one["subject"] == id]  # fmt: skip
    assert kinds.count("job.ended") == 1
    assert api.ok("GET", "/nodes/w1")["used"]["cpu"] == 1.5


def test_cloudai_several_workers_are_seen_with_what_is_free(api, hired):
    """Test 5 of the seed."""
    busy, idle = hired("w1", cpu=8).come(), hired("w2", cpu=8).come()
    submit(api, "w1", cpu=6)
    submit(api, "w2", cpu=2)
    assert [free(api, name)["cpu"] for name in ("w1", "w2")] == [2, 6]
    assert len(busy.starts()) == len(idle.starts()) == 1
    chosen = api.submit(request={"cpu": 5}, anywhere=True)
    assert api.job(chosen)["node"] == "w2"


# ---- orders


def test_an_order_has_no_path_of_this_machine_and_its_own_environment(server, api, hired):
    worker = hired().come()
    body = {"environment": {"A": "b", "PWD": "/here", "HOME": "/home/ann"}, "folder": "/tmp"}
    id = api.submit(request={"cpu": 1, "node": "w1"}, **body)
    [order] = worker.starts()
    assert (order["job"], order["argv"], order["streams"]) == (
        id,
        ["true"],
        {"stdout": "stdout", "stderr": "stderr"},
    )
    assert order["env"].items() >= {"A": "b", "HOME": "/home/ann"}.items()
    rest = json.dumps({name: text for name, text in order.items() if name != "env"})
    assert "/" not in rest
    assert "PWD" not in order["env"]
    assert server.home.folder not in json.dumps(order)


def test_an_order_is_given_out_until_it_is_done(api, hired):
    worker = hired().come()
    id = submit(api)
    [first] = worker.orders(done=False)
    [again] = worker.orders(done=False)
    assert first == again
    busy = {"session": worker.session, "busy": [first["number"]]}
    assert worker.ok("orders", busy)["orders"] == []
    assert worker.ok("orders", {"session": worker.session, "done": [first["number"]]}) == {"orders": []}  # fmt: skip
    worker.report(ended(id, 1, first["order"]["fence"]))
    until(lambda: state(api, id) == "succeeded")


def test_a_worker_waits_for_orders(server, api, hired):
    worker = hired().come()
    server.do(lambda: server.loop.call_later(0.2, lambda: None))
    import threading

    threading.Timer(0.2, submit, (api,)).start()
    assert len(worker.starts(wait_s=20)) == 1


def test_nobody_starts_jobs_of_a_worker_here(server, api, hired):
    hired().come()
    before = len(server.engine.asked)
    id = submit(api)
    assert state(api, id) == "running"
    assert len(server.engine.asked) == before
    api.ok("POST", f"/jobs/{id}/cancel")
    until(lambda: state(api, id) == "cancelled")  # nobody had taken the order
    assert server.engine.stops == [] or (id, 1) not in [key for key, _ in server.engine.stops]


def test_a_signal_is_answered_by_the_worker(server, api, hired):
    worker = hired().come()
    id = submit(api)
    [order] = worker.starts()
    worker.begin(order)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as threads:
        sent = threads.submit(api.ok, "POST", f"/jobs/{id}/signal", {"signal": 10})
        [asked] = until(worker.orders)
        assert (asked["do"], asked["signal"]) == ("signal", 10)
        worker.report(sent={str(asked["number"]): True})
        assert sent.result(20) == {"sent": True}


def test_the_input_of_a_job_is_read_in_parts(tmp_path, api, hired):
    (tmp_path / "in").write_bytes(b"abc" * 500_000)
    worker = hired().come()
    api.submit(request={"cpu": 1, "node": "w1"}, stdin=str(tmp_path / "in"))
    [order] = worker.starts()
    assert order["input"] is True
    query = f"session={worker.session}&job={order['job']}&attempt=1"
    read = b""
    while part := worker.api.raw("GET", f"/nodes/w1/input?{query}&offset={len(read)}")[2]:
        assert len(part) <= 1 << 20
        read += part
    assert read == b"abc" * 500_000


def test_output_goes_to_the_file_that_the_job_named(tmp_path, api, hired):
    worker = hired().come()
    path = tmp_path / "out"
    path.write_text("old")
    id = api.submit(request={"cpu": 1, "node": "w1"}, stdout=str(path))
    [order] = worker.starts()
    worker.send(order, b"one\n")
    worker.send(order, b"one\ntwo\n")
    worker.send(order, b"two\n", offset=4)
    assert path.read_text() == "one\ntwo\n"
    assert api.raw("GET", f"/jobs/{id}/logs")[2] == b"one\ntwo\n"


def test_output_that_cannot_be_written_does_not_keep_a_job_from_ending(api, hired):
    worker = hired().come()
    id = api.submit(request={"cpu": 1, "node": "w1"}, stdout="/proc/none/out")
    [order] = worker.starts()
    assert worker.send(order, b"lost") == (200, {"end": 4, "pause": False})
    worker.end(order)
    until(lambda: state(api, id) == "succeeded")


def test_logs_are_cut_as_those_of_local_jobs(server, api, hired, monkeypatch):
    monkeypatch.setattr("gridhand.controller.nodes.external_nodes.LOG_BYTES", 16 * 4096)
    worker = hired().come()
    id = submit(api)
    [order] = worker.starts()
    for part in range(8):
        worker.send(order, b"x" * 100_000, part * 100_000)
    worker.end(order)
    until(lambda: state(api, id) == "succeeded")
    log = os.stat(server.log(id))
    assert log.st_size == 800_000
    until(lambda: os.stat(server.log(id)).st_blocks * 512 <= 20 * 4096)


def test_a_worker_reads_and_writes_the_files_of_its_own_jobs_only(api, hired):
    worker, other = hired("w1").come(), hired("w2").come()
    upload = "0123456789abcdef" * 2
    assert api.raw("PUT", f"/uploads/{upload}/data/in.csv?executable=true", b"1,2,3")[0] == 200
    body = {**{name: text for name, text in JOB.items() if name != "folder"}, "upload": upload}
    api.ok("POST", "/jobs", {**body, "request": {"cpu": 1, "node": "w1"}})
    plain = submit(api)
    first, second = worker.starts()
    assert (first["files"], second["files"]) == (True, False)
    query = f"session={worker.session}&job={first['job']}&attempt=1"
    found = worker.api.ok("GET", f"/nodes/w1/files?{query}")
    assert found == {"files": [{"name": "data/in.csv", "bytes": 5}]}
    target = f"/nodes/w1/file?{query}"
    status, headers, data = worker.api.raw("GET", f"{target}&file=data/in.csv&offset=2")
    assert (status, headers["x-gridhand-executable"], data) == (200, "1", b"2,3")
    assert worker.api.raw("POST", f"{target}&file=out/a&offset=0", b"42")[0] == 200
    assert api.raw("GET", f"/jobs/{first['job']}/files/out/a")[2] == b"42"
    for bad in ("../x", "/etc/passwd", "a/../../x"):
        assert worker.api.raw("POST", f"{target}&file={bad}&offset=0", b"42")[0] == 422
        assert worker.api.raw("GET", f"{target}&file={bad}&offset=0")[0] == 422
    own = f"session={worker.session}&job={plain}&attempt=1"
    assert worker.api.raw("POST", f"/nodes/w1/file?{own}&file=x&offset=0", b"42")[0] == 422
    theirs = f"session={other.session}&job={first['job']}&attempt=1"
    assert other.api.raw("GET", f"/nodes/w2/files?{theirs}")[0] == 403
    assert other.api.raw("POST", f"/nodes/w2/file?{theirs}&file=x&offset=0", b"1")[0] == 403


def test_output_of_a_second_attempt_follows_that_of_the_first(server, api, hired):
    worker = hired().come()
    id = api.submit(request={"cpu": 1, "node": "w1"}, retries=1)
    [first] = worker.starts()
    worker.send(first, b"first\n")
    worker.end(first, code=1)
    second = until(lambda: next(iter(worker.starts()), None))
    assert second["attempt"] == 2
    worker.send(second, b"sec")
    server.controller.external.engine._output._streams.clear()  # as after a restart
    assert worker.send(second, b"", 0) == (200, {"end": 3, "pause": False})
    worker.send(second, b"ond\n", 3)
    assert api.raw("GET", f"/jobs/{id}/logs")[2] == b"first\nsecond\n"


def test_a_part_that_was_cut_out_is_a_gap(api, hired):
    worker = hired().come()
    id = submit(api)
    [order] = worker.starts()
    worker.send(order, b"a" * 4096)
    assert worker.send(order, b"z", offset=3 * 4096) == (200, {"end": 3 * 4096 + 1, "pause": False})
    connection, frames = api.follow(id)
    with closing(connection):
        seen = [frames.until("output")["text"], frames.until("cut")["cut"], frames.until("output")]
    assert seen[:2] == [b"a" * 4096, 2 * 4096]
    assert seen[2]["text"] == b"z"


# ---- joining again, silence, leaving


def test_a_worker_that_joins_again_is_compared_with_its_own_jobs_only(server, api, hired):
    one, two = hired("w1").come(), hired("w2").come()
    first, second = submit(api, "w1"), submit(api, "w2")
    local = api.submit(request={"cpu": 1, "node": "n1"})
    [of_one], [of_two] = one.starts(), two.starts()
    stranger = {"job": "900000", "attempt": 1, "fence": "a1-900000", "state": "running", "pid": 5}
    running = {name: of_one[name] for name in ("job", "attempt", "fence")}
    one.join({**running, "state": "running", "pid": 9}, stranger)
    one.beat(of_one["fence"])
    orders = one.orders()
    assert [(order["do"], order["job"]) for order in orders] == [("stop", "900000")]
    assert two.orders() == []
    assert [state(api, id) for id in (first, second, local)] == ["running"] * 3
    third = submit(api, "w1")
    assert state(api, third) == "queued"  # until the stranger is gone
    one.report(ended("900000", 1, "a1-900000", reason="node_lost"))
    until(lambda: state(api, third) == "running")
    assert int(third) < 900_000  # a worker cannot use up the numbers of jobs
    assert of_two["job"] == second


def test_an_order_waits_until_what_runs_there_unasked_is_gone(api, hired):
    worker = hired().come()
    id = submit(api)  # granted before anybody knew
    stranger = {"job": "900001", "attempt": 1, "fence": "a1-900001", "state": "running", "pid": 5}
    worker.join(stranger)
    worker.beat("a1-900001")
    assert [(order["do"], order["job"]) for order in worker.orders()] == [("stop", "900001")]
    assert worker.starts() == []
    worker.report(ended("900001", 1, "a1-900001", reason="node_lost"))
    assert until(lambda: next(iter(worker.starts()), None))["job"] == id


def test_a_worker_that_lost_its_session_is_told_to_join(api, hired):
    worker = hired().come()
    other = "0" * 32
    for what, body in (("orders", {}), ("reports", {}), ("leave", {})):
        status, told = worker.post(what, {"session": other, **body})
        assert (status, told["code"]) == (409, "worker_unknown")


class Clock:
    """The clock of the watcher, which can be set ahead tick by tick."""

    def __init__(self, server):
        self._server, self._watcher = server, server.controller.liveness
        self._ahead_ms, self._real = 0, self._watcher._now
        self._watcher._now = lambda: self._real() + self._ahead_ms

    def skip(self, ms):
        self._server.do(self._skip, ms)

    def _skip(self, ms):
        for _ in range(ms // 1000):
            self._ahead_ms += 1000
            self._watcher._known().tick(self._watcher._now())
        self._watcher.look_again()

    def reset(self):
        self._watcher._now = self._real


@pytest.fixture
def clock(server):
    clock = Clock(server)
    yield clock
    clock.reset()


def health(api, name="w1"):
    return api.ok("GET", f"/nodes/{name}")["health"]


def test_a_silent_worker_loses_its_job_once_and_starts_nothing_before_the_stale_run_is_gone(
    api, hired, clock
):
    worker = hired("w1", cpu=1).come()
    id = submit(api)
    [order] = worker.starts()
    worker.begin(order)
    worker.beat(order["fence"])
    clock.skip(SUSPECT_MS)
    until(lambda: health(api) == "suspect")
    assert state(api, id) == "running"
    clock.skip(DOWN_MS - SUSPECT_MS)
    until(lambda: health(api) == "down")
    assert state(api, id) == "queued"
    running = {**{name: order[name] for name in ("job", "attempt", "fence")}, "state": "running", "pid": 9}  # fmt: skip
    worker.join(running)
    assert worker.beat(order["fence"])["stop"] == [order["fence"]]
    [stop] = worker.orders()
    assert (stop["do"], stop["job"], stop["attempt"]) == ("stop", id, 1)
    assert worker.starts() == []
    worker.end(order, reason="node_lost")
    worker.beat()
    until(lambda: health(api) == "up")
    again = until(lambda: next(iter(worker.starts()), None))
    assert (again["job"], again["attempt"]) == (id, 2)
    events = [one["kind"] for one in api.ok("GET", "/events?limit=10000")["events"] if one["subject"] == id]  # fmt: skip
    assert events.count("job.requeued") == 1


def test_a_worker_on_a_rebooted_machine_is_not_given_what_ran_before(api, hired):
    worker = hired().come()
    submit(api)
    assert len(worker.starts(done=False)) == 1
    worker.boot_id = "b2"
    worker.incarnation += 1000
    worker.join()
    worker.beat()
    assert worker.starts(done=False) == []


def test_a_worker_that_takes_no_orders_is_suspect_though_it_is_heard(server, api, hired):
    worker = hired().come()
    submit(api)
    joined = server.controller.external.engine._workers["w1"]
    joined.asked_at -= 60
    for _ in range(3):
        worker.beat()
    until(lambda: health(api) == "suspect")
    worker.orders()
    worker.beat()
    until(lambda: health(api) == "up")


def test_a_node_that_can_start_nothing_is_suspect(api, hired):
    worker = hired().come()
    worker.report(node={"row": node_row("w1", health="suspect")})
    for _ in range(3):
        worker.beat()
    until(lambda: health(api) == "suspect")
    worker.report(node={"row": node_row("w1")})
    worker.beat()
    until(lambda: health(api) == "up")


def test_a_worker_that_leaves_gets_no_work_and_is_down_at_once(api, hired):
    worker = hired("w1", cpu=1).come()
    id = submit(api)
    [order] = worker.starts()
    worker.begin(order)
    worker.ok("leave", {"session": worker.session})
    assert health(api) == "suspect"
    worker.end(order, reason="node_lost")
    until(lambda: state(api, id) == "queued")
    assert worker.starts() == []
    worker.ok("leave", {"session": worker.session, "stopped": True})
    assert health(api) == "down"
    assert worker.post("orders", {"session": worker.session})[0] == 409
    worker.come()
    until(lambda: health(api) == "up")
    assert until(lambda: next(iter(worker.starts()), None))["attempt"] == 2


def test_the_later_of_two_workers_serves_the_node(api, hired):
    first, second = hired(), hired()
    first.come()
    second.come()
    body = {"row": node_row("w1"), "incarnation": first.incarnation}
    status, told = first.post("join", body)
    assert (status, told["code"]) == (409, "node_superseded")
    assert first.post("orders", {"session": first.session})[0] == 409


# ---- what a worker may not do


def test_a_worker_has_nothing_to_do_with_the_jobs_of_others(server, api, hired):
    one, two = hired("w1").come(), hired("w2").come()
    theirs, local = submit(api, "w2"), api.submit(request={"cpu": 1, "node": "n1"})
    [order] = two.starts()
    until(lambda: (local, 1) in server.engine.running)
    for job, fence in ((theirs, order["fence"]), (local, "a1-1")):
        report = ended(job, 1, fence)
        assert one.post("reports", {"session": one.session, "attempts": [report]})[0] == 403
        running = {"job": job, "attempt": 1, "fence": fence, "state": "running"}
        body = {"row": node_row("w1"), "incarnation": one.incarnation, "attempts": [running]}
        assert one.post("join", body)[0] == 403
        assert one.send({"job": job, "attempt": 1}, b"x")[0] == 403
        query = f"session={one.session}&job={job}&attempt=1&offset=0"
        assert one.api.raw("GET", f"/nodes/w1/input?{query}")[0] == 403
    for what in ("join", "orders", "reports", "leave", "heartbeat"):
        assert one.api.raw("POST", f"/nodes/w2/{what}", b"{}")[0] == 403
    assert one.api.raw("GET", "/jobs")[0] == 403
    assert [state(api, id) for id in (theirs, local)] == ["running", "running"]
    assert server.engine.stops == [] or all(key[0] != local for key, _ in server.engine.stops)


WRONG_JOINS = {
    "the name of a node of the controller": ("n1", {}, 409, "node_taken"),
    "another cluster": ("w1", {"cluster": "another"}, 409, "node_taken"),
    "a later epoch": ("w1", {"epoch": 10**6}, 409, "node_taken"),
    "an ended attempt without its end": (
        "w1", {"attempts": [{"job": "1", "attempt": 1, "fence": None, "state": "ended"}]},
        422, "invalid_input",
    ),
    "a job that is none": (
        "w1", {"attempts": [{"job": "../x", "attempt": 1, "fence": None, "state": "running"}]},
        422, "invalid_input",
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_JOINS)
def test_a_worker_that_cannot_serve_the_node_does_not_join(api, hired, wrong):
    name, body, status, code = WRONG_JOINS[wrong]
    worker = hired(name) if name != "n1" else None
    root = {"row": node_row(name), "incarnation": 10**6, **body}
    got, told = (worker.post if worker else lambda what, one: api("POST", f"/nodes/n1/{what}", one))("join", root)  # fmt: skip
    assert (got, told["code"]) == (status, code)
    assert api("GET", f"/nodes/{name}")[0] == (404 if worker else 200)


def test_labels_that_mean_something_to_us_are_not_taken_from_a_worker(api, hired):
    worker = hired()
    labels = {"gridhand.machine": "m", "gridhand.health": "down", "zone": "b"}
    worker.join(row=node_row("w1", labels=labels, draining=True))
    worker.beat()
    node = api.ok("GET", "/nodes/w1")
    assert {"gridhand.engine": "external", "zone": "b"}.items() <= node["labels"].items()
    assert "gridhand.machine" not in node["labels"]
    assert (node["health"], node["draining"]) == ("up", False)


def test_a_device_of_another_node_is_a_problem_and_not_the_end(api, hired):
    gpu = {"id": "GPU-1", "index": 0, "model": "", "memory": 1, "capability": None, "health": "ok"}
    hired("w1").join(row=node_row("w1", devices=[gpu]))
    status, _ = hired("w2").post(
        "join", {"row": node_row("w2", devices=[gpu]), "incarnation": 10**6}
    )
    assert status == 404
    assert any("GPU-1" in one["message"] for one in api.ok("GET", "/status")["problems"])


def test_too_much_output_at_once_is_refused(api, hired):
    worker = hired().come()
    submit(api)
    [order] = worker.starts()
    assert worker.send(order, bytes(9 << 20))[0] == 413
    assert worker.send(order, b"x", stream="stdin")[0] == 422
    assert worker.send(order, b"x", offset=-1)[0] == 422


def test_a_revoked_token_ends_the_wait_for_orders(server, api):
    made = api.ok("POST", "/tokens", {"scope": "agent:w9"})
    worker = ScriptedWorker(server, made["token"], "w9").come()
    import threading

    revoke = threading.Timer(0.3, api.ok, ("DELETE", f"/tokens/{made['id']}"))
    revoke.start()
    assert worker.post("orders", {"session": worker.session, "wait_s": 25})[0] == 401
    revoke.join()
    api.ok("DELETE", "/nodes/w9?force=true")


def test_a_job_with_a_reader_far_behind_is_paused(server, api, hired, monkeypatch):
    worker = hired().come()
    id = submit(api)
    [order] = worker.starts()
    monkeypatch.setattr("gridhand.controller.nodes.external_nodes.LOG_BYTES", 4096)
    engine = server.controller.external.engine
    server.do(lambda: server.loop.create_task(engine.note_reader((id, 1), {"stdout": 0})))
    assert until(lambda: worker.send(order, b"x" * 4000)[1]["pause"])
    [reader] = [one for one in worker.orders() if one["do"] == "reader"]
    assert reader["attached"] is True
    server.do(lambda: server.loop.create_task(engine.note_reader((id, 1), {})))
    until(lambda: not worker.send(order, b"x" * 4000)[1]["pause"])
