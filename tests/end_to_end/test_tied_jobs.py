"""Jobs with a folder of the controller's machine stay there, though a worker elsewhere has room."""

import subprocess
import sys

import pytest

from grid_machine import Machine
from until import until


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A machine with one core, and a real worker that has the only node with more."""
    folder = tmp_path_factory.mktemp("tied")
    machine = Machine(folder / "h")
    serving = machine.start("serve", "--port", "0", "--virtual-node", "here:cpu=1", cwd=folder)
    line = serving.stdout.readline()
    assert line.startswith("listening at "), line + serving.stderr.read()
    token = folder / "lab.token"
    machine.grid("token", "create", "--scope", "agent:lab", "-o", token, check=0)
    words = ("--address", line.split()[-1], "--token-file", token, "--name", "lab")
    try:
        machine.start("worker", *words, "--offer", "cpu=2", "--folder", folder / "w")
        until(lambda: "up" in [one["health"] for one in machine.status()["nodes"] if one["name"] == "lab"])  # fmt: skip
        yield machine
        machine.check()
    finally:
        machine.close()


@pytest.fixture
def full(machine):
    """The one core of this machine is taken."""
    id = machine.detach("--node", "here", "--", "sleep", "1000")
    until(lambda: machine.state(id) == "running")
    yield
    machine.grid("cancel", id, check=0)
    machine.wait(id)


def test_a_job_finds_its_folder_and_its_piped_input(machine, tmp_path):
    (tmp_path / "data").write_text("from the folder\n")
    for _ in range(3):
        done = machine.run("-q", "--", "sh", "-c", "cat data -; echo $GRIDHAND_NODE", input="piped\n", cwd=tmp_path)  # fmt: skip
        assert done.stdout == "from the folder\npiped\nhere\n", done.stderr


def test_a_job_waits_for_this_machine_and_is_told_why(machine, full):
    id = machine.detach("--", "true")
    told = machine.asked(lambda client: client.why(id), "why", id)
    assert told["state"] == "queued"
    assert "lab: a worker on another machine serves it, and the job's folder is not there" in told["explanation"]  # fmt: skip
    assert "(--anywhere) (fits on lab)" in told["explanation"]
    machine.grid("cancel", id, check=0)


def test_a_job_that_fits_only_elsewhere_is_refused(machine):
    done = machine.run("-c", "2", "--", "true")
    assert done.returncode == 125
    assert "let it run on another machine, in a new folder there (--anywhere)" in done.stderr


@pytest.mark.parametrize("words", [("--anywhere",), ("--node", "lab")])
def test_a_job_that_says_so_runs_elsewhere(machine, full, words):
    done = machine.run("-q", *words, "--", "sh", "-c", "echo $GRIDHAND_NODE")
    assert (done.returncode, done.stdout) == (0, "lab\n"), done.stderr


def test_a_reservation_elsewhere_takes_only_a_job_that_says_so(machine):
    made = machine.json("reserve", "-c", 1, "--node", "lab", "mine")
    refused = machine.run("--within", "mine", "--", "true")
    assert refused.returncode == 125
    assert "on lab: a worker on another machine serves it" in refused.stderr
    done = machine.run("-q", "--within", "mine", "--anywhere", "--", "sh", "-c", "echo $GRIDHAND_NODE")  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "lab\n"), (done.stderr, made)
    machine.grid("release", "mine", check=0)


def test_functions_run_on_this_machine_alone(machine, tmp_path):
    code = """
from gridhand import Grid, GridError, task
import os

@task(cpu=1)
def where():
    return os.environ["GRIDHAND_NODE"]

with Grid() as grid:
    print({one.result() for one in [where.submit() for _ in range(4)]})
    for options in ({"cpu": 2}, {"node": "lab"}):
        try:
            print(where.options(**options).submit().result(timeout=30))
        except GridError as error:
            print("the process that calls the function is not there" in f"{error} {error.hint}")
    print(grid.run("sh -c 'echo $GRIDHAND_NODE'", cpu=2, anywhere=True).wait().node)
"""
    done = subprocess.run([sys.executable, "-c", code], env=machine.env, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)  # fmt: skip
    assert done.stdout.splitlines() == ["{'here'}", "True", "True", "lab"], done.stderr
