"""A cluster to try things on: several nodes on this machine, each with its agent."""

import pytest

from grid_machine import Machine
from until import until

WHERE = ("sh", "-c", "echo $GRIDHAND_NODE")


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path / "home")
    nodes = ("--virtual-node", "first:cpu=4,memory=2000MB", "--virtual-node", "second:cpu=4")
    machine.start("serve", *nodes)
    try:
        until(lambda: (tmp_path / "home" / "socket").exists())
        yield machine
        machine.check()
        machine.check_each_ended_once()
        assert machine.status()["allocated"] == {}
    finally:
        machine.close()


def agents(machine):
    return [one for one in machine.processes() if "gridhand.agent.main" in one.info["cmdline"]]


def test_jobs_go_to_the_nodes_they_fit_and_are_found_again(machine):
    nodes = {node["name"]: node["total"] for node in machine.json("list")}
    assert nodes == {"first": {"cpu": 4, "memory": 2 * 10**9}, "second": {"cpu": 4}}
    assert machine.run("--mem", "1GB", "--", *WHERE).stdout == "first\n"
    assert machine.run("--node", "second", "--", *WHERE).stdout == "second\n"
    ids = {
        name: machine.detach("--node", name, "--", "sh", "-c", f"sleep 2; exit {code}")
        for name, code in (("first", 3), ("second", 4))
    }
    until(lambda: all(machine.job(id)["phase"] == "running" for id in ids.values()))
    for process in [machine.controller, *agents(machine)]:
        machine.kill(process)
    jobs = machine.wait(*ids.values())
    assert [(jobs[id]["node"], jobs[id]["exit_code"]) for id in ids.values()] == [
        ("first", 3),
        ("second", 4),
    ]
    assert len(agents(machine)) == 2


def test_what_one_of_them_has_is_its_own(machine):
    held = machine.detach("--node", "first", "-c", "4", "--", "sleep", "600")
    waits = machine.detach("--node", "first", "-c", "1", "--", "true")
    assert machine.run("-c", "4", "--", *WHERE).stdout == "second\n"
    assert machine.state(waits) == "queued"
    machine.grid("cancel", held, check=0)
    assert machine.wait(waits)[waits]["node"] == "first"


def test_a_node_that_goes_down_gives_its_job_to_the_other(machine, tmp_path):
    gone = tmp_path / "gone"
    one = f"echo $GRIDHAND_NODE; test -e {gone} || sleep 600"
    id = machine.detach("-c", "3", "--", "sh", "-c", one)
    until(lambda: machine.job(id)["phase"] == "running")
    node = machine.job(id)["node"]
    gone.touch()
    machine.grid("node", "remove", node, "--force", check=0)
    job = machine.wait(id)[id]
    assert (job["state"], len(job["attempts"])) == ("succeeded", 2)
    assert {node, job["node"]} == {"first", "second"}


def test_wrong_words_are_refused_before_anything_starts(tmp_path):
    machine = Machine(tmp_path / "home")
    for wrong in ("first", "first:", "a b:cpu=1", "first:cpu=x"):
        done = machine.grid("serve", "--virtual-node", wrong)
        assert machine.grid("serve", "--stand-for", wrong).stderr == done.stderr  # its former name
        assert done.returncode == 125, wrong
        assert "error:" in done.stderr
    assert machine.processes() == []
