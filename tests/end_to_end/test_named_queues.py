"""Named queues and quotas of a configuration file, through the command line of a real controller."""

import getpass
import json

import pytest

from grid_machine import Machine
from until import until

WAIT = 'until [ -e "$0" ]; do sleep 0.05; done'

CONFIG = """
queues:
  short: {{priority: low, defaults: {{memory: 20MB}}, limits: {{cpu: 1}}, max_length: 2,
          owner_quota: {{max_running_jobs: {running}}}}}
  theirs: {{owners: [nobody-here]}}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text(CONFIG.format(running=1))
    return path


@pytest.fixture
def machine(tmp_path, config):
    machine = Machine(tmp_path / "home", GRIDHAND_CONFIG=str(config))
    machine.grid("status", check=0)
    try:
        yield machine
        machine.check()
        machine.check_each_ended_once()
    finally:
        machine.close()


def test_a_queue_completes_limits_and_holds_back_jobs_and_is_reloaded(machine, config, tmp_path):
    gate = tmp_path / "gate"

    def submit(*options, check=0):
        words = ("submit", *options, "--json", "--", "sh", "-c", WAIT, str(gate))
        return machine.grid(*words, check=check)

    def make(*options):
        return json.loads(submit(*options).stdout)["id"]

    refused = submit("--queue", "shrot", check=125).stderr
    assert "there is no queue 'shrot'; did you mean short?" in refused
    assert "You may use short." in refused
    refused = submit("--queue", "theirs", check=125).stderr
    assert f"queue theirs is not open to {getpass.getuser()}" in refused
    refused = submit("--queue", "short", "-c", "2", check=125).stderr
    assert "cpu: 2 is more than queue short allows" in refused
    refused = submit("--queue", "short", "-p", "high", check=125).stderr
    assert "Queue short allows at most low." in refused

    first, second = make("--queue", "short", "-c", "0.1"), make("--queue", "short", "-c", "0.1")
    until(lambda: machine.job(first)["state"] == "running")
    assert machine.job(first)["priority"] == "low"
    assert machine.job(first)["request"]["memory"] == 20_000_000
    why = machine.grid("why", second, check=0).stdout
    assert f"quota: {getpass.getuser()} runs 1 of 1 jobs (queue short)" in why
    third = make("--queue", "short", "-c", "0.1")
    full = submit("--queue", "short", "-c", "0.1", check=125).stderr
    assert "quota: queue short has 2 of 2 queued jobs; 1 more were submitted" in full
    other = make("-c", "0.1", "--mem", "20MB")
    until(lambda: machine.job(other)["state"] == "running")  # others are not held back

    config.write_text(CONFIG.format(running=2))
    assert "queues" in machine.grid("config", "reload", check=0).stdout
    until(lambda: machine.job(second)["state"] == "running")
    assert machine.job(third)["state"] == "queued"
    assert "not used yet" not in machine.grid("config", "show", check=0).stdout
    gate.touch()
    ended = machine.wait(first, second, third, other)
    assert {job["exit_code"] for job in ended.values()} == {0}
