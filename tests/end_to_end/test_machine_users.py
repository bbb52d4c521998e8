"""Several users of one machine-wide controller: their jobs run as them, and apart from each other.

Two real users and an administrator are made for the tests, so they run as root only.
"""

import json
import os
import re
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from gridhand.posix import procfs
from gridhand.posix.locks import read_holder
from machine_users import Refused, machine, made_user
from until import until

# Sends a request as whoever runs it; the answer has the status and the body.
ASK = """
import json, os
from gridhand.client.transport import Address, Transport

def ask(method, path, body=None, owner=None):
    headers = {"content-type": "application/json"}
    if owner is not None:
        headers["x-gridhand-owner"] = owner
    transport = Transport(Address(os.environ["GRIDHAND_MACHINE_SOCKET"]))
    data = None if body is None else json.dumps(body).encode()
    status, _, content = transport.request(
        method, "/api/v1" + path, headers, data, repeatable=False
    )
    transport.close()
    return [status, content.decode("utf-8", "replace")]
"""

# What ann has: a job that prints a secret, a reservation, a session, and a pool with a worker.
ANN = """
import os, time
from gridhand import Grid, task
from gridhand.client import connect

grid = Grid()
session_held = grid.allocate(cpu=1)
session = next(iter(grid._backend._sessions.values())).id

@task(cpu=1)
def whoami(seconds=0.0):
    time.sleep(seconds)
    return os.getuid(), os.getgid(), os.getpid()

worker = whoami.submit().result(60)
keeping = whoami.submit(1000.0)
"""
SECRETS = ("hush-command", "hush-variable", "hush-output", "hush-folder", "hush-error")


@pytest.fixture(scope="module")
def served():
    with machine("abc", config="admin_group: {2}\n") as made:
        made.serve("--virtual-node", "n:cpu=64,memory=4GB")
        for user in made.users:
            user.python(ASK)
        yield made


@pytest.fixture(scope="module")
def ann(served):
    return served.users[0]


@pytest.fixture(scope="module")
def bob(served):
    return served.users[1]


@pytest.fixture(scope="module")
def admin(served):
    return served.users[2]


def ask(user, *words):
    """Send a request as the user; return the status and the reply."""
    status, text = user.python(f"answer = ask{words!r}")
    return status, json.loads(text) if text.startswith(("{", "[")) else text


def submit(user, command, **more):
    """Submit a detached job as the user, and return its id."""
    status, reply = ask(user, "POST", "/jobs", body(user, command, **more))
    assert status == 201, reply
    return reply["jobs"][0]["id"]


def body(user, command, **more):
    env = {"PATH": "/usr/bin:/bin"}
    given = {"folder": str(user.folder), "environment": env, "detached": True}
    return {**given, "command": command, **more}


def ended(user, id):
    """Return the job once it has ended."""

    def look():
        status, job = ask(user, "GET", f"/jobs/{id}")
        assert status == 200
        return job if job["state"] not in ("queued", "running") else None

    return until(look)


def output(user, id):
    status, text = ask(user, "GET", f"/jobs/{id}/logs")
    assert status == 200, text
    return text


# ---- a user of the machine-wide controller has all that a controller of one's own would give


def test_a_job_runs_as_its_user_without_any_privilege_of_the_controller(ann):
    done = ann.run("run", "--", "cat", "/proc/self/status")
    found = dict(re.findall(r"^(\w+):\s+(.*?)\s*$", done, re.MULTILINE))
    assert found["Uid"].split() == [str(ann.uid)] * 4
    assert found["Gid"].split() == [str(ann.gid)] * 4
    assert found["Groups"].split() == [str(ann.gid)]
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(found[capabilities], 16) == 0, capabilities


