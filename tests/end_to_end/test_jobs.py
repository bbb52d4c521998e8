"""`grid run` and what belongs to it, on a real controller, agent and starter."""

import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import psutil
import pytest

from grid_machine import Machine
from until import until

PYTHON = sys.executable


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    machine = Machine(tmp_path_factory.mktemp("home", numbered=True) / "h")
    machine.grid("status", check=0)  # starts a controller, and says so
    try:
        yield machine
        machine.check()
        machine.check_each_ended_once()
    finally:
        machine.close()


def test_the_first_command_starts_a_controller_and_prints_the_line(tmp_path):
    machine = Machine(tmp_path / "new")
    try:
        done = machine.run(
            "-c", 1, "--mem", "200MB", "--", PYTHON, "-c", 'print("hello from the grid")'
        )
        assert (done.stdout, done.returncode) == ("hello from the grid\n", 0)
        (line,) = done.stderr.splitlines()
        assert "started a controller for this machine" in line
        again = machine.run("echo", "again")
        assert (again.stdout, again.stderr) == ("again\n", "")
        machine.grid("stop", check=0)
        until(lambda: not machine.processes())
    finally:
        machine.close()


def test_the_exit_code_is_that_of_the_job(machine):
    assert machine.run("--", "sh", "-c", "exit 7").returncode == 7
    assert machine.run("--", "sh", "-c", "kill -9 $$").returncode == 137
    done = machine.run("--", "no-such-command")
    assert done.returncode == 127
    assert "no-such-command" in done.stderr


