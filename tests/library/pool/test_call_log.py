"""Every call is a row in the end, however it ended, and whatever became of the controller."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from concurrent.futures import CancelledError
from types import SimpleNamespace

import cloudpickle
import pytest

from gridhand import CallTimeout, Function, Graph, Request, Resources, WorkerLost
from gridhand.cli.main import COMMANDS, make_cli, run
from gridhand.client import Client
from gridhand.client.transport import Address
from gridhand.core.errors import ControllerUnavailable, InvalidInput
from gridhand.library.pool import call_reporter
from gridhand.library.pool.call_log import Notes
from gridhand.library.pool.pool import Pool

cloudpickle.register_pickle_by_value(sys.modules[__name__])

NOTHING = Request(Resources({}))


def odd(number):
    if number % 100 == 7:
        raise ValueError(f"{number} is\nodd")
    return number


def nap(seconds, value=None):
    time.sleep(seconds)
    return value


def die():
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(10)


@pytest.fixture
def client(home):
    with Client(Address(home.socket)) as client:
        yield client


@pytest.fixture
def rows(client, pool, tools):
    """The calls of this pool that are known, once all that is known of them is so."""

    def look(count=None, run=None):
        def known():
            found = client.calls(run=run or pool._report.run, limit=10_000)
            return found if count is None or len(found) >= count else None

        return {one["number"]: one for one in tools.until(known)}

    return look


def settled(look, count, tools):
    """The rows, when all of them have ended."""
    done = lambda: (found := look(count)) and all(one["ended_at"] for one in found.values())  # noqa: E731
    tools.until(done)
    return look(count)


# ---- how calls end


def test_of_a_thousand_calls_there_are_a_thousand_rows(pool, grid, rows, tools):
    futures = [pool.submit(tools.call(odd, n)) for n in range(1000)]
    failed = {n for n, future in enumerate(futures) if future.exception(60)}
    found = settled(rows, 1000, tools)
    assert sorted(found) == list(range(1, 1001))
    assert Counter(one["state"] for one in found.values()) == {"succeeded": 990, "failed": 10}
    jobs = {job.id for job in grid.jobs()}
    for number, one in found.items():
        wrong = number - 1 in failed
        assert one["state"] == ("failed" if wrong else "succeeded")
        assert one["error"] == (f"ValueError: {number - 1} is odd" if wrong else None)
        assert (one["name"], one["owner"]) == ("odd", grid.owner)
        assert one["node"] == grid.nodes()[0].name
        assert one["job"] in jobs
        assert one["allocation"]
        assert one["submitted_at"] <= one["started_at"] <= one["ended_at"]


def test_what_began_and_ended_between_two_reports_is_told_once(pool, rows, tools, monkeypatch):
    told = []
    real = Client.report_calls

    def counted(self, report):
        told.extend(number for one in report["calls"] for number in one["numbers"])
        return real(self, report)

    monkeypatch.setattr(Client, "report_calls", counted)
    # On a busy machine a call may be open for long enough to be told of before it has ended.
    monkeypatch.setattr("gridhand.library.pool.call_reporter._SETTLED_S", 600.0)
    for _ in range(3):
        for future in [pool.submit(tools.call(odd, 1)) for _ in range(200)]:
            future.result(60)
    settled(rows, 600, tools)
    assert sorted(told) == list(range(1, 601))


def test_what_is_open_is_told_as_it_stands_and_again_when_it_ends(pool, grid, rows, tools):
    cores = Request.of(cpu=grid.nodes()[0].total["cpu"] / 10_000)
    first = pool.submit(tools.call(nap, 600, request=cores))
    second = pool.submit(tools.call(nap, 0, request=tools.ONE))
    third = pool.submit(tools.call(nap, 0, request=cores))
    tools.until(lambda: (found := rows(3))[1]["state"] == "running" and found[2]["job"])
    one, two, three = (rows(3)[number] for number in (1, 2, 3))
    [waiting] = [job for job in grid.jobs(state="queued") if job.facts["request"]["cpu"] == 1]
    assert (one["node"], one["ended_at"]) == (grid.nodes()[0].name, None)
    assert one["job"] == grid.jobs(state="running")[0].id
    assert (two["state"], two["job"], two["started_at"]) == ("queued", waiting.id, None)
    assert (three["state"], three["node"]) == ("queued", None)
    pool.stop(first)
    assert (tools.value(second), tools.value(third)) == (None, None)
    found = settled(rows, 3, tools)
    assert [found[number]["state"] for number in (1, 2, 3)] == ["cancelled", "succeeded", "succeeded"]  # fmt: skip
    assert found[1]["started_at"] == one["started_at"]


def test_the_commands_tell_where_a_call_runs_and_what_it_waits_for(pool, grid, rows, tools, capsys):
    cores = Request.of(cpu=grid.nodes()[0].total["cpu"] / 10_000)
    pool.submit(tools.call(nap, 600, request=cores))
    pool.submit(tools.call(nap, 0, request=tools.ONE))
    tools.until(lambda: (found := rows(2))[1]["state"] == "running" and found[2]["job"])
    cli = make_cli(COMMANDS)
    name, job = pool._report.run, rows(2)[2]["job"]
    assert run(cli, ["calls", "--run", name]) == 0
    assert f"waits for job {job}" in capsys.readouterr().out
    assert run(cli, ["why", f"{name}.2"]) == 0
    said = capsys.readouterr().out
    assert (
        f"call {name}.2 waits for its slot, job {job}, to start\njob {job}: cpu=1 does not fit"
        in said
    )
    assert run(cli, ["why", f"{name}.1"]) == 0
    assert f"is running on {grid.nodes()[0].name} in job " in capsys.readouterr().out
    assert run(cli, ["show", f"{name}.1"]) == 0
    assert "State:      running" in capsys.readouterr().out


def test_cancelled_calls_are_told_whether_they_ran_or_not(pool, grid, rows, tools):
    with grid.allocate(cpu=grid.nodes()[0].total["cpu"] / 10_000):
        waiting = [pool.submit(tools.call(nap, 0, request=tools.ONE)) for _ in range(3)]
        assert waiting[1].cancel()  # not the first in line: nobody comes by it for a while
        tools.until(lambda: rows().get(2, {}).get("state") == "cancelled")
        assert (rows()[2]["started_at"], rows()[2]["error"]) == (None, None)
        assert all(one.cancel() for one in (waiting[0], waiting[2]))
    running = pool.submit(tools.call(nap, 600))
    tools.until(lambda: rows(4)[4]["state"] == "running")
    pool.stop(running)
    with pytest.raises(CancelledError):
        running.result(10)
    found = settled(rows, 4, tools)
    assert {one["state"] for one in found.values()} == {"cancelled"}
    assert found[4]["started_at"]


def test_those_that_did_not_end_by_themselves_say_what_happened(pool, rows, tools):
    late = pool.submit(tools.call(nap, 60, limit=0.2))
    lost = pool.submit(tools.call(die))
    assert isinstance(late.exception(60), CallTimeout)
    assert isinstance(lost.exception(60), WorkerLost)
    found = settled(rows, 2, tools)
    assert [found[number]["state"] for number in (1, 2)] == ["failed", "failed"]
    assert "time limit exceeded (limit 0.2 s)" in found[1]["error"]
    assert "its worker is gone" in found[2]["error"]
    assert all(found[number]["started_at"] for number in (1, 2))


def test_what_can_never_run_has_failed_as_well(pool, rows, tools):
    future = pool.submit(tools.call(nap, 0, request=Request.of(cpu=100_000)))
    assert future.exception(60)
    [one] = settled(rows, 1, tools).values()
    assert (one["state"], one["started_at"], one["node"]) == ("failed", None, None)
    assert "no room for cpu=100000" in one["error"]


def test_calls_that_hold_nothing_are_told_as_well(pool, rows, tools):
    assert tools.value(pool.submit(tools.call(nap, 0, 1, request=NOTHING))) == 1
    [one] = settled(rows, 1, tools).values()
    assert (one["state"], one["job"], one["allocation"]) == ("succeeded", None, None)


def test_a_name_or_an_error_that_cannot_be_shown_is_made_so(pool, rows, tools):
    def fail():
        raise ValueError("a\0b\ud800" + 500 * "x")

    fail.__name__ = "f\n" + 300 * "x"
    unnamed = tools.call(nap, 0)
    unnamed = type(unnamed)(unnamed.code, unnamed.request, unnamed.args, unnamed.kwargs, "")
    assert pool.submit(tools.call(fail)).exception(60)
    pool.submit(unnamed).result(60)
    found = settled(rows, 2, tools)
    assert found[1]["name"] == f"f {98 * 'x'}"
    assert found[1]["error"].startswith("ValueError: a�b�xxx")
    assert len(found[1]["error"]) <= 200
    assert found[2]["name"] == "function"


# ---- a controller that is away


def test_closing_tells_the_rest(grid, client, tools):
    pool = Pool(grid._backend, grid.owner)
    running = pool.submit(tools.call(nap, 600))
    tools.until(running.running)
    for one in [pool.submit(tools.call(odd, 1, request=NOTHING)) for _ in range(50)]:
        one.result(60)
    pool.close()
    found = client.calls(run=pool._report.run, limit=1000)
    assert Counter(one["state"] for one in found) == {"succeeded": 50, "cancelled": 1}
    assert (
        "runs" not in grid._backend.session(grid.owner)._request()
    )  # there is no more to say of it


def test_while_the_controller_is_away_calls_go_on_and_are_told_when_it_is_back(
    grid, home, client, tools
):
    pool = Pool(grid._backend, grid.owner, linger_s=60)
    tools.value(pool.submit(tools.call(nap, 0)))
    long = pool.submit(tools.call(nap, 600, request=Request.of(cpu=0.2)))
    known = lambda: client.calls(run=pool._report.run, states=["running"])  # noqa: E731
    tools.until(known)
    os.kill(client.probe()["pid"], signal.SIGKILL)
    tools.until(lambda: client.probe() is None)
    futures = [pool.submit(tools.call(odd, n)) for n in range(300)]
    assert sum(future.exception(60) is not None for future in futures) == 3
    assert client.probe() is None  # nobody has started another for this
    grid.jobs()  # which does
    tools.until(lambda: len(client.calls(run=pool._report.run, limit=1000)) == 302)
    states = Counter(one["state"] for one in client.calls(run=pool._report.run, limit=1000))
    assert states == {"succeeded": 298, "failed": 3, "running": 1}
    # Whoever comes back says so, or what runs on would be taken for one whose client is gone.
    assert pool._report.run in grid._backend.session(grid.owner)._request()["runs"]
    pool.stop(long)
    pool.close()
    assert not known()


@pytest.fixture
def away(monkeypatch):
    """A controller that takes no report, for as long as the list is empty."""
    allowed = []
    real = Client.report_calls

    def refused(self, report):
        if not allowed:
            raise ControllerUnavailable("held up")
        return real(self, report)

    monkeypatch.setattr(Client, "report_calls", refused)
    monkeypatch.setattr(call_reporter, "_LATER_S", 0.05)
    return allowed


def test_of_too_many_that_nobody_takes_the_oldest_go_and_it_is_said(
    pool, rows, tools, away, monkeypatch, caplog
):
    monkeypatch.setattr(call_reporter, "MOST_KEPT", 100)
    for future in [pool.submit(tools.call(odd, 1)) for _ in range(250)]:
        future.result(60)
    tools.until(lambda: pool._report._dropped == 150)
    with caplog.at_level(logging.WARNING):
        away.append("back")
        found = settled(rows, 100, tools)
        tools.until(lambda: "150 calls" in caplog.text)
    assert len(found) == 100


def test_notes_that_nobody_took_for_long_are_counted():
    """A reporter that is held up reads none, and they must not fill the memory meanwhile."""
    report = object.__new__(call_reporter.CallReport)
    report.notes, report._kept = Notes(lambda: None), deque()
    report.notes.ended = deque(maxlen=10)
    report._taken = report._dropped = 0

    def end(count):
        for number in range(count):
            call = SimpleNamespace(
                number=number, name="f", worker=None, submitted=1.0, started=None, ended=None,
                future=SimpleNamespace(_state="FINISHED", _exception=None),
            )  # fmt: skip
            report.notes.end(call)
        report._collect()
        return report._dropped, len(report._kept)

    assert end(25) == (15, 10)
    assert end(10) == (15, 20)
    assert end(3) == (15, 23)


def test_a_report_that_is_refused_for_good_is_not_repeated(pool, tools, monkeypatch, caplog):
    told = []

    def refused(self, report):
        told.append(report)
        raise InvalidInput("calls", "these", "others")

    monkeypatch.setattr(Client, "report_calls", refused)
    with caplog.at_level(logging.WARNING):
        tools.value(pool.submit(tools.call(odd, 1)))
        tools.until(lambda: "1 calls cannot be reported" in caplog.text)
    tools.value(pool.submit(tools.call(odd, 1)))

    def said():
        return [
            (number, one["state"])
            for report in told
            for one in report["calls"]
            for number in one["numbers"]
        ]

    tools.until(lambda: (2, "succeeded") in said())
    assert len(said()) == len(
        set(said())
    )  # a slow one is told of when it runs and when it has ended


def test_closing_does_not_wait_for_a_controller_that_hangs(grid, tools, away):
    pool = Pool(grid._backend, grid.owner)
    tools.value(pool.submit(tools.call(odd, 1, request=NOTHING)))
    begin = time.monotonic()
    pool._report.close()
    assert (
        time.monotonic() - begin < call_reporter._CLOSING_S + 20
    )  # and not as long as one waits for an answer
    pool.close()


def test_a_pool_that_has_nothing_to_do_does_not_look_around(pool, rows, tools):
    tools.value(pool.submit(tools.call(odd, 1)))
    settled(rows, 1, tools)
    tools.until(lambda: pool._report.notes.asleep)
    tools.value(pool.submit(tools.call(odd, 1)))
    settled(rows, 2, tools)


# ---- a client that is gone

KILLED = """
import time
from gridhand import Grid, Request
from gridhand.library.functions.function_runner import FunctionCall
from gridhand.library.pool.pool import Pool

