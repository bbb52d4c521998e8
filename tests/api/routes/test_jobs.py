"""The routes of jobs, on a real socket: what they answer, refuse, and never let anyone do."""

import json
import os
import re
from contextlib import closing
from pathlib import Path

import pytest

from api_server import JOB, PATIENCE_S, Api, Server
from gridhand import __version__
from gridhand import api as api_room
from gridhand.api import auth
from gridhand.api.http import MOST_BYTES, MOST_JOB_BYTES
from gridhand.core.errors import StoreUnavailable
from until import until

# ---- what it answers


def test_a_job_from_its_submission_to_its_end(api, server):
    more = {"name": "train", "environment": {"A": "1"}, "time_limit_s": 60, "priority": "high"}
    [job] = api.ok("POST", "/jobs", {**JOB, **more})["jobs"]
    assert (job["name"], job["priority"], job["time_limit_s"]) == ("train", "high", 60)
    assert job["exit_code"] is None
    server.end(job["id"], code=3, peak_bytes=7)
    until(lambda: api.job(job["id"])["state"] == "failed")
    over = api.job(job["id"])
    assert (over["exit_code"], over["reason"], over["phase"]) == (3, "exit", "ended")
    assert over["peak_memory_bytes"] == over["attempts"][0]["peak_memory_bytes"] == 7
    assert over["ended_at"].endswith("Z")
    assert api.job("@")["id"] == api.job("last")["id"] == job["id"]


def test_a_gang_over_http(api, server):
    made = api.ok("POST", "/jobs", {**JOB, "nodes": 1})
    [member] = made["jobs"]
    gang, _, rank = member["id"].partition("_")
    assert (rank, member["nodes"], member["array_index"]) == ("0", 1, 0)
    until(lambda: (member["id"], 1) in server.engine.running)
    assert server.engine.orders[-1].env["RANK"] == "0"
    master = api.job(member["id"])["attempts"][0]["master"]
    assert master == f"127.0.0.1:{20000 + int(gang)}"
    for wrong in ({"nodes": 0}, {"nodes": 1, "array": "1-3"}, {"nodes": 99}):
        answer = api("POST", "/jobs", {**JOB, **wrong})
        assert 400 <= answer[0] < 500
        assert "nodes" in json.dumps(answer[1])
    server.end(member["id"])


def test_words_that_are_no_text_are_kept_and_told_as_they_are(api, server):
    """As from a shell, where a file name may be any bytes."""
    word = os.fsdecode(b"caf\xe9")
    id = api.submit(command=["cat", word], environment={"A": word}, folder=f"/{word}")
    assert api.job(id)["command"] == ["cat", word]
    assert api.ok("GET", "/jobs?limit=1")["jobs"][0]["folder"] == f"/{word}"
    until(lambda: (id, 1) in server.engine.running)
    assert server.engine.orders[-1].env["A"] == word
    connection, frames = api.follow(id)
    with closing(connection):
        assert next(frames)["job"]["command"] == ["cat", word]
    assert api.ok("GET", "/events")


def test_the_events_say_who_cancelled_a_job_and_with_which_operation(api, server):
    id = api.ok("POST", "/jobs", JOB, x_gridhand_owner="bob")["jobs"][0]["id"]
    until(lambda: (id, 1) in server.engine.running)
    first = api.ok("POST", f"/jobs/{id}/cancel", idempotency_key="op-7")["jobs"]
    again = api.ok("POST", f"/jobs/{id}/cancel", idempotency_key="op-7")["jobs"]
    assert [job["id"] for job in first] == [job["id"] for job in again] == [id]
    events = [event for event in api.ok("GET", "/events")["events"] if event["subject"] == id]
    [stopping] = [event for event in events if event["kind"] == "job.stopping"]
    assert stopping["op_id"] == "op-7"
    assert stopping["owner"] == auth.user_name(os.geteuid())  # an administrator, not bob