def test_output_and_errors_stay_apart_and_input_arrives(machine):
    done = machine.run("--", "sh", "-c", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    assert machine.run("--", "wc", "-c", input="12345").stdout.strip() == "5"


def test_a_job_has_its_callers_folder_and_environment_and_its_own_variables(machine, tmp_path):
    machine.env["ONLY_HERE"] = "yes, ünïcode"
    code = "import json,os; print(json.dumps([os.getcwd(), dict(os.environ)]))"
    done = machine.run("-c", 1, "--mem", "300MB", "--", PYTHON, "-c", code, cwd=tmp_path)
    folder, env = json.loads(done.stdout)
    assert folder == str(tmp_path)
    assert env["ONLY_HERE"] == "yes, ünïcode"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["OMP_NUM_THREADS"] == env["GRIDHAND_CPUS"] == "1"
    assert env["GRIDHAND_MEMORY_BYTES"] == "300000000"
    assert env["GRIDHAND_ATTEMPT"] == "1"
    job = machine.job(env["GRIDHAND_JOB_ID"])
    assert job["attempts"][0]["allocation"] == env["GRIDHAND_ALLOCATION_ID"]
    assert job["node"] == env["GRIDHAND_NODE"]


def test_secrets_of_the_environment_are_nowhere_once_the_job_has_ended(machine):
    machine.env["API_TOKEN"] = "canary-7f3a"
    assert machine.run("--", "sh", "-c", "echo $API_TOKEN").stdout == "canary-7f3a\n"
    del machine.env["API_TOKEN"]
    id = machine.json("jobs", "--all", "--limit", 1)[0]["id"]
    for folder, _, files in os.walk(machine.home):
        for name in files:
            path = Path(folder, name)
            if path.is_file() and path.name != "stdout":
                assert b"canary-7f3a" not in path.read_bytes(), path
    assert "canary" not in machine.grid("show", id).stdout


def test_what_never_fits_is_refused_at_once_and_says_what_there_is(machine):
    done = machine.run("-c", 10_000, "--", "true")
    assert done.returncode == 125
    assert "Insufficient CPU" in done.stderr
    assert "hint:" in done.stderr
    wrong = machine.run("-r", "gpu_memry=2", "--", "true")
    assert wrong.returncode == 125
    assert "gpu_memory" in wrong.stderr


def test_four_jobs_of_a_core_each_never_more_than_the_cores_and_on_cores_of_their_own(
    machine, tmp_path
):
    """Measured from inside the jobs."""
    cores = len(os.sched_getaffinity(0))
    count = 2 * cores
    code = (
        "import os,sys,time\n"
        "log=os.open(sys.argv[1],os.O_WRONLY|os.O_APPEND|os.O_CREAT)\n"
        "say=lambda what: os.write(log,(f'{what} {time.monotonic()} '\n"
        "    f'{sorted(os.sched_getaffinity(0))}\\n').replace(', ',',').encode())\n"
        "say('+'); time.sleep(2); say('-')\n"
    )
    log = tmp_path / "log"
    ids = [machine.detach("-c", 1, "--", PYTHON, "-c", code, str(log)) for _ in range(count)]
    jobs = machine.wait(*ids)
    assert {job["state"] for job in jobs.values()} == {"succeeded"}
    here, most = [], 0
    for line in sorted(log.read_text().splitlines(), key=lambda text: float(text.split()[1])):
        what, _, affinity = line.split()
        if what == "+":
            assert affinity not in here, "two at once on the same core"
            here.append(affinity)
        else:
            here.remove(affinity)
        most = max(most, len(here))
    assert most == cores


def test_a_time_limit_ends_the_whole_tree(machine, tmp_path):
    pids = tmp_path / "pids"
    script = f"sleep 600 & echo $! > {pids}; wait"
    done = machine.run("-t", "1s", "--grace", "1s", "--", "sh", "-c", script)
    assert done.returncode == 124
    assert "longer than its limit of 1 s" in done.stderr
    assert not os.path.exists(f"/proc/{pids.read_text().strip()}")
    job = machine.jobs()[max(machine.jobs(), key=lambda id: int(id.partition("_")[0]))]
    assert job["reason"] == "timeout"


def test_cancelling_ends_what_runs_and_what_waits(machine):
    cores = len(os.sched_getaffinity(0))
    running = machine.detach("-c", cores, "--", "sleep", "600")
    waiting = machine.detach("-c", cores, "--", "sleep", "600")
    until(lambda: machine.job(running)["phase"] == "running")
    why = machine.grid("why", waiting, check=0).stdout
    assert "Insufficient CPU" in why
    machine.grid("cancel", running, waiting, check=0)
    jobs = machine.wait(running, waiting)
    assert {job["state"] for job in jobs.values()} == {"cancelled"}


def test_a_smaller_job_passes_one_that_does_not_fit_yet(machine):
    cores = len(os.sched_getaffinity(0))
    half = machine.detach("-c", 0.5, "--", "sleep", "600")
    until(lambda: machine.state(half) == "running")
    large = machine.detach("-c", cores, "--", "true")
    assert machine.run("-c", 0.5, "--", "echo", "passed").stdout == "passed\n"
    assert machine.state(large) == "queued"
    machine.grid("cancel", half, check=0)
    assert machine.wait(large)[large]["state"] == "succeeded"


def test_ctrl_c_is_passed_on_and_a_second_one_cancels(machine):
    script = "trap 'echo caught' INT; echo ready; i=0; while [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done"
    client = machine.start("run", "--grace", "1s", "--", "sh", "-c", script)
    assert client.stdout.readline() == "ready\n"
    client.send_signal(signal.SIGINT)
    assert client.stdout.readline() == "caught\n"
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=30)
    assert client.returncode != 0
    newest = machine.json("jobs", "--all", "--limit", 1)[0]
    assert newest["state"] == "cancelled"


def test_a_client_that_is_killed_takes_its_attached_job_with_it_but_no_detached_one(machine):
    kept = machine.detach("-c", 0.1, "--", "sleep", "600")
    client = machine.start("run", "-c", 0.1, "--", "sh", "-c", "echo there; exec sleep 600")
    assert client.stdout.readline() == "there\n"
    attached = machine.json("jobs", "--limit", 1)[0]["id"]
    client.kill()
    job = machine.wait(attached, timeout=10)[attached]
    assert (job["state"], job["reason"]) == ("cancelled", "client_gone")
    assert machine.state(kept) == "running"
    machine.grid("cancel", kept, check=0)


def test_an_array_with_a_limit_and_jobs_after_it(machine):
    code = "import os; print(os.environ['GRIDHAND_ARRAY_TASK_ID'])"
    first = machine.json("run", "--detach", "-c", 0.1, "-a", "1-5%2", "--", PYTHON, "-c", code)
    ids = [job["id"] for job in (first if isinstance(first, list) else first["jobs"])]
    assert [id.partition("_")[2] for id in ids] == ["1", "2", "3", "4", "5"]
    last = machine.detach("-c", 0.1, *(f"--after={id}" for id in ids), "--", "true")
    assert machine.wait(*ids, last)[last]["state"] == "succeeded"
    assert machine.grid("logs", ids[2]).stdout == "3\n"


