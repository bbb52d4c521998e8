"""Which controller is meant, and how one comes to be where there was none."""

import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fake_controller import DROP, FAKE, FakeController, chunked, frame, reply, started
from gridhand import __version__
from gridhand.client import connect, controller_finder
from gridhand.client import launch as launching
from gridhand.core.errors import ControllerUnavailable, GridError, VersionMismatch
from gridhand.posix import procfs

OURS = {"version": __version__, "pid": 1, "protocol": 1, "idle": True}

# A process of its own that connects, and says to which controller.
CONNECT = f"""
import sys
from gridhand.client import connect
from gridhand.client import launch as launching
launching.COMMAND = [sys.executable, {str(FAKE)!r}, "serve"]
with connect() as client:
    print(client.version()["pid"])
"""


def test_one_is_started_and_it_says_so(fake_serve, capfd):
    with connect() as client:
        pid = client.version()["pid"]
    out, err = capfd.readouterr()
    assert err == f"started a controller for this machine (pid {pid})\n"
    assert out == ""
    assert started(fake_serve) == [pid]


def test_one_that_runs_is_used_without_a_word(fake_serve, capfd):
    connect().close()
    capfd.readouterr()
    connect().close()
    assert capfd.readouterr().err == ""
    assert len(started(fake_serve)) == 1


def test_thirty_at_once_start_one(home):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CONNECT], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(30)
    ]
    said = [process.communicate(timeout=60) for process in processes]
    [pid] = started(home)
    assert {out for out, _ in said} == {b"%d\n" % pid}, said
    assert sum(b"started a controller" in err for _, err in said) == 1
    assert all(process.returncode == 0 for process in processes)


def test_threads_exclude_each_other_too(fake_serve):
    found = []

    def run():
        with connect() as client:
            found.append(client.version()["pid"])

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert started(fake_serve) == list(set(found))
    assert len(found) == 8


def test_it_belongs_to_nobody(fake_serve, monkeypatch):
    monkeypatch.setenv("GRIDHAND_JOB_ID", "17")
    monkeypatch.setenv("GRIDHAND_STARTER", "mark")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    monkeypatch.setenv("ORDINARY", "kept")
    with connect() as client:
        pid = client.version()["pid"]
    seen = json.loads((fake_serve / "environment").read_text())
    assert [name for name in seen if name.startswith("GRIDHAND_")] == ["GRIDHAND_HOME"]
    assert "CUDA_VISIBLE_DEVICES" not in seen
    assert seen["ORDINARY"] == "kept"
    assert seen["cwd"] == seen["GRIDHAND_HOME"] == str(fake_serve)
    assert seen["sid"] != os.getsid(0)
    status = Path(f"/proc/{pid}/status").read_text()
    assert f"PPid:\t{os.getpid()}\n" not in status


def test_outside_a_job_settings_reach_it(fake_serve, monkeypatch):
    monkeypatch.setenv("GRIDHAND_STORE", "somewhere")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    connect().close()
    seen = json.loads((fake_serve / "environment").read_text())
    assert seen["GRIDHAND_STORE"] == "somewhere"
    assert seen["CUDA_VISIBLE_DEVICES"] == "0"


def test_a_home_given_from_the_current_folder(fake_serve, monkeypatch):
    monkeypatch.chdir(fake_serve.parent)
    monkeypatch.setenv("GRIDHAND_HOME", fake_serve.name)
    with connect() as client:
        assert started(fake_serve) == [client.version()["pid"]]


def test_a_socket_that_was_left_behind_is_no_controller(fake_serve):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{fake_serve}/socket")
    with connect() as client:
        assert started(fake_serve) == [client.version()["pid"]]


def test_one_that_was_killed_is_replaced(fake_serve):
    with connect() as client:
        first = client.version()["pid"]
    os.kill(first, signal.SIGKILL)
    with connect() as client:
        assert client.version()["pid"] != first
    assert len(started(fake_serve)) == 2


def test_one_that_dies_shows_the_end_of_its_log(fake_serve, monkeypatch):
    (fake_serve / "controller.log").write_text("an old line\n")
    monkeypatch.setenv("FAKE_DIES", "\n".join(f"line {n}" for n in range(100)))
    with pytest.raises(ControllerUnavailable) as caught:
        connect()
    text = str(caught.value)
    assert text.startswith("the controller did not start; the end of its log:\n")
    assert text.endswith("\n  line 98\n  line 99")
    assert "line 10" not in text
    assert "an old line" not in text
    assert f"{fake_serve}/controller.log" in caught.value.hint


def test_one_that_dies_without_a_word(fake_serve, monkeypatch):
    monkeypatch.setattr(launching, "COMMAND", ["/bin/true"])
    with pytest.raises(ControllerUnavailable, match=r"^the controller did not start\n"):
        connect()


def test_one_that_cannot_be_run(fake_serve, monkeypatch):
    monkeypatch.setattr(launching, "COMMAND", ["/no/such/python"])
    with pytest.raises(ControllerUnavailable, match="No such file"):
        connect()