def test_the_files_of_a_job_belong_to_its_user_with_the_modes_of_the_umask(served, ann):
    job = submit(
        ann,
        ["sh", "-c", "umask; echo new > made; echo err >&2; cat"],
        environment={"PATH": "/usr/bin:/bin", "GRIDHAND_CALLER": "umask=027 nice=5"},
        stdout=f"{ann.folder}/out",
        stdin=f"{ann.folder}/in",
    )
    assert "in'" in ended(ann, job)["message"]  # there is no such file yet
    (ann.folder / "in").write_text("input\n")
    os.chown(ann.folder / "in", ann.uid, ann.gid)
    (ann.folder / "in").chmod(0o400)
    (ann.folder / "out").write_text("of the failed job")
    os.chown(ann.folder / "out", ann.uid, ann.gid)
    job = submit(
        ann,
        ["sh", "-c", "umask; nice; echo new > made; echo err >&2; cat"],
        environment={"PATH": "/usr/bin:/bin", "GRIDHAND_CALLER": "umask=027 nice=5"},
        stdout=f"{ann.folder}/out",
        stdin=f"{ann.folder}/in",
    )
    assert ended(ann, job)["state"] == "succeeded"
    assert (ann.folder / "out").read_text() == "0027\n5\ninput\n"
    assert output(ann, job) == "0027\n5\ninput\n"
    made, log = (ann.folder / "made").stat(), (served.home / "jobs" / job / "stderr").stat()
    assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode)) == (ann.uid, ann.gid, 0o640)
    assert (log.st_uid, log.st_gid, stat.S_IMODE(log.st_mode)) == (ann.uid, ann.gid, 0o600)


def test_a_command_can_open_its_output_again(ann):
    assert ann.run("run", "--", "sh", "-c", "echo again > /dev/stdout") == "again\n"


def test_a_hard_limit_is_never_raised(served, ann):
    def limit(more):
        env = {"PATH": "/usr/bin:/bin", **more}
        job = submit(ann, ["sh", "-c", "ulimit -Hn"], environment=env)
        assert ended(ann, job)["state"] == "succeeded"
        return int(output(ann, job))

    most = limit({})
    assert limit({"GRIDHAND_CALLER": f"nofile={2**40}:{2**40}"}) == most
    assert limit({"GRIDHAND_CALLER": "nofile=100:200"}) == 200


def test_a_command_that_is_not_there_exits_as_in_a_shell(ann):
    code, _, err = ann.grid("run", "--", "no-such-command")
    assert code == 127
    assert "no command" in err
    script = ann.folder / "script"
    script.write_text("echo a shell would run this\n")
    script.chmod(0o755)
    code, _, err = ann.grid("run", "--", script)
    assert code == 126
    assert "#!" in err


def test_arrays_logs_and_the_list(ann):
    first = ann.run("run", "-d", "-q", "-J", "many", "--array", "1-3", "--", "echo", "hello")
    id = first.split()[0].partition("_")[0]
    assert ann.run("logs", "-f", f"{id}_2") == "hello\n"
    until(lambda: "succeeded" in ann.run("jobs", "-a"))
    assert "many" in ann.run("jobs", "-a")


def test_ctrl_c_ends_an_attached_job(ann):
    with ann.start_grid("run", "--", "sh", "-c", "echo begun; sleep 1000") as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    [job] = ask(ann, "GET", f"/jobs?owner={ann.name}&limit=1")[1]["jobs"]
    assert ended(ann, job["id"])["state"] != "succeeded"


def test_functions_reservations_and_detached_calls(ann):
    ran = ann.python(
        """
import os
from gridhand import Grid, task
with Grid() as grid:
    @task(cpu=1)
    def ids(add=0):
        return os.getuid() + add, os.getgid()

    @task(cpu=1, detach=True)
    def detached():
        return os.getuid()

    answer = [ids.submit().result(60), list(ids.map([1, 2])), detached.submit().result(60)]
    with grid.allocate(cpu=2) as held:
        answer.append(held.owner)
"""
    )
    u, g = ann.uid, ann.gid
    assert ran == [[u, g], [[u + 1, g], [u + 2, g]], u, ann.name]
    ann.run("reserve", "-c", "1", "mine")
    assert "mine" in str(ask(ann, "GET", "/allocations"))
    ann.run("release", "mine")