def test_jobs_are_listed_newest_first_by_state_owner_array_and_place(api, server):
    first, second = api.submit(), api.submit()
    [*_, task] = api.ok("POST", "/jobs", {**JOB, "array": "1-3%1"})["jobs"]
    other = api.ok("POST", "/jobs", JOB, x_gridhand_owner="bob")["jobs"][0]["id"]

    def listed(query):
        return [job["id"] for job in api.ok("GET", f"/jobs?{query}")["jobs"]]

    assert listed("limit=1") == [other]
    assert listed("owner=bob&state=open") == [other]
    assert listed(f"before={second}&limit=1") == [first]
    array = task["array"]
    assert listed(f"array={array}") == [f"{array}_3", f"{array}_2", f"{array}_1"]
    assert listed("state=queued") == [f"{array}_3", f"{array}_2"]
    assert "of its array are running" in api.job(f"{array}_2")["why"]
    assert len(listed("state=running&state=queued")) == len(listed("state=open"))
    cancelled = api.ok("POST", f"/jobs/{array}/cancel")["jobs"]
    assert sorted(job["id"] for job in cancelled) == [f"{array}_1", f"{array}_2", f"{array}_3"]


def test_what_had_ended_before_it_was_cancelled_is_told(api):
    [job] = api.ok("POST", "/jobs", {**JOB, "request": {"cpu": 4}})["jobs"]
    [task, *_] = api.ok("POST", "/jobs", {**JOB, "request": {"cpu": 4}, "array": "1-2"})["jobs"]
    for id in (job["id"], task["array"]):
        first = api.ok("POST", f"/jobs/{id}/cancel")
        for one in first["jobs"]:
            until(lambda id=one["id"]: api.job(id)["state"] == "cancelled")
        again = api.ok("POST", f"/jobs/{id}/cancel")
        assert (first["was_open"], again["was_open"]) == (True, False)
        assert first["count"] == again["count"] == len(first["jobs"])


def test_a_repeat_gets_the_same_job_and_another_body_is_refused(api):
    told = [api.ok("POST", "/jobs", JOB, idempotency_key="one")["jobs"][0]["id"] for _ in "ab"]
    assert told[0] == told[1]
    status, problem = api("POST", "/jobs", {**JOB, "command": ["false"]}, idempotency_key="one")
    assert (status, problem["code"]) == (409, "operation_reused")


def test_why_a_job_waits_is_told_even_if_what_it_is_to_be_near_to_is_gone(api):
    api.submit(request={"cpu": 4})
    waiting = api.submit(request={"cpu": 2})
    told = api.ok("GET", f"/jobs/{waiting}/why")
    assert "Insufficient CPU" in told["why"]
    assert told["explanation"]
    lost = api.submit(request={"cpu": 1, "together_with": "nobody"})
    assert "nothing is held under it" in api.ok("GET", f"/jobs/{lost}/why")["explanation"]


def test_why_names_who_holds_what_a_job_waits_for(api):
    holding = api.submit(request={"cpu": 4}, name="my job")
    waiting = api.submit(request={"cpu": 2})
    told = api.ok("GET", f"/jobs/{waiting}/why")
    [holder] = told["holders"]
    assert (holder["job"], holder["name"], holder["amounts"]) == (holding, "my job", "cpu=4")
    assert f"job {holding} (my job)" in told["explanation"]
    after = api.submit(request={"cpu": 1}, after=[{"id": waiting}])
    told = api.ok("GET", f"/jobs/{after}/why")
    assert (told["explanation"], told["holders"]) == (None, [])  # it does not wait for room


