"""A controller that is stopped, or hangs: that is said soon, and `grid doctor` sees it from outside."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from fake_controller import FakeController, reply
from gridhand.cli.commands import doctor
from gridhand.client import Client, http1
from gridhand.client.silence import describe_silence, find_listener
from gridhand.home import Home
from gridhand.posix import procfs
from until import until

LISTEN = """
import socket, sys
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(sys.argv[1])
    listening.listen()
    print("listens", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def stopped(home, monkeypatch):
    """A process that listens as a controller does, and was stopped; answers its pid."""
    monkeypatch.setattr(http1, "SILENCE_S", 0.05)
    process = subprocess.Popen(
        [sys.executable, "-c", LISTEN, f"{home}/socket"], stdin=-1, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    until(lambda: procfs.is_stopped(process.pid))
    yield process.pid
    process.kill()
    process.communicate()


def test_that_nothing_is_heard_is_said_before_patience_ends(home, monkeypatch, capsys):
    monkeypatch.setattr(http1, "SILENCE_S", 0.05)
    said = threading.Event()

    def answer(asked):
        assert said.wait(20)
        return reply({"version": "1"})

    monkeypatch.setattr(
        "gridhand.client.silence.sys.stderr.write", lambda text: said.set() or texts.append(text)
    )
    texts = []
    with FakeController(f"{home}/socket", answer), Client(f"unix:{home}/socket") as client:
        assert client.probe() == {"version": "1"}
    [text] = texts
    assert f"the controller (pid {os.getpid()}) has not answered for " in text


def test_what_is_stopped_is_known_without_an_answer(home, stopped, capsys):
    assert find_listener(f"{home}/socket") == stopped
    text, hint = describe_silence(stopped, "?")
    assert "is stopped" in text
    assert hint == f"Continue it with `kill -CONT {stopped}`."


def test_doctor_looks_at_a_stopped_controller_and_at_all_else(home, stopped, monkeypatch):
    monkeypatch.setenv("GRIDHAND_ADDRESS", f"unix:{home}/socket")
    asked = "what does not answer is asked again, with the patience of a command"
    monkeypatch.setattr("gridhand.client.connect", lambda **_: pytest.fail(asked))
    findings = {one.what: one for one in doctor.findings(Home(str(home)))}
    assert findings["controller"].level == "fail"
    assert f"pid {stopped}) is stopped" in findings["controller"].text
    assert {"limits", "clock", "hardware"} <= findings.keys()


def test_nobody_listens(home):
    assert find_listener(f"{home}/socket") is None
