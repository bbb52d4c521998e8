"""A home for each test, and what was started in it is gone afterwards."""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from fake_controller import FAKE, started


@pytest.fixture
def home(monkeypatch):
    """An empty home, found through the environment. Its path is short, as a socket's has to be."""
    folder = tempfile.mkdtemp(prefix="gridhand-test-")
    for name in list(os.environ):
        if name.startswith(("GRIDHAND_", "FAKE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GRIDHAND_HOME", folder)
    monkeypatch.setenv("GRIDHAND_MACHINE_SOCKET", f"{folder}/none")
    yield Path(folder)
    for pid in started(Path(folder)):
        if b"fake_controller" in _command(pid):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def fake_serve(home, monkeypatch):
    """What is started in place of a controller is the fake one."""
    monkeypatch.setattr("gridhand.client.launch.COMMAND", [sys.executable, str(FAKE), "serve"])
    return home


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
