"""Workers in network namespaces of their own, whose cables are cut and put back."""

import contextlib
import os
import signal
import subprocess

import psutil
import pytest

from grid_machine import GRID, Machine
from private_network import CONTROLLER, PrivateNetwork
from until import until

PLENTY_S = 100  # for what takes 28 s


class Cluster(Machine):
    """A controller that runs no jobs itself, and workers that join it over the network."""

    def __init__(self, folder, network):
        super().__init__(folder / "h")
        self._folder, self._network = folder, network
        self.workers = {}

    def _started(self, space, *words, **more):
        started = subprocess.Popen(
            self._network.inside(space, *GRID, *words), env=self.env, cwd=self._folder,
            stdin=subprocess.DEVNULL, text=True, **more,
        )  # fmt: skip
        self._clients.append(started)
        return started

    def serve(self, port=0):
        words = ("serve", "--host", CONTROLLER, "--port", port, "--insecure")
        virtual = ("--virtual-node", "c:disk=1GB")
        serving = self._started("c", *words, *virtual, stdout=subprocess.PIPE)
        line = serving.stdout.readline()
        assert line.startswith("listening at "), line
        self._first, self.url = False, line.split()[-1]

    def hire(self, name):
        token = self._folder / f"{name}.token"
        if not token.exists():
            self.grid("token", "create", "--scope", f"agent:{name}", "-o", token, check=0)
        options = ("--name", name, "--offer", "cpu=1", "--folder", self.home / f"worker-{name}")
        words = ("worker", "--address", self.url, "--token-file", token, *options)
        with open(self._folder / f"{name}.log", "a") as log:
            self.workers[name] = self._started(name, *words, stderr=log)
        until(lambda: self.health(name) == "up")

    def said(self, name):
        return (self._folder / f"{name}.log").read_text()

    def health(self, name):
        nodes = self.asked(lambda client: client.status(), "status")["nodes"]
        return next((node["health"] for node in nodes if node["name"] == name), None)

    def daemons(self, name):
        """The processes of a worker that are not its jobs."""
        folder = f"{self.home}/worker-{name}"
        found = [one for one in self.processes() if folder in " ".join(one.info["cmdline"])]
        return [one for one in found if "gridhand.agent.starter" not in one.info["cmdline"]]

    def kinds(self, id):
        return [event["kind"] for event in self.events() if event["subject"] == id]

    def close(self):
        for one in self.processes():  # what a test has stopped
            with contextlib.suppress(psutil.Error):
                one.send_signal(signal.SIGCONT)
        super().close()


@pytest.fixture
def cluster(tmp_path):
    with PrivateNetwork() as network:
        cluster = Cluster(tmp_path, network)
        try:
            cluster.serve()
            for name in ("a", "b"):
                cluster.hire(name)
            yield cluster
            cluster.check()
        finally:
            cluster.close()


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path / "diary")


class Diary:
    """A file in which jobs say all the time which attempt runs where: all see the same disk."""

    def __init__(self, path):
        self.path = path
        line = "$GRIDHAND_NODE $GRIDHAND_JOB_ID $GRIDHAND_ATTEMPT"
        self.command = ("sh", "-c", f'while :; do echo {line} >> "{path}"; sleep 0.1; done')

    def lines(self):
        text = self.path.read_text() if self.path.exists() else ""
        return [tuple(line.split()) for line in text.splitlines()]

    def has(self, *entry):
        return tuple(map(str, entry)) in self.lines()

    def in_order(self, first, second):
        """Return whether one had written its last line before the other wrote its first."""
        lines = self.lines()
        last = max(place for place, line in enumerate(lines) if line == tuple(map(str, first)))
        return last < lines.index(tuple(map(str, second)))


def test_jobs_on_both_workers_have_output_and_exit_codes(cluster, tmp_path):
    ran = {name: cluster.run("-q", "--node", name, "--", "sh", "-c", "echo on $GRIDHAND_NODE; pwd; exit 7") for name in "ab"}  # fmt: skip
    for name, done in ran.items():
        first, folder = done.stdout.splitlines()
        assert (done.returncode, first, done.stderr) == (7, f"on {name}", "")
        assert folder.startswith(f"{cluster.home}/worker-{name}/jobs/")
    (tmp_path / "in").write_text("some input\n")
    words = ("-q", "--node", "a", "-i", tmp_path / "in", "-o", tmp_path / "out", "--", "cat")
    assert cluster.run(*words, cwd=tmp_path).returncode == 0
    assert (tmp_path / "out").read_text() == "some input\n"
    big = cluster.run("-q", "--node", "b", "--", "sh", "-c", "seq 1 200000; echo end >&2")
    assert big.stdout.splitlines() == [str(number) for number in range(1, 200_001)]
    assert big.stderr == "end\n"


def test_files_go_to_the_worker_and_come_back(cluster, tmp_path):
    token, work = tmp_path / "ann.token", tmp_path / "work"
    cluster.grid("token", "create", "--scope", "submit", "--owner", "ann", "-o", token, check=0)
    (work / "in").mkdir(parents=True)
    (work / "in/data").write_text("six times seven\n")
    (work / "go.sh").write_text("#!/bin/sh\ncat in/data; mkdir out; echo 42 > out/a; : > out/b\n")
    (work / "go.sh").chmod(0o755)
    env = {**cluster.env, "GRIDHAND_ADDRESS": cluster.url, "GRIDHAND_TOKEN_FILE": str(token)}
    sent = ("--send", "in", "--send", "go.sh", "--fetch", "out")
    words = (*GRID, "run", "-q", "--node", "a", *sent, "--", "./go.sh")
    command = cluster._network.inside("b", *words)
    done = subprocess.run(command, env=env, cwd=work, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "six times seven\n", "")
    assert (work / "out/a").read_text() == "42\n"
    assert (work / "out/b").read_text() == ""
    assert not (work / "out/in").exists()


