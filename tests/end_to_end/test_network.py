"""A controller on the network: its clients have a token, a certificate to trust, and other folders."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grid_machine import GRID, Machine
from until import until

SUPPORT = Path(__file__).parent.parent / "support"
CERTIFICATE, KEY = SUPPORT / "tls_cert.pem", SUPPORT / "tls_key.pem"


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network")
    machine = Machine(folder / "h")
    tls = ("--tls-cert", CERTIFICATE, "--tls-key", KEY)
    serving = machine.start("serve", "--port", "0", *tls, cwd=folder)
    line = serving.stdout.readline()
    assert line.startswith("listening at https://localhost:"), line + serving.stderr.read()
    machine.url, machine.link = line.split()[-1], serving.stdout.readline().split()[-1]
    try:
        yield machine
        machine.check()
    finally:
        machine.close()


@pytest.fixture(scope="module")
def token(machine, tmp_path_factory):
    path = tmp_path_factory.mktemp("token") / "token"
    made = machine.grid(
        "token", "create", "--scope", "submit", "--owner", "ann", "-o", path, check=0
    )
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().strip() not in made.stdout + made.stderr
    return path


@pytest.fixture
def remote(machine, token, tmp_path):
    """The environment of a client on another machine, in a folder of its own."""
    work = tmp_path / "work"
    work.mkdir()
    env = {name: text for name, text in machine.env.items() if not name.startswith("COVERAGE_")}
    env |= {
        "GRIDHAND_HOME": str(tmp_path / "none"), "GRIDHAND_ADDRESS": machine.url,
        "GRIDHAND_TOKEN_FILE": str(token), "SSL_CERT_FILE": str(CERTIFICATE),
    }  # fmt: skip
    return Client(env, work)


class Client:
    def __init__(self, env, work):
        self.env, self.work = env, work

    def start(self, *words, **more):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [*GRID, *map(str, words)]
        return subprocess.Popen(command, env=self.env, cwd=self.work, stdin=subprocess.DEVNULL, **pipes, **more)  # fmt: skip

    def grid(self, *words):
        started = self.start(*words)
        out, err = started.communicate(timeout=60)
        return started.returncode, out, err


def test_output_files_and_exit_code_come_back(remote):
    (remote.work / "in").mkdir()
    (remote.work / "in/data").write_text("six times seven\n")
    (remote.work / "go.sh").write_text("#!/bin/sh\ncat in/data; echo $MODE >&2; mkdir out; echo 42 > out/a; exit 7\n")  # fmt: skip
    (remote.work / "go.sh").chmod(0o755)
    words = ("run", "-q", "--send", "in", "--send", "go.sh", "--env", "MODE=fast", "--fetch", "out")
    assert remote.grid(*words, "--", "./go.sh") == (7, "six times seven\n", "fast\n")
    assert (remote.work / "out/a").read_text() == "42\n"


def test_ctrl_c_goes_to_the_job(remote):
    trap = "trap 'echo stopped; exit 3' INT; echo ready; while :; do sleep 0.05; done"
    started = remote.start("run", "--", "sh", "-c", trap)
    assert started.stdout.readline() == "ready\n"
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert (out, started.returncode) == ("stopped\n", 3)
    assert "sent Ctrl-C" in err


def test_a_job_ends_with_its_client(machine, remote):
    started = remote.start("run", "--", "sh", "-c", "echo $GRIDHAND_JOB_ID; sleep 1000")
    id = started.stdout.readline().strip()
    started.kill()
    started.communicate()
    until(lambda: machine.state(id) == "cancelled")


def test_the_library_submits_and_reads_but_calls_no_functions(remote):
    code = """
from gridhand import Grid, GridError, task
with Grid() as grid:
    job = grid.run("echo hello").wait()
    print(grid.owner, job.exit_code)
    with grid.allocate(cpu=1) as held:
        print(held.owner)
    for call in (lambda: task(len).submit("abc").result(), lambda: task(len, detach=True).submit("abc"),
                 lambda: grid.run("true", cwd="/")):
        try:
            call()
        except GridError as error:
            print(type(error).__name__, "another machine" in f"{error} {error.hint}")
