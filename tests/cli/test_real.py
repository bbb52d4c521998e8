"""The commands with everything behind them: a controller, an agent and a starter of their own."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

import fake_api as samples
from until import until


class Real:
    """`grid` as a process, in a home of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GRIDHAND_")}
        self.env |= {"GRIDHAND_HOME": str(folder / "home")}

    def __call__(self, *arguments, input=b"", **options):
        command = [sys.executable, "-c", samples.CODE, *arguments]
        return subprocess.run(
            command, input=input, capture_output=True, env=self.env, timeout=60, **options
        )

    def start(self, *arguments, **options):
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | options
        command = [sys.executable, "-c", samples.CODE, *arguments]
        return subprocess.Popen(command, env=self.env, **streams)

    def json(self, *arguments):
        done = self(*arguments, "--json")
        assert done.stderr == b""
        return json.loads(done.stdout)

    def detached(self, *arguments):
        return json.loads(self("run", "-d", "--json", *arguments).stdout)["id"]

    def until(self, id, *states):
        """The job, once it is in one of these states."""
        deadline = time.monotonic() + 30
        while (found := self.json("show", id))["state"] not in states:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    one = Real(tmp_path_factory.mktemp("real"))
    assert one("run", "true").returncode == 0
    yield one
    done = one("stop", "--kill-jobs")
    assert b"stopped the controller" in done.stdout
    check = one("check")
    assert (check.returncode, check.stdout.splitlines()[-1]) == (0, b"clean"), check


def test_a_first_job(real):
    done = real("run", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")


def test_a_signal_is_128_and_its_number(real):
    done = real("run", "sh", "-c", "kill -9 $$")
    assert done.returncode == 137
    assert done.stderr.startswith(b"grid: job ")


def script(path, text, mode=0o755):
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_command_that_cannot_be_started_ends_as_in_a_shell(real, tmp_path):
    plain = script(tmp_path / "plain", "no script\n", 0o644)
    lost = script(tmp_path / "lost", "#!/no/such/interpreter\n")
    strange = script(tmp_path / "strange", "no program\n")
    on_path = {**real.env, "PATH": str(tmp_path)}
    for command, code in (
        (["no-such-command"], 127), ([str(tmp_path / "none")], 127), ([plain], 126),
        ([str(tmp_path)], 126), ([lost], 126), ([strange], 126), (["-d", "none"], 0),
    ):  # fmt: skip
        done = real("run", *command)
        assert done.returncode == code, done
    assert real("logs", "-f", "@").returncode == 127
    done = real("run", "-o", str(tmp_path / "none" / "file"), "true")
    assert done.returncode == 125  # the command is there
    before, real.env = real.env, on_path
    try:
        assert real("run", "plain").returncode == 126
    finally:
        real.env = before


def test_a_command_that_never_fits_is_refused_at_once(real):
    done = real("run", "-c", "9999", "true")
    assert done.returncode == 125
    assert done.stderr.startswith(b"error: ")
    assert b"hint: " in done.stderr


def test_the_folder_and_the_environment_are_the_caller_s(real, tmp_path):
    real.env["FRUIT"] = "fig"
    done = real("run", "sh", "-c", "pwd; echo $FRUIT $GRIDHAND_CPUS", cwd=tmp_path)
    assert done.stdout == f"{tmp_path}\nfig 1\n".encode()


def test_the_input_is_the_caller_s(real):
    data = os.urandom(1_000_000)
    assert real("run", "cat", input=data).stdout == data


def test_a_job_that_does_not_read_does_not_hold_us(real):
    with real.start("run", "true") as process:
        assert process.wait(timeout=30) == 0  # though our side of the pipe stays open


def test_what_is_typed_reaches_the_job(real):
    ours, theirs = pty.openpty()
    with real.start("run", "head", "-n", "1", stdin=theirs) as process:
        os.close(theirs)
        os.write(ours, b"typed\n")
        assert process.stdout.read() == b"typed\n"
    os.close(ours)
    assert process.returncode == 0


WAITS = "import signal, sys, time; print('here', flush=True); signal.sigwait({2}); sys.exit(9)"
WAITS = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {{2}}); {WAITS}"


def test_ctrl_c_is_passed_on(real):
    with real.start("run", sys.executable, "-c", WAITS) as process:
        assert process.stdout.readline() == b"here\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 9


def test_ctrl_c_twice_cancels(real):
    with real.start(
        "run", "--grace", "1", "sh", "-c", "trap : 2; echo here; while :; do sleep 0.1; done"
    ) as process:
        assert process.stdout.readline() == b"here\n"
        process.send_signal(signal.SIGINT)
        assert b"sent Ctrl-C" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) in (130, 137, 143)
    assert real.json("show", "@")["state"] == "cancelled"