def test_one_that_takes_too_long(fake_serve, monkeypatch):
    monkeypatch.setenv("FAKE_DELAY_S", "30")
    monkeypatch.setattr(launching, "_LONGEST_S", 0.2)
    monkeypatch.setattr(launching, "_PATIENCE_S", 0.1)
    with pytest.raises(ControllerUnavailable, match=r"did not start: it was not ready after"):
        connect()


def test_why_it_does_not_start_is_told_as_it_is(fake_serve, monkeypatch):
    """Somebody else has the store, and nobody answers."""
    monkeypatch.setattr(launching, "_OTHERS_S", 0.2)
    with open(fake_serve / "owned", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        with pytest.raises(ControllerUnavailable, match="did not start: the store is") as caught:
            connect()
    assert caught.value.hint == "Wait."


def test_one_that_came_by_other_means_is_taken(fake_serve, monkeypatch):
    """It had the store already when ours was started, and answers a moment later."""
    launch = launching._another_answers
    fakes = []

    def late(word, client):
        fakes.append(FakeController(f"{fake_serve}/socket", lambda asked: reply(OURS)))
        return launch(word, client)

    monkeypatch.setattr(launching, "_another_answers", late)
    with open(fake_serve / "owned", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        with connect() as client:
            assert client.version() == OURS
    fakes[0].close()


def test_progress_is_for_terminals(fake_serve, monkeypatch):
    monkeypatch.setenv("FAKE_DELAY_S", "0.5")
    code = CONNECT.replace("with connect", "launching._PATIENCE_S = 0.1\nwith connect")
    reading, writing = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=writing, stdout=subprocess.DEVNULL
    )
    os.close(writing)
    said = b""
    while chunk := _read(reading):
        said += chunk
    os.close(reading)
    assert process.wait() == 0
    assert b"starting a controller for this machine ... " in said
    assert b"\033[Kstarted a controller" in said


def _read(fd):
    try:
        return os.read(fd, 1000)
    except OSError:  # nobody has the other end of the terminal any more
        return b""


# ---- versions


def test_an_idle_one_of_another_version_is_replaced(fake_serve, monkeypatch):
    monkeypatch.setenv("FAKE_VERSION", "0.0.9")
    monkeypatch.setattr(controller_finder, "__version__", "0.0.9")
    connect().close()
    monkeypatch.delenv("FAKE_VERSION")
    monkeypatch.setattr(controller_finder, "__version__", __version__)
    with connect() as client:
        assert client.version()["version"] == __version__
    first, second = started(fake_serve)
    assert not os.path.exists(f"/proc/{first}") or not procfs.is_alive(first)
    assert procfs.is_alive(second)


def test_a_busy_one_of_another_version_is_left_alone(home):
    busy = OURS | {"version": "0.0.9", "idle": False}
    with FakeController(f"{home}/socket", lambda asked: reply(busy)) as fake:
        with pytest.raises(VersionMismatch) as caught:
            connect()
        assert f"version 0.0.9, and this is version {__version__}" in str(caught.value)
        assert "grid stop --keep-jobs" in caught.value.hint
        assert {asked.method for asked in fake.asked} == {"GET"}
        connect(start=False).close()  # or it could not be stopped


def test_one_that_got_busy_meanwhile_is_left_alone_too(home):
    def answer(asked):
        if asked.path.endswith("/stop"):
            return reply({"code": "jobs_running", "detail": "1 job is queued or running"}, 409)
        return reply(OURS | {"version": "0.0.9"})

    with FakeController(f"{home}/socket", answer), pytest.raises(VersionMismatch):
        connect()


def test_one_that_does_not_stop_is_told(home, monkeypatch):
    monkeypatch.setattr(controller_finder, "_STOPPING_S", 0.1)
    old = OURS | {"version": "0.0.9"}
    with (
        FakeController(f"{home}/socket", lambda asked: reply(old)),
        pytest.raises(ControllerUnavailable, match="asked to stop and did not"),
    ):
        connect()


# ---- elsewhere


def test_the_address_that_is_given(home, monkeypatch, tmp_path):
    path = f"{home}/other"
    monkeypatch.setenv("GRIDHAND_ADDRESS", f"unix:{path}")
    with (
        FakeController(path, lambda asked: reply(OURS | {"version": "9.9"})),
        connect() as client,
    ):
        assert client.address == f"unix:{path}"
    assert started(home) == []


def test_nobody_at_the_address_that_is_given(home, monkeypatch):
    monkeypatch.setenv("GRIDHAND_ADDRESS", f"unix:{home}/other")
    with pytest.raises(ControllerUnavailable, match="no controller listens"):
        connect()


def test_one_that_speaks_otherwise(home, monkeypatch):
    monkeypatch.setenv("GRIDHAND_ADDRESS", f"unix:{home}/other")
    with (
        FakeController(f"{home}/other", lambda asked: reply(OURS | {"protocol": 2})),
        pytest.raises(VersionMismatch),
    ):
        connect()


def test_the_controller_of_the_machine_comes_before_the_users_own(home, monkeypatch):
    monkeypatch.setenv("GRIDHAND_MACHINE_SOCKET", f"{home}/machine")
    with (
        FakeController(f"{home}/machine", lambda asked: reply(OURS | {"pid": 42})),
        connect() as client,
    ):
        assert client.version()["pid"] == 42


def test_one_of_the_machine_that_is_gone_does_not_count(fake_serve, monkeypatch):
    monkeypatch.setenv("GRIDHAND_MACHINE_SOCKET", f"{fake_serve}/machine")
    monkeypatch.setattr(controller_finder, "_MACHINE_S", 0.1)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{fake_serve}/machine")
    with connect() as client:
        assert started(fake_serve) == [client.version()["pid"]]


def test_one_of_the_machine_that_is_being_restarted_is_waited_for(fake_serve, monkeypatch):
    path = f"{fake_serve}/machine"
    monkeypatch.setenv("GRIDHAND_MACHINE_SOCKET", path)
    monkeypatch.setattr(controller_finder, "_MACHINE_S", 60)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    found = []
    waiting = threading.Thread(target=lambda: found.append(connect()))
    waiting.start()
    with FakeController(f"{path}-new", lambda asked: reply(OURS | {"pid": 42})):
        os.rename(f"{path}-new", path)
        waiting.join(60)
        with found[0] as client:
            assert client.version()["pid"] == 42
    assert started(fake_serve) == []


def test_without_start_nothing_is_made(home):
    home.rmdir()
    with pytest.raises(ControllerUnavailable, match="no controller listens"):
        connect(start=False)
    assert not home.exists()


# ---- a home that is not fit


def test_a_home_open_to_others(home):
    home.chmod(0o755)
    with pytest.raises(GridError, match="open to other users"):
        connect()


def test_a_file_in_place_of_the_socket(home):
    (home / "socket").write_text("mine")
    with pytest.raises(ControllerUnavailable, match="is in the way"):
        connect()
    assert (home / "socket").read_text() == "mine"


@pytest.mark.parametrize("name", ["start.lock", "controller.log"])
def test_a_folder_in_place_of_a_file(fake_serve, name):
    (fake_serve / name).mkdir()
    with pytest.raises(ControllerUnavailable, match=f"{name}: Is a directory"):
        connect()


def test_a_lock_that_is_held_for_ever(home, monkeypatch):
    monkeypatch.setattr(controller_finder, "_STARTING_S", 0.1)
    with open(home / "start.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ControllerUnavailable, match="has been starting a controller"):
            connect()


def test_the_lock_is_not_waited_for_when_a_controller_answers(home):
    with open(home / "start.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        replies = iter([DROP])
        with FakeController(f"{home}/socket", lambda asked: next(replies, None) or reply(OURS)):
            connect().close()


# ---- coming back


def following(home):
    """A controller that tells so much of a job, and one that tells the rest."""
    job = {"id": "17"}

    def first(asked):
        if not asked.path.endswith("/follow"):
            return reply(OURS)
        return chunked([frame("output", b"abc", stream="stdout", offset=0), DROP])

    def second(asked):
        if not asked.path.endswith("/follow"):
            return reply(OURS)
        offset = int(dict(asked.query)["stdout"])
        rest = b"abcdef"[offset:]
        return chunked(
            [frame("output", rest, stream="stdout", offset=offset), frame("end", job=job)]
        )

    return first, second


def test_a_follower_waits_for_the_next_controller_and_starts_none(fake_serve):
    first, second = following(fake_serve)
    one = FakeController(f"{fake_serve}/socket", first)
    with connect() as client:
        frames = client.follow("17")
        assert next(frames)[1] == b"abc"
        one.close()
        timer = threading.Timer(0.3, lambda: two.append(FakeController(one.address, second)))
        two = []
        timer.start()
        assert b"".join(data for _, data in frames) == b"def"
        timer.join()
    two[0].close()
    assert started(fake_serve) == []


def test_a_follower_starts_one_when_none_comes_back(fake_serve, monkeypatch, capfd):
    monkeypatch.setattr(controller_finder, "_RESTART_S", 0.1)
    first, _ = following(fake_serve)
    one = FakeController(f"{fake_serve}/socket", first)
    with connect() as client:
        frames = client.follow("17")
        next(frames)
        one.close()
        assert b"".join(data for _, data in frames) == b"def"
    assert len(started(fake_serve)) == 1
    assert "started a controller" in capfd.readouterr().err


def test_patience_has_an_end(fake_serve, monkeypatch):
    monkeypatch.setattr(controller_finder, "PATIENCE_S", 0.5)
    monkeypatch.setattr(controller_finder, "_RESTART_S", 0.1)
    monkeypatch.setenv("FAKE_DIES", "no more")
    with FakeController(f"{fake_serve}/socket", lambda asked: reply(OURS)):
        client = connect()
    before = time.monotonic()
    with pytest.raises(ControllerUnavailable, match="no more"):
        client.status()
    assert time.monotonic() - before < 10
    assert len(started(fake_serve)) == 1