def test_nothing_is_left_of_a_users_job_when_the_starter_is_killed(served, ann):
    job = submit(ann, ["sh", "-c", "setsid -f sleep 4711; exec sleep 4711"], time_limit_s=600)
    pids = until(lambda: len(found := _pids_of(ann.uid, b"4711")) == 2 and found)
    os.kill(read_holder(f"{served.home}/starter/n/lock").pid, signal.SIGKILL)
    assert ended(ann, job)["state"] == "lost"
    until(lambda: not any(procfs.is_alive(pid) for pid in pids))
    assert ann.run("run", "--", "id", "-u") == f"{ann.uid}\n"


def test_the_jobs_of_a_user_who_is_removed_do_not_run_as_anybody(served):
    with made_user("d") as name:
        gone = served.add_user(name)
        gone.python(ASK)
        first = submit(gone, ["sleep", "1000"])
        second = submit(gone, ["id"], after=[{"id": first, "condition": "afterany"}])
        until(lambda: ask(gone, "GET", f"/jobs/{first}")[1]["phase"] == "running")
    served.grid("cancel", first)
    until(lambda: "there is no user" in served.grid("show", second))
    assert "failed" in served.grid("show", second)


def test_doctor_says_which_controller_is_used(ann):
    assert "for all users of this machine" in ann.run("doctor")


def test_jobs_go_on_when_the_controller_is_replaced(served, ann):
    out = ann.folder / "kept"
    job = submit(
        ann,
        ["sh", "-c", "until [ -e go ]; do sleep 0.05; done; id -u"],
        stdout=str(out),
    )
    until(lambda: ask(ann, "GET", f"/jobs/{job}")[1]["phase"] == "running")
    served.end(signal.SIGTERM)  # as systemd does for a restart: users wait for the next one
    assert os.path.exists(served.env["GRIDHAND_MACHINE_SOCKET"])
    served.serve()
    (ann.folder / "go").touch()
    assert ended(ann, job)["state"] == "succeeded"
    assert out.read_text() == f"{ann.uid}\n"


# ---- attacks


class Victim:
    """All that ann has and bob wants."""

    def __init__(self, served, ann):
        ann.python(ANN)
        secret = ann.folder / "hush-folder"
        secret.mkdir(mode=0o755)
        os.chown(secret, ann.uid, ann.gid)
        words = ["sh", "-c", ": hush-command; echo hush-output; sleep 1000"]
        env = {"PATH": "/usr/bin:/bin", "TOKEN": "hush-variable"}
        self.job = submit(ann, words, folder=str(secret), environment=env, name="train")
        self.failed = submit(ann, ["no", "hush-command"], folder=f"{secret}/hush-error")
        self.held = ask(ann, "POST", "/allocations", {"request": {"cpu": 1}, "holder": "room"})
        assert self.held[0] == 201, self.held
        self.held = self.held[1]["id"]
        self.session = ann.python("answer = session")
        self.session_held = ann.python("answer = session_held.id")
        self.worker = ann.python("answer = worker")
        self.home = served.home
        until(lambda: output(ann, self.job) == "hush-output\n")
        ended(ann, self.failed)
        [self.pid] = _pids_of(ann.uid, b"hush-command")


@pytest.fixture(scope="module")
def victim(served, ann):
    return Victim(served, ann)


