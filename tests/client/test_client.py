"""Every method asks what the API has, and gives its answer."""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest

import fake_controller
from fake_controller import DROP, FakeController, chunked, frame, problem, reply
from gridhand.client import Client, Log
from gridhand.core import errors

#    call                                                   method  path                  query                                        body                    reply               answer
CALLS = {
    "version":     (lambda c: c.version(),                   "GET",    "/version",              [],                                          None,                   {"pid": 1},         {"pid": 1}),
    "submit":      (lambda c: c.submit({"command": ["x"]}),  "POST",   "/jobs",                 [],                                          {"command": ["x"]},     {"jobs": [1]},      [1]),
    "jobs":        (lambda c: c.jobs(),                      "GET",    "/jobs",                 [],                                          None,                   {"jobs": []},       []),
    "some jobs":   (lambda c: c.jobs(states=["a", "b"], owner="o&x", array="17", limit=5, before="9"), "GET", "/jobs", [("state", "a"), ("state", "b"), ("owner", "o&x"), ("array", "17"), ("limit", "5"), ("before", "9")], None, {"jobs": []}, []),
    "job":         (lambda c: c.job("17_3"),                 "GET",    "/jobs/17_3",            [],                                          None,                   {"id": "17_3"},     {"id": "17_3"}),
    "last job":    (lambda c: c.job("@"),                    "GET",    "/jobs/@",               [],                                          None,                   {"id": "1"},        {"id": "1"}),
    "cancel":      (lambda c: c.cancel("17"),                "POST",   "/jobs/17/cancel",       [],                                          {},                     {"jobs": [1]},      [1]),
    "signal":      (lambda c: c.signal("17", 2),             "POST",   "/jobs/17/signal",       [],                                          {"signal": 2},          {"sent": True},     True),
    "why":         (lambda c: c.why("17"),                   "GET",    "/jobs/17/why",          [],                                          None,                   {"why": "x"},       {"why": "x"}),
    "status":      (lambda c: c.status(),                    "GET",    "/status",               [],                                          None,                   {"nodes": []},      {"nodes": []}),
    "nodes":       (lambda c: c.nodes(),                     "GET",    "/nodes",                [],                                          None,                   {"nodes": [1]},     [1]),
    "node":        (lambda c: c.node("a/../b ü"),            "GET",    "/nodes/a/../b ü",       [],                                          None,                   {"a": 1},           {"a": 1}),
    "node ..":     (lambda c: c.node(".."),                  "GET",    "/nodes/..",             [],                                          None,                   {"a": 1},           {"a": 1}),
    "register":    (lambda c: c.register([{"name": "a"}]),   "POST",   "/nodes",                [],                                          {"nodes": [{"name": "a"}]}, {"nodes": [1]}, [1]),
    "drain":       (lambda c: c.drain("a"),                  "POST",   "/nodes/a/drain",        [],                                          {},                     {"a": 1},           {"a": 1}),
    "resume":      (lambda c: c.resume("a"),                 "POST",   "/nodes/a/resume",       [],                                          {},                     {"a": 1},           {"a": 1}),
    "remove":      (lambda c: c.remove("a"),                 "DELETE", "/nodes/a",              [("force", "0")],                            None,                   {"a": 1},           {"a": 1}),
    "remove it":   (lambda c: c.remove("a", force=True),     "DELETE", "/nodes/a",              [("force", "1")],                            None,                   {"a": 1},           {"a": 1}),
    "allocations": (lambda c: c.allocations(),               "GET",    "/allocations",          [],                                          None,                   {"allocations": []}, []),
    "allocate":    (lambda c: c.allocate({"holder": "h"}),   "POST",   "/allocations",          [],                                          {"holder": "h"},        {"id": "a"},        {"id": "a"}),
    "renew":       (lambda c: c.move("a", "renew", ttl_s=5), "POST",   "/allocations/a/renew",  [],                                          {"ttl_s": 5},           {"id": "a"},        {"id": "a"}),
    "release":     (lambda c: c.move("a", "release"),        "POST",   "/allocations/a/release", [],                                         {},                     {"id": "a"},        {"id": "a"}),
    "fits":        (lambda c: c.fits({"cpu": 2}),            "POST",   "/fits",                 [],                                          {"cpu": 2},             {"fits": True},     True),
    "a group":     (lambda c: c.allocate_group({"a": 1}),    "POST",   "/allocations/group",    [],                                          {"a": 1},               {"allocations": [1]}, [1]),
    "health":      (lambda c: c.set_health("a", "down", "w"), "POST",  "/nodes/a/health",       [],                                          {"health": "down", "why": "w"}, {"a": 1},   {"a": 1}),
    "foreign":     (lambda c: c.set_foreign("a", {"g": 1}),  "POST",   "/nodes/a/foreign",      [],                                          {"used": {"g": 1}},     {},                 None),
    "identity":    (lambda c: c.identity(),                  "GET",    "/identity",             [],                                          None,                   {"identity": "x"},  "x"),
    "dump":        (lambda c: c.dump(),                      "GET",    "/dump",                 [],                                          None,                   {"a": 1},           {"a": 1}),
    "prune":       (lambda c: c.prune(60, 5),                "POST",   "/prune",                [],                                          {"older_than_s": 60, "most": 5}, {"left": 3}, 3),
    "end session": (lambda c: c.end_session("s"),            "DELETE", "/sessions/s",           [],                                          None,                   {},                 None),
    "attach":      (lambda c: c.attach("s", ["1"]),          "POST",   "/sessions/s/jobs",      [],                                          {"jobs": ["1"]},        {"jobs": ["1"]},    ["1"]),
    "explain":     (lambda c: c.explain({"cpu": 2}),         "POST",   "/explain",              [],                                          {"cpu": 2},             {"fits": True},     {"fits": True}),
    "events":      (lambda c: c.events(after=3, limit=9),    "GET",    "/events",               [("after", "3"), ("limit", "9")],            None,                   {"events": []},     []),
    "check":       (lambda c: c.check(),                     "GET",    "/check",                [],                                          None,                   {"clean": True},    {"clean": True}),
    "stop":        (lambda c: c.stop(jobs="keep"),           "POST",   "/stop",                 [],                                          {"jobs": "keep"},       {},                 {}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("call", "method", "path", "query", "body", "told", "answer"), CALLS.values(), ids=CALLS
)
def test_calls(home, call, method, path, query, body, told, answer):
    with (
        FakeController(f"{home}/socket", lambda asked: reply(told)) as fake,
        Client(f"unix:{home}/socket") as client,
    ):
        assert call(client) == answer
    [asked] = fake.asked
    assert (asked.method, asked.path, asked.query) == (method, f"/api/v1{path}", query)
    assert (asked.json if asked.body else None) == body
    assert ("idempotency-key" in asked.headers) == (method != "GET")


def test_logs_are_bytes(home):
    def answer(asked):
        headers = ["X-Gridhand-Size: 1000", "x-gridhand-offset: 10", "X-Gridhand-End: 13"]
        return reply(b"\xff\n\x00", headers=headers, kind="application/octet-stream")

    with (
        FakeController(f"{home}/socket", answer) as fake,
        Client(f"unix:{home}/socket") as client,
    ):
        assert client.logs("17", "stderr", offset=10, limit=3) == Log(b"\xff\n\x00", 10, 1000, 13)
    assert fake.asked[0].query == [("stream", "stderr"), ("offset", "10"), ("limit", "3")]


def test_over_tcp():
    with FakeController(
        ("127.0.0.1", 0), lambda asked: reply({"a": 1}), family=socket.AF_INET
    ) as fake:
        host, port = fake.address
        with Client(f"http://{host}:{port}") as client:
            assert client.status() == {"a": 1}
            assert fake.asked[0].headers["host"] == f"{host}:{port}"


def test_another_owner(home):
    with (
        FakeController(f"{home}/socket", lambda asked: reply({})) as fake,
        Client(f"unix:{home}/socket") as client,
        client.for_owner("ada") as other,
    ):
        client.status()
        other.status()
        with pytest.raises(errors.InvalidInput):
            client.for_owner("a\r\nx: y").status()
    assert [asked.headers.get("x-gridhand-owner") for asked in fake.asked] == [None, "ada"]


def test_a_controller_that_ends_before_it_has_answered_has_stopped(home):
    fakes = []

    def answer(asked):
        threading.Thread(target=fakes[0].close).start()
        return DROP

    fakes.append(FakeController(f"{home}/socket", answer))
    with Client(f"unix:{home}/socket") as client:
        assert client.stop() == {}


def test_one_that_does_not_answer_and_lives_has_not(home):
    def answer(asked):
        return DROP if asked.method == "POST" else reply({"pid": 1})

    with (
        FakeController(f"{home}/socket", answer),
        Client(f"unix:{home}/socket") as client,
        pytest.raises(errors.ControllerUnavailable),
    ):
        client.stop()


# ---- following

JOB = {"id": "17", "state": "running"}
DONE = {"id": "17", "state": "succeeded"}
TEXT = bytes(range(256)) * 40


def outputs(stream, begin, end, step=100):
    return [
        frame("output", TEXT[n : min(n + step, end)], stream=stream, offset=n)
        for n in range(begin, end, step)
    ]


@pytest.fixture
def follow(home):
    """Follow a job through these streams, one after the other; the frames, and what was asked."""

    def follow(*streams, revive=lambda start: None, **options):
        left = list(streams)
        with (
            FakeController(f"{home}/socket", lambda asked: chunked(left.pop(0))) as fake,
            Client(f"unix:{home}/socket") as client,
        ):
            client.revive = revive
            frames = list(client.follow("17", **options))
        assert left == []
        return frames, [dict(asked.query) for asked in fake.asked]

    return follow


def joined(frames, stream):
    return b"".join(data for event, data in frames if event.get("stream") == stream)


def events(frames):
    return [event["event"] for event, _ in frames]


def test_a_job_is_followed_to_its_end(follow):
    frames, asked = follow(
        [
            frame("job", job=JOB),
            frame("alive"),
            frame("output", b"{\n\x00", stream="stdout", offset=0),
            frame("output", b"", stream="stdout", offset=3),
            frame("cut", stream="stderr", cut=99),
            frame("end", job=DONE),
        ],
        attach=True,
    )
    assert events(frames) == ["job", "alive", "output", "output", "cut", "end"]
    assert frames[2] == (
        {"event": "output", "stream": "stdout", "offset": 0, "bytes": 3},
        b"{\n\x00",
    )
    assert frames[-1][0]["job"] == DONE
    assert asked == [{"attach": "1", "output": "1", "stdout": "0", "stderr": "0"}]


def test_nothing_is_read_after_the_end(follow):
    frames, _ = follow([frame("end", job=DONE), frame("alive"), DROP])
    assert events(frames) == ["end"]


def test_frames_and_chunks_need_not_agree(follow):
    whole = b"".join([frame("job", job=JOB), *outputs("stdout", 0, 5000), frame("end", job=DONE)])
    frames, _ = follow([whole[n : n + 7] for n in range(0, len(whole), 7)])
    assert joined(frames, "stdout") == TEXT[:5000]


@pytest.mark.parametrize("cut", [*range(1, 40), 500, 1000, 1003, 1500, 2100])
def test_a_stream_that_breaks_anywhere_goes_on_with_each_byte_once(follow, cut):
    out, err = outputs("stdout", 0, 1000), outputs("stderr", 0, 500)
    whole = b"".join([frame("job", job=JOB), *out, *err])

    asked = []

    def answer_rest():
        # What was asked for decides what comes, as a controller does it.
        wanted = asked[-1]
        yield frame("job", job=JOB)
        yield from outputs("stdout", int(wanted["stdout"]), 2000, 300)
        yield from outputs("stderr", int(wanted["stderr"]), 800, 300)
        yield frame("end", job=DONE)

    class Rest:
        def __iter__(self):
            return answer_rest()

    frames, queries = follow_recording(follow, asked, [whole[:cut], DROP], Rest())
    assert joined(frames, "stdout") == TEXT[:2000]
    assert joined(frames, "stderr") == TEXT[:800]
    assert events(frames).count("job") == 1
    assert events(frames)[-1] == "end"
    assert len(queries) == 2


def follow_recording(follow, asked, *streams):
    """As `follow`, but the second stream may look at what was asked."""
    read = fake_controller._read

    def reading(file):
        found = read(file)
        if found is not None:
            asked.append(dict(found.query))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake_controller, "_read", reading)
        return follow(*streams)


