"""Starting a daemon, and being one: ready or failed, alone in its folder, and spared."""

import os
import signal
import threading

import pytest

from gridhand.posix import daemon, procfs
from gridhand.posix.daemon import DaemonFailed, enter_private_folder, launch, start_lock

DAEMON = """
import os, select, sys
from gridhand.posix import daemon

folder, how = sys.argv[1], sys.argv[2]
fd = daemon.enter_private_folder(folder)
ready = daemon.detach()
if how == "fails":
    sys.exit("no luck")
if daemon.lock(fd) is None:
    sys.exit("taken")
with open("pid", "w") as file:
    file.write(f"{os.getpid()} {os.getsid(0)} {'GRIDHAND_JOB_ID' in os.environ}")
ready()
select.select([], [], [])
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder, and a function that launches the program above in place of a module of ours."""
    (tmp_path / "own_daemon.py").write_text(DAEMON)
    folder = tmp_path / "folder"

    def start(how="runs"):
        code = f"import runpy, sys; sys.argv = ['', {str(folder)!r}, {how!r}]; "
        code += f"runpy.run_path({str(tmp_path / 'own_daemon.py')!r}, run_name='__main__')"
        (tmp_path / "command.py").write_text(code)
        launch(["any.module"], str(folder))

    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {daemon.sys.executable} "{tmp_path}/command.py"\n')
    program.chmod(0o755)
    monkeypatch.setattr(daemon.sys, "executable", str(program))
    yield folder, start
    if (folder / "pid").exists():
        os.kill(int((folder / "pid").read_text().split()[0]), signal.SIGKILL)


def test_a_daemon_is_detached_and_ready_when_launch_returns(place, monkeypatch):
    monkeypatch.setenv("GRIDHAND_JOB_ID", "7")
    folder, start = place
    start()
    pid, session, in_job = (folder / "pid").read_text().split()
    assert pid == session
    assert int(pid) != os.getpid()
    assert procfs.is_alive(int(pid))
    assert procfs.read_process(int(pid)).parent != os.getpid()
    assert in_job == "False"


def test_one_that_fails_leaves_its_words_in_the_log(place):
    folder, start = place
    with pytest.raises(DaemonFailed, match=r"failed: see .*/folder/log"):
        start("fails")
    assert (folder / "log").read_text() == "no luck\n"


def test_a_second_one_does_not_get_the_folder(place, monkeypatch):
    folder, start = place
    start()
    with pytest.raises(DaemonFailed, match="failed"):
        start()
    assert (folder / "log").read_text() == "taken\n"


def test_a_folder_that_others_can_open_is_refused(tmp_path):
    here = os.getcwd()
    tmp_path.chmod(0o755)
    with pytest.raises(SystemExit, match="closed to others"):
        enter_private_folder(str(tmp_path))
    assert os.getcwd() == here


def test_one_at_a_time_starts_a_daemon(tmp_path, monkeypatch):
    monkeypatch.setattr(daemon, "_START_S", 0.05)
    raises = pytest.raises(DaemonFailed, match="another process")
    with start_lock(str(tmp_path)), raises, start_lock(str(tmp_path)):
        pass
    monkeypatch.setattr(daemon, "_START_S", 10.0)
    entered, order = threading.Event(), []

    def second():
        with start_lock(str(tmp_path)):
            order.append("second")

    with start_lock(str(tmp_path)):
        thread = threading.Thread(target=second)
        thread.start()
        entered.wait(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
