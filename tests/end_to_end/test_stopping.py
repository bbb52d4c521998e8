"""A controller that is stopped decides nothing any more (row 86 of docs/reliability.md).

It hangs up on its clients, so it must not take them for dead: they keep what they hold, and have
their full time to come back to the next controller.
"""

import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from grid_machine import Machine
from until import until

_HOLD = """
import sys, time
from gridhand import Grid
with Grid() as grid:
    grid.status()
    print("asks", flush=True)
    with grid.allocate(cpu=%d, wait=60) as held:
        print(held.id, flush=True)
        sys.stdin.readline()
"""


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path / "h")
    machine.cores = int(machine.json("status")["total"]["cpu"])
    try:
        yield machine
        machine.check()
    finally:
        machine.close()


@pytest.fixture
def client(machine):
    """Start a process that holds all cores of the machine until its input ends."""
    clients = []

    def start():
        code = _HOLD % machine.cores
        words = [sys.executable, "-c", code]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        clients.append(subprocess.Popen(words, env=machine.env, **pipes))
        assert clients[-1].stdout.readline() == "asks\n"
        return clients[-1]

    yield start
    for one in clients:
        one.kill()
        one.communicate()


def _stop(machine, how):
    controller = machine.controller
    if how == "SIGTERM":
        controller.send_signal(signal.SIGTERM)
    else:
        machine.grid("stop", "--keep-jobs", check=0)
    with suppress(psutil.NoSuchProcess):
        controller.wait(20)


def _allocations(machine):
    return machine.asked(lambda client: client.allocations(), "events")


@pytest.mark.parametrize("how", ["SIGTERM", "--keep-jobs"])
def test_a_holder_keeps_its_cores_when_the_controller_is_stopped(machine, client, how):
    """Row 86: who waits for the cores gets them when the holder lets go, and not before."""
    holder = client()
    held = holder.stdout.readline().strip()
    waiter = client()
    time.sleep(2)  # it waits in the keeper by now
    _stop(machine, how)
    time.sleep(1)
    machine.grid("status", check=0)
    time.sleep(2)
    assert [one["id"] for one in _allocations(machine)] == [held]
    holder.communicate("\n", timeout=30)
    assert waiter.stdout.readline().strip() not in ("", held)


@pytest.mark.parametrize("how", ["SIGTERM", "--keep-jobs"])
def test_attached_jobs_go_on_when_the_controller_is_stopped(machine, how):
    """Row 86: the job that runs is not cancelled, and the one that waits runs after it."""
    for _ in range(3):
        first = machine.start("run", "-c", machine.cores, "--", "sh", "-c", "sleep 8; echo one")
        until(lambda: machine.status()["jobs"]["running"] == 1)
        second = machine.start("run", "-c", machine.cores, "--", "echo", "two")
        until(lambda: machine.status()["jobs"]["queued"] == 1)
        _stop(machine, how)
        machine.grid("status", check=0)
        assert (first.communicate(timeout=60)[0], first.returncode) == ("one\n", 0)
        assert (second.communicate(timeout=60)[0], second.returncode) == ("two\n", 0)
