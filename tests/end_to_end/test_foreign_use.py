"""Strangers on a real machine: what they use is not promised, and they are named."""

import subprocess
import sys

import pytest

from grid_machine import Machine
from until import until

HELD_BYTES = 2 * 10**9
CODE = f"x = bytearray({HELD_BYTES}); print('ready', flush=True); import sys; sys.stdin.read()"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text("respect_foreign_use: true\n")
    return path


@pytest.fixture
def machine(tmp_path, config):
    machine = Machine(tmp_path / "home", GRIDHAND_CONFIG=str(config))
    machine.grid("status", check=0)
    try:
        yield machine
        machine.check()
    finally:
        machine.close()


@pytest.fixture
def stranger():
    command = [sys.executable, "-S", "-E", "-c", CODE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def node(machine):
    """The only node, which is measured every second while it is looked at."""
    [node] = machine.asked(lambda client: client.status(live=True), "status")["nodes"]
    return node


def others(machine):
    load = node(machine)["load"]
    return {one["pid"] for one in load["others"]["processes"]} if load else set()


def test_what_a_stranger_uses_is_not_promised_and_it_is_named(machine, stranger, config):
    until(lambda: stranger.pid in others(machine))
    until(lambda: node(machine)["foreign"].get("memory", 0) >= HELD_BYTES)
    seen = node(machine)
    total = seen["total"]["memory"]
    assert seen["available"]["memory"] <= total - HELD_BYTES
    daemons = {machine.controller.pid, machine.agent.pid, machine.starter.pid}
    assert not others(machine) & daemons
    named = f" by pid {stranger.pid} (python"
    until(lambda: named in machine.run("--dry-run", "--mem", f"{total}B", "--", "true").stdout)
    waits = machine.detach("--mem", f"{total}B", "--", "true")
    assert machine.state(waits) == "queued"
    until(lambda: named in machine.grid("why", waits, check=0).stdout)
    config.write_text("respect_foreign_use: false\n")
    told = machine.grid("config", "reload", check=0).stdout
    assert "respect_foreign_use" in told
    assert machine.wait(waits)[waits]["state"] == "succeeded"
    assert node(machine)["foreign"] == {}