def test_a_plan_says_what_would_become_of_a_job_and_makes_none(api, server):
    before = api.ok("GET", "/jobs")
    told = api.ok("POST", "/jobs/plan", {**JOB, "request": {"cpu": 2}})
    assert (told["starts"], told["why"]) == (True, None)
    assert told["node"]
    assert api.ok("GET", "/jobs") == before
    holding = api.submit(request={"cpu": 4})
    told = api.ok("POST", "/jobs/plan", {**JOB, "request": {"cpu": 2}})
    assert (told["starts"], told["node"]) == (False, None)
    assert "does not fit now" in told["why"]
    assert [one["job"] for one in told["holders"]] == [holding]
    array = api.submit(array="1-5", request={"cpu": 4}).partition("_")[0]
    for after, why in ((holding, f"for job {holding} to end"), (array, "and 2 more to end")):
        told = api.ok("POST", "/jobs/plan", {**JOB, "after": [{"id": after}]})
        assert not told["starts"]
        assert told["why"].endswith(why)
    api.ok("POST", f"/jobs/{array}/cancel")
    near = {**JOB, "request": {"cpu": 1, "together_with": "nobody"}}
    told = api.ok("POST", "/jobs/plan", near)
    assert (told["starts"], told["node"]) == (False, None)
    assert "nothing is held under it" in told["why"]


#    what it shows                      what is planned                     code
NO_PLANS = {
    "what never fits":                 ({"request": {"cpu": 99}},          "never_fits"),
    "a resource nobody has":           ({"request": {"fpga": 1}},          "unknown_resource"),
    "a node there is not":             ({"request": {"node": "zz"}},       "unknown_node"),
    "after a job there is not":        ({"after": [{"id": "999"}]},        "invalid_dependency"),
    "a name on two lines":             ({"name": "a\nb"},                  "invalid_name"),
    "an array backwards":              ({"array": "9-1"},                  "invalid_input"),
}  # fmt: skip


@pytest.mark.parametrize(("part", "code"), NO_PLANS.values(), ids=NO_PLANS)
def test_a_plan_is_refused_as_the_job_would_be(api, part, code):
    refused = [api("POST", path, {**JOB, **part}) for path in ("/jobs/plan", "/jobs")]
    assert refused[0] == refused[1]
    assert refused[0][1]["code"] == code


def test_a_plan_after_a_job_that_ended_otherwise_is_refused(api, server):
    failed = api.submit()
    server.end(failed, code=3)
    until(lambda: api.job(failed)["state"] == "failed")
    told = api("POST", "/jobs/plan", {**JOB, "after": [{"id": failed}]})
    assert (told[0], told[1]["code"]) == (422, "invalid_input")
    assert f"{failed} is failed" in told[1]["hint"]
    then = {**JOB, "after": [{"id": failed, "condition": "afternotok"}]}
    assert api.ok("POST", "/jobs/plan", then)["starts"]


def test_a_signal_is_sent_to_what_runs(api, server):
    id = api.submit()
    until(lambda: (id, 1) in server.engine.running)
    assert api.ok("POST", f"/jobs/{id}/signal", {"signal": 2}) == {"sent": True}
    assert server.engine.signals[-1] == ((id, 1), 2)


def test_a_store_that_is_away_is_503_and_may_be_tried_again(api, server):
    server.store.faults = [StoreUnavailable("away")]
    status, headers, text = api.raw("POST", "/jobs", json.dumps(JOB).encode())
    assert (status, json.loads(text)["code"]) == (503, "store_unavailable")
    assert headers["retry-after"] == "1"
    api.submit()


def test_version_and_status_say_who_answers(api, server):
    told = api.ok("GET", "/version")
    assert (told["pid"], told["protocol"], told["version"]) == (os.getpid(), 1, __version__)
    assert told["idle"] is True
    api.submit()
    assert api.ok("GET", "/version")["idle"] is False
    status = api.ok("GET", "/status")
    assert status["jobs"] == {"queued": 0, "running": 1}
    assert 0 <= status["controller"]["uptime_s"] < 3600
    assert status["allocated"] == {"cpu": 1}


def test_the_document_of_the_interface_lists_every_route(api, server):
    status, _, text = api.raw("GET", "/openapi.json", prefix="")
    document = json.loads(text)
    assert status == 200
    listed = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert ("/api/v1/jobs/{id}/follow", "get") in listed
    sources = Path(api_room.__file__).parent.rglob("*.py")
    written = sum(len(re.findall(r"@router\.\w+\(", path.read_text())) for path in sources)
    assert len(listed) == written - 2 > 25  # but for the two of /docs, which shows the others