def test_what_comes_twice_is_told_once(follow):
    """A controller that begins at a boundary of its own, before the offset that was asked for."""
    frames, asked = follow(
        [*outputs("stdout", 0, 250, 250), DROP],
        [
            *outputs("stdout", 0, 200, 200),
            *outputs("stdout", 200, 400, 200),
            frame("end", job=DONE),
        ],
    )
    assert joined(frames, "stdout") == TEXT[:400]
    assert [event["offset"] for event, data in frames if data] == [0, 250]
    assert asked[1]["stdout"] == "250"


def test_following_may_begin_later(follow):
    frames, asked = follow(
        [*outputs("stdout", 70, 100), frame("end", job=DONE)], stdout=70, stderr=5, output=False
    )
    assert joined(frames, "stdout") == TEXT[70:100]
    assert asked == [{"attach": "0", "output": "0", "stdout": "70", "stderr": "5"}]


def test_what_was_cut_out_counts_and_is_told_once(follow):
    frames, asked = follow(
        [*outputs("stdout", 0, 100), frame("cut", stream="stdout", cut=50), DROP],
        [*outputs("stdout", 150, 200), frame("end", job=DONE)],
    )
    assert [event["cut"] for event, _ in frames if event["event"] == "cut"] == [50]
    assert joined(frames, "stdout") == TEXT[:100] + TEXT[150:200]
    assert asked[1]["stdout"] == "150"


