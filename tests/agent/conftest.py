"""A starter in a folder of its own, and gates by which tests and jobs wait for each other."""

import contextlib
import itertools
import json
import os
import select
import signal

import pytest

from gridhand.agent import processes
from gridhand.agent.starting import StarterError, Starters, order

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
        client = Starters.ensure(self.folder, **{"grace_s": 60.0, **options})
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
        with Starters.ensure(self.folder, epoch=2**52) as last:
            self.starters.add((last.greeting["pid"], last.greeting["start"]))
            known = last.list()
            for one in known["running"] + known["ended"]:
                assert last.stop_all(one["job"], one["attempt"])["left"] == []
            with watched(last.greeting["pid"]) as gone:
                last.quit()
                gone()
        while self._gates:
            self._gates.pop().close()
        assert not any(processes.lives(pid, start) for pid, start in self.starters)
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
        with pytest.raises(StarterError) as caught:
            call(*args, **options)
        return caught.value.because

    return refused
