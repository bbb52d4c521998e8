"""Processes as /proc shows them: who they are, whether they run, and how to signal exactly one."""

import os
import signal
import subprocess
import sys

import pytest

from gridhand.posix import procfs
from gridhand.posix.procfs import ProcessIdentity


@pytest.fixture
def child():
    """A process that waits until it is killed."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def test_a_process_is_read(child):
    found = procfs.read_process(child.pid)
    assert found.identity == ProcessIdentity(found.pid, found.start)
    assert (found.pid, found.parent, found.session) == (child.pid, os.getpid(), child.pid)
    assert not found.zombie
    assert found.threads == 1
    assert procfs.read_processes()[child.pid].identity == found.identity
    assert child.pid in procfs.list_pids()
    assert child.pid in procfs.children(os.getpid())
    assert procfs.threads(child.pid) == [child.pid]


def test_an_ended_process_is_not_alive_while_it_is_a_zombie_or_later(child):
    start = procfs.read_process(child.pid).start
    assert procfs.is_alive(child.pid)
    assert procfs.is_alive(child.pid, start)
    assert not procfs.is_alive(child.pid, start + 1)  # another one with its pid
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert procfs.read_process(child.pid).zombie
    assert procfs.pid_exists(child.pid)
    assert not procfs.is_alive(child.pid, start)
    child.wait()
    assert procfs.read_process(child.pid) is None
    assert not procfs.pid_exists(child.pid)
    assert not procfs.is_alive(child.pid)
    assert procfs.threads(child.pid) == []
    assert procfs.children(child.pid) is None
    assert procfs.environment(child.pid) == {}


def test_a_signal_reaches_exactly_the_process_that_is_meant(child):
    identity = procfs.read_process(child.pid).identity
    assert not procfs.send_signal(ProcessIdentity(child.pid, identity.start + 1), signal.SIGKILL)
    assert procfs.is_alive(child.pid)
    assert procfs.send_signal(identity, signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM
    assert not procfs.send_signal(identity, signal.SIGTERM)


def test_a_process_that_ends_while_it_is_looked_at_is_not_signalled_by_its_pid(child, monkeypatch):
    """Between the look and the signal the pid may go to another process; a handle does not."""
    identity = procfs.read_process(child.pid).identity
    real, by_pid = procfs.is_alive, []
    monkeypatch.setattr(os, "kill", lambda *args: by_pid.append(args))
    monkeypatch.setattr(os, "killpg", lambda *args: by_pid.append(args))

    def ends(*args):
        alive = real(*args)
        child.send_signal(signal.SIGKILL)
        child.wait()
        return alive

    monkeypatch.setattr(procfs, "is_alive", ends)
    monkeypatch.setattr(
        child, "send_signal", lambda number: signal.pidfd_send_signal(handle, number)
    )
    handle = os.pidfd_open(child.pid)
    try:
        assert not procfs.send_signal(identity, signal.SIGTERM)
    finally:
        os.close(handle)
    assert by_pid == []


def test_the_handle_is_taken_before_the_look(child, monkeypatch):
    """Taken after it, it could be the handle of another process that has the pid by then."""
    identity = procfs.read_process(child.pid).identity
    order = []
    for name, module in (("pidfd_open", os), ("is_alive", procfs)):
        real = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, name=name, real=real: order.append(name) or real(*args)
        )
    assert procfs.send_signal(identity, signal.SIGTERM)
    assert order == ["pidfd_open", "is_alive"]
    assert child.wait() == -signal.SIGTERM


def test_the_environment_is_read_right_after_the_start():
    for number in range(20):
        env = {"NUMBER": str(number), "LONG": "x" * 10_000}
        with subprocess.Popen(["/bin/sleep", "600"], env=env) as process:
            found = procfs.environment(process.pid)
            process.kill()
        assert found == {name.encode(): text.encode() for name, text in env.items()}


def test_a_broken_stat_is_no_process(tmp_path):
    folder = tmp_path / "proc" / "7"
    folder.mkdir(parents=True)
    for text in ("", "7", "7 (x) S 1", "7 (x) S 1 a b c"):
        (folder / "stat").write_text(text)
        assert procfs.read_process(7, tmp_path) is None


MANY = """
import os
from gridhand.posix import procfs
read, write = os.pipe()
pids = set()
for _ in range(1000):
    pid = os.fork()
    if not pid:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    pids.add(pid)
print(procfs.children(os.getpid()) == pids)
os.close(write)
"""


def test_all_of_many_children_are_listed():
    """The kernel gives a page of them with each read."""
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_the_boot_has_one_id():
    assert procfs.boot_id() == procfs.boot_id() != ""
