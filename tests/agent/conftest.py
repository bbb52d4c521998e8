"""Starters and agents in folders of their own, and gates by which tests and jobs wait."""

import contextlib
import itertools
import json
import os
import select
import signal
import sys

import pytest

from gridhand.agent.link_errors import LinkRefused
from gridhand.agent.starter import connection
from gridhand.posix import procfs
from gridhand.posix.cgroups import own_groups
from gridhand.posix.daemon import launch
from starter_client import StarterClient, order

PATIENCE_S = 30.0


class Gate:
    """A pipe with a name. Opened for both, so that neither side waits to open it."""

    def __init__(self, path):
        self.path = str(path)
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def hear(self):
        """The next line that a job writes into it."""
        text = b""
        while not text.endswith(b"\n"):
            assert select.select([self._fd], [], [], PATIENCE_S)[0], "nothing was heard"
            text += os.read(self._fd, 1)
        return text.decode().strip()

    def open(self):
        """Let a job go on that reads a line of it."""
        os.write(self._fd, b"go\n")

    def close(self):
        os.close(self._fd)


class Place:
    """A folder for a starter and what its jobs write."""

    def __init__(self, path):
        self.path = path
        self.folder = str(path / "starter")
        self._numbers = itertools.count()
        self._clients = []
        self._gates = []
        self.starters = set()
        self.mark = ""

    def connect(self, **options):
        client = StarterClient.ensure(self.folder, **{"grace_s": 60.0, **options})
        self._clients.append(client)
        self.mark = client.greeting["mark"]
        self.starters.add((client.greeting["pid"], client.greeting["start"]))
        return client

    def gate(self):
        gate = Gate(self.path / f"gate{next(self._numbers)}")
        self._gates.append(gate)
        return gate

    def order(self, job, *argv, **options):
        marks = {"GRIDHAND_JOB_ID": job, "GRIDHAND_STARTER": self.mark}
        env = {"PATH": os.defpath, **marks, **options.pop("env", {})}
        defaults = {
            "cwd": str(self.path),
            "env": env,
            "stdout": str(self.path / f"{job}.out"),
            "stderr": str(self.path / f"{job}.err"),
        }
        return order(job, options.pop("attempt", 0), argv, **(defaults | options))

    def held(self, job, then="exit 0", **options):
        """An order that says its pid into one gate and waits at another, and both gates."""
        said, held = self.gate(), self.gate()
        script = 'echo $$ > "$1"; read x < "$2"; ' + then
        return self.order(job, "/bin/sh", "-c", script, "-", said.path, held.path, **options), said, held  # fmt: skip

    def output(self, job, kind="out"):
        return (self.path / f"{job}.{kind}").read_bytes()

    def journal(self):
        with open(os.path.join(self.folder, "journal")) as file:
            return [json.loads(text) for text in file]

    def write_journal(self, *records, tail=""):
        os.makedirs(self.folder, mode=0o700)
        with open(os.path.join(self.folder, "journal"), "w") as file:
            file.write("".join(json.dumps(record) + "\n" for record in records) + tail)

    def kill(self, client):
        """End the starter in the middle of whatever it does."""
        pid = client.greeting["pid"]
        with watched(pid) as gone:
            os.kill(pid, signal.SIGKILL)
            gone()

    def clean(self):
        for client in self._clients:
            client.close()
        with StarterClient.ensure(self.folder, epoch=2**56) as last:
            self.starters.add((last.greeting["pid"], last.greeting["start"]))
            known = last.list()
            for one in known["running"] + known["ended"]:
                assert last.stop_all(one["job"], one["attempt"])["left"] == []
            with watched(last.greeting["pid"]) as gone:
                last.quit()
                gone()
        while self._gates:
            self._gates.pop().close()
        assert not any(procfs.is_alive(pid, start) for pid, start in self.starters)
        log = self.path / "starter" / "log"
        assert not log.exists() or log.read_text() == ""


@contextlib.contextmanager
def watched(pid):
    """Gives a function that waits until this process has ended."""
    handle = os.pidfd_open(pid)

    def gone():
        assert select.select([handle], [], [], PATIENCE_S)[0], f"{pid} does not end"

    try:
        yield gone
    finally:
        os.close(handle)


def ends(client, count=1):
    """The next attempts that are told to have ended, by the names of their jobs."""
    found = list(itertools.islice(client.ended(PATIENCE_S), count))
    assert len(found) == count
    return {one["job"]: one["end"] for one in found}


def gone(pid):
    """Wait until a process has ended that is not a child of ours."""
    with contextlib.suppress(ProcessLookupError), watched(pid) as wait:
        wait()


@pytest.fixture
def tools():
    class Tools:
        """What tests need besides a place, without importing a module of tests."""

    Tools.ends, Tools.gone, Tools.watched = staticmethod(ends), staticmethod(gone), watched
    Tools.PATIENCE_S = PATIENCE_S
    return Tools


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    try:
        yield made
    finally:
        made.clean()


@pytest.fixture
def starter(place):
    client = place.connect()
    client.watch()
    return client


@pytest.fixture
def run(place, starter):
    """Run one command to its end, and tell how it ended."""

    def run(job, *argv, **options):
        starter.start([place.order(job, *argv, **options)])
        return ends(starter)[job]

    return run


@pytest.fixture
def refused():
    """The word with which the starter refuses a call."""

    def refused(call, *args, **options):
        with pytest.raises(LinkRefused) as caught:
            call(*args, **options)
        return caught.value.because

    return refused


