"""Sick nodes, given-up attempts, lost journals and removed sockets: nothing is promised twice."""

import contextlib
import os
import resource
import socket
import subprocess
import sys

import pytest

from grid_machine import GRID, Machine
from gridhand.posix import procfs
from until import until

PYTHON = sys.executable
SMALL = ("-c", "0.01")


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path / "home")
    try:
        yield machine
        machine.check()
        machine.check_each_ended_once()
    finally:
        machine.close()


def problems(machine):
    return " ".join(problem["message"] for problem in machine.status()["problems"])


def test_a_starter_without_descriptors_does_not_burn_the_queue(machine):
    """Row 91: jobs are requeued uncounted, and the node is backed off and shown as a problem."""
    machine.grid("run", *SMALL, "--", "true", check=0)
    starter = machine.starter.pid
    limits = resource.prlimit(starter, resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir(f"/proc/{starter}/fd")))
    resource.prlimit(starter, resource.RLIMIT_NOFILE, (used + 1, limits[1]))
    ids = [machine.detach(*SMALL, "--", "true") for _ in range(40)]
    until(lambda: "Too many open files" in problems(machine))
    until(lambda: machine.status()["nodes"][0]["health"] == "suspect")
    assert {machine.state(id) for id in ids} <= {"queued", "running"}
    tried = sum(len(machine.job(id)["attempts"]) for id in ids)
    assert tried < 3 * len(ids), "jobs are tried again and again on a node that cannot start any"
    resource.prlimit(starter, resource.RLIMIT_NOFILE, limits)
    ended = machine.wait(*ids)
    assert {job["state"] for job in ended.values()} == {"succeeded"}
    until(lambda: machine.status()["nodes"][0]["health"] == "up")
    assert "Too many open files" not in problems(machine)


def test_idle_connections_beyond_its_descriptors_leave_the_controller_answering(tmp_path):
    """Row 81: with a limit below that of connections, as many systems have it."""
    machine = Machine(tmp_path / "home")
    few = 300
    with contextlib.ExitStack() as opened:
        opened.callback(machine.close)
        limit = (resource.RLIMIT_NOFILE, (few, few))
        machine.grid("status", check=0, preexec_fn=lambda: resource.setrlimit(*limit))
        for _ in range(2 * few):
            one = opened.enter_context(socket.socket(socket.AF_UNIX))
            one.connect(str(machine.home / "socket"))
        machine.grid("run", *SMALL, "--", "true", check=0, timeout=15)
        assert (machine.home / "controller.log").stat().st_size < 100_000
        machine.check()


RECORDING = """
for pid in $(cat "$1/pids" 2>/dev/null); do
    case "$(cut -d' ' -f3 "/proc/$pid/stat" 2>/dev/null)" in
        ""|Z|X) ;;
        *) echo "$pid" >> "$1/overlaps" ;;
    esac
done
echo $$ >> "$1/pids"
trap "" TERM
while [ ! -e "$1/enough" ]; do sleep 0.05; done
"""


def test_what_is_given_up_keeps_its_cores_until_its_processes_are_gone(machine, tmp_path):
    """Row 89: health down and up again while the job ignores SIGTERM."""
    cores = machine.status()["total"]["cpu"]
    record = ("sh", "-c", RECORDING, "-", tmp_path)
    job = machine.detach("-c", cores, "--grace", "1s", "--", *record)
    pids = tmp_path / "pids"
    until(pids.exists)
    node = machine.status()["nodes"][0]["name"]
    machine.asked(lambda client: client.set_health(node, "down"))
    machine.asked(lambda client: client.set_health(node, "up"))
    assert machine.status()["nodes"][0]["health"] == "suspect"
    until(lambda: len(pids.read_text().split()) == 2)
    (tmp_path / "enough").touch()
    assert machine.wait(job)[job]["state"] == "succeeded"
    assert not (tmp_path / "overlaps").exists(), "two attempts of a job had the same cores"
    assert machine.status()["nodes"][0]["health"] == "up"


def delete(journal):
    journal.unlink()


def truncate(journal):
    os.truncate(journal, 0)


