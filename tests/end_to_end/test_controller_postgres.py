"""A controller whose state is in a real PostgreSQL: killed, adopted, and with its database away.

Rows 16, 19, 20, 87 and 95 of docs/reliability.md, with real processes on both sides.
"""

import contextlib
import http.client
import json
import signal
import socket

import psutil
import pytest
from sqlalchemy import select

from grid_machine import Machine
from gridhand import Grid
from gridhand.store.reader import reading
from gridhand.store.sql import schema
from postgres_server import sql
from until import until

SMALL = ("-c", "0.01")


class Served(Machine):
    """A machine whose controller is started by hand, on a store of its own."""

    def __init__(self, home, url):
        super().__init__(home)
        self.home.mkdir(mode=0o700)
        self.url = url

    def serve(self, *words):
        """Start a controller, and wait until it answers."""
        started = self.start("serve", "--store", self.url, *words)
        until(lambda: self.answers() or started.poll() is not None)
        assert started.poll() is None, started.communicate()[1]
        return started

    def answers(self):
        return self.ask("/api/v1/version")[0] == 200

    def ask(self, path, method="GET", body=None):
        """The status, the headers and the body of one call, without the patience of a client."""
        connection = http.client.HTTPConnection("localhost", timeout=30)
        with contextlib.closing(connection):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(30)
            try:
                connection.sock.connect(str(self.home / "socket"))
            except OSError:
                return 0, {}, b""
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, body and json.dumps(body), headers)
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()

    def check(self):
        report = self.json("check", "--store", self.url)
        assert report["clean"], report["violations"]
        return report

    def events(self):
        with reading(self.url) as (_, connection):
            rows = connection.execute(select(schema.events).order_by(schema.events.c.number))
            return [dict(row) for row in rows.mappings()]


@contextlib.contextmanager
def served(home, url):
    """A machine that is served, and in order at its end."""
    machine = Served(home, url)
    try:
        machine.serve()
        yield machine
        machine.check()
        machine.check_each_ended_once()
        assert machine.status()["allocated"] == {}
    finally:
        machine.close()


@pytest.fixture
def machine(tmp_path, database):
    with served(tmp_path / "home", database) as machine:
        yield machine


@pytest.fixture
def mortal(tmp_path, private):
    """A machine on a database server that the test may kill, and that server."""
    with served(tmp_path / "home", private.new_database()) as machine:
        yield machine, private


class Jobs:
    """Running jobs that each wrote a line when they began, and end with a code of their own."""

    def __init__(self, machine, folder, count):
        self.machine, self.count = machine, count
        folder.mkdir(exist_ok=True)
        self._runs, self._gate = folder / "runs", folder / "gate"
        wait = f"until [ -e {self._gate} ]; do sleep 0.05; done"
        scripts = [f"echo {n} >> {self._runs}; {wait}; exit {n}" for n in range(count)]
        self.ids = [machine.detach(*SMALL, "--", "sh", "-c", script) for script in scripts]
        until(lambda: all(machine.jobs()[id]["phase"] == "running" for id in self.ids))

    def end(self):
        """Let all of them end, and wait until they have, whoever may know of it."""
        self._gate.touch()
        gate = str(self._gate)
        until(lambda: not [one for one in psutil.process_iter(["cmdline"])
                           if any(gate in word for word in one.info["cmdline"] or ())])  # fmt: skip

    def check(self):
        """Each has its exit code, was tried once, and ran once."""
        jobs = self.machine.wait(*self.ids)
        assert [jobs[id]["exit_code"] for id in self.ids] == list(range(self.count))
        assert {len(job["attempts"]) for job in jobs.values()} == {1}
        assert sorted(map(int, self._runs.read_text().split())) == list(range(self.count))


def test_jobs_run_and_their_store_is_the_one_that_was_named(machine):
    done = machine.run(*SMALL, "--", "sh", "-c", "echo out; exit 7")
    assert (done.stdout, done.returncode) == ("out\n", 7)
    assert machine.status()["controller"]["store"].startswith("postgresql")
    assert not (machine.home / "grid.db").exists()
    report = machine.json("check")  # asks the controller where its store is
    assert report["clean"]
    assert report["jobs"]["ended"] == 1


def test_a_killed_controller_is_followed_by_one_that_adopts(machine, tmp_path):
    gone, going = Jobs(machine, tmp_path / "gone", 10), Jobs(machine, tmp_path / "going", 10)
    machine.kill(machine.controller)
    gone.end()  # while nobody looks
    machine.serve()
    assert [machine.job(id)["phase"] for id in going.ids] == ["running"] * 10
    going.end()
    gone.check()
    going.check()


