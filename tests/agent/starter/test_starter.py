"""Commands are started exactly as they were given, and what becomes of them is told."""

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from gridhand.posix import procfs

ENDS = {
    "success":                  ("exit 0",        {"reason": "exit", "code": 0}),
    "a failure":                ("exit 7",        {"reason": "exit", "code": 7}),
    "the largest code":         ("exit 255",      {"reason": "exit", "code": 255}),
    "a signal it sends itself": ("kill -TERM $$", {"reason": "signal", "signal": 15}),
    "a kill":                   ("kill -KILL $$", {"reason": "signal", "signal": 9}),
}  # fmt: skip


@pytest.mark.parametrize(("script", "expected"), ENDS.values(), ids=ENDS)
def test_how_it_ended_is_told(run, script, expected):
    end = run("j", "/bin/sh", "-c", script)
    assert expected.items() <= end.items()
    assert abs(end["ended_ms"] - time.time() * 1000) < 60_000
    assert end["user_us"] >= 0
    assert end["peak_bytes"] > 0


def test_use_is_measured(run):
    burn = "import time\nwhile time.process_time() < 0.1: pass\nx = bytearray(50_000_000)"
    end = run("j", sys.executable, "-c", burn)
    assert end["user_us"] + end["system_us"] > 100_000
    assert end["peak_bytes"] > 50_000_000


def test_the_same_attempt_is_started_once(place, starter, tools):
    once = place.order("j", "/bin/sh", "-c", "echo ran")
    first, second = starter.start([once, once])
    assert first["pid"] == second["pid"]
    tools.ends(starter)
    [again] = starter.start([once])
    assert again["state"] == "ended"
    assert again["pid"] == first["pid"]
    assert place.output("j") == b"ran\n"
    starter.start([place.order("j", "/bin/sh", "-c", "echo again", attempt=1)])
    tools.ends(starter)
    assert place.output("j") == b"ran\nagain\n"


def test_arguments_arrive_untouched(run, place):
    given = ["--option", "-x", "", " two  words ", "a'b\"c", "$HOME `id` $(id) *", "line\nline", "\\", "é\udcff", "; exit 1"]  # fmt: skip
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"
    assert run("j", sys.executable, "-X", "utf8", "-c", show, *given)["code"] == 0
    assert json.loads(place.output("j")) == given


def test_the_environment_is_what_was_given(run, place):
    given = {"A": "1", "B": "x=y", "C": "two\nlines", "D": "", "E": "\udcff", "PATH": "/bin:/usr/bin", "GRIDHAND_JOB_ID": "j", "GRIDHAND_STARTER": "x"}  # fmt: skip
    run("j", "env", "-0", env=given)
    lines = place.output("j").decode("utf-8", "surrogateescape").split("\0")[:-1]
    assert dict(line.split("=", 1) for line in lines) == given


def test_the_command_is_found_on_the_path_of_the_job(run, place):
    for name in ("one", "two"):
        (place.path / name).mkdir()
        script = place.path / name / "tool"
        script.write_text(f"#!/bin/sh\necho {name}\n")
        script.chmod(0o755 if name == "two" else 0o644)
    end = run("j", "tool", env={"PATH": f"{place.path}/none:{place.path}/one:{place.path}/two"})
    assert end["code"] == 0
    assert place.output("j") == b"two\n"


def test_it_runs_in_its_folder_and_relative_names_begin_there(run, place):
    inner = place.path / "in ner"
    inner.mkdir()
    (inner / "tool").write_text("#!/bin/sh\npwd -P\n")
    (inner / "tool").chmod(0o755)
    assert run("j", "./tool", cwd=str(inner))["code"] == 0
    assert place.output("j").decode().strip() == str(inner.resolve())


def test_what_it_prints_is_appended_to_files_of_its_owner_only(run, place):
    umask = os.umask(0)
    try:
        assert run("j", "/bin/sh", "-c", "echo out; echo err >&2")["code"] == 0
    finally:
        os.umask(umask)
    assert run("j", "/bin/sh", "-c", "echo more", attempt=1)["code"] == 0
    assert place.output("j") == b"out\nmore\n"
    assert place.output("j", "err") == b"err\n"
    assert stat.S_IMODE((place.path / "j.out").stat().st_mode) == 0o600


