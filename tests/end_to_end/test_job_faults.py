"""Everything that may die, does: controller, agent, starter, clients; and the jobs go on.

Each ends with `grid check` clean, every exit status right and every allocation released once.
"""

import contextlib
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from grid_machine import Machine
from small_disk import small_disk
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
        assert machine.status()["allocated"] == {}, "something is held though nothing runs"
    finally:
        machine.close()


def gone(pid):
    """Whether there is no such process, but for one that its new parent has not buried yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def fifty(machine, tmp_path, seconds=(0.2, 4.0)):
    """Fifty jobs, each with an end of its own; some end soon, some later."""
    first, last = seconds
    ids = {}
    for number in range(50):
        sleep = first + (last - first) * number / 49
        ending = f"sleep {sleep:.2f}; echo done {number}; exit {number}"
        if number % 10 == 9:
            ending = f"sleep {sleep:.2f}; kill -{number % 2 * 6 + 9} $$"
        ids[machine.detach(*SMALL, "--", "sh", "-c", ending)] = number
    return ids


def check_fifty(machine, ids):
    jobs = machine.wait(*ids, timeout=90)
    for id, number in ids.items():
        job = jobs[id]
        assert len(job["attempts"]) == 1, job
        if number % 10 == 9:
            signum = number % 2 * 6 + 9
            assert (job["state"], job["exit_code"]) == ("failed", 128 + signum), job
        else:
            state = "succeeded" if number == 0 else "failed"
            assert (job["state"], job["exit_code"]) == (state, number), job
    id = next(id for id, number in ids.items() if number == 30)
    assert machine.grid("logs", id).stdout == "done 30\n"


VICTIMS = {
    "the controller": ["controller"],
    "the agent": ["agent"],
    "the controller and the agent": ["controller", "agent"],
}


@pytest.mark.parametrize("victims", VICTIMS.values(), ids=VICTIMS)
def test_fifty_jobs_outlive_a_kill(machine, tmp_path, victims):
    ids = fifty(machine, tmp_path)
    processes = [getattr(machine, name) for name in victims]
    for process in processes:
        machine.kill(process)
    time.sleep(1.0)  # some end while nobody looks
    check_fifty(machine, ids)


def test_a_killed_controller_between_all_of_it_again_and_again(machine, tmp_path):
    """Wherever it is killed: while it is told of jobs, starts them, hears of their end."""
    ids = []
    for round in range(6):
        scripts = [f"sleep 0.{number}; exit {number}" for number in range(8)]
        ids += [machine.detach(*SMALL, "--", "sh", "-c", script) for script in scripts]
        time.sleep(0.1 * round)
        machine.kill(machine.controller)
    jobs = machine.wait(*ids, timeout=60)
    assert [jobs[id]["exit_code"] for id in ids] == list(range(8)) * 6
    assert {len(job["attempts"]) for job in jobs.values()} == {1}


def of_array(machine, count):
    found = machine.jobs()
    jobs = {job["array_index"]: job for job in found.values()}
    assert len(jobs) == count
    return jobs


SHORT = ("-c", "1", "-a", "0-399", "--detach", "--", "sh", "-c")


@pytest.mark.parametrize("victims", VICTIMS.values(), ids=VICTIMS)
def test_short_tasks_in_line_outlive_kills_and_each_runs_once(machine, tmp_path, victims):
    """Most are lined up on the node when those who sent them there die, and go on."""
    notes = tmp_path / "notes"
    notes.mkdir()
    one = f"echo $GRIDHAND_JOB_ID >> {notes}/$GRIDHAND_ARRAY_TASK_ID; exit $((GRIDHAND_ARRAY_TASK_ID % 7))"  # fmt: skip
    machine.run(*SHORT, one, check=0)
    for number in range(3):
        until(lambda number=number: len(list(notes.iterdir())) > 40 * (number + 1))
        for process in [getattr(machine, name) for name in victims]:
            machine.kill(process)
        time.sleep(0.3)
        machine.grid("status", check=0)
    until(lambda: not any(machine.status()["jobs"].values()))
    for index, job in of_array(machine, 400).items():
        assert job["exit_code"] == index % 7, job
        assert (notes / str(index)).read_text() == f"{job['id']}\n", "it ran more than once"


def test_a_long_task_among_short_ones_holds_nobody_up(machine, tmp_path):
    """Those behind it go back to the queue, and run beside it."""
    slow = tmp_path / "slow"
    one = f"if [ $GRIDHAND_ARRAY_TASK_ID = 100 ]; then touch {slow}; sleep 600; fi"
    machine.run(*SHORT, one, check=0)
    until(lambda: machine.status()["jobs"] == {"queued": 0, "running": 1}, seconds=60)
    assert slow.exists()
    jobs = of_array(machine, 400)
    assert {index for index, job in jobs.items() if job["state"] != "succeeded"} == {100}
    machine.grid("cancel", jobs[100]["id"], check=0)
    until(lambda: machine.status()["jobs"] == {"queued": 0, "running": 0})


def test_an_array_in_line_is_cancelled_as_a_whole(machine, tmp_path):
    one = f"echo x >> {tmp_path}/ran; sleep 0.02"
    done = machine.run("-c", "1", "-a", "0-4999", "--detach", "--json", "--", "sh", "-c", one)
    assert done.returncode == 0
    until(lambda: (tmp_path / "ran").exists() and len((tmp_path / "ran").read_text()) > 100)
    (job,) = machine.jobs(limit=1).values()
    machine.grid("cancel", job["array"], check=0)
    until(lambda: not any(machine.status()["jobs"].values()), seconds=60)
    ran = (tmp_path / "ran").read_text()
    time.sleep(0.5)
    assert (tmp_path / "ran").read_text() == ran, "one of them began after that"


def test_a_client_that_waits_sees_nothing_of_a_killed_controller(machine):
    client = machine.start("run", *SMALL, "--", "sh", "-c", "echo one; sleep 3; echo two; exit 9")
    assert client.stdout.readline() == "one\n"
    machine.kill(machine.controller)
    out, _ = client.communicate(timeout=60)
    assert (out, client.returncode) == ("two\n", 9)


def test_a_controller_that_stands_still_for_long_takes_nothing_from_anybody(machine):
    """Rows 31 to 35: time that passes while it cannot look ends nothing that still runs."""
    machine.grid("status", check=0)
    ids = [machine.detach(*SMALL, "--", "sh", "-c", f"sleep {n}; exit {n}") for n in (5, 30, 45)]
    until(lambda: all(machine.job(id)["phase"] == "running" for id in ids))
    controller = machine.controller
    controller.send_signal(signal.SIGSTOP)
    time.sleep(40)
    controller.send_signal(signal.SIGCONT)
    jobs = machine.wait(*ids, timeout=60)
    assert [jobs[id]["exit_code"] for id in ids] == [5, 30, 45]
    assert {len(job["attempts"]) for job in jobs.values()} == {1}


def test_a_killed_starter_loses_the_status_but_leaves_nothing_running(machine, tmp_path):
    pid = tmp_path / "pid"
    id = machine.detach(*SMALL, "--", "sh", "-c", f"echo $$ > {pid}; exec sleep 600")
    until(pid.exists)
    until(lambda: pid.read_text().strip())
    machine.kill(machine.starter)
    job = machine.wait(id)[id]
    assert (job["state"], job["reason"]) == ("lost", "agent_lost")
    assert "exit status unknown" in job["message"]
    assert gone(int(pid.read_text()))
    assert machine.run(*SMALL, "--", "echo", "on").stdout == "on\n"


def test_what_a_job_left_behind_is_killed_when_it_ends(machine, tmp_path):
    """A daemon of two forks, in a session of its own, is part of its job all the same."""
    pid = tmp_path / "pid"
    code = (
        "import os,sys,time\n"
        "if os.fork():\n"
        f"    while not os.path.exists({str(pid)!r}): time.sleep(0.01)\n"
        "    sys.exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        f"open({str(pid)!r} + '~','w').write(str(os.getpid()))\n"
        f"os.rename({str(pid)!r} + '~', {str(pid)!r})\n"
        "time.sleep(600)\n"
    )
    done = machine.run(*SMALL, "--", PYTHON, "-c", code, timeout=60)
    assert done.returncode == 0
    assert gone(int(pid.read_text()))


def test_cancelling_reaches_a_daemon_that_ignores_the_warning(machine, tmp_path):
    pid = tmp_path / "pid"
    code = (
        "import os,signal,time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork(): time.sleep(600)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        f"open({str(pid)!r},'w').write(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    id = machine.detach(*SMALL, "--grace", "1s", "--", PYTHON, "-c", code)
    until(lambda: pid.exists() and pid.read_text())
    machine.grid("cancel", id, check=0)
    assert machine.wait(id)[id]["state"] == "cancelled"
    assert gone(int(pid.read_text()))


def test_a_job_that_eats_memory_is_ended_alone_and_told_its_limit_and_peak(machine):
    other = machine.detach(*SMALL, "--", "sleep", "600")
    code = "data = bytearray(400_000_000)\nimport time; time.sleep(60)"
    done = machine.run("-c", "0.5", "--mem", "150MB", "--", PYTHON, "-c", code)
    assert done.returncode == 137
    assert "150 MB" in done.stderr
    newest = machine.json("jobs", "--all", "--limit", 1)[0]
    job = machine.job(newest["id"])
    assert job["reason"] == "oom"
    assert job["peak_memory_bytes"] >= 130_000_000
    assert machine.state(other) == "running"
    machine.grid("cancel", other, check=0)
    machine.wait(other)


def test_out_of_memory_is_tried_again_with_more_from_the_measured_peak(machine):
    code = "data = bytearray(180_000_000)\nimport time; time.sleep(0.3)\nprint('had room')"
    done = machine.run(
        "-c", "0.5", "--mem", "150MB", "--retries", 3, "--", PYTHON, "-c", code, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "had room\n"
    job = machine.job(machine.json("jobs", "--all", "--limit", 1)[0]["id"])
    reasons = [attempt["reason"] for attempt in job["attempts"]]
    assert reasons[0] == "oom"
    assert reasons[-1] == "exit"
    assert job["request"]["memory"] > 180_000_000
    assert job["request"]["cpu"] == 0.5


def test_a_fork_bomb_is_bounded_and_everything_else_goes_on(machine):
    code = (
        "import os,time\n"
        "while True:\n"
        "    try:\n"
        "        if os.fork() == 0: time.sleep(600)\n"
        "    except OSError:\n"
        "        time.sleep(0.1)\n"
    )
    id = machine.detach(*SMALL, "--processes", 40, "--", PYTHON, "-c", code)
    until(lambda: machine.state(id) == "running")
    time.sleep(2)
    assert machine.run(*SMALL, "--", "echo", "on").stdout == "on\n"
    ours = [one for one in machine.processes() if one.info["cmdline"][-1:] == [code]]
    assert len(ours) <= 40
    machine.grid("cancel", id, check=0)
    machine.wait(id)
    assert not [one for one in machine.processes() if one.info["cmdline"][-1:] == [code]]


def test_a_gigabyte_of_output_neither_fills_the_disk_nor_blocks_the_job(machine):
    id = machine.detach(
        "-c", "0.5", "--", "sh", "-c", "echo first; head -c 1000000000 /dev/zero; echo; echo last"
    )
    job = machine.wait(id, timeout=110)[id]
    assert job["exit_code"] == 0
    log = Path(job["logs"]["stdout"])
    assert log.stat().st_size == 1_000_000_000 + len("first\n\nlast\n")
    assert log.stat().st_blocks * 512 < 300_000_000
    tail = machine.grid("logs", "--tail", 1, id).stdout
    assert tail.strip().endswith("last")
    assert machine.agent.memory_info().rss < 100_000_000
    assert machine.controller.memory_info().rss < 200_000_000


def test_a_full_disk_refuses_new_jobs_and_still_ends_those_that_run(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir(mode=0o700)
    machine = Machine(folder / "home")
    with small_disk(folder, "6m"), contextlib.closing(machine):
        id = machine.detach(*SMALL, "--", "sh", "-c", "sleep 4; exit 3")
        until(lambda: machine.state(id) == "running")
        with open(folder / "filler", "wb") as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"x" * 65536)
                filler.flush()
        refused = machine.run(*SMALL, "--detach", "--", "true")
        assert refused.returncode == 125
        job = machine.wait(id)[id]
        assert (job["state"], job["exit_code"]) == ("failed", 3)
        (folder / "filler").unlink()
        assert until(lambda: machine.run(*SMALL, "--", "echo", "room").stdout) == "room\n"
        machine.check()


def test_a_store_that_another_has_locked_delays_but_loses_nothing(machine):
    id = machine.detach(*SMALL, "--", "sh", "-c", "sleep 1; exit 6")
    until(lambda: machine.state(id) == "running")
    other = sqlite3.connect(machine.home / "grid.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    time.sleep(6)  # the end comes meanwhile, and cannot be written
    other.execute("ROLLBACK")
    other.close()
    assert machine.wait(id)[id]["exit_code"] == 6
    assert machine.run(*SMALL, "--", "echo", "on").stdout == "on\n"


def test_two_hundred_at_once_are_all_served_by_one_controller(machine):
    clients = [
        machine.start("run", *SMALL, "--", "sh", "-c", f"echo {number}; exit {number % 100}")
        for number in range(200)
    ]
    for number, client in enumerate(clients):
        out, err = client.communicate(timeout=115)
        assert (out, client.returncode) == (f"{number}\n", number % 100), err
    assert len([one for one in machine.processes() if "serve" in one.info["cmdline"]]) == 1


def test_a_store_that_is_gone_while_jobs_run_is_not_replaced_by_an_empty_one(machine):
    id = machine.detach(*SMALL, "--", "sleep", "600")
    until(lambda: machine.job(id)["phase"] == "running")
    machine.kill(machine.controller)
    hidden = machine.home / "hidden"
    hidden.mkdir()
    for path in machine.home.glob("grid.db*"):
        path.rename(hidden / path.name)
    refused = machine.grid("status")
    assert refused.returncode == 125
    assert "knows nothing" in refused.stderr
    assert "--new-cluster" in refused.stderr
    for path in [*machine.home.glob("grid.db*")]:
        path.unlink()
    for path in hidden.iterdir():
        path.rename(machine.home / path.name)
    job = machine.job(id)
    assert job["state"] == "running", job
    machine.grid("cancel", id, check=0)
    machine.wait(id)


def test_a_process_that_has_the_number_of_an_old_one_is_left_alone(machine, tmp_path):
    """Row 52: pid and start time, never the pid alone."""
    id = machine.detach(*SMALL, "--", "sleep", "600")
    until(lambda: machine.job(id)["phase"] == "running")
    machine.kill(machine.controller)
    machine.kill(machine.agent)
    machine.kill(machine.starter)
    journal = machine.home / "starter" / "journal"
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        sleeping = [
            one
            for one in psutil.process_iter(["cmdline", "environ"])
            if (one.info["environ"] or {}).get("GRIDHAND_JOB_ID") == id
            and one.info["cmdline"] == ["sleep", "600"]
        ]
        old = sleeping[0].pid
        for one in sleeping:
            machine.kill(one)
        text = journal.read_text().replace(f'"pid":{old},', f'"pid":{stranger.pid},')
        assert str(stranger.pid) in text
        journal.write_text(text)
        job = machine.wait(id)[id]
        assert job["state"] == "lost"
        assert stranger.poll() is None, "a stranger was killed"
    finally:
        stranger.kill()
        stranger.wait()