def _pids_of(uid, word):
    """Return the processes of a user that have a word in their command."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if entry.stat().st_uid == uid and word in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


#    what is tried                        method, path, body, named owner                 refusal
REQUESTS = {
    "read the log":                     ("GET", "/jobs/{job}/logs", None, None, "not_yours"),
    "read the errors":                  ("GET", "/jobs/{job}/logs?stream=stderr", None, None, "not_yours"),
    "follow the output":                ("GET", "/jobs/{job}/follow", None, None, "not_yours"),
    "attach, to end it by leaving":     ("GET", "/jobs/{job}/follow?attach=true&output=false", None, None, "not_yours"),
    "cancel":                           ("POST", "/jobs/{job}/cancel", None, None, "not_yours"),
    "signal":                           ("POST", "/jobs/{job}/signal", {"signal": 9}, None, "not_yours"),
    "release a reservation":            ("POST", "/allocations/{held}/release", None, None, "not_yours"),
    "release it by its holder":         ("POST", "/allocations/room/release", None, None, "unknown_allocation"),
    "extend a reservation":             ("POST", "/allocations/{held}/renew", {"ttl_s": 60}, None, "not_yours"),
    "confirm a reservation":            ("POST", "/allocations/{held}/confirm", None, None, "not_yours"),
    "release what a session holds":     ("POST", "/allocations/{session_held}/release", None, None, "not_yours"),
    "run within a reservation":         ("POST", "/jobs", {"within": "{held}"}, None, "not_yours"),
    "submit as the other":              ("POST", "/jobs", {}, "{ann}", "not_yours"),
    "submit as root":                   ("POST", "/jobs", {}, "root", "not_yours"),
    "submit as root by number":         ("POST", "/jobs", {}, "uid-0", "not_yours"),
    "submit as everybody":              ("POST", "/jobs", {}, "*", "not_yours"),
    "cancel as the other":              ("POST", "/jobs/{job}/cancel", None, "{ann}", "not_yours"),
    "read the log as the other":        ("GET", "/jobs/{job}/logs", None, "{ann}", "not_yours"),
    "add a job to a session":           ("POST", "/sessions/{session}/jobs", {"jobs": ["{job}"]}, None, "invalid_input"),
    "report calls in a session":        ("POST", "/calls", {"session": "{session}", "run": "abc", "calls": [
        {"name": "f", "state": "queued", "numbers": [1], "submitted_ms": [1], "started_ms": [None], "ended_ms": [None]}
    ]}, None, "invalid_input"),
    "allocate in a session":            ("POST", "/allocations", {"request": {"cpu": 1}, "session": "{session}"}, None, "invalid_input"),
    "stop the controller":              ("POST", "/stop", {"jobs": "kill"}, None, "not_yours"),
    "reload the configuration":         ("POST", "/config/reload", None, None, "not_yours"),
    "read the configuration":           ("GET", "/config", None, None, "not_yours"),
    "repair the store":                 ("POST", "/repair", None, None, "not_yours"),
    "read the whole ledger":            ("GET", "/dump", None, None, "not_yours"),
    "delete history":                   ("POST", "/prune", {"older_than_s": 1, "most": 10}, None, "not_yours"),
    "drain a node":                     ("POST", "/nodes/n/drain", None, None, "not_yours"),
    "remove a node":                    ("DELETE", "/nodes/n?force=true", None, None, "not_yours"),
    "a path for an id":                 ("GET", "/jobs/..%2f..%2fgrid.db/logs", None, None, None),
}  # fmt: skip


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_a_request_about_what_another_user_has_is_refused(ann, bob, victim, request_):
    method, path, given, owner, code = request_
    names = {**vars(victim), "ann": ann.name}
    path, owner = path.format(**names), owner and owner.format(**names)
    if given is not None:
        text = json.dumps(given)
        for name in ("job", "held", "session"):
            text = text.replace(f"{{{name}}}", names[name])
        given = json.loads(text)
    if path == "/jobs":
        given = body(bob, ["id"], **given)
    status, reply = ask(bob, method, path, given, owner)
    assert status >= 400, reply
    assert code is None or reply["code"] == code, reply
    assert_unharmed(ann, victim)


def assert_unharmed(ann, victim):
    assert ask(ann, "GET", f"/jobs/{victim.job}")[1]["phase"] == "running"
    held = ask(ann, "GET", "/allocations")[1]["allocations"]
    assert {victim.held, victim.session_held} <= {one["id"] for one in held}


def test_a_session_of_the_same_id_is_another_one(ann, bob, victim):
    opened = bob.python(
        f"""
import json, os, socket
with socket.socket(socket.AF_UNIX) as connected:
    connected.connect(os.environ["GRIDHAND_MACHINE_SOCKET"])
    given = {{"session": {victim.session!r}, "held": [{victim.session_held!r}], "jobs": [{victim.job!r}]}}
    body = json.dumps(given).encode()
    head = f"POST /api/v1/sessions HTTP/1.1\\r\\nhost: x\\r\\ncontent-type: application/json\\r\\n"
    connected.sendall(head.encode() + b"content-length: %d\\r\\n\\r\\n" % len(body) + body)
    text = b""
    while b"session" not in text:
        text += connected.recv(4096)