def test_both_outputs_may_be_one_file(run, place):
    both = str(place.path / "both")
    run("j", "/bin/sh", "-c", "echo out; echo err >&2; echo out", stdout=both, stderr=both)
    assert (place.path / "both").read_text() == "out\nerr\nout\n"


def test_the_input_is_a_file_or_nothing(run, place):
    (place.path / "input").write_text("given\n")
    run("j", "cat", stdin=str(place.path / "input"))
    assert place.output("j") == b"given\n"
    run("k", "cat")
    assert place.output("k") == b""


def test_it_gets_its_cores_and_the_next_one_all_of_them(place, starter, tools):
    show = ["grep", "Cpus_allowed_list", "/proc/self/status"]
    core = max(os.sched_getaffinity(0))
    before = os.sched_getaffinity(starter.greeting["pid"])
    starter.start([place.order("pinned", *show, cores=[core]), place.order("free", *show)])
    tools.ends(starter, 2)
    assert place.output("pinned").split()[1] == str(core).encode()
    own = subprocess.run(show, capture_output=True, check=True).stdout
    assert place.output("free") == own
    assert os.sched_getaffinity(starter.greeting["pid"]) == before


def test_it_leads_a_session_and_no_signal_is_blocked_or_ignored(run, place):
    run("j", "cat", "/proc/self/stat", "/proc/self/status")
    pid, _, _, _, group, session, *_ = place.output("j").split()
    assert pid == group == session
    masks = {line.split()[0]: line.split()[1] for line in place.output("j").splitlines() if line.startswith(b"Sig")}  # fmt: skip
    assert int(masks[b"SigBlk:"], 16) == 0
    assert int(masks[b"SigIgn:"], 16) & ~(0b11 << 31) == 0  # two belong to the C library


def test_it_has_no_files_open_but_its_own(run, place):
    run("j", "ls", "/proc/self/fd")
    assert place.output("j").split() == [b"0", b"1", b"2", b"3"]  # the last is the listed folder


def test_two_hundred_in_one_message(place, starter, tools):
    names = [f"j{number}" for number in range(200)]
    told = starter.start([place.order(name, "/bin/sh", "-c", f"exit {number}") for number, name in enumerate(names)])  # fmt: skip
    assert [one["job"] for one in told] == names
    assert len({one["pid"] for one in told}) == 200
    found = tools.ends(starter, 200)
    assert [found[name]["code"] for name in names] == list(range(200))
    assert starter.forget((name, 0) for name in names) == 200
    assert starter.list()["ended"] == []
    assert len(place.journal()) < 10  # nothing in it is needed any more


