"""Urgent jobs on a busy node, with real processes."""

import pytest

from grid_machine import Machine
from until import until

SAVES = """
cd "$1"
if [ -e saved ]; then echo "went on from $(cat saved)"; exit 0; fi
trap 'echo step-7 > saved; exit 143' TERM
touch ready
while :; do sleep 0.1; done
"""


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path / "home")
    machine.start("serve", "--virtual-node", "only:cpu=2")
    try:
        until(lambda: (tmp_path / "home" / "socket").exists())
        yield machine
        machine.check()
        machine.check_each_ended_once()
        assert machine.status()["allocated"] == {}
    finally:
        machine.close()


def starts(machine):
    """The jobs in the order in which they were started."""
    return [event["subject"] for event in machine.events() if event["kind"] == "job.started"]


def test_an_urgent_job_preempts_a_low_one_which_saves_and_finishes_later(machine, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    low = machine.detach("-c", "2", "-p", "low", "--", "sh", "-c", SAVES, "sh", str(work))
    until((work / "ready").exists)
    urgent = machine.detach("-p", "urgent", "--", "true")
    jobs = machine.wait(low, urgent)
    assert jobs[urgent]["state"] == "succeeded"
    assert jobs[low]["state"] == "succeeded"
    first, second = jobs[low]["attempts"]
    assert first["reason"] == "preempted"
    assert second["reason"] == "exit"
    assert (first["preempted_by"], second["preempted_by"]) == (urgent, None)
    assert jobs[urgent]["attempts"][0]["preempts"] == [low]
    assert second["waited"]["seconds"] > 0
    assert f"preempted by job {urgent}" in machine.grid("show", low, check=0).stdout
    assert f"job {low}, to make room" in machine.grid("show", urgent, check=0).stdout
    assert starts(machine) == [low, urgent, low]
    assert (work / "saved").read_text() == "step-7\n"
    assert machine.grid("logs", low, check=0).stdout.endswith("went on from step-7\n")


def test_an_urgent_job_that_needs_the_whole_node_does_not_start_last(machine):
    running = [machine.detach("--", "sleep", "1") for _ in range(2)]
    urgent = machine.detach("-c", "2", "-p", "urgent", "--", "true")
    low = [machine.detach("-p", "low", "--", "sleep", "0.2") for _ in range(16)]
    machine.wait(*running, urgent, *low)
    assert starts(machine)[:3] == [*running, urgent]