#    what it shows                             the stream                         may one be started
ENDS = {
    "a killed controller may be replaced":    ([frame("job", job=JOB), DROP],      True),
    "one that stopped in order may not":      ([frame("job", job=JOB)],            False),
}  # fmt: skip


@pytest.mark.parametrize(("stream", "start"), ENDS.values(), ids=ENDS)
def test_who_may_start_another_one(follow, stream, start):
    told = []
    follow(stream, [frame("end", job=DONE)], revive=told.append)
    assert told == [start]


def test_without_anyone_to_wait_for_a_break_is_an_error(follow):
    with pytest.raises(errors.ControllerUnavailable, match="was lost"):
        follow([frame("job", job=JOB), DROP], revive=None)


def test_a_job_that_is_not_there(home):
    with (
        FakeController(
            f"{home}/socket", lambda asked: problem(404, code="unknown_job", detail="none")
        ),
        Client(f"unix:{home}/socket") as client,
        pytest.raises(errors.UnknownJob),
    ):
        next(client.follow("99"))


def test_another_thread_stops_one_who_follows(home):
    """Wherever it waits: for the next frame, or for the beginning of the reply."""
    for streams in (lambda: chunked(_then_nothing(frame("alive"))), lambda: _then_nothing()):
        with (
            FakeController(f"{home}/socket", lambda asked, streams=streams: streams()) as fake,
            Client(f"unix:{home}/socket") as client,
        ):
            frames = client.follow("17")
            told = []
            thread = threading.Thread(target=lambda to=told, of=frames: to.extend(of))
            thread.start()
            while not fake.asked:
                time.sleep(0.001)
            frames.stop()
            thread.join(10)
            assert not thread.is_alive()
            assert events(told) in ([], ["alive"])