def test_a_client_outlives_its_controller_here_too(machine):
    client = machine.start("run", *SMALL, "--", "sh", "-c", "echo one; sleep 4; echo two; exit 9")
    assert client.stdout.readline() == "one\n"
    machine.kill(machine.controller)
    machine.serve()
    out, err = client.communicate(timeout=60)
    assert (out, client.returncode) == ("two\n", 9), err


def kill_server(server):
    server.kill()


def stop_server(server):
    server.stop(signal.SIGINT)


@pytest.mark.parametrize("fault", [kill_server, stop_server])
def test_jobs_go_on_without_the_database_and_their_ends_are_written_afterwards(
    mortal, tmp_path, fault
):
    """Rows 19 and 20: nothing is granted meanwhile, and each end is written once."""
    machine, server = mortal
    jobs = Jobs(machine, tmp_path, 10)
    fault(server)
    body = {"command": ["true"], "folder": "/", "request": {"cpu": 0.01}, "detached": True}
    status, headers, answer = machine.ask("/api/v1/jobs", "POST", body)
    assert status == 503, answer
    assert int(headers.get("Retry-After") or headers.get("retry-after")) > 0
    refused = json.loads(answer)
    assert refused["code"].startswith("store")
    assert refused["hint"]
    jobs.end()  # and nobody can write it down
    server.start()
    jobs.check()
    assert machine.run(*SMALL, "--", "echo", "on").stdout == "on\n"