def test_ctrl_c_reaches_a_job_and_cancelling_ends_it(cluster):
    trap = "trap 'echo stopped; exit 3' INT; echo ready; while :; do sleep 0.05; done"
    started = cluster.start("run", "-q", "--node", "a", "--", "sh", "-c", trap)
    assert started.stdout.readline() == "ready\n"
    started.send_signal(signal.SIGINT)
    assert started.communicate(timeout=60)[0] == "stopped\n"
    assert started.returncode == 3
    id = cluster.detach("--node", "b", "--", "sleep", "1000")
    until(lambda: cluster.job(id)["started_at"])
    cluster.grid("cancel", id, check=0)
    assert cluster.wait(id)[id]["state"] == "cancelled"


def test_a_short_cut_makes_a_node_suspect_and_loses_nothing(cluster, diary):
    id = cluster.detach("--node", "a", "--", *diary.command)
    until(lambda: diary.has("a", id, 1))
    cluster._network.cut("a")
    until(lambda: cluster.health("a") == "suspect")
    cluster._network.heal("a")
    until(lambda: cluster.health("a") == "up")
    assert cluster.state(id) == "running"
    assert set(diary.lines()) == {("a", id, "1")}
    until(lambda: "in contact with the controller again" in cluster.said("a"))
    cluster.grid("cancel", id, check=0)
    assert cluster.wait(id)[id]["state"] == "cancelled"


def test_a_worker_that_was_killed_goes_on_with_its_jobs(cluster, diary):
    id = cluster.detach("--node", "a", "--", *diary.command)
    until(lambda: diary.has("a", id, 1))
    cluster.workers["a"].kill()
    cluster.workers["a"].wait()
    cluster.hire("a")
    cluster.grid("cancel", id, check=0)
    assert cluster.wait(id)[id]["state"] == "cancelled"
    assert len(cluster.job(id)["attempts"]) == 1


def test_a_controller_that_was_killed_finds_the_jobs_of_workers(cluster, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    id = cluster.detach("--node", "b", "--", "sh", "-c", f"echo before; read code < {gate}; echo after; exit $code")  # fmt: skip
    until(lambda: cluster.job(id)["started_at"])
    port = cluster.url.rpartition(":")[2]
    cluster.kill(cluster.controller)
    cluster.serve(port)
    gate.write_text("5\n")
    job = cluster.wait(id)[id]
    assert (job["state"], job["exit_code"]) == ("failed", 5)
    assert cluster.grid("logs", id, check=0).stdout == "before\nafter\n"


def test_a_worker_that_is_told_to_end_stops_its_jobs_and_they_run_elsewhere(cluster, diary):
    id = cluster.detach("--anywhere", "--", *diary.command)
    first = until(lambda: next(iter(diary.lines()), None))[0]
    second = {"a": "b", "b": "a"}[first]
    cluster.workers[first].send_signal(signal.SIGTERM)
    assert cluster.workers[first].wait(60) == 0
    assert cluster.health(first) == "down"
    until(lambda: diary.has(second, id, 2))
    assert diary.in_order((first, id, 1), (second, id, 2))
    assert cluster.kinds(id).count("job.requeued") == 1
    until(lambda: not cluster.daemons(first))
    cluster.grid("cancel", id, check=0)
    cluster.wait(id)


@pytest.mark.soak
def test_a_worker_that_is_cut_off_stops_its_job_before_that_runs_elsewhere(cluster, diary):
    """Silence takes its time: 10 s, 15 s and 28 s, as `core.liveness.budget` has it."""
    id = cluster.detach("--anywhere", "--", *diary.command)
    first = until(lambda: next(iter(diary.lines()), None))[0]
    second = {"a": "b", "b": "a"}[first]
    cluster._network.cut(first)
    until(lambda: cluster.health(first) == "suspect")
    assert cluster.job(id)["node"] == first
    until(lambda: cluster.health(first) == "down", PLENTY_S)
    until(lambda: diary.has(second, id, 2))
    assert diary.in_order((first, id, 1), (second, id, 2))
    cluster._network.heal(first)
    until(lambda: cluster.health(first) == "up", PLENTY_S)
    other = cluster.run("-q", "--node", first, "--", "true")
    assert other.returncode == 0
    assert cluster.kinds(id).count("job.requeued") == 1
    cluster.grid("cancel", id, check=0)
    assert cluster.wait(id)[id]["state"] == "cancelled"
    assert len(cluster.job(id)["attempts"]) == 2


@pytest.mark.soak
def test_a_worker_that_stood_still_stops_what_it_runs_before_it_starts_anything(cluster, diary):
    """Nobody can stop the jobs of a machine whose agent stands still: they are ended on return."""
    id = cluster.detach("--node", "a", "--", *diary.command)
    until(lambda: diary.has("a", id, 1))
    still = cluster.daemons("a")
    assert len(still) == 2  # the worker and its agent
    for one in still:
        one.send_signal(signal.SIGSTOP)
    until(lambda: cluster.health("a") == "down", PLENTY_S)
    count = len(diary.lines())
    until(lambda: len(diary.lines()) > count)  # it still runs
    assert cluster.state(id) == "queued"
    for one in still:
        one.send_signal(signal.SIGCONT)
    until(lambda: diary.has("a", id, 2), PLENTY_S)
    assert diary.in_order(("a", id, 1), ("a", id, 2))
    assert cluster.kinds(id).count("job.requeued") == 1
    cluster.grid("cancel", id, check=0)
    assert cluster.wait(id)[id]["state"] == "cancelled"