@pytest.mark.parametrize("lose", [delete, truncate])
@pytest.mark.parametrize("killed", [["starter"], ["starter", "agent"]], ids=" and ".join)
def test_a_lost_journal_leaves_no_process_and_starts_nothing_twice(machine, tmp_path, lose, killed):
    """Row 90: survivors are found and killed before anything of theirs is given out."""
    cores = machine.status()["total"]["cpu"]
    record = ("sh", "-c", RECORDING, "-", tmp_path)
    job = machine.detach("-c", cores, "--", *record)
    until((tmp_path / "pids").exists)
    follower = machine.detach("-c", cores, "--", *record)
    processes = [getattr(machine, name) for name in killed]
    lose(machine.home / "starter" / "journal")
    for process in processes:
        machine.kill(process)
    until(lambda: len((tmp_path / "pids").read_text().split()) == 2)
    (tmp_path / "enough").touch()
    ended = machine.wait(job, follower)
    assert ended[job]["reason"] == "agent_lost"
    assert [len(one["attempts"]) for one in ended.values()] == [1, 1]
    assert ended[follower]["state"] == "succeeded"
    assert not (tmp_path / "overlaps").exists(), "cores were granted while a survivor had them"


def test_removed_sockets_are_back_and_the_processes_the_same(machine):
    """Row 92: `rm` of all three sockets, while a job runs."""
    job = machine.detach(*SMALL, "--", "sleep", "600")
    until(lambda: machine.state(job) == "running")
    sockets = [machine.home / name for name in ("socket", "agent/socket", "starter/socket")]
    before = [machine.controller.pid, machine.agent.pid, machine.starter.pid]
    for path in sockets:
        path.unlink()
    until(lambda: all(path.exists() for path in sockets))
    assert [machine.controller.pid, machine.agent.pid, machine.starter.pid] == before
    sockets[0].unlink()
    machine.grid("stop", "--kill-jobs", check=0)  # finds the controller by its lock
    assert not procfs.is_alive(before[0])


def test_a_removed_database_is_noticed_and_written_anew(machine):
    """Row 93: nothing is acknowledged meanwhile, a job that ends is not lost, and all goes on."""
    job = machine.detach(*SMALL, "--", "sleep", "600")
    until(lambda: machine.state(job) == "running")
    for file in machine.home.glob("grid.db*"):
        file.unlink()
    refused = machine.grid("run", *SMALL, "-d", "--", "true", check=125)
    assert "grid.db was removed" in refused.stderr
    assert "grid doctor --repair" in refused.stderr
    assert "grid.db was removed" in problems(machine)
    assert "grid.db was removed" in machine.grid("doctor", check=1).stdout
    [process] = [one for one in machine.starter.children() if one.name() == "sleep"]
    process.kill()  # its end waits for the store
    machine.grid("doctor", "--repair")
    assert machine.wait(job)[job]["state"] == "failed"
    machine.grid("run", *SMALL, "--", "true", check=0)
    assert "removed" not in problems(machine)


def test_our_limits_are_not_those_of_jobs(machine):
    """Row 81: many files and no core dumps for us, and for jobs what their caller had."""
    ours = [resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)]
    (files, most), (_, core) = ours
    lower = f"ulimit -Sn {min(files, 512)}; ulimit -Sc {min(core, 8) if core >= 0 else 8}; "
    script = 'ulimit -Sn; ulimit -Sc; "$@"'
    grid = " ".join([*GRID, "run", *SMALL, "--", "sh", "-c", "'ulimit -Sn; ulimit -Sc'"])
    done = subprocess.run(
        ["sh", "-c", f"{lower} {script}", "-", "sh", "-c", grid],
        env=machine.env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    before, of_job = done.stdout.split()[:2], done.stdout.split()[2:]
    assert of_job == before
    for process in (machine.controller, machine.agent, machine.starter):
        assert process.rlimit(resource.RLIMIT_CORE)[0] == 0
    for process in (machine.controller, machine.agent):
        assert process.rlimit(resource.RLIMIT_NOFILE) == (most, most)