"""
    done = subprocess.run([sys.executable, "-c", code], env=remote.env, cwd=remote.work,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "ann 0",
        "ann",
        "GridError True",
        "GridError True",
        "InvalidInput True",
    ]


def test_a_revoked_token_ends_what_runs_with_it(machine, remote, tmp_path):
    path = tmp_path / "short"
    machine.grid("token", "create", "--scope", "submit", "--owner", "eve", "-o", path, check=0)
    tokens = json.loads(machine.grid("token", "list", "--json", check=0).stdout)
    [made] = [one for one in tokens if one["owner"] == "eve"]
    remote.env["GRIDHAND_TOKEN_FILE"] = str(path)
    started = remote.start("run", "--", "sh", "-c", "echo ready; sleep 1000")
    assert started.stdout.readline() == "ready\n"
    machine.grid("token", "revoke", made["id"], check=0)
    _, err = started.communicate(timeout=60)
    assert started.returncode == 125
    assert "is revoked" in err
    assert path.read_text().strip() not in err


WRONG = {
    "no token": ({"GRIDHAND_TOKEN_FILE": ""}, "needs a token"),
    "a token that is none": ({"GRIDHAND_TOKEN": "secret-word"}, "not a token"),
    "a token file that is gone": ({"GRIDHAND_TOKEN_FILE": "/nowhere"}, "cannot be read"),
    "a certificate nobody signed": ({"SSL_CERT_FILE": "/dev/null"}, "cannot be trusted"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said_without_the_token(remote, wrong):
    variables, words = WRONG[wrong]
    remote.env |= variables
    code, out, err = remote.grid("run", "true")
    assert (code, out) == (125, "")
    assert words in err
    assert "hint:" in err
    assert "secret-word" not in err


def test_a_token_file_that_others_can_read_is_refused(remote, token, tmp_path):
    open_file = tmp_path / "open"
    open_file.write_text(token.read_text())
    open_file.chmod(0o644)
    remote.env["GRIDHAND_TOKEN_FILE"] = str(open_file)
    code, _, err = remote.grid("jobs")
    assert code == 125
    assert "chmod 600" in err
    assert token.read_text().strip() not in err


def test_options_that_name_files_of_this_machine_are_refused(machine, remote):
    for words in (("-o", "x"), ("-i", "/etc/hosts"), ("-e", "x")):
        code, _, err = remote.grid("run", *words, "true")
        assert (code, "--send" in err) == (125, True)
    done = machine.grid("run", "--send", "x", "true")
    assert (done.returncode, "on another machine" in done.stderr) == (125, True)


def test_no_secret_is_in_a_log_an_argument_or_the_state(machine, token, remote):
    remote.grid("run", "true")
    secret = token.read_text().strip().rpartition("_")[2].encode()
    code = machine.link.partition("code=")[2].encode()
    written = [path for path in machine.home.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in written if secret in path.read_bytes()] == []
    assert [path for path in written if code in path.read_bytes()] == []
    arguments = [Path(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdecimal()]
    assert [one for one in arguments if one.exists() and secret in one.read_bytes()] == []


def test_plain_http_is_not_answered_on_an_encrypted_port(machine, remote):
    remote.env["GRIDHAND_ADDRESS"] = machine.url.replace("https", "http")
    code, out, _ = remote.grid("jobs")
    assert (code, out) == (125, "")


def test_a_list_without_options_has_own_jobs_that_have_ended(remote):
    name = "ended-a-moment-ago"
    assert remote.grid("run", "-q", "--name", name, "--", "true")[0] == 0
    for words in (("jobs",), ("jobs", "--json")):
        code, out, _ = remote.grid(*words)
        assert code == 0
        assert name in out


def test_a_reload_without_a_file_fails_and_says_how_to_name_one(machine):
    for words in ((), ("--json",)):
        done = machine.grid("config", "reload", *words, check=125)
        assert "nothing to reload" in done.stderr
        assert "grid serve --config FILE" in done.stderr
        assert done.stdout == ""


def test_a_deadline_is_told_in_seconds(machine):
    done = machine.run("--deadline", "+5s", "-t", "60s", "--", "true")
    assert done.returncode == 125
    assert "deadline: " in done.stderr
    assert "60 s from its submission, or later" in done.stderr
    assert "_ms" not in done.stderr


def test_the_next_controller_opens_no_port_and_says_so(tmp_path):
    machine = Machine(tmp_path / "h")
    try:
        serving = machine.start("serve", "--port", "0", cwd=tmp_path)
        url = serving.stdout.readline().split()[-1]
        machine.grid("stop", check=0)
        assert serving.wait(60) == 0
        told = machine.grid("status", check=0)
        assert f"the one before listened at {url}" in told.stderr
        connections = machine.controller.net_connections(kind="tcp")
        assert [one for one in connections if one.status == "LISTEN"] == []
        machine.grid("stop", check=0)
        machine.start("serve", cwd=tmp_path)
        until(lambda: not (tmp_path / "h/listened").exists())
    finally:
        machine.close()
