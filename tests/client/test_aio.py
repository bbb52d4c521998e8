"""The client to be awaited: the same calls, the same errors, the same frames."""

import asyncio
import contextlib
import socket

import pytest
from client_starts import started
from fake_controller import DROP, FakeController, chunked, frame, problem, reply

from gridhand.client import connect
from gridhand.client.aio import AsyncClient
from gridhand.core import errors

TEXT = bytes(range(256)) * 8
DONE = {"id": "17", "state": "succeeded"}


@contextlib.asynccontextmanager
async def serving(home, answer, **options):
    with FakeController(f"{home}/socket", answer) as fake:
        async with AsyncClient(f"unix:{home}/socket", **options) as client:
            yield client, fake


#    call                                                     method  path                    body                reply                 answer
CALLS = {
    "version":     (lambda c: c.version(),                   "GET",  "/version",              None,               {"pid": 1},           {"pid": 1}),
    "submit":      (lambda c: c.submit({"command": ["x"]}),  "POST", "/jobs",                 {"command": ["x"]}, {"jobs": [1]},        [1]),
    "jobs":        (lambda c: c.jobs(),                      "GET",  "/jobs",                 None,               {"jobs": []},         []),
    "job":         (lambda c: c.job("17_3"),                 "GET",  "/jobs/17_3",            None,               {"id": "17_3"},       {"id": "17_3"}),
    "cancel":      (lambda c: c.cancel("17"),                "POST", "/jobs/17/cancel",       {},                 {"jobs": [1]},        [1]),
    "signal":      (lambda c: c.signal("17", 2),             "POST", "/jobs/17/signal",       {"signal": 2},      {"sent": True},       True),
    "why":         (lambda c: c.why("17"),                   "GET",  "/jobs/17/why",          None,               {"why": "x"},         {"why": "x"}),
    "status":      (lambda c: c.status(),                    "GET",  "/status",               None,               {"a": 1},             {"a": 1}),
    "nodes":       (lambda c: c.nodes(),                     "GET",  "/nodes",                None,               {"nodes": [1]},       [1]),
    "node":        (lambda c: c.node("a b"),                 "GET",  "/nodes/a b",            None,               {"a": 1},             {"a": 1}),
    "allocations": (lambda c: c.allocations(),               "GET",  "/allocations",          None,               {"allocations": []},  []),
    "allocate":    (lambda c: c.allocate({"holder": "h"}),   "POST", "/allocations",          {"holder": "h"},    {"id": "a"},          {"id": "a"}),
    "renew":       (lambda c: c.move("a", "renew", ttl_s=5), "POST", "/allocations/a/renew",  {"ttl_s": 5},       {"id": "a"},          {"id": "a"}),
    "explain":     (lambda c: c.explain({"cpu": 2}),         "POST", "/explain",              {"cpu": 2},         {"fits": True},       {"fits": True}),
    "events":      (lambda c: c.events(after=3),             "GET",  "/events",               None,               {"events": []},       []),
    "check":       (lambda c: c.check(),                     "GET",  "/check",                None,               {"clean": True},      {"clean": True}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("call", "method", "path", "body", "told", "answer"), CALLS.values(), ids=CALLS
)
def test_calls(home, call, method, path, body, told, answer):
    async def main():
        async with serving(home, lambda asked: reply(told)) as (client, fake):
            assert await call(client) == answer
        return fake.asked

    [asked] = asyncio.run(main())
    assert (asked.method, asked.path) == (method, f"/api/v1{path}")
    assert (asked.json if asked.body else None) == body
    assert ("idempotency-key" in asked.headers) == (method != "GET")


def test_over_tcp_and_for_an_owner():
    async def main():
        with FakeController(
            ("127.0.0.1", 0), lambda asked: reply({"a": 1}), family=socket.AF_INET
        ) as fake:
            host, port = fake.address
            async with AsyncClient(f"http://{host}:{port}", owner="ada") as client:
                assert client.address == f"http://{host}:{port}"
                assert await client.status() == {"a": 1}
        return fake.asked

    [asked] = asyncio.run(main())
    assert asked.headers["x-gridhand-owner"] == "ada"


def test_problems_are_raised_as_what_they_are(home):
    async def main():
        told = {"code": "unknown_job", "detail": "no job", "hint": "Look."}
        async with serving(home, lambda asked: problem(404, **told)) as (client, _):
            with pytest.raises(errors.UnknownJob, match="no job"):
                await client.job("17")
            with pytest.raises(errors.UnknownJob, match="no job"):
                await anext(client.follow("17"))

    asyncio.run(main())


def test_nobody_there(home):
    async def main():
        async with AsyncClient(f"unix:{home}/socket") as client:
            with pytest.raises(errors.ControllerUnavailable, match="no controller listens"):
                await client.status()

    asyncio.run(main())


def test_a_lost_reply_without_anyone_to_wait_for(home):
    async def main():
        async with serving(home, lambda asked: DROP) as (client, _):
            with pytest.raises(errors.ControllerUnavailable, match="was lost"):
                await client.status()

    asyncio.run(main())


def test_calls_survive_a_restart(home):
    async def main():
        replies = iter([DROP, reply({"jobs": [1]})])
        told = []
        async with serving(home, lambda asked: next(replies), revive=told.append) as (client, fake):
            assert await client.submit({"command": ["true"]}) == [1]
        assert told == [True]
        return fake.asked

    first, second = asyncio.run(main())
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


@pytest.mark.parametrize("cut", [*range(1, 60, 3), 300, 700])
def test_a_stream_that_breaks_anywhere_goes_on_with_each_byte_once(home, cut):
    def outputs(begin, end, step):
        return b"".join(
            frame("output", TEXT[n : min(n + step, end)], stream="stdout", offset=n)
            for n in range(begin, end, step)
        )

    whole = frame("job", job={"id": "17"}) + outputs(0, 600, 50)
    asked_for = []

    def answer(asked):
        asked_for.append(int(dict(asked.query)["stdout"]))
        if len(asked_for) == 1:
            return chunked([whole[:cut], DROP])
        rest = frame("job", job={"id": "17"}) + outputs(asked_for[-1], 1000, 70)
        return chunked([rest[:33], rest[33:], frame("end", job=DONE), frame("alive")])

    async def main():
        async with serving(home, answer, revive=lambda start: None) as (client, _):
            return [told async for told in client.follow("17")]

    frames = asyncio.run(main())
    assert b"".join(data for _, data in frames) == TEXT[:1000]
    assert [event["event"] for event, _ in frames].count("job") == 1
    assert frames[-1][0] == {"event": "end", "job": DONE}


def test_a_stream_that_ends_in_order_is_a_controller_that_stops(home):
    streams = iter([[frame("alive")], [frame("end", job=DONE)]])

    async def main():
        told = []
        async with serving(home, lambda asked: chunked(next(streams)), revive=told.append) as (
            client,
            _,
        ):
            frames = [event["event"] async for event, _ in client.follow("17")]
        return frames, told

    assert asyncio.run(main()) == (["alive", "end"], [False])


def test_it_starts_one_as_the_other_client_does(fake_serve):
    async def main():
        async with await AsyncClient.connect() as client:
            pid = (await client.version())["pid"]
            frames = [data async for _, data in client.follow("17", stdout=2)]
        return pid, frames

    pid, frames = asyncio.run(main())
    assert started(fake_serve) == [pid]
    assert b"".join(frames) == b"cdef"


def test_it_goes_on_from_a_client_that_blocks(fake_serve):
    async def main():
        blocking = connect()
        async with AsyncClient.of(blocking) as client:
            return blocking.version() == await client.version()

    assert asyncio.run(main())