def test_a_failed_job_is_tried_again_as_often_as_asked(machine, tmp_path):
    count = tmp_path / "count"
    script = f"echo x >> {count}; test $(wc -l < {count}) -ge 3"
    done = machine.run("--retries", 3, "--", "sh", "-c", script, timeout=60)
    assert done.returncode == 0
    assert count.read_text() == "x\nx\nx\n"


def test_logs_follow_and_end_with_the_jobs_code(machine):
    id = machine.detach("-c", 0.1, "--", "sh", "-c", "echo one; sleep 0.5; echo two; exit 4")
    done = machine.grid("logs", "-f", id)
    assert (done.stdout, done.returncode) == ("one\ntwo\n", 4)
    assert machine.grid("logs", id).stdout == "one\ntwo\n"


def test_a_job_runs_after_all_of_an_array(machine):
    array = machine.json("run", "--detach", *("-c", 0.1), "-a", "1-3", "--", "sleep", "0.5")
    name = array[0]["array"]
    last = machine.detach("-c", 0.1, "--after", name, "--", "true")
    assert len(machine.job(last)["after"]) == 3
    jobs = machine.wait(*(job["id"] for job in array), last)
    assert jobs[last]["state"] == "succeeded"
    assert jobs[last]["started_at"] >= max(job["ended_at"] for job in jobs.values() if job["array"])
    refused = machine.run("--after", "99999", "--", "true")
    assert refused.returncode == 125
    assert "after: there is no job '99999'" in refused.stderr


def test_a_file_of_its_own_begins_anew_and_is_kept_whole(machine, tmp_path):
    own = tmp_path / "out"
    own.write_text("old")
    machine.run("-o", own, "--", "echo", "one", check=0)
    machine.run("-o", own, "--", "echo", "two", check=0)
    assert own.read_text() == "two\n"
    script = "echo x; exit 1"
    machine.run("--retries", 1, "-o", own, "--", "sh", "-c", script, check=1)
    assert own.read_text() == "x\nx\n"
    machine.run("-a", "1-3", "-o", own, "--", "sh", "-c", "echo $GRIDHAND_ARRAY_TASK_ID", check=0)
    assert sorted(own.read_text().split()) == ["1", "2", "3", "x", "x"]
    machine.run("-a", "1-2", "-o", tmp_path / "%a", "--", "sh", "-c", "echo it", check=0)
    assert (tmp_path / "2").read_text() == "it\n"
    machine.run("-o", own, "--", "head", "-c", "400000000", "/dev/zero", check=0)
    assert own.stat().st_blocks * 512 >= 400_000_000


def test_a_controller_whose_folder_is_gone_ends(tmp_path):
    machine = Machine(tmp_path / "home")
    try:
        machine.run("--", "true", check=0)
        controller = machine.controller
        shutil.rmtree(tmp_path / "home")
        until(lambda: not controller.is_running() or controller.status() == psutil.STATUS_ZOMBIE)
    finally:
        machine.close()


def test_files_of_a_job_have_the_modes_that_the_umask_of_the_caller_allows(machine, tmp_path):
    where = {"cwd": tmp_path, "umask": 0o077}
    machine.run("-o", "out", "sh", "-c", "touch made; umask", check=0, **where)
    assert (tmp_path / "out").read_text() == "0077\n"
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("made", "out")] == [0o600] * 2
    machine.run("touch", "shared", check=0, cwd=tmp_path, umask=0o002)
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o664


def test_a_slow_reader_gets_all_that_its_job_writes(machine):
    """Over 256 MB, the most that is kept of what nobody reads."""
    count = 600 << 20
    client = machine.start("run", "--", "head", "-c", count, "/dev/zero")

    def paused():
        with contextlib.suppress(psutil.Error):  # one has ended meanwhile
            jobs = [one for one in machine.processes() if one.name() == "head"]
            return any(one.status() == psutil.STATUS_STOPPED for one in jobs)

    until(paused)  # nobody reads yet
    read = 0
    while piece := client.stdout.buffer.read(1 << 20):
        read += len(piece)
    assert client.wait(60) == 0
    assert read == count, client.stderr.read()
