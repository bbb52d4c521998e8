"""A gang of three on three virtual nodes, with real processes."""

import signal

import pytest

from grid_machine import Machine
from until import until

SAY = 'echo "$GRIDHAND_RANK of $WORLD_SIZE on $GRIDHAND_NODE at $MASTER_ADDR:$MASTER_PORT"'


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path / "home")
    nodes = [word for name in ("a", "b", "c") for word in ("--virtual-node", f"{name}:cpu=2")]
    machine.start("serve", *nodes)
    try:
        until(lambda: (tmp_path / "home" / "socket").exists())
        yield machine
        machine.check()
        machine.check_each_ended_once()
        assert machine.status()["allocated"] == {}
    finally:
        machine.close()


def detach(machine, *words):
    """Submit a gang and answer its id."""
    return machine.json("run", "--detach", *words)[0]["array"]


def test_a_gang_runs_with_ranks_and_ends_as_one(machine, tmp_path):
    done = machine.run("--nodes", "3", "-c", "2", "--", "sh", "-c", SAY)
    lines = done.stdout.splitlines()
    assert [line.split(" on ")[0] for line in lines] == ["0 of 3", "1 of 3", "2 of 3"]
    assert sorted(line.split()[4] for line in lines) == ["a", "b", "c"]
    assert {line.split()[-1] for line in lines} == {"127.0.0.1:20001"}

    both = tmp_path / "both"
    one = f'test "$RANK" = 1 || {{ touch {both}$RANK; exec sleep 600; }}; '
    one += f"while ! test -e {both}0 -a -e {both}2; do sleep 0.05; done; exit 7"
    failed = machine.grid("run", "-N", "3", "--grace", "2", "--", "sh", "-c", one)
    assert failed.returncode == 7
    assert "job 4_0: stopped with its gang: rank 1 ended first (exit code 7)" in failed.stderr
    jobs = machine.json("show", "4")
    assert [job["state"] for job in jobs] == ["cancelled", "failed", "cancelled"]
    assert [job["reason"] for job in jobs] == ["gang", "exit", "gang"]


def test_too_many_nodes_a_dry_run_and_what_waits(machine):
    refused = machine.grid("run", "--nodes", "4", "--", "true")
    assert refused.returncode == 125
    assert "4 nodes with cpu=1 each are needed, but only 3 nodes have that" in refused.stderr
    plan = machine.grid("run", "--nodes", "2", "--dry-run", "--", "true")
    assert plan.stdout == "the gang would start now on a, b\n"
    held = machine.detach("-c", "1", "-w", "b", "--", "sleep", "600")
    gang = detach(machine, "--nodes", "3", "-c", "2", "--", "sleep", "600")
    why = "3 nodes with room for cpu=2 each are needed, and 2 nodes have it now"
    until(lambda: machine.job(f"{gang}_0")["why"] == why)
    assert why in machine.grid("why", gang).stdout
    assert why in machine.grid("run", "--nodes", "3", "-c", "2", "--dry-run", "true").stdout
    [entry] = machine.json("queue")["entries"]
    assert (entry["kind"], entry["tasks"], entry["array"]) == ("gang", 3, gang)
    assert machine.grid("cancel", f"{gang}_1").stdout == f"gang {gang}: cancelled 3 tasks\n"
    machine.grid("cancel", held, check=0)
    machine.wait(held)


def test_a_gang_survives_a_killed_controller_and_loses_a_node_as_one(machine, tmp_path):
    gone = tmp_path / "gone"
    gang = detach(
        machine, "--nodes", "2", "-c", "2", "--", "sh", "-c", f"test -e {gone} || sleep 600"
    )
    ids = [f"{gang}_0", f"{gang}_1"]
    until(lambda: all(machine.job(id)["phase"] == "running" for id in ids))
    waiting = detach(machine, "--nodes", "3", "-c", "2", "--", "sh", "-c", SAY)
    machine.kill(machine.controller)
    assert [machine.job(id)["phase"] for id in ids] == ["running", "running"]
    gone.touch()
    lost = machine.job(ids[0])["node"]
    machine.grid("node", "remove", lost, "--force", check=0)
    jobs = machine.wait(*ids)
    assert [(jobs[id]["state"], len(jobs[id]["attempts"])) for id in ids] == [("succeeded", 2)] * 2
    assert lost not in {jobs[id]["node"] for id in ids}
    machine.grid("cancel", waiting, check=0)


def test_ctrl_c_cancels_the_gang(machine):
    process = machine.start("run", "--nodes", "3", "--", "sleep", "600")
    until(lambda: [job["phase"] for job in machine.jobs().values()] == ["running"] * 3)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 143  # as its members ended by SIGTERM
    assert "cancelling gang 1" in stderr
    assert {job["state"] for job in machine.jobs().values()} == {"cancelled"}
