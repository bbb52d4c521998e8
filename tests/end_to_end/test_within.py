"""`grid run --within`: commands in what is held by hand, on a real controller, agent and starter."""

import json
import os
import sys

import pytest

from grid_machine import Machine
from until import until

PYTHON = sys.executable
CORES = "import json, os; print(json.dumps(sorted(os.sched_getaffinity(0))))"


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path / "h")
    machine.grid("status", check=0)
    try:
        yield machine
        machine.check()
        machine.check_each_ended_once()
        assert machine.status()["allocated"] == {}
    finally:
        machine.close()


def reserve(machine, *words):
    held = machine.json("reserve", *words)
    return held["id"]


def test_commands_run_one_after_the_other_on_the_cores_that_are_held(machine):
    held = reserve(machine, "-c", 1)
    inside = ("--within", held, "--", PYTHON, "-c", CORES)
    first, second = (json.loads(machine.run(*inside).stdout) for _ in range(2))
    assert len(first) == len(second) == 1
    assert machine.status()["allocated"] == {"cpu": 1}
    slow = machine.detach("--within", held, "--", "sleep", "600")
    refused = machine.run("--within", held, "--", "true")
    assert refused.returncode == 125
    assert f"job {slow} runs in it" in refused.stderr
    machine.grid("cancel", slow, check=0)
    machine.wait(slow)
    machine.grid("release", held, check=0)
    gone = machine.run("--within", held, "--", "true")
    assert (gone.returncode, held in gone.stderr) == (125, True)


def test_releasing_it_ends_what_runs_in_it_and_only_then_is_it_free(machine, tmp_path):
    held = reserve(machine, "-c", 1)
    stops = "import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(1), sys.exit(0)));"
    ready = tmp_path / "ready"
    code = f"{stops} open({str(ready)!r}, 'w'); time.sleep(600)"
    id = machine.detach("--within", held, "--", PYTHON, "-c", code)
    until(ready.exists)
    machine.grid("release", held, check=0)
    assert machine.status()["allocated"] == {"cpu": 1}
    job = machine.wait(id)[id]
    assert (job["state"], job["reason"]) == ("cancelled", "released")
    until(lambda: machine.status()["allocated"] == {})


def test_it_outlives_a_controller_and_an_agent_and_is_given_back_after_that(machine):
    held = reserve(machine, "-c", 1)
    id = machine.detach("--within", held, "--", "sleep", "600")
    pid = until(lambda: machine.job(id)["phase"] == "running" and _sleeper(machine, id))
    machine.kill(machine.controller)
    machine.kill(machine.agent)
    until(lambda: machine.job(id)["phase"] == "running")
    assert os.path.exists(f"/proc/{pid}")
    machine.grid("release", held, check=0)
    assert machine.wait(id)[id]["reason"] == "released"
    assert not os.path.exists(f"/proc/{pid}")
    until(lambda: machine.status()["allocated"] == {})


def _sleeper(machine, id):
    found = [one for one in machine.processes() if one.info["cmdline"] == ["sleep", "600"]]
    return found[0].pid if found else None


def test_what_makes_no_sense_beside_it_is_refused(machine):
    held = reserve(machine, "-c", 1)
    for words in (("-c", 1), ("--array", "1-2"), ("--after", "1"), ("--retries", 1)):
        refused = machine.run(*words, "--within", held, "--", "true")
        assert refused.returncode == 125, words
        assert "within" in refused.stderr or "job" in refused.stderr, words
    refused = machine.run("-c", 1, "--within", held, "--", "true")
    assert "request: {'cpu': '1'} is not valid\nhint: Use nothing beside within" in refused.stderr
    told = machine.run("--dry-run", "--within", held, "--", "true")
    assert told.returncode == 0, told.stderr
    machine.grid("release", held, check=0)