def test_a_database_that_restarts_again_and_again_loses_no_job(mortal, tmp_path):
    """Row 20: whatever was in the middle of its commit is there once, or was not answered."""
    machine, server = mortal
    runs = tmp_path / "runs"
    runs.touch()
    clients = []
    for round in range(4):
        until(lambda: machine.run(*SMALL, "-q", "--", "true").returncode == 0)
        marks = [10 * round + number for number in range(1, 7)]
        for mark in marks:
            script = f"echo {mark} >> {runs}; exit {mark}"
            words = ("run", *SMALL, "-q", "--", "sh", "-c", script)
            clients.append((mark, machine.start(*words)))
        until(lambda mine=set(marks): mine & _marks(runs))  # the others are on their way
        server.kill()
        server.start()
    ended = {}
    for mark, client in clients:
        _, err = client.communicate(timeout=100)
        ended[mark] = client.returncode, err
    ran = [int(line) for line in runs.read_text().split()]
    for mark, (code, err) in ended.items():
        assert code in (mark, 125), err
        assert ran.count(mark) == (code == mark), err  # who is told no is not served all the same
    assert {mark // 10 for mark, (code, _) in ended.items() if code == mark} == set(range(4))
    until(lambda: not machine.json("jobs", "--state", "open"))


def _marks(runs):
    return {int(line) for line in runs.read_text().split()}


def test_a_controller_that_is_killed_while_its_database_is_away(mortal, tmp_path):
    machine, server = mortal
    jobs = Jobs(machine, tmp_path, 5)
    controller = machine.controller
    server.kill()
    machine.kill(controller)
    jobs.end()
    refused = machine.start("serve", "--store", machine.url)
    _, err = refused.communicate(timeout=60)
    assert refused.returncode == 125, err
    assert "hint:" in err
    server.start()
    machine.serve()
    jobs.check()


def test_a_second_controller_on_the_same_store_is_refused(machine, tmp_path):
    """Row 16: it says who has it, and the first goes on as if nothing had been."""
    id = machine.detach(*SMALL, "--", "sh", "-c", "sleep 3; exit 5")
    pid = machine.status()["controller"]["pid"]
    other = Served(tmp_path / "other", machine.url)
    try:
        second = other.start("serve", "--store", machine.url)
        _, err = second.communicate(timeout=60)
        assert second.returncode == 125
        assert "is owned by" in err
        assert str(pid) in err
    finally:
        other.close()
    assert machine.wait(id)[id]["exit_code"] == 5
    assert machine.status()["controller"]["pid"] == pid


def test_one_that_stood_still_too_long_and_was_replaced_ends_itself(machine, tmp_path):
    """Row 17, from outside: its session is ended by the database, and another takes the store."""
    old = machine.controller
    id = machine.detach(*SMALL, "--", "sh", "-c", "sleep 6; exit 8")
    until(lambda: machine.job(id)["phase"] == "running")
    old.send_signal(signal.SIGSTOP)
    holders = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
    sql(machine.url, f"SELECT pg_terminate_backend(pid) FROM ({holders}) AS found")
    with contextlib.closing(Served(tmp_path / "other", machine.url)) as other:
        other.serve()
        old.send_signal(signal.SIGCONT)
        until(lambda: not old.is_running() or old.status() == psutil.STATUS_ZOMBIE)
        other.grid("stop", "--keep-jobs", check=0)
    machine.serve()
    assert machine.wait(id)[id]["exit_code"] == 8
    assert machine.run(*SMALL, "--", "echo", "on").stdout == "on\n"


def test_serving_in_the_foreground_ends_in_order_when_told_to(machine):
    """SIGTERM: its jobs go on, and the next one has them."""
    id = machine.detach(*SMALL, "--", "sh", "-c", "sleep 3; exit 4")
    until(lambda: machine.job(id)["phase"] == "running")
    (serving,) = [one for one in machine._clients if one.poll() is None]
    serving.send_signal(signal.SIGTERM)
    assert serving.wait(30) == 0
    machine.serve()
    assert machine.wait(id)[id]["exit_code"] == 4


# ---- row 87: the home remembers its store


def test_any_command_starts_the_next_controller_on_the_store_of_the_home(machine, tmp_path):
    """Row 87: with what is held and what runs; and nobody sees the password."""
    machine.kill(machine.controller)
    machine.url = machine.url.replace("postgres@", "postgres:top-secret@")
    epoch = machine.check()["epoch"]
    machine.serve()
    jobs = Jobs(machine, tmp_path, 2)
    machine.grid("reserve", "-c", "0.5", "kept", check=0)
    machine.kill(machine.controller)
    shown = machine.grid("status", check=0)
    facts = machine.status()
    assert facts["controller"]["store"].startswith("postgresql://postgres:***@")
    assert facts["allocated"]["cpu"] == pytest.approx(0.52)
    assert machine.check()["epoch"] == epoch + 2
    assert not (machine.home / "grid.db").exists()
    config = machine.json("config")["store"]
    assert config["from"] == str(machine.home / "store.json")
    log = (machine.home / "controller.log").read_text()
    words = " ".join(machine.controller.cmdline())
    assert "top-secret" not in f"{shown}{facts}{config}{log}{words}"
    machine.grid("release", "kept", check=0)
    jobs.end()
    jobs.check()


def test_a_home_whose_store_is_away_has_no_other(mortal, tmp_path):
    machine, server = mortal
    jobs = Jobs(machine, tmp_path, 2)
    controller = machine.controller
    server.stop()
    machine.kill(controller)
    for _ in range(2):
        refused = machine.grid("status")
        assert refused.returncode == 125
        assert "The state is in postgresql://" in refused.stderr
    assert not (machine.home / "grid.db").exists()
    server.start()
    machine.grid("status", check=0)
    jobs.end()
    jobs.check()


def test_a_home_is_served_from_another_store_only_after_its_state_has_moved(machine, tmp_path):
    jobs = Jobs(machine, tmp_path, 2)
    machine.kill(machine.controller)
    before = machine.check()
    Grid.at(str(tmp_path / "other.db")).close()
    for other in (tmp_path / "other.db", machine.home / "grid.db"):
        refused = machine.grid("serve", "--store", other)
        assert refused.returncode == 125
        assert "this home belongs to the store postgresql://" in refused.stderr
    assert machine.check() == before
    machine.grid("migrate-store", machine.url, machine.home / "grid.db", check=0)
    machine.url = str(machine.home / "grid.db")
    assert machine.status()["controller"]["store"] == f"sqlite:///{machine.url}"
    jobs.end()
    jobs.check()


def test_another_machine_takes_over_and_leaves_alone_what_runs_on_the_first(tmp_path, database):
    """Row 95, with two homes for two machines: the first adopts its jobs when it is back."""
    first, second = (Served(tmp_path / name, database) for name in "ab")
    try:
        first.serve("--virtual-node", "a:cpu=1,memory=1GB")
        jobs = Jobs(first, tmp_path / "jobs", 2)
        first.kill(first.controller)
        second.serve("--virtual-node", "b:cpu=1,memory=1GB")
        health = {node["name"]: node["health"] for node in second.json("nodes")}
        assert health == {"a": "suspect", "b": "up"}
        assert second.run("-c", "1", "--", "echo", "here").stdout == "here\n"
        assert {second.state(id) for id in jobs.ids} == {"running"}
        assert second.state(second.detach(*SMALL, "--node", "a", "--", "true")) == "queued"
        assert second.grid("stop", "--keep-jobs").returncode == 0
        assert first.status()["controller"]["store"].startswith("postgresql")
        jobs.end()
        jobs.check()
        first.check()
    finally:
        first.close()
        second.close()