def test_one_that_was_stopped_before_it_began_tells_nothing(home):
    with (
        FakeController(f"{home}/socket", lambda asked: chunked([frame("end", job=DONE)])),
        Client(f"unix:{home}/socket") as client,
    ):
        frames = client.follow("17")
        frames.stop()
        assert list(frames) == []


def test_one_that_is_dropped_closes_its_connection(home):
    ended = threading.Event()

    def answer(asked):
        try:
            while True:
                yield from chunked([frame("alive")])
        finally:
            ended.set()

    with FakeController(f"{home}/socket", answer), Client(f"unix:{home}/socket") as client:
        for event, _ in client.follow("17"):
            assert event["event"] == "alive"
            break
        assert ended.wait(30)


def _then_nothing(*parts):
    yield from parts
    threading.Event().wait(30)


def test_calls_survive_a_restart(home):
    """The reply was lost with the controller; the same call is made again to the next one."""
    path = f"{home}/socket"
    first = FakeController(path, lambda asked: DROP)
    seconds = []

    def restart(start):
        first.close()
        seconds.append(FakeController(path, lambda asked: reply({"jobs": [1]})))

    with Client(f"unix:{path}") as client:
        client.revive = restart
        assert client.submit({"command": ["true"]}) == [1]
    [second] = seconds
    second.close()
    key = "idempotency-key"
    assert first.asked[0].headers[key] == second.asked[0].headers[key]
    assert first.asked[0].body == second.asked[0].body


# ---- what it costs

HEAVY = {
    *(
        "asyncio",
        "dataclasses",
        "email",
        "fastapi",
        "http",
        "httpx",
        "inspect",
        "numpy",
        "platform",
    ),
    *("pydantic", "rich", "sqlalchemy", "ssl", "subprocess", "urllib", "uuid"),
    *("gridhand.core.errors", "gridhand.client.launch"),
}


def test_a_call_loads_nothing_heavy(home):
    code = (
        "import sys\n"
        "from gridhand.client import connect\n"
        "with connect() as client:\n"
        "    client.submit({'command': ['true']})\n"
        "    list(client.follow('17'))\n"
        "print(*sys.modules)\n"
    )

    def answer(asked):
        if asked.path.endswith("/follow"):
            return chunked([frame("end", job=DONE)])
        return reply({"version": "0.1.0", "pid": 1, "protocol": 1, "idle": True, "jobs": []})

    # Measuring coverage in the new process would load what this looks for.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")}
    with FakeController(f"{home}/socket", answer):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    loaded = set(done.stdout.split())
    assert "gridhand.client.client" in loaded
    assert loaded.isdisjoint(HEAVY)