answer = text.decode()
"""
    )
    assert '"held":[]' in opened
    assert '"jobs":[]' in opened
    assert ask(bob, "DELETE", f"/sessions/{victim.session}")[0] == 200  # that of bob
    assert_unharmed(ann, victim)


def test_nothing_that_can_be_read_tells_another_users_secrets(ann, bob, victim):
    for path in (
        "/jobs", "/jobs?fold=true", f"/jobs/{victim.job}", f"/jobs/{victim.job}/why", f"/jobs/{victim.failed}",
        f"/jobs/{victim.failed}/follow?output=false", "/calls", "/events", "/allocations",
        f"/allocations/{victim.held}", "/nodes", "/nodes/n", "/status", "/version", "/check", "/identity",
    ):  # fmt: skip
        status, reply = ask(bob, "GET", path)
        assert status == 200, (path, reply)
        assert not [secret for secret in SECRETS if secret in json.dumps(reply)], path
    for words in (
        ("jobs", "-a"),
        ("show", victim.job),
        ("why", victim.job),
        ("status",),
        ("list",),
    ):
        shown = bob.run(*words)
        assert not [secret for secret in SECRETS if secret in shown], words
    [job] = [one for one in ask(bob, "GET", "/jobs")[1]["jobs"] if one["id"] == victim.job]
    assert (job["name"], job["owner"], job["request"]) == ("train", ann.name, {"cpu": 1})
    own = ask(ann, "GET", f"/jobs/{victim.job}")[1]
    assert own["folder"].endswith("hush-folder")


#    what is tried                        code that bob runs
TOUCHES = {
    "list the home of the controller":  "os.listdir(home)",
    "read a log":                       "open(f'{home}/jobs/{job}/stdout')",
    "read an environment":              "os.listdir(f'{home}/environments')",
    "read the store":                   "open(f'{home}/grid.db')",
    "connect to the agent":             "connect(f'{home}/agent/n/socket')",
    "connect to the starter":           "connect(f'{home}/starter/n/socket')",
    "replace the controller's socket":  "os.unlink(os.environ['GRIDHAND_MACHINE_SOCKET'])",
    "make a file beside the socket":    "open(os.path.dirname(os.environ['GRIDHAND_MACHINE_SOCKET']) + '/x', 'w')",
    "read the environment of a job":    "open(f'/proc/{pid}/environ').read()",
    "read the output through a job":    "open(f'/proc/{pid}/fd/1').read()",
    "signal a job":                     "os.kill(pid, 15)",
    "signal a worker":                  "os.kill(worker, 15)",
    "raise the priority of a job":      "os.setpriority(os.PRIO_PROCESS, pid, 10)",
    "leave the limits of a job":        "open(cgroup + '/cgroup.procs', 'w').write('0')",
    "enter the folder of a pool":       "os.listdir(pool)",
    "connect to a pool":                "connect(pool + '/socket')",
}  # fmt: skip


@pytest.mark.parametrize("code", TOUCHES.values(), ids=TOUCHES)
def test_another_users_processes_and_files_are_out_of_reach(ann, bob, victim, code):
    pool = ann.python(_POOL)
    cgroup = _cgroup_of(victim.pid)
    names = {"home": str(victim.home), "job": victim.job, "pid": victim.pid}
    names |= {"worker": victim.worker[2], "pool": pool, "cgroup": cgroup}
    setup = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    with pytest.raises(Refused) as refused:
        bob.python(f"{_CONNECT}{setup}{code}")
    assert refused.value.code in ("PermissionError", "FileNotFoundError"), refused.value
    assert_unharmed(ann, victim)


_CONNECT = """
import os, socket
def connect(path):
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(path)
"""
_POOL = """
import glob, tempfile
mine = [one for one in glob.glob(tempfile.gettempdir() + "/gridhand-pool-*") if os.stat(one).st_uid == os.getuid()]
answer = mine[0]
"""


def _cgroup_of(pid):
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        if "gridhand" in path:
            return f"/sys/fs/cgroup/{kinds}{path}" if kinds else f"/sys/fs/cgroup{path}"
    return "/sys/fs/cgroup/none"


@pytest.fixture(scope="module")
def traps(served, ann, bob):
    """Files that bob may not read or write, and links of bob's that lead there."""
    folder = served.folder / "traps"
    folder.mkdir(mode=0o755)
    (folder / "root").write_text("of root")
    (folder / "root").chmod(0o640)
    (folder / "program").write_text("#!/bin/sh\nid\n")
    (folder / "program").chmod(0o700)
    (folder / "closed").mkdir(mode=0o700)
    (ann.folder / "secret").write_text("of ann")
    links = {
        "to_root": folder / "root",
        "to_ann": ann.folder / "secret",
        "to_etc": "/etc",
        "to_shadow": "/etc/shadow",
    }
    for name, target in links.items():
        os.symlink(target, bob.folder / name)
        os.chown(bob.folder / name, bob.uid, bob.gid, follow_symlinks=False)
    return {"traps": str(folder), "ann": str(ann.folder), "bob": str(bob.folder)}