# ---- what it refuses

#    what it shows                              what is given                        the field
BAD = {
    "no command":                              ({"command": []},                     "command"),
    "an empty program":                        ({"command": [""]},                   "command"),
    "a command that is one text":              ({"command": "ls -l"},                "command"),
    "words that are no text":                  ({"command": ["a", 1]},               "command.1"),
    "a zero byte in a word":                   ({"command": ["a\0b"]},               "command or folder"),
    "half a character":                        ({"command": ["\ud800"]},             "command"),
    "half a character in a variable":          ({"environment": {"A": "\ud800"}},    "environment"),
    "half a character in a path":              ({"stdout": "/\ud800"},               "stdout"),
    "a folder that is not absolute":           ({"folder": "here"},                  "folder"),
    "a zero byte in the folder":               ({"folder": "/a\0"},                  "command or folder"),
    "a field that there is not":               ({"shell": True},                     "shell"),
    "a variable with = in its name":           ({"environment": {"A=B": "1"}},       "environment"),
    "a variable without a name":               ({"environment": {"": "1"}},          "environment"),
    "a zero byte in a variable":               ({"environment": {"A": "\0"}},        "environment"),
    "a variable that is a number":             ({"environment": {"A": 1}},           "environment.A"),
    "a negative amount":                       ({"request": {"cpu": -1}},            "cpu"),
    "an amount that is true":                  ({"request": {"cpu": True}},          "cpu"),
    "an amount too small to count":            ({"request": {"cpu": 0.00001}},       "cpu"),
    "an amount too large to count":            ({"request": {"cpu": 1e300}},         "cpu"),
    "an amount in letters":                    ({"request": {"memory": "lots"}},     "memory"),
    "a wish that is no resource":              ({"request": {"resources": {"node": 1}}}, "resources"),
    "resources that are a list":               ({"request": {"resources": [1]}},     "resources"),
    "a node with a slash":                     ({"request": {"node": "../n"}},       "node"),
    "both spellings of a request":             ({"request": {"cpu": 1}, "request_row": {"amounts": {"cpu": 1}}}, "request"),
    "an exact amount that is negative":        ({"request_row": {"amounts": {"cpu": -1}}}, "request_row.amounts.cpu"),
    "a name with a newline":                   ({"name": "a\nb"},                    "name"),
    "a name too long":                         ({"name": "a" * 201},                 "name"),
    "a priority that there is not":            ({"priority": "now"},                 "priority"),
    "a time limit of nothing":                 ({"time_limit_s": 0},                 "time_limit_s"),
    "a time limit of a century":               ({"time_limit_s": 1e10},              "time_limit_s"),
    "a time limit as text":                    ({"time_limit_s": "60"},              "time_limit_s"),
    "a negative grace":                        ({"grace_s": -1},                     "grace_s"),
    "too many retries":                        ({"retries": 1000},                   "retries"),
    "retries that are true":                   ({"retries": True},                   "retries"),
    "a reason to retry that there is not":     ({"retry_on": ["rain"]},              "retry"),
    "no processes at all":                     ({"processes": 0},                    "processes"),
    "output to a path that is not absolute":   ({"stdout": "out"},                   "stdout"),
    "input with a zero byte":                  ({"stdin": "/a\0"},                   "stdin"),
    "an array backwards":                      ({"array": "9-1"},                    "array"),
    "an array without end":                    ({"array": "1-2000000"},              "array"),
    "an array of words":                       ({"array": "all"},                    "array"),
    "after what is no id":                     ({"after": [{"id": "../1"}]},         "after.0.id"),
    "after what never was":                    ({"after": [{"id": "999999"}]},       None),
    "a condition that there is not":           ({"after": [{"id": "1", "condition": "maybe"}]}, "after"),
    "detached in letters":                     ({"detached": "yes"},                 "detached"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "field"), BAD.values(), ids=BAD)
