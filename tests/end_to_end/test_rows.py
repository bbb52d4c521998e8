"""The rows of docs/reliability.md that need one machine, and are shown nowhere else.

Each ends with `grid check` clean, every exit status right, and nothing held.
"""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from grid_machine import Machine
from gridhand.client.client import Client
from gridhand.client.transport import Address
from small_disk import small_disk
from until import until

PYTHON = sys.executable
SMALL = ("-c", "0.01")
STRACE = shutil.which("strace")


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path / "home")
    try:
        yield machine
        in_order(machine)
    finally:
        machine.close()


def in_order(machine):
    machine.check()
    machine.check_each_ended_once()
    assert machine.status()["allocated"] == {}, "something is held though nothing runs"


def client_of(machine):
    """A client in this process, for what must be quick."""
    return Client(Address(str(machine.home / "socket")))


def order(*command, **more):
    given = {"command": list(command), "folder": "/", "environment": {"PATH": os.defpath}}
    return {**given, "request": {"cpu": 0.01}, "detached": True, **more}


def lives(pid):
    """Whether it runs; one that nobody has waited for yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# ---- rows 4, 5 and 6: a controller that dies between its commit and what follows


@contextlib.contextmanager
def killed_at_send(machine, number):
    """Trace the controller, and kill it as it begins its n-th sending from now on."""
    pid = machine.controller.pid
    inject = f"inject=sendto,sendmsg,write:signal=KILL:when={number}"
    watched = "trace=sendto,sendmsg,write"
    command = [STRACE, "-f", "-p", str(pid), "-e", watched, "-e", inject, "-o", os.devnull]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        try:
            assert "attached" in tracer.stderr.readline()
            yield
        finally:
            tracer.kill()  # it would wait for a process that does not end


@pytest.mark.skipif(STRACE is None, reason="there is no strace to kill it with")
def test_a_controller_killed_at_each_of_its_sendings_runs_each_job_once(machine, tmp_path):
    """Rows 4 to 6: before the reply, before the agent is told, before the start is written."""
    runs = tmp_path / "runs"
    assert machine.run(*SMALL, "--", "true").returncode == 0
    killed = 0
    for number in range(1, 15):
        with killed_at_send(machine, number):
            script = f"echo {number} >> {runs}; exit {number}"
            client = machine.start("run", *SMALL, "--", "sh", "-c", script)
            out, err = client.communicate(timeout=60)
            assert client.returncode == number, (out, err)
        killed += "started a controller" in err
    assert killed >= 5, "the controller was not killed in the middle of it"
    assert Counter(runs.read_text().split()) == Counter(map(str, range(1, 15)))


# ---- row 13


def test_a_cancel_that_races_the_start_leaves_nothing(machine, tmp_path):
    machine.grid("status", check=0)
    marks = tmp_path / "marks"
    marks.mkdir()
    ids = []
    with client_of(machine) as client:
        for number in range(60):
            script = f"echo $$ > {marks}/{number}; exec sleep 600"
            [job] = client.submit(order("sh", "-c", script, grace_s=1))
            time.sleep(number % 20 / 1000)
            client.cancel(job["id"])
            ids.append(job["id"])
    jobs = machine.wait(*ids)
    assert {(job["state"], job["reason"]) for job in jobs.values()} == {("cancelled", "cancelled")}
    pids = [int(text) for path in marks.iterdir() if (text := path.read_text().strip())]
    assert not [pid for pid in pids if lives(pid)]


# ---- row 26


def test_a_store_from_an_old_backup_is_refused_while_newer_jobs_run(machine):
    assert machine.run(*SMALL, "--", "true").returncode == 0
    backup = machine.home / "backup"
    with (
        contextlib.closing(sqlite3.connect(machine.home / "grid.db")) as source,
        contextlib.closing(sqlite3.connect(backup)) as target,
    ):
        source.backup(target)
    machine.kill(machine.controller)
    id = machine.detach(*SMALL, "--", "sleep", "600")
    until(lambda: machine.job(id)["phase"] == "running")
    machine.grid("stop", "--keep-jobs", check=0)
    hidden = machine.home / "hidden"
    hidden.mkdir()
    for path in machine.home.glob("grid.db*"):
        path.rename(hidden / path.name)
    shutil.copy(backup, machine.home / "grid.db")
    for _ in range(3):  # and not only the first times
        refused = machine.grid("status")
        assert refused.returncode == 125
        assert "older" in refused.stderr
        assert "Traceback" not in refused.stderr
    for path in machine.home.glob("grid.db*"):
        path.unlink()
    for path in hidden.iterdir():
        path.rename(machine.home / path.name)
    assert machine.state(id) == "running", "what runs was harmed by the wrong store"
    machine.grid("cancel", id, check=0)
    machine.wait(id)


# ---- row 35


def test_everything_stands_still_for_a_while_and_goes_on(machine):
    """Row 35 on the controller's own machine: nothing stops itself, or what it has."""
    ids = [machine.detach(*SMALL, "--", "sh", "-c", f"sleep {n}; exit {n}") for n in (1, 4, 8)]
    until(lambda: all(machine.jobs()[id]["phase"] == "running" for id in ids[1:]))
    daemons = [machine.controller, machine.agent, machine.starter]
    for one in daemons:
        one.suspend()
    time.sleep(6)
    for one in reversed(daemons):
        one.resume()
    jobs = machine.wait(*ids)
    assert [jobs[id]["exit_code"] for id in ids] == [1, 4, 8]
    assert {len(job["attempts"]) for job in jobs.values()} == {1}