class Agents:
    """A connection to an agent, for tests that have no event loop."""

    def __init__(self, folder, epoch=1):
        self._socket = connection.connect(folder, PATIENCE_S)
        self._inbox = self._socket.makefile("rb")
        self._number = 0
        self.events = []
        self.greeting = self.ask("hello", epoch=epoch, version="test")

    def ask(self, do, **fields):
        """The answer, or what it says instead, as a pair of words."""
        self._number += 1
        self.send(json.dumps({"do": do, "id": self._number, **fields}).encode() + b"\n")
        while "event" in (reply := self.read()):
            self.events.append(reply)
        return (reply["error"], reply["message"]) if "error" in reply else reply

    def send(self, line):
        self._socket.sendall(line)

    def read(self):
        line = self._inbox.readline()
        if not line:
            raise EOFError("the agent has closed the connection")
        return json.loads(line)

    def start(self, *orders):
        return self.ask("start", jobs=list(orders))["attempts"]

    def event(self, kind, fits=lambda event: True):
        """The next event of a kind that fits; others are passed over."""
        while True:
            event = self.events.pop(0) if self.events else self.read()
            if event.get("event") == kind and fits(event):
                return event

    def ends(self, count=1):
        """The next attempts to end, by the names of their jobs."""
        found = {}
        while len(found) < count:
            found |= {one["job"]: one["end"] for one in self.event("ended")["attempts"]}
        return found

    def end(self, job):
        event = self.event("ended", lambda told: any(one["job"] == job for one in told["attempts"]))
        return next(one["end"] for one in event["attempts"] if one["job"] == job)

    def close(self):
        self._inbox.close()
        self._socket.close()


class Standing:
    """Folders for an agent and its starter, and what their jobs write."""

    def __init__(self, path):
        self.path = path
        self.folder, self.starter = str(path / "agent"), str(path / "starter")
        self.place = Place(path)
        self.gate = self.place.gate
        self.env = {}
        self.options = []
        self._clients = []

    def launch(self, *options):
        """Start an agent, and wait until it answers."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        command = ["gridhand.agent.main", self.folder, "--starter", self.starter, *options]
        with pytest.MonkeyPatch.context() as patch:
            for name, text in self.env.items():
                patch.setenv(name, text)
            launch([*command, *self.options], self.folder)

    def connect(self, epoch=1, watch=True):
        if not os.path.exists(os.path.join(self.folder, "socket")):
            self.launch()
        client = Agents(self.folder, epoch)
        self._clients.append(client)
        if watch:
            client.ask("watch")
        return client

    def order(self, job, *argv, **options):
        defaults = {
            "attempt": 1,
            "fence": f"a-{job}-{options.get('attempt', 1)}",
            "node": "here",
            "cwd": str(self.path),
            "env": {"PATH": os.defpath},
            "cores": 10_000,
            "pin": True,
            "memory_bytes": None,
            "processes": 1000,
            "devices": [],
            "gpu_memory": {},
            "time_limit_ms": None,
            "grace_ms": 10_000,
            "stdout": str(self.path / f"{job}.out"),
            "stderr": str(self.path / f"{job}.err"),
            "stdin": None,
            "log_bytes": 10 << 20,
        }
        return {"job": job, "argv": list(argv), **defaults, **options}

    def python(self, job, code, **options):
        return self.order(job, sys.executable, "-S", "-E", "-c", code, **options)

    def held(self, job, **options):
        """An order that says its pid into one gate and waits at another, and both gates."""
        said, held = self.gate(), self.gate()
        script = 'echo $$ > "$1"; read x < "$2"'
        return self.order(job, "/bin/sh", "-c", script, "-", said.path, held.path, **options), said, held  # fmt: skip

    def output(self, job, kind="out"):
        return (self.path / f"{job}.{kind}").read_bytes()

    def pid_of_starter(self):
        with StarterClient(self.starter, epoch=None) as starter:
            return starter.greeting["pid"]

    def kill(self, client):
        """End the agent in the middle of whatever it does."""
        with watched(client.greeting["pid"]) as gone:
            os.kill(client.greeting["pid"], signal.SIGKILL)
            gone()
        os.unlink(os.path.join(self.folder, "socket"))

    def clean(self):
        last = self.connect(epoch=2**55)
        for one in last.ask("list")["running"]:
            name = {"job": one["job"], "attempt": one["attempt"]}
            last.ask("stop", reason="cancelled", grace_ms=0, **name)
            last.end(one["job"])
        last.ask(
            "forget", attempts=[[one["job"], one["attempt"]] for one in last.ask("list")["ended"]]
        )
        name = f"gridhand-{last.greeting['mark']}"
        groups = [os.path.join(folders[0], name) for folders in own_groups().values()]
        with watched(last.greeting["pid"]) as gone:
            last.ask("quit")
            gone()
        assert not any(map(os.path.exists, groups))
        for client in self._clients:
            client.close()
        self.place.clean()
        log = self.path / "agent" / "log"
        assert not log.exists() or log.read_text() == ""


@pytest.fixture
def node(tmp_path):
    made = Standing(tmp_path)
    try:
        yield made
    finally:
        made.clean()


@pytest.fixture
def agent(node):
    return node.connect()


@pytest.fixture(params=["cgroup", "measured"])
def either(request, node):
    """An agent that may make control groups, and one that may not."""
    node.options = ["--measured"] if request.param == "measured" else []
    client = node.connect()
    assert set(client.greeting["enforced"].values()) <= {request.param, "measured"}
    return client
