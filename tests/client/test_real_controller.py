"""With a real controller: it is started once, and a follower outlives it."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from gridhand.client import connect, controller_finder
from gridhand.core.errors import GridError
from gridhand.posix import procfs

LINES = 400
WRITES = f"""
import time
for n in range({LINES}):
    print("line", n, flush=True)
    time.sleep(0.005)
"""


@pytest.fixture
def real(monkeypatch):
    """A home of its own for a real controller, and everything of it gone afterwards."""
    folder = tempfile.mkdtemp(prefix="gridhand-real-")
    monkeypatch.setenv("GRIDHAND_HOME", folder)
    monkeypatch.setenv("GRIDHAND_MACHINE_SOCKET", f"{folder}/none")
    monkeypatch.setattr(controller_finder, "_RESTART_S", 0.3)
    for name in ("GRIDHAND_ADDRESS", "GRIDHAND_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    yield Path(folder)
    with connect(start=False) as client:
        pid = client.version()["pid"]
        client.stop(jobs="kill")
    while procfs.is_alive(pid):  # or it would start anew what is ended now
        time.sleep(0.02)
    end_daemons(folder)


def end_daemons(folder):
    """End the agent and the starter of this home, which outlive the controller on purpose."""
    while left := of_home(folder):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder)


def of_home(folder):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(folder.encode()) for word in words):
            found.append(int(path.parent.name))
    return found


def submission(*command):
    return {"command": list(command), "folder": "/", "environment": dict(os.environ)}


def test_a_follower_outlives_the_controller(real):
    with connect() as client:
        pid = client.version()["pid"]
        [job] = client.submit(submission(sys.executable, "-c", WRITES))
        said, last = b"", {}
        for last, data in client.follow(job["id"]):  # noqa: B007
            said += data
            if pid and len(said) > 500:
                os.kill(pid, signal.SIGKILL)
                pid = 0
        assert last["event"] == "end"
        assert last["job"]["state"] == "succeeded"
        assert said == b"".join(b"line %d\n" % n for n in range(LINES))
        assert client.check()["clean"]


def test_ten_at_once_start_one(real):
    code = "from gridhand.client import connect\nprint(connect().version()['pid'])"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(10)
    ]
    said = {process.communicate(timeout=100)[0] for process in processes}
    assert len(said) == 1
    with connect() as client:
        assert said == {b"%d\n" % client.version()["pid"]}
        with pytest.raises(GridError) as caught:
            client.job("4711")
        assert caught.value.code == "unknown_job"