#    what is tried                          fields of the submission
TRICKS = {
    "read a file of root as input":       {"stdin": "/etc/shadow"},
    "read it through a link":             {"stdin": "{bob}/to_shadow"},
    "read a file of another as input":    {"stdin": "{ann}/secret"},
    "read that through a link":           {"stdin": "{bob}/to_ann"},
    "overwrite a file of root":           {"stdout": "{traps}/root"},
    "overwrite it with the errors":       {"stderr": "{traps}/root"},
    "overwrite it through a link":        {"stdout": "{bob}/to_root"},
    "make a file where root alone may":   {"stdout": "{traps}/new"},
    "make one through a linked folder":   {"stderr": "{bob}/to_etc/gridhand-new"},
    "overwrite a file of another":        {"stdout": "{ann}/secret"},
    "overwrite that through a link":      {"stdout": "{bob}/to_ann"},
    "write to a device of the machine":   {"stdout": "/dev/mem"},
    "write to memory of another":         {"stdout": "/proc/1/mem"},
    "read the memory of the starter":     {"stdin": "/proc/self/mem"},
    "write to its memory":                {"stdout": "/proc/self/mem"},
    "read its variables":                 {"stdin": "/proc/self/environ"},
    "read them as a thread":              {"stdin": "/proc/thread-self/environ"},
    "write to its log":                   {"stdout": "/dev/stdout"},
    "enter its folder":                   {"folder": "/proc/self/cwd"},
    "enter the folder of another":        {"folder": "{ann}"},
    "enter a folder of root":             {"folder": "{traps}/closed"},
    "run a program of root":              {"command": ["{traps}/program"]},
    "find it on the PATH":                {"command": ["program"], "environment": {"PATH": "{traps}"}},
}  # fmt: skip


@pytest.mark.parametrize("fields", TRICKS.values(), ids=TRICKS)
def test_files_are_opened_with_the_rights_of_the_user(ann, bob, traps, fields):
    text = json.dumps(fields)
    for name, path in traps.items():
        text = text.replace(f"{{{name}}}", path)
    given = json.loads(text)
    job = submit(bob, given.pop("command", ["cat"]), **given)
    done = ended(bob, job)
    assert (done["state"], done["reason"]) == ("failed", "start_failed")
    refusals = "Permission denied|not executable|Operation not permitted|Too many levels"
    assert re.search(refusals, done["message"]), done["message"]
    assert output(bob, job) == ""
    folder = Path(traps["traps"])
    assert (folder / "root").read_text() == "of root"
    assert (ann.folder / "secret").read_text() == "of ann"
    assert not (folder / "new").exists()
    assert not os.path.exists("/etc/gridhand-new")