def test_sigterm_cancels(real):
    with real.start("run", "sh", "-c", "echo here; sleep 60") as process:
        assert process.stdout.readline() == b"here\n"
        process.terminate()
        assert process.wait(timeout=30) == 143
    assert real.json("show", "@")["state"] == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_an_attached_job_ends_with_its_client(real, number):
    with real.start("run", "sh", "-c", "echo here; sleep 60") as process:
        assert process.stdout.readline() == b"here\n"
        process.send_signal(number)
    found = real.until("@", "cancelled", "failed")
    assert found["reason"] == "client_gone"


def test_nobody_reads_the_output(real):
    with real.start("run", "yes") as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(timeout=30) == 141
        assert process.stderr.read() == b""
    assert real.until("@", "cancelled", "failed")["reason"] in ("client_gone", "signal")


def test_a_detached_job_outlives_its_client_and_is_followed(real):
    done = real("run", "--detach", "sh", "-c", "sleep 0.5; echo late; exit 4")
    id = done.stdout.decode().strip()
    assert id.isdecimal()
    followed = real("logs", "-f", id)
    assert (followed.returncode, followed.stdout) == (4, b"late\n")
    assert real("logs", id).stdout == b"late\n"
    assert real("logs", "--tail", "0", id).stdout == b""


def test_waiting_is_explained_and_can_be_cancelled(real):
    total = real.json("status")["total"]["cpu"]
    holder = real("reserve", "-c", str(total), "me").stdout.decode().strip()
    try:
        with real.start("run", "true") as process:
            assert process.stderr.readline().startswith(b"grid: job ")
            why = real("why", "@").stdout
            assert b"Insufficient CPU" in why or b"cpu" in why.lower()
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 130
        id = real.detached("true")
        assert real("cancel", id).stdout == f"cancelled job {id}\n".encode()
    finally:
        assert real("release", holder).returncode == 0
    assert real("run", "true").returncode == 0


def test_who_holds_what_an_array_waits_for_is_named(real):
    total = real.json("status")["total"]["cpu"]
    held = real("reserve", "-q", "-c", str(total), "upkeep").stdout.decode().strip()
    try:
        array = real("submit", "-q", "-a", "3-9", "-J", "my job", "true").stdout.decode().strip()
        said = real("why", array).stdout.decode()
        assert said.startswith(f"array {array}: 7 queued\n{array}_[3-9]: cpu=1 does not fit now")
        assert f": upkeep of {real.json('show', f'{array}_3')['owner']}: cpu={total}\n" in said
        assert said.count("Insufficient CPU") == 1
        assert f"{array}_[3-9]  my job" in real("jobs").stdout.decode()
        (entry,) = real.json("queue")["entries"]
        assert (entry["kind"], entry["tasks"], entry["why"]) == ("array", 7, "no CPU free")
        assert f"{array}_[3-9]  my job" in real("queue").stdout.decode()
        assert "place in the queue: 1 of 7\nexpected start: not known" in said
        until(lambda: real.json("show", f"{array}_3")["waited"]["seconds"] > 1)
        assert b": no CPU free " in real("show", f"{array}_3").stdout
        assert f"{array}_4 " in real("ps", "-r").stdout.decode()
        dry = real("run", "--dry-run", "-c", "1", "true")
        assert (dry.returncode, dry.stdout[:17]) == (1, b"the job would wai")
        assert b"upkeep" in dry.stdout
        assert real("kill", "-q", array).returncode == 0
    finally:
        assert real("release", held).returncode == 0


def test_a_dry_run_changes_nothing_and_refuses_what_would_be_refused(real):
    before = real.json("jobs", "-a")
    dry = real("run", "--dry-run", "true")
    assert dry.returncode == 0
    assert dry.stdout.startswith(b"the job would start now on ")
    never = real("run", "--dry-run", "-c", "9999", "true")
    assert (never.returncode, never.stderr) == (125, real("run", "-c", "9999", "true").stderr)
    for wrong in (["--after", "99999"], ["-p", "now"], ["-w", "nowhere"], ["-a", "9-1"]):
        refused = real("run", "--dry-run", *wrong, "true")
        assert (refused.returncode, refused.stdout) == (125, b"")
        assert refused.stderr.startswith(b"error: ")
    assert real.json("jobs", "-a") == before


def test_a_script_says_what_it_needs(real, tmp_path):
    head = "#!/bin/sh\n#GRID -c 0.5 --mem 100MB -J 'my script'\n"
    script(tmp_path / "it.sh", f"{head}echo $GRIDHAND_CPUS $GRIDHAND_MEMORY_BYTES $1\n", 0o644)
    done = real("run", "--mem", "200MB", "it.sh", "x", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"0.5 200000000 x\n"), done
    assert real.json("show", "@")["name"] == "my script"