def nap(seconds):
    time.sleep(seconds)

grid = Grid()
pool = Pool(grid._backend, grid.owner)
one = Request.of(cpu=1)
pool.submit(FunctionCall(nap, one, (0,), name="nap")).result(60)
futures = [pool.submit(FunctionCall(nap, one, (600,), name="nap")) for _ in range(20)]
pool.submit(FunctionCall(nap, Request.of(cpu=0.5), (0,), name="nap"))
print(pool._report.run, flush=True)
time.sleep(600)
"""


def is_all_open(states):
    return states["running"] and states["running"] + states["queued"] >= 20


def test_the_open_calls_of_a_program_that_was_killed_are_lost(grid, rows, tools, client):
    program = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    try:
        name = program.stdout.readline().strip()
        states = lambda: Counter(one["state"] for one in client.calls(run=name, limit=100))  # noqa: E731
        # All of the twenty: they are told of a little later than they are submitted.
        tools.until(lambda: is_all_open(states()))
    finally:
        program.kill()
        program.wait(10)
        program.stdout.close()
    tools.until(lambda: not states()["running"] and not states()["queued"])
    assert states()["lost"] >= 20
    found = client.calls(run=name, limit=100)
    assert {one["error"] for one in found if one["state"] == "lost"} == {"its client is gone"}
    assert found[-1]["state"] == "succeeded"
    tools.until(lambda: not grid.allocations())


# ---- streams


def test_the_stages_of_a_stream_are_calls_for_as_long_as_it_lasts(grid, client, tools):
    twice = Function("twice", lambda x: 2 * x, args=["x"], cost={"cpu": 0.1})
    with grid.stream(Graph().add(Function("x", type="input"), twice)) as stream:
        assert list(stream.map([21])) == [42]
        name = grid._caller._report.run
        running = lambda: client.calls(run=name, states=["running"])  # noqa: E731
        [stage] = tools.until(running)
        assert (stage["name"], stage["node"]) == ("twice", grid.nodes()[0].name)
    tools.until(lambda: not running())