def test_nothing_that_the_starter_has_open_can_be_opened_again(bob):
    jobs = [submit(bob, ["cat"], stdin=f"/proc/self/fd/{number}") for number in range(3, 30)]
    for job in jobs:
        ended(bob, job)
        assert output(bob, job) == ""


@pytest.mark.parametrize("target", ["to_shadow", "to_ann", "to_root_only"])
def test_an_output_file_that_became_a_link_is_not_followed_by_root(served, bob, traps, target):
    secret = served.folder / "traps" / "root-only"
    secret.write_text("secret")
    secret.chmod(0o640)  # readable by the group of root
    job = submit(bob, ["echo", "hello"], stdout=f"{bob.folder}/{target}-out")
    ended(bob, job)
    assert output(bob, job) == "hello\n"
    leads_to = secret if target == "to_root_only" else os.readlink(bob.folder / target)
    os.unlink(bob.folder / f"{target}-out")
    os.symlink(leads_to, bob.folder / f"{target}-out")
    assert output(bob, job) == ""
    status, frames = ask(bob, "GET", f"/jobs/{job}/follow")
    assert status == 200
    assert '"output"' not in json.dumps(frames)


def test_variables_of_a_user_never_reach_a_program_of_root(served, bob):
    """A helper that drops the rights as its own program would load what LD_PRELOAD names."""
    trace = bob.folder / "loaded"
    env = {"PATH": "/usr/bin:/bin", "LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(trace)}
    job = submit(bob, ["/bin/true"], environment=env)
    assert ended(bob, job)["state"] == "succeeded"
    made = list(bob.folder.glob("loaded.*"))
    assert made  # the loader of the command itself wrote one
    assert {one.stat().st_uid for one in made} == {bob.uid}


def test_a_user_cannot_take_all_connections(served, bob):
    opened = bob.python(
        """
import os, resource, socket
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
many = []
for _ in range(2100):
    one = socket.socket(socket.AF_UNIX)
    one.connect(os.environ["GRIDHAND_MACHINE_SOCKET"])
    many.append(one)
closed = 0
for one in many[2000:]:
    one.settimeout(8)  # all that says nothing is closed after 20
    closed += one.recv(1) == b""
for one in many:
    one.close()
answer = closed
"""
    )
    assert opened >= 90
    assert "n" in served.grid("list")


# ---- administrators


def test_an_administrator_manages_the_jobs_of_others_without_their_rights(ann, admin):
    job = submit(ann, ["sh", "-c", "echo hello; sleep 1000"], name="hers")
    until(lambda: output(ann, job) == "hello\n")
    assert output(admin, job) == "hello\n"
    assert ask(admin, "GET", f"/jobs/{job}")[1]["command"][0] == "sh"
    assert ask(admin, "GET", "/config")[0] == 200
    for owner in (ann.name, "root"):
        status, reply = ask(admin, "POST", "/jobs", body(admin, ["id"]), owner)
        assert (status, reply["code"]) == (403, "not_yours")
    own = submit(admin, ["id", "-u"])
    ended(admin, own)
    assert output(admin, own) == f"{admin.uid}\n"
    assert ask(admin, "POST", f"/jobs/{job}/cancel")[0] == 200
    assert ended(ann, job)["state"] == "cancelled"


def test_root_acts_for_a_user_and_the_job_runs_as_that_user(served, ann):
    job = served.grid("run", "-d", "-q", "--", "id", "-u").strip()
    until(lambda: "succeeded" in served.grid("show", job))
    assert served.grid("logs", job) == "0\n"
    code = (
        "from gridhand import Grid\n"
        f"grid = Grid(owner={ann.name!r})\n"
        "job = grid.run(['id', '-u'], cwd='/').wait(60)\n"
        "print(job.facts['owner'], job.logs())\n"
        "try:\n    Grid(owner='nobody-of-that-name').run(['id'])\n"
        "except Exception as error:\n    print(error.code)\n"
    )
    words = [served.process.args[0], "-c", code]
    done = subprocess.run(words, env=served.env, cwd="/", capture_output=True, text=True)
    assert done.stdout.split() == [ann.name, str(ann.uid), "invalid_input"], done