# ---- rows 43 and 46


def test_after_a_reboot_a_job_is_lost_with_its_node_and_tried_again_once(machine, tmp_path):
    """Row 43: what the journal tells of was started before this boot."""
    runs = tmp_path / "runs"
    id = machine.detach(*SMALL, "--", "sh", "-c", f"echo x >> {runs}; exec sleep 600")
    until(lambda: runs.exists() and runs.read_text() == "x\n")
    for one in (machine.controller, machine.agent, machine.starter, *machine.processes()):
        with contextlib.suppress(psutil.NoSuchProcess):
            machine.kill(one)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    journal = machine.home / "starter" / "journal"
    assert boot in journal.read_text()
    journal.write_text(journal.read_text().replace(boot, "another-boot"))
    machine.grid("status", check=0)
    until(lambda: runs.read_text() == "x\nx\n")
    job = machine.job(id)
    assert [one["reason"] for one in job["attempts"]] == ["node_lost", None]
    machine.grid("cancel", id, check=0)
    machine.wait(id)
    assert runs.read_text() == "x\nx\n"


def test_a_second_agent_on_the_same_folder_gives_up(machine):
    """Row 46, among processes of one machine."""
    id = machine.detach(*SMALL, "--", "sh", "-c", "sleep 3; exit 3")
    pid = machine.agent.pid
    module = [PYTHON, "-m", "gridhand.agent.main", str(machine.home / "agent")]
    second = subprocess.run(
        [*module, "--starter", str(machine.home / "starter")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 3
    assert "another agent has this folder" in second.stderr
    assert machine.agent.pid == pid
    assert machine.wait(id)[id]["exit_code"] == 3


def test_a_second_controller_for_the_same_home_is_refused_whatever_its_store(machine, tmp_path):
    """Row 46, one level higher: one home, one agent, so one controller."""
    id = machine.detach(*SMALL, "--", "sh", "-c", "sleep 6; exit 3")
    until(lambda: machine.job(id)["phase"] == "running")
    pid = machine.controller.pid
    second = machine.start("serve", "--store", tmp_path / "other.db")
    _, err = second.communicate(timeout=30)
    assert second.returncode == 125, err
    assert "hint:" in err
    assert machine.controller.pid == pid
    assert machine.wait(id)[id]["exit_code"] == 3


# ---- rows 54, 55, 60, 61, 63


def test_a_job_that_leaves_zombies_ends_all_the_same(machine):
    """Row 54."""
    code = (
        "import os, time\n"
        "for _ in range(50):\n"
        "    if os.fork() == 0: os._exit(0)\n"
        "time.sleep(0.5)\n"
        "os._exit(6)\n"
    )
    assert machine.run(*SMALL, "--", PYTHON, "-S", "-c", code).returncode == 6
    zombies = [
        child
        for one in (machine.starter, machine.agent)
        for child in one.children()
        if child.status() == psutil.STATUS_ZOMBIE
    ]
    assert zombies == []


def test_one_that_ignores_every_warning_is_gone_within_its_grace(machine, tmp_path):
    """Row 55, with the time limit as the one who ends it."""
    pid = tmp_path / "pid"
    script = f"trap '' TERM INT HUP; echo $$ > {pid}; while :; do sleep 600; done"
    begin = time.monotonic()
    done = machine.run(*SMALL, "-t", "1s", "--grace", "1s", "--", "sh", "-c", script)
    assert time.monotonic() - begin >= 2
    assert done.returncode != 0
    assert not lives(int(pid.read_text()))
    (job,) = machine.json("jobs", "--all")
    assert (job["state"], job["reason"]) == ("failed", "timeout")


def test_one_that_has_used_up_its_files_fails_alone(machine):
    """Row 61: its limit is not that of those who stand by it."""
    code = (
        "import os, resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "try:\n"
        "    while True: os.open('/dev/null', os.O_RDONLY)\n"
        "except OSError as error:\n"
        "    print(error.strerror, flush=True); os._exit(24)\n"
    )
    done = machine.run(*SMALL, "--", PYTHON, "-S", "-c", code)
    assert (done.stdout, done.returncode) == ("Too many open files\n", 24)
    hard = machine.agent.rlimit(psutil.RLIMIT_NOFILE)[1]
    assert machine.agent.rlimit(psutil.RLIMIT_NOFILE)[0] == hard
    assert machine.run(*SMALL, "--", "echo", "on").stdout == "on\n"


def test_no_file_stays_open_for_jobs_that_are_over(machine):
    """Row 61, of our own: a thousand jobs cost no file."""
    assert machine.run(*SMALL, "--", "true").returncode == 0
    daemons = [machine.controller, machine.agent, machine.starter]
    time.sleep(0.5)
    before = [one.num_fds() for one in daemons]
    with client_of(machine) as client:
        ids = [client.submit(order("true"))[0]["id"] for _ in range(200)]
    machine.wait(*ids)
    until(lambda: all(now.num_fds() <= n + 8 for now, n in zip(daemons, before, strict=True)))


def test_what_is_written_right_before_the_exit_is_never_lost(machine):
    """Row 63: the end is told after the last byte, to whoever follows and whoever looks."""
    clients = [
        machine.start("run", *SMALL, "-q", "--", "sh", "-c", f"echo line {number}; exit 1")
        for number in range(40)
    ]
    for number, client in enumerate(clients):
        out, err = client.communicate(timeout=60)
        assert (out, client.returncode) == (f"line {number}\n", 1), err
    with client_of(machine) as client:
        ids = [
            client.submit(order("sh", "-c", f"echo {n} out; echo {n} err >&2"))[0]["id"]
            for n in range(200)
        ]
        for number, id in enumerate(ids):
            pieces = {"stdout": b"", "stderr": b""}
            for event, data in client.follow(id):
                if event["event"] == "output":
                    pieces[event["stream"]] += data
            told = b"%d " % number
            assert pieces == {"stdout": told + b"out\n", "stderr": told + b"err\n"}


def test_a_job_that_fills_the_disk_harms_itself(tmp_path):
    """Row 60: it is told that there is no room, and its end is known."""
    folder = tmp_path / "small"
    folder.mkdir(mode=0o700)
    machine = Machine(folder / "home")
    with small_disk(folder, "32m"), contextlib.closing(machine):
        script = f"head -c 64000000 /dev/zero > {folder}/big; code=$?; rm {folder}/big; exit $code"
        done = machine.run(*SMALL, "--", "sh", "-c", script)
        assert done.returncode == 1  # it was told so, and there was no room even for its words
        assert machine.run(*SMALL, "--", "echo", "on").stdout == "on\n"
        in_order(machine)


# ---- stopping, versions, and several controllers


def test_stop_refuses_while_jobs_run_and_keeps_them_if_told(machine):
    id = machine.detach(*SMALL, "--", "sh", "-c", "sleep 4; echo end; exit 6")
    waits = machine.detach(
        "-c", os.cpu_count(), "--after", f"afterany:{id}", "--", "sh", "-c", "exit 7"
    )
    pid = machine.controller.pid
    refused = machine.grid("stop")
    assert refused.returncode == 125
    assert "hint:" in refused.stderr
    assert machine.controller.pid == pid
    assert "continue" in machine.grid("stop", "--keep-jobs", check=0).stdout
    assert not lives(pid)
    jobs = machine.wait(id, waits)
    assert [jobs[one]["exit_code"] for one in (id, waits)] == [6, 7]
    assert {len(job["attempts"]) for job in jobs.values()} == {1}
    assert machine.grid("logs", id).stdout == "end\n"


def test_a_controller_that_is_told_to_end_leaves_its_jobs_to_the_next(machine):
    """SIGTERM, as a system that goes down sends it: answers are given, and nothing is lost."""
    clients = [
        machine.start("run", *SMALL, "--", "sh", "-c", f"sleep 2; echo {number}; exit {number}")
        for number in range(10)
    ]
    until(lambda: len(machine.jobs()) == 10)
    controller = machine.controller
    controller.terminate()
    until(lambda: not lives(controller.pid))
    machine.grid("status", check=0)  # those who follow start none: it was ended on purpose
    for number, client in enumerate(clients):
        out, err = client.communicate(timeout=60)
        assert (out, client.returncode) == (f"{number}\n", number), err


def test_stop_with_kill_ends_everything(machine):
    ids = [machine.detach(*SMALL, "--", "sleep", "600") for _ in range(5)]
    queued = machine.detach("-c", os.cpu_count(), "--after", ids[0], "--", "true")
    machine.grid("stop", "--kill-jobs", check=0)
    assert not [one for one in machine.processes() if one.info["cmdline"] == ["sleep", "600"]]
    jobs = machine.wait(*ids, queued)
    assert {job["state"] for job in jobs.values()} == {"cancelled"}


OTHER_VERSION = (
    "import gridhand; gridhand.__version__ = '99.0'; from gridhand.cli.main import main; main()"
)


def of_another_version(machine, *words):
    return subprocess.run(
        [PYTHON, "-c", OTHER_VERSION, *words],
        env=machine.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_client_of_another_version_harms_no_job_and_says_what_to_do(machine):
    id = machine.detach(*SMALL, "--", "sh", "-c", "sleep 3; exit 3")
    pid = machine.controller.pid
    refused = of_another_version(machine, "run", "true")
    assert refused.returncode == 125
    assert "99.0" in refused.stderr
    assert "grid stop --keep-jobs" in refused.stderr
    assert machine.controller.pid == pid
    assert machine.wait(id)[id]["exit_code"] == 3
    done = of_another_version(machine, "status")  # nothing runs now: it may be replaced
    assert "started a controller" in done.stderr
    assert not lives(pid)


def test_two_homes_on_one_machine_know_of_each_other(machine, tmp_path):
    other = Machine(tmp_path / "other")
    try:
        other.grid("status", check=0)
        for one, beside in ((machine, other), (other, machine)):
            told = [problem["message"] for problem in one.status()["problems"]]
            assert any(str(beside.home) in message for message in told), told
        pid = other.controller.pid
        other.grid("stop", check=0)
        told = json.dumps(machine.status()["problems"])
        assert str(other.home) not in told
        assert str(pid) not in told
    finally:
        other.close()


def test_a_controller_that_was_killed_is_no_neighbour(machine, tmp_path):
    other = Machine(tmp_path / "other")
    try:
        machine.grid("status", check=0)
        other.grid("status", check=0)
        other.kill(other.controller)
        assert str(other.home) not in json.dumps(machine.status()["problems"])
    finally:
        other.close()


def test_signals_to_the_group_of_a_client_reach_no_daemon(machine):
    """Whoever started the controller from a terminal may close it."""
    shell = subprocess.Popen(
        [PYTHON, "-m", "gridhand.cli.main", "run", *SMALL, "--detach", "--", "sleep", "600"],
        env=machine.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    id = shell.stdout.readline().strip()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGHUP)
    shell.communicate(timeout=30)
    assert machine.state(id) == "running"
    for one in (machine.controller, machine.agent, machine.starter):
        assert os.getsid(one.pid) != shell.pid
    machine.grid("cancel", id, check=0)
    machine.wait(id)