def test_what_is_inside_is_not_shown_to_scripts(real):
    node = real.json("list")[0]["name"]
    held = real.json("reserve", "-c", "0.1", "someone")
    answers = {
        "list": real.json("list")[0],
        "stats": real.json("stats", node),
        "why": real.json("why", "-c", "1"),
        "register": real.json("node", "register", "extra", "-c", "1"),
        "drain": real.json("node", "drain", "extra"),
        "resume": real.json("node", "resume", "extra"),
        "remove": real.json("node", "remove", "extra"),
        "reserve": held,
        "release": real.json("release", held["id"])[0],
    }
    assert [name for name, told in answers.items() if "row" in told] == []


def test_an_array(real):
    done = real(
        "run",
        "-a",
        "1-5%2",
        "sh",
        "-c",
        "echo $GRIDHAND_ARRAY_TASK_ID; exit $GRIDHAND_ARRAY_TASK_ID",
    )
    assert (done.returncode, done.stdout) == (5, b"1\n2\n3\n4\n5\n")


def test_an_array_ends_with_its_client(real):
    with real.start("run", "-a", "1-2", "sh", "-c", "echo here; sleep 60") as process:
        assert process.stdout.readline() == b"here\n"
        process.kill()
    array = real.json("jobs", "-a", "--limit", "1")[0]["array"]
    for task in ("1", "2"):
        assert real.until(f"{array}_{task}", "cancelled", "failed")["reason"] == "client_gone"


def test_after_another(real):
    first = real.detached("sh", "-c", "sleep 0.3; exit 1")
    never = real.detached("--after", first, "true")
    then = real.detached("--after", f"afterany:{first}", "true")
    assert real.until(then, "succeeded", "failed", "cancelled")["state"] == "succeeded"
    assert real.until(never, "succeeded", "failed", "cancelled")["reason"] == "dependency"


def test_output_to_files(real, tmp_path):
    done = real("run", "-o", "out-%j", "-e", "err", "sh", "-c", "echo o; echo e >&2", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    id = real.json("show", "@")["id"]
    assert (tmp_path / f"out-{id}").read_text() == "o\n"
    assert (tmp_path / "err").read_text() == "e\n"


def test_a_time_limit(real):
    done = real("run", "-t", "0.5s", "--grace", "1", "sleep", "60")
    assert done.returncode != 0
    assert b"grid: job" in done.stderr
    assert real.json("show", "@")["reason"] == "timeout"


def test_nodes_come_and_go(real):
    assert real("node", "register", "extra", "-c", "4", "--gpus-of", "A100:40GB*2").returncode == 0
    assert b"extra" in real("list").stdout
    found = real.json("stats", "extra")
    assert [gpu["model"] for gpu in found["gpus"]] == ["A100", "A100"]
    assert real("node", "drain", "extra").returncode == 0
    assert real.json("stats", "extra")["draining"] is True
    assert real("node", "resume", "extra").returncode == 0
    assert real("node", "remove", "extra").stdout == b"removed node extra\n"
    assert real("stats", "extra").returncode == 125


def test_pictures_and_lists(real):
    for arguments in (
        ["status"],
        ["list"],
        ["top", "--once"],
        ["jobs"],
        ["jobs", "-a"],
        ["doctor"],
    ):
        done = real(*arguments)
        assert (done.returncode, done.stderr) == (0, b""), done
        assert done.stdout


def test_stop_refuses_while_jobs_run_and_they_may_be_kept(real):
    id = real.detached("sleep", "60")
    real.until(id, "running")
    refused = real("stop")
    assert refused.returncode == 125
    assert b"--keep-jobs" in refused.stderr
    assert b"--kill-jobs" in refused.stderr
    assert b"stopped the controller" in real("stop", "--keep-jobs").stdout
    assert real("check").returncode == 0
    done = real("jobs")
    assert b"started a controller" in done.stderr
    assert real.json("show", id)["state"] == "running"
    assert real("cancel", id).returncode == 0
    real.until(id, "cancelled")


def test_a_follower_survives_a_restart_of_the_controller(real):
    with real.start("run", "sh", "-c", "echo one; sleep 3; echo two; exit 6") as process:
        assert process.stdout.readline() == b"one\n"
        pid = real.json("status")["controller"]["pid"]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (6, b"two\n")


CLOSED = "import os, sys; [os.close(n) for n in (0, 1)]; os.execv(sys.executable, sys.argv[1:])"


@pytest.mark.parametrize("command", ["jobs", "list", "queue", "top", "doctor", "status", "events"])
def test_closed_standard_streams_are_no_fault_of_a_command(real, command):
    words = [sys.executable, "-c", samples.CODE, command]
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, *words], stderr=subprocess.PIPE, env=real.env, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