def test_bad_input_is_told_by_field_value_and_what_is_allowed(api, server, given, field):
    before = api.ok("GET", "/jobs?limit=1")
    status, problem = api("POST", "/jobs", {**JOB, "environment": {"A": "1"}, **given})
    assert (status, problem["status"]) == (422, 422), problem
    assert problem["detail"]
    if field is not None:
        assert problem["field"] == field
        assert problem["allowed"]
        assert problem.get("value") or "is not valid" in problem["detail"]
    assert api.ok("GET", "/jobs?limit=1") == before
    assert os.listdir(server.home.environments) == []


def test_what_never_fits_is_refused_at_once(api):
    status, problem = api("POST", "/jobs", {**JOB, "request": {"cpu": 1000}})
    assert (status, problem["code"]) == (422, "never_fits")
    assert problem["reasons"]


#    what it shows             the body
RAW = {
    "not a number":           b'{"command":["a"],"folder":"/","time_limit_s":NaN}',
    "no end":                 b'{"command":["a"],"folder":"/","request":{"cpu":Infinity}}',
    "more than any number":   b'{"command":["a"],"folder":"/","grace_s":1e999}',
    "thousands of digits":    b'{"command":["a"],"folder":"/","retries":' + b"9" * 5000 + b"}",
    "a thousand deep":        b'{"request":' + b'{"a":' * 1000 + b"1" + b"}" * 1001,
    "half a document":        b'{"command":["a"',
    "no UTF-8":               b'{"command":["\xff"],"folder":"/"}',
    "a list":                 b"[]",
    "nothing":                b"",
}  # fmt: skip


@pytest.mark.parametrize("body", RAW.values(), ids=RAW)
def test_what_is_no_json_of_ours_is_refused(api, body):
    status, headers, text = api.raw("POST", "/jobs", body)
    assert (status, headers["content-type"]) == (422, "application/problem+json"), text
    assert json.loads(text)["code"] == "invalid_input"


LARGE = {
    "a job of more than 8 MB": ("/jobs", MOST_JOB_BYTES),
    "anything else of more than 1 MB": ("/stop", MOST_BYTES),
    "an allocation of more than 1 MB": ("/allocations", MOST_BYTES),
}