FAILURES = {
    "no such file":              ({"argv": ["/no/such"]},               "No such file", 127),
    "not on the path":           ({"argv": ["no-such-command"]},        "there is no command 'no-such-command' on the job's PATH", 127),
    "an empty path":             ({"argv": ["ls"], "env": {"PATH": ""}}, "there is no command 'ls'", 127),
    "not executable":            ({"argv": ["/etc/passwd"]},            "Permission denied", 126),
    "not executable, on a path": ({"argv": ["passwd"], "env": {"PATH": "/etc"}}, "it is not executable", 126),
    "a folder":                  ({"argv": ["/etc"]},                   "Permission denied", 126),
    "the folder is gone":        ({"cwd": "/no/such"},                  "cannot enter the working folder '/no/such'", None),
    "the folder is a file":      ({"cwd": "/etc/passwd"},               "Not a directory", None),
    "no place for its output":   ({"stdout": "/no/such/out"},           "cannot open the standard output '/no/such/out'", None),
    "no place for its errors":   ({"stderr": "/no/such/err"},           "cannot open the standard error", None),
    "no input":                  ({"stdin": "/no/such/in"},             "cannot open the standard input", None),
    "cores that are not here":   ({"cores": [8000]},                    "cannot run on cores 8000", None),
    "only some cores are here":  ({"cores": [min(os.sched_getaffinity(0)), 8000]}, "cannot run on cores", None),
    "the cgroup is gone":        ({"cgroups": ["/no/such"]},            "cannot join the cgroup '/no/such'", None),
    "not a cgroup":              ({"cgroups": ["/etc"]},                "cannot join the cgroup", None),
    "too many arguments":        ({"argv": ["true", "x" * 200_000]},    "Argument list too long", 126),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words", "code"), FAILURES.values(), ids=FAILURES)
def test_what_cannot_start_has_ended_and_says_why(place, starter, tools, change, words, code):
    """The code is a shell's where the command is at fault: 127 if it is not there, else 126."""
    bad = place.order("bad", "true") | change
    told, good = starter.start([bad, place.order("good", "true")])
    assert told["state"] == "ended"
    assert told["written"]
    assert told["end"]["reason"] == "start_failed"
    assert words in told["end"]["message"]
    assert told["end"].get("code") == code
    assert good["state"] == "running"
    found = tools.ends(starter, 2)
    assert found["bad"] == told["end"]
    assert found["good"]["code"] == 0
    assert starter.start([bad])[0] == told


SCRIPTS = {
    "a script without a first line": ("echo hello\n",            "a script needs a first line that begins with #!"),
    "a script whose language is missing": ("#!/no/such\necho\n", "it is there, but what runs it"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), SCRIPTS.values(), ids=SCRIPTS)
def test_no_shell_is_asked_to_try(run, place, text, words):
    script = place.path / "script"
    script.write_text(text)
    script.chmod(0o755)
    end = run("j", str(script))
    assert (end["reason"], end["code"]) == ("start_failed", 126)
    assert words in end["message"]


def test_it_is_signalled_and_the_group_with_it(place, starter, tools):
    said = place.gate()
    script = 'sleep 1000 & echo $! > "$1"; wait'
    starter.start([place.order("j", "/bin/sh", "-c", script, "-", said.path)])
    child = int(said.hear())
    with tools.watched(child) as gone:
        assert starter.stop("j", 0)
        assert tools.ends(starter)["j"]["signal"] == signal.SIGTERM
        gone()
    assert not starter.stop("j", 0)


def test_only_the_leader_may_be_signalled(place, starter, tools):
    said = place.gate()
    script = 'sleep 1000 & echo $! > "$1"; wait'
    [told] = starter.start([place.order("j", "/bin/sh", "-c", script, "-", said.path)])
    child = int(said.hear())
    assert starter.stop("j", 0, signal.SIGKILL, to="leader")
    assert tools.ends(starter)["j"]["signal"] == signal.SIGKILL
    [ended] = starter.list()["ended"]
    assert ended["survivors"] == [child]
    assert told["pid"] != child
    assert starter.stop_all("j", 0)["killed"] == 1
    assert starter.list()["ended"][0]["survivors"] == []


def test_what_runs_is_listed_with_pid_and_start_time(place, starter, tools):
    waits, said, held = place.held("j", fence="3:17")
    starter.start([waits])
    pid = int(said.hear())
    [running] = starter.list()["running"]
    assert (running["job"], running["attempt"], running["fence"]) == ("j", 0, "3:17")
    assert (running["pid"], running["start"]) == (pid, procfs.read_process(pid).start)
    assert starter.forget([("j", 0)]) == 0  # it has not ended
    held.open()
    tools.ends(starter)
    assert starter.list()["running"] == []


def test_several_watch(place, starter, tools):
    other = place.connect()
    other.watch()
    starter.start([place.order("j", "true")])
    assert tools.ends(starter) == tools.ends(other)


def test_little_is_loaded():
    show = "import sys, gridhand.agent.starter.__main__; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-E", "-s", "-c", show], capture_output=True, text=True, check=True)  # fmt: skip
    heavy = {"asyncio", "numpy", "sqlalchemy", "subprocess", "threading", "logging", "dataclasses"}
    assert heavy & set(done.stdout.split()) <= _loaded_anyway()


def _loaded_anyway():
    """What a bare interpreter has, here with whatever the environment adds to each start."""
    show = "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-E", "-s", "-c", show], capture_output=True, text=True, check=True)  # fmt: skip
    return set(done.stdout.split())