@pytest.mark.parametrize(("target", "most"), LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("told", [True, False], ids=["that says so", "that does not"])
def test_a_body_that_is_too_large_is_refused(api, server, target, most, told):
    body = b'{"a":"' + b"x" * most + b'"}'
    if told:
        status, _, text = api.raw("POST", target, body)
    else:
        status, text = chunked(server, target, body)
    assert (status, json.loads(text)["code"]) == (413, "too_large")
    assert str(most) in json.loads(text)["detail"]


def chunked(server, target, body):
    """A body that comes in pieces, and does not say how many."""
    import socket

    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(PATIENCE_S)
        connected.connect(server.home.socket)
        head = "POST /api/v1{} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connected.sendall(f"{head.format(target)}Transfer-Encoding: chunked\r\n\r\n".encode())
        try:
            for first in range(0, len(body), 1 << 16):
                piece = body[first : first + (1 << 16)]
                connected.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            connected.sendall(b"0\r\n\r\n")
        except OSError:
            pass  # it has seen enough
        reply = b""
        while b"\r\n\r\n" not in reply or not reply.endswith(b"}"):
            piece = connected.recv(1 << 16)
            assert piece, reply
            reply += piece
    head, _, text = reply.partition(b"\r\n\r\n")
    return int(head.split()[1]), text


#    what it shows                  in the place of an id      the status
IDS = {
    "one that never was":          ("999999",                  404),
    "a task that never was":       ("999999_3",                404),
    "a number without end":        ("9" * 3000,                404),
    "the folder above":            ("%2e%2e",                  422),
    "the folder above, twice":     ("%252e%252e",              422),
    "a path":                      ("..%2f..%2fetc",           404),
    "a zero byte":                 ("1%00",                    422),
    "a backslash":                 ("..%5c1",                  422),
    "digits of another script":    ("%D9%A3",                  422),
    "a sign":                      ("-1",                      422),
    "spaces":                      ("%201",                    422),
}  # fmt: skip


@pytest.mark.parametrize(("id", "expected"), IDS.values(), ids=IDS)
def test_what_is_no_job_is_not_found_whatever_is_done_with_it(api, id, expected):
    routes = [("GET", ""), ("GET", "/why"), ("GET", "/logs"), ("GET", "/follow")]
    for method, rest in [*routes, ("POST", "/cancel"), ("POST", "/signal")]:
        body = {"signal": 2} if rest == "/signal" else None
        status, problem = api(method, f"/jobs/{id}{rest}", body)
        assert status == expected, (rest, problem)
        assert problem["code"] in ("unknown_job", "invalid_input", "not_found")


QUERIES = {
    "a state that there is not": "/jobs?state=sleeping",
    "a limit of nothing": "/jobs?limit=0",
    "too many at once": "/jobs?limit=10001",
    "before what is no id": "/jobs?before=../1",
    "a stream that there is not": "/jobs/1/logs?stream=stdin",
    "a negative offset": "/jobs/1/logs?offset=-1",
    "an offset beyond all files": f"/jobs/1/logs?offset={2**63}",
    "too long a tail": f"/jobs/1/logs?tail={2**40}",
    "an attach that is neither": "/jobs/1/follow?attach=perhaps",
}


@pytest.mark.parametrize("target", QUERIES.values(), ids=QUERIES)
def test_a_bad_query_is_told_by_field(api, target):
    status, problem = api("GET", target)
    assert (status, problem["code"]) == (422, "invalid_input")
    assert problem["field"]


@pytest.mark.parametrize("signum", [0, 65, -1, True, "INT", 2.5])
def test_a_signal_that_there_is_not_is_refused(api, signum):
    status, problem = api("POST", "/jobs/1/signal", {"signal": signum})
    assert (status, problem["field"]) == (422, "signal")


# ---- what is another's


def test_nobody_ends_reads_or_attaches_to_what_is_anothers(api, server):
    id = api.ok("POST", "/jobs", JOB, x_gridhand_owner="ann")["jobs"][0]["id"]
    server.log(id).write_text("secret")
    tries = [("POST", "cancel"), ("POST", "signal"), ("GET", "logs"), ("GET", "follow?attach=1"),
             ("GET", "follow")]  # fmt: skip
    for method, what in tries:
        body = {"signal": 9} if what == "signal" else None
        status, problem = api(method, f"/jobs/{id}/{what}", body, x_gridhand_owner="bob")
        assert (status, problem["code"]) == (403, "not_yours"), what
    assert api.job(id)["state"] == "running"
    _, _, text = api.raw("GET", f"/jobs/{id}/logs", headers={"x-gridhand-owner": "ann"})
    assert text == b"secret"
    api.ok("POST", f"/jobs/{id}/cancel", x_gridhand_owner="ann")


def test_only_who_runs_the_controller_acts_for_others_or_stops_it(api, monkeypatch):
    id = api.submit()
    monkeypatch.setattr(auth, "_uid", lambda request: 54321)
    status, problem = api("POST", "/jobs", JOB, x_gridhand_owner="root")
    assert (status, problem["code"]) == (403, "not_yours")
    status, problem = api("POST", f"/jobs/{id}/cancel")
    assert (status, problem["code"]) == (403, "not_yours")
    status, _ = api("POST", "/stop", {"jobs": "kill"})
    assert status == 403
    own = api.submit()
    assert api.job(own)["owner"] == "uid-54321"
    api.ok("POST", f"/jobs/{own}/cancel")
    monkeypatch.undo()
    assert api.job(id)["state"] == "running"


def test_a_name_that_is_no_owner_is_refused(api):
    for name in ("*", "a b", "a\tb", "x" * 300):
        status, problem = api("POST", "/jobs", JOB, x_gridhand_owner=name)
        assert status == 422, problem


# ---- logs


def test_a_log_is_read_in_ranges_and_from_its_end(api, server):
    id = api.submit()
    server.log(id).write_bytes(bytes(range(256)) * 4)
    server.log(id, "stderr").write_bytes(b"oops")

    def read(query=""):
        status, headers, text = api.raw("GET", f"/jobs/{id}/logs?{query}")
        assert status == 200
        names = ("size", "offset", "end")
        return text, *(int(headers[f"x-gridhand-{name}"]) for name in names)

    whole = bytes(range(256)) * 4
    assert read() == (whole, 1024, 0, 1024)
    assert read("offset=1000&limit=10") == (whole[1000:1010], 1024, 1000, 1010)
    assert read("tail=24") == (whole[-24:], 1024, 1000, 1024)
    assert read("tail=5000") == (whole, 1024, 0, 1024)
    assert read("tail=0") == (b"", 1024, 1024, 1024)
    assert read("offset=99999") == (b"", 1024, 99999, 99999)
    assert read("stream=stderr") == (b"oops", 4, 0, 4)
    assert api.raw("GET", f"/jobs/{id}/logs")[1]["content-type"] == "application/octet-stream"


def test_what_was_cut_out_of_a_log_is_marked(api, server):
    id = api.submit()
    with open(server.log(id), "wb") as file:
        file.write(b"a" * 4096)
        file.truncate(3 * 4096)
        file.seek(0, os.SEEK_END)
        file.write(b"end")
    _, headers, text = api.raw("GET", f"/jobs/{id}/logs?offset=4094")
    assert text == b"aa\n[8192 bytes were cut out here]\nend"
    assert int(headers["x-gridhand-end"]) == 3 * 4096 + 3


def test_output_to_what_is_no_file_is_an_empty_log_and_no_fault(api, server, tmp_path):
    for path in (str(tmp_path), "/dev/null", str(tmp_path / "not there")):
        id = api.submit(stdout=path)
        status, _, text = api.raw("GET", f"/jobs/{id}/logs")
        assert (status, text) == (200, b"")


# ---- stopping


def test_stopping_is_refused_while_jobs_are_open_unless_they_are_kept_or_killed(tmp_path):
    with Server(tmp_path / "home") as server:
        api = Api(server)
        id = api.submit()
        until(lambda: (id, 1) in server.engine.running)
        status, problem = api("POST", "/stop", {"jobs": "refuse"})
        assert (status, problem["code"]) == (409, "jobs_running")
        status, problem = api("POST", "/stop", {"jobs": "maybe"})
        assert (status, problem["field"]) == (422, "jobs")
        connection, frames = api.follow(id)
        with closing(connection):
            next(frames)
            told = api.ok("POST", "/stop", {"jobs": "keep"})
            assert told == {"pid": os.getpid(), "jobs": {"queued": 0, "running": 1}}
            assert "end" not in [frame["event"] for frame in frames]  # the next one goes on
        server._thread.join(PATIENCE_S)
        assert list(server.engine.running) == [(id, 1)]
    again = Server(tmp_path / "home")
    again.engine.running = server.engine.running
    with again:
        api = Api(again)
        api.ok("POST", "/stop", {"jobs": "kill"})
        again._thread.join(PATIENCE_S)
        assert again.engine.running == {}


def test_reservations_are_not_counted_as_running_jobs(api):
    api.ok("POST", "/allocations", {"request": {"cpu": 1}, "holder": "me"})
    assert api.ok("GET", "/nodes/n1")["jobs"] == 0
    id = api.submit()
    until(lambda: api.job(id)["state"] == "running")
    node = api.ok("GET", "/nodes/n1")
    assert (node["jobs"], len(node["allocations"])) == (1, 2)
    assert [one["jobs"] for one in api.ok("GET", "/status")["nodes"]] == [1]
