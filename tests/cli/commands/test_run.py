"""`grid run`, against a controller that says what it is told to."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time

import pytest

import fake_api as samples

job, running, ended = samples.job, samples.running, samples.ended


def state(one):
    return {"event": "job", "job": one}


def end(one):
    return {"event": "end", "job": one}


def quick(fake, *told, how=None):
    fake.submits(job())
    fake.follows(state(running()), *told, end(how or ended()))


def test_output_is_passed_on_as_it_is(fake, grid, capfdbinary):
    quick(fake, ("stdout", b"a\xff\n"), ("stderr", b"\x00e"), ("stdout", b"b"), how=ended(code=7))
    assert grid("run", "sh", "-c", "exit 7") == 7
    assert capfdbinary.readouterr() == (b"a\xff\nb", b"\x00e")
    [query] = fake.query("/jobs/17/follow")
    assert dict(query)["attach"] == "1"


def test_the_caller_s_folder_and_environment_go_along(fake, grid, tmp_path, monkeypatch):
    quick(fake)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRUIT", "fig\udcff")
    assert grid("run", "true") == 0
    sent = fake.body("POST", "/jobs")
    assert sent["folder"] == str(tmp_path)
    assert sent["environment"]["FRUIT"] == "fig\udcff"
    assert sent["command"] == ["true"]
    assert sent["request"] == {}
    assert sent["detached"] is False


#    what it shows                            arguments                                       part of what is sent
SENT = {
    "the command's options are its own":     (["ls", "-c", "--mem", "x"],                     {"command": ["ls", "-c", "--mem", "x"], "request": {}}),
    "two dashes end ours":                   (["-c", "2", "--", "ls", "-d"],                  {"command": ["ls", "-d"], "request": {"cpu": "2"}}),
    "one word is split":                     (["echo 'hi there' $HOME | x"],                  {"command": ["echo", "hi there", "$HOME", "|", "x"]}),
    "several words are not":                 (["echo", "hi  there"],                          {"command": ["echo", "hi  there"]}),
    "a file may have spaces":                (["/tmp"],                                       {"command": ["/tmp"]}),
    "amounts":                               (["-c", "0.5", "--mem", "4G", "--disk", "9", "--gpus", "2", "--gpu-mem", "8GB", "x"], {"request": {"cpu": "0.5", "memory": "4G", "disk": "9", "gpu": "2", "gpu_memory": "8GB"}}),
    "other resources":                       (["-r", "fpga=1", "-r", "lic=2", "x"],           {"request": {"resources": {"fpga": "1", "lic": "2"}}}),
    "wishes":                                (["--gpus", "1", "--gpu-model", "A100", "--gpu-capability", "8.0", "-w", "n1", "--quality", "high", "--fallback", "cpu", "x"], {"request": {"gpu": "1", "gpu_model": "A100", "gpu_capability": "8.0", "node": "n1", "quality": "high", "fallback": "cpu"}}),
    "nodes to prefer and to leave out":      (["--prefer", "a,b", "--exclude", "c", "--exclude", "d", "--label", "zone=e", "x"], {"request": {"prefer": ["a", "b"], "exclude": ["c", "d"], "labels": {"zone": "e"}}}),
    "a bare time is minutes":                (["-t", "30", "x"],                              {"time_limit_s": 1800.0}),
    "a time as in Slurm":                    (["-t", "1-00:30", "x"],                         {"time_limit_s": 88200.0}),
    "no limit":                              (["-t", "unlimited", "x"],                       {"time_limit_s": None}),
    "what it should take":                   (["--expect", "90", "x"],                        {"expect_s": 5400.0}),
    "a while to wait for the best":          (["--fallback-after", "5m", "x"],                {"fallback_after_s": 300.0}),
    "a later begin":                         (["--begin", "+2h", "x"],                        {"begin_s": 7200.0}),
    "a time to have ended":                  (["--deadline", "now+1day", "x"],                {"deadline_s": 86400.0}),
    "a signal before the limit":             (["-t", "9", "--signal", "USR1@60", "x"],        {"warn_signal": 10, "warn_s": 60.0}),
    "a named queue":                         (["--queue", "night", "x"],                      {"queue": "night"}),
    "a bare grace is seconds":               (["--grace", "5", "x"],                          {"grace_s": 5.0}),
    "a grace with a unit":                   (["--grace", "2m", "x"],                         {"grace_s": 120.0}),
    "names and priorities":                  (["-J", "n", "-p", "high", "--type", "t", "x"],  {"name": "n", "priority": "high", "task_type": "t"}),
    "retries":                               (["--retries", "2", "--retry-on", "oom,75", "--processes", "9", "x"], {"retries": 2, "retry_on": ["oom", "75"], "processes": 9}),
    "after others":                          (["--after", "5", "--dependency", "afterany:6:7_1", "x"], {"after": [{"id": "5", "condition": "afterok"}, {"id": "6", "condition": "afterany"}, {"id": "7_1", "condition": "afterany"}]}),
    "files":                                 (["-i", "/in", "-o", "/o/%j", "-e", "/e", "x"],  {"stdin": "/in", "stdout": "/o/%j", "stderr": "/e"}),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "part"), SENT.values(), ids=SENT)
def test_what_is_sent(fake, grid, arguments, part):
    quick(fake)
    assert grid("run", *arguments) == 0
    sent = fake.body("POST", "/jobs")
    assert {name: sent[name] for name in part} == part


#    what it shows                   arguments                        what is said
WRONG = {
    "no command":                   (["-c", "2"],                     "COMMAND"),
    "an empty one":                 ([" "],                           "COMMAND"),
    "an open quote":                (["echo 'a"],                     "cannot be split"),
    "a time that is none":          (["-t", "soon", "x"],             "--time: 'soon'"),
    "a begin that is none":         (["--begin", "soon", "x"],        "--begin: 'soon'"),
    "a warning that is none":       (["--signal", "soon", "x"],       "--signal: 'soon'"),
    "a wait that is none":          (["--fallback-after", "x", "x"],  "--fallback-after: 'x'"),
    "a grace that is none":         (["--grace", "soon", "x"],        "--grace: 'soon'"),
    "a resource without an amount": (["-r", "fpga", "x"],             "'fpga' is not NAME=VALUE"),
    "a resource twice":             (["-r", "f=1", "-r", "f=2", "x"], "'f' is given twice"),
    "a core twice":                 (["-c", "1", "-r", "cpu=2", "x"], "cpu is given twice"),
    "a strange dependency":         (["--after", "behind:5", "x"],    "'behind:5' is not an id"),
    "a number that is none":        (["--retries", "-1", "x"],        "--retries"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "says"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_before_anything_is_sent(fake, grid, capfd, arguments, says):
    assert grid("run", *arguments) == 125
    out, err = capfd.readouterr()
    assert out == ""
    assert says in err
    assert fake.calls() == []


def test_what_the_controller_refuses_is_said_in_its_words(fake, grid, capfd):
    problem = {
        "detail": "memory: 'x' is not valid",
        "code": "invalid_amount",
        "hint": "Use 4GB.",
    }
    fake.answers["POST", "/jobs"] = (422, problem)
    assert grid("run", "--mem", "x", "true") == 125
    assert capfd.readouterr().err == "error: memory: 'x' is not valid\nhint: Use 4GB.\n"


def unstarted(message, **facts):
    how = {"state": "failed", "reason": "start_failed", "exit_code": None, **facts}
    return ended(message=message, **how)


CANCELLED = {"state": "cancelled", "reason": "cancelled", "exit_code": None}
#    what it shows                                  how it ended                                                                  code  stderr
ENDS = {
    "a signal is 128 and its number":              (ended(state="failed", reason="signal", signal=9, exit_code=137),                     137,  "grid: job 17: killed by SIGKILL\n"),
    "out of memory is said":                       (ended(state="failed", reason="oom", exit_code=137, message="it used 5 GB of 4 GB"),  137,  "grid: job 17: it used 5 GB of 4 GB\n"),
    "a time-out is said, and is not 0":            (ended(state="failed", reason="timeout", exit_code=0),                                124,  "grid: job 17: killed: time limit exceeded\n"),
    "a time-out has one code":                     (ended(state="failed", reason="timeout", exit_code=143, signal=15),                   124,  "grid: job 17: killed: time limit exceeded\n"),
    "a command that is not there":                 (unstarted("there is no command 'x' on the job's PATH (/bin)", exit_code=127),        127,  "grid: job 17: there is no command 'x' on the job's PATH (/bin)\n"),
    "a machine that is full":                      (unstarted("cannot start '/x': Cannot allocate memory"),                              125,  "grid: job 17: cannot start '/x': Cannot allocate memory\n"),
    "a folder that is not there":                  (unstarted("cannot enter the working folder '/y': No such file or directory"),        125,  "grid: job 17: cannot enter the working folder '/y': No such file or directory\n"),
    "a start that comes with a code":              (unstarted("it is gone", exit_code=127),                                              127,  "grid: job 17: it is gone\n"),
    "a lost one":                                  (ended(state="lost", reason="agent_lost", exit_code=None),                            125,  "grid: job 17: exit status unknown: the starter on its node died\n"),
    "one that others cancelled":                   (ended(**CANCELLED),                                                                  125,  "grid: job 17: cancelled\n"),
    "its own code needs no words":                 (ended(code=3),                                                                       3,    ""),
}  # fmt: skip


@pytest.mark.parametrize(("how", "code", "says"), ENDS.values(), ids=ENDS)
def test_how_it_ends(fake, grid, capfd, how, code, says):
    quick(fake, how=how)
    assert grid("run", "x") == code
    assert capfd.readouterr() == ("", says)


def after(*conditions):
    cancelled = {"state": "cancelled", "reason": "dependency", "exit_code": None}
    return ended(after=[{"condition": word, "id": id} for word, id in conditions], **cancelled)


#    what it shows                          how it ended                                    stderr
DEPENDENCIES = {
    "the one that failed is named":        (after(("afterany", "8"), ("afterok", "9")),     "dependency failed: job 9 (exit 1)"),
    "one that should have failed":         (after(("afternotok", "8"),),                    "dependency failed: job 8 succeeded"),
    "one that is forgotten is not named":  (after(("afterok", "7"),),                       "dependency failed"),
}  # fmt: skip


@pytest.mark.parametrize(("how", "says"), DEPENDENCIES.values(), ids=DEPENDENCIES)
def test_the_dependency_that_failed_is_named(fake, grid, capfd, how, says):
    fake.answers["GET", "/jobs/8"] = ended("8")
    fake.answers["GET", "/jobs/9"] = ended("9", code=1)
    fake.answers["GET", "/jobs/7"] = (404, {"detail": "there is no job '7'", "code": "unknown_job"})
    fake.answers["GET", "/jobs"] = {"jobs": []}
    quick(fake, how=how)
    assert grid("run", "x") == 125
    assert capfd.readouterr() == ("", f"grid: job 17: {says}\n")


def test_quiet_says_nothing_of_that(fake, grid, capfd):
    quick(fake, how=ended(state="failed", reason="signal", signal=9, exit_code=137))
    assert grid("run", "-q", "x") == 137
    assert capfd.readouterr() == ("", "")


# ---- leaving it alone


def test_detached_prints_the_id_alone(fake, grid, capfd):
    fake.submits(job(detached=True))
    assert grid("run", "--detach", "sleep", "9") == 0
    out, err = capfd.readouterr()
    assert out == "17\n"
    assert err == "grid: submitted job 17; follow it with `grid logs -f 17`\n"
    assert fake.body("POST", "/jobs")["detached"] is True
    assert "stdin" not in fake.body("POST", "/jobs")


def test_detached_prints_the_job_as_json(fake, grid, capfd):
    fake.submits(job(detached=True))
    assert grid("run", "-d", "--json", "sleep", "9") == 0
    assert json.loads(capfd.readouterr().out) == job(detached=True)


def test_attached_json_is_the_job_at_its_end(fake, grid, capfd):
    quick(fake, how=ended(code=3))
    assert grid("run", "--json", "x") == 3
    assert json.loads(capfd.readouterr().out) == ended(code=3)
    assert dict(fake.query("/jobs/17/follow")[0])["output"] == "0"


# ---- arrays


def array(fake, *codes):
    tasks = [job(f"17_{n}", array="17", array_index=n) for n in range(1, len(codes) + 1)]
    fake.submits(*tasks)
    for n, code in enumerate(codes, 1):
        told = [("stdout", b"task %d\n" % n), end(ended(f"17_{n}", code=code, array="17"))]
        fake.follows(*told, id=f"17_{n}")


def test_an_array_shows_its_tasks_in_order_and_ends_with_the_highest_code(fake, grid, capfd):
    array(fake, 0, 4, 1)
    assert grid("run", "-a", "1-3%2", "x") == 4
    assert capfd.readouterr().out == "task 1\ntask 2\ntask 3\n"
    assert fake.body("POST", "/jobs")["array"] == "1-3%2"


def test_what_is_the_same_of_many_tasks_is_said_of_a_few_and_counted(fake, grid, capfd):
    array(fake, *[0] * 12)
    for n in range(1, 13):
        how = ended(f"17_{n}", array="17", **CANCELLED)
        fake.follows(end(how), id=f"17_{n}")
    assert grid("run", "-a", "1-12", "x") == 125
    said = capfd.readouterr().err.splitlines()
    assert said == [
        *(f"grid: job 17_{n}: cancelled" for n in range(1, 6)),
        "grid: and 7 more of 17: cancelled",
    ]


def test_the_tasks_of_an_array_end_with_us(fake, start):
    """All of them are attached to a session, as only one of them is followed at a time."""
    begun = threading.Event()
    array(fake, 0, 0)
    fake.follows(begun.set, ("stdout", b"here\n"), threading.Event().wait, id="17_1")
    process = start("run", "-a", "1-2", "x")
    assert process.stdout.readline() == b"here\n"
    assert fake.body("POST", "/jobs")["detached"] is False
    assert fake.body("POST", f"/sessions/{samples.SESSION}/jobs") == {"jobs": ["17_1", "17_2"]}
    assert not fake.closed.is_set()
    process.kill()
    assert fake.closed.wait(20)


def test_a_session_that_is_lost_is_taken_up_again(fake, start):
    array(fake, 0, 0)
    over = threading.Event()
    fake.follows(("stdout", b"here\n"), over.wait, end(ended("17_1", array="17")), id="17_1")
    process = start("run", "-a", "1-2", "x")
    assert process.stdout.readline() == b"here\n"
    fake.lost.set()
    while len(fake.query("/sessions")) < 2:
        time.sleep(0.01)
    over.set()
    assert process.wait(timeout=20) == 0
    again = [body for _, path, _, body in fake.asked if path == "/sessions"][1]
    assert again == {"session": samples.SESSION, "held": [], "jobs": ["17_1", "17_2"]}


def test_ctrl_c_ends_the_whole_array(fake, start):
    array(fake, 0, 0)
    over = threading.Event()
    first = running("17_1", array="17")
    fake.follows(state(first), ("stdout", b"here\n"), over.wait, end(ended("17_1", 9)), id="17_1")
    fake.answers["POST", "/jobs/17/cancel"] = lambda _: over.set() or {"jobs": [first]}
    process = start("run", "-a", "1-2", "x")
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 9
    assert b"cancelling array 17" in process.stderr.read()
    assert not [path for path in fake.calls() if path.endswith("/signal")]


def test_an_array_is_followed_to_its_last_task_though_the_reply_has_only_the_first(
    fake, grid, capfd
):
    array(fake, 0, 0, 5)
    fake.answers["POST", "/jobs"]["jobs"] = fake.answers["POST", "/jobs"]["jobs"][:1]
    assert grid("run", "-a", "1-3", "x") == 5
    assert capfd.readouterr().out == "task 1\ntask 2\ntask 3\n"
    assert fake.body("POST", f"/sessions/{samples.SESSION}/jobs") == {
        "jobs": ["17_1", "17_2", "17_3"]
    }
    fake.answers["POST", "/jobs"]["jobs"] = fake.answers["POST", "/jobs"]["jobs"][:1]
    assert grid("run", "-d", "-a", "1-3", "x") == 0
    assert "array 17 (3 tasks)" in capfd.readouterr().err


def test_a_detached_array_prints_its_id(fake, grid, capfd):
    array(fake, 0, 0)
    assert grid("run", "-d", "-a", "1-2", "x") == 0
    assert capfd.readouterr().out == "17\n"
    assert grid("run", "-d", "-a", "1-2", "--json", "x") == 0
    assert [one["id"] for one in json.loads(capfd.readouterr().out)] == ["17_1", "17_2"]


# ---- waiting


def test_it_says_once_why_it_waits(fake, start):
    """Nobody watches this stderr, so the line comes once, and only after a second."""
    said = threading.Event()
    fake.submits(job())
    fake.follows(
        state(job(why="no room")), said.wait, state(job(why="still none")), state(running()),
        end(ended()),
    )  # fmt: skip
    process = start("run", "x")
    assert process.stderr.readline() == b"grid: job 17 waits: no room\n"
    said.set()
    assert process.communicate(timeout=20) == (b"", b"")
    assert process.returncode == 0


def test_on_a_terminal_the_line_changes_and_goes(fake, start):
    ours, theirs = pty.openpty()
    waits = [threading.Event() for _ in range(2)]
    fake.submits(job())
    fake.follows(
        state(job(why="no room")), waits[0].wait, state(job(why="still none")), waits[1].wait,
        state(running()), end(ended()),
    )  # fmt: skip
    process = start("run", "x", stderr=theirs)
    os.close(theirs)
    assert os.read(ours, 1000) == b"\r\x1b[Kgrid: job 17 waits: no room"
    waits[0].set()
    assert os.read(ours, 1000) == b"\r\x1b[Kgrid: job 17 waits: still none"
    waits[1].set()
    assert os.read(ours, 1000) == b"\r\x1b[K"
    assert process.wait(timeout=20) == 0
    os.close(ours)


def test_quiet_waits_without_a_word(fake, grid, capfd):
    fake.submits(job())
    signalled = []
    fake.follows(state(job(why="no room")), lambda: signalled.append(1), end(ended()))
    assert grid("run", "-q", "x") == 0
    assert capfd.readouterr().err == ""


# ---- signals


class Signalled:
    """A job that runs until it is signalled often enough."""

    def __init__(self, fake, begin=None):
        self.there, self.over = threading.Event(), threading.Event()
        self.how = ended(state="failed", reason="signal", signal=2, exit_code=130)
        fake.submits(job())
        fake.follows(
            state(begin or running()), self.there.set, ("stdout", b"here\n"), self.over.wait,
            lambda: end(self.how),
        )  # fmt: skip
        fake.answers["POST", "/jobs/17/signal"] = {"sent": True}
        fake.answers["POST", "/jobs/17/cancel"] = {"jobs": [running()]}


def test_the_first_ctrl_c_is_passed_on(fake, start):
    one = Signalled(fake)
    fake.answers["POST", "/jobs/17/signal"] = lambda _: one.over.set() or {"sent": True}
    process = start("run", "x")
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20) == (
        b"",
        b"grid: sent Ctrl-C to job 17; press again to cancel it\n",
    )
    assert process.returncode == 130
    assert fake.body("POST", "/jobs/17/signal") == {"signal": 2}
    assert "/jobs/17/cancel" not in fake.calls()


def test_the_second_cancels(fake, start):
    one = Signalled(fake)
    one.how = ended(state="cancelled", reason="cancelled", signal=15, exit_code=143)
    fake.answers["POST", "/jobs/17/cancel"] = lambda _: one.over.set() or {"jobs": [running()]}
    process = start("run", "x")
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGINT)
    assert b"sent Ctrl-C" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert err == b"grid: cancelling job 17\ngrid: job 17: cancelled\n"
    assert process.returncode == 143


def test_the_third_leaves_at_once(fake, start):
    Signalled(fake)
    process = start("run", "x")
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGINT)
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130


def test_a_queued_job_is_cancelled_by_the_first(fake, start):
    one = Signalled(fake, begin=job())
    one.how = ended(**CANCELLED)
    fake.answers["POST", "/jobs/17/cancel"] = lambda _: one.over.set() or {"jobs": [job()]}
    process = start("run", "x")
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert err.startswith(b"grid: cancelling job 17\n")
    assert process.returncode == 130
    assert "/jobs/17/signal" not in fake.calls()


def test_sigterm_cancels_the_job_and_waits_for_its_end(fake, start):
    one = Signalled(fake)
    one.how = ended(state="cancelled", reason="cancelled", signal=15, exit_code=143)
    fake.answers["POST", "/jobs/17/cancel"] = lambda _: one.over.set() or {"jobs": [running()]}
    process = start("run", "x")
    assert process.stdout.readline() == b"here\n"
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert err.startswith(b"grid: cancelling job 17\n")
    assert process.returncode == 143


def test_a_closed_terminal_ends_it(fake, start):
    Signalled(fake)
    process = start("run", "x")
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=20) == 129


def test_nobody_reads_the_output(fake, start):
    gone = threading.Event()
    fake.submits(job())
    fake.follows(state(running()), gone.wait, *[("stdout", b"x" * 65536)] * 4, end(ended()))
    process = start("run", "yes")
    process.stdout.close()
    gone.set()
    assert process.wait(timeout=20) == 141
    assert process.stderr.read() == b""


def test_output_that_cannot_be_written_is_said(fake, start):
    quick(fake, ("stdout", b"x"))
    with open("/dev/full", "w") as full:
        process = start("run", "x", stdout=full)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 125
    assert err.startswith(b"error: No space left on device\n")


# ---- standard input


class Reads:
    """A job that reads its standard input to the end, and writes what it got."""

    def __init__(self, fake):
        self.got = b""
        self.path = None
        fake.answers["POST", "/jobs"] = self.submit
        fake.answers["GET", "/jobs/17/follow"] = lambda _: [
            state(running()), self.read, end(ended()),
        ]  # fmt: skip

    def submit(self, body):
        self.path = body.get("stdin")
        return {"jobs": [job()]}

    def read(self):
        with open(self.path, "rb") as file:
            self.got = file.read()


def test_what_comes_through_a_pipe_reaches_the_job(fake, start):
    reads = Reads(fake)
    process = start("run", "cat")
    data = os.urandom(300_000)
    process.communicate(data, timeout=20)
    assert process.returncode == 0
    assert reads.got == data
    assert reads.path.startswith(f"/proc/{process.pid}/fd/")  # gone with it, however it goes


def test_an_empty_pipe_ends_at_once(fake, start):
    reads = Reads(fake)
    process = start("run", "cat")
    process.communicate(b"", timeout=20)
    assert (process.returncode, reads.got) == (0, b"")


def test_a_file_is_given_by_its_name(fake, start, tmp_path):
    reads = Reads(fake)
    (tmp_path / "in").write_bytes(b"text")
    with open(tmp_path / "in", "rb") as file:
        start("run", "cat", stdin=file).communicate(timeout=20)
    assert (reads.path, reads.got) == (str(tmp_path / "in"), b"text")


def test_a_file_that_was_begun_is_passed_on_from_there(fake, start, tmp_path):
    reads = Reads(fake)
    (tmp_path / "in").write_bytes(b"text")
    with open(tmp_path / "in", "rb", buffering=0) as file:
        file.read(2)
        start("run", "cat", stdin=file).communicate(timeout=20)
    assert reads.path != str(tmp_path / "in")
    assert reads.got == b"xt"


@pytest.mark.parametrize("arguments", [["-i", "none"], []])
def test_nothing_is_nothing(fake, start, arguments):
    quick(fake)
    options = {} if arguments else {"stdin": subprocess.DEVNULL}
    start("run", *arguments, "cat", **options).communicate(timeout=20)
    assert "stdin" not in fake.body("POST", "/jobs")


def test_what_is_typed_reaches_the_job(fake, start):
    reads = Reads(fake)
    ours, theirs = pty.openpty()
    process = start("run", "cat", stdin=theirs)
    os.write(ours, b"typed\n\x04")
    process.communicate(timeout=20)
    os.close(ours)
    os.close(theirs)
    assert (process.returncode, reads.got) == (0, b"typed\n")


def test_a_closed_standard_input_is_nothing(fake, start):
    quick(fake)
    code = "import os, sys; os.close(0); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    done = subprocess.run(
        [sys.executable, "-c", code, "-c", samples.CODE, "run", "x"],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "stdin" not in fake.body("POST", "/jobs")


def test_what_is_ignored_stays_ignored(fake, start):
    """As under nohup: the terminal goes, and the job with its client stays."""
    Signalled(fake)
    code = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); {samples.CODE}"
    process = start(
        "-c",
        code,
        "run",
        "x",
        code="import os, sys; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])",
    )
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGINT)
    assert b"sent Ctrl-C" in process.stderr.readline()
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.3)
    process.send_signal(signal.SIGINT)
    assert b"cancelling" in process.stderr.readline()


BACKGROUND = """
import fcntl, os, subprocess, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.exit(subprocess.Popen([sys.executable, *sys.argv[1:]], process_group=0).wait())
"""


def test_in_the_background_the_terminal_is_left_to_others(fake, start):
    """Who reads a terminal that another has is stopped by it, and would stay so."""
    typed = threading.Event()
    fake.submits(job())
    fake.follows(state(running()), lambda: typed.wait(0.3), ("stdout", b"x"), end(ended()))
    ours, theirs = pty.openpty()
    process = start("-c", samples.CODE, "run", "x", stdin=theirs, code=BACKGROUND)
    out, err = process.communicate(timeout=20)
    os.close(ours)
    os.close(theirs)
    assert (process.returncode, out, err) == (0, b"x", b"")


def test_output_that_was_missed_is_no_success(fake, grid, capfdbinary):
    quick(fake, ("stdout", b"a"), {"event": "cut", "stream": "stdout", "cut": 9})
    assert grid("run", "true") == 125
    out, err = capfdbinary.readouterr()
    assert out == b"a"
    assert (
        b"9 bytes of output are missing: it wrote faster than they were read; -o FILE keeps all of it"
        in err
    )


def test_what_goes_to_a_file_of_its_own_is_not_missed(fake, grid, tmp_path):
    quick(fake, {"event": "cut", "stream": "stdout", "cut": 9})
    assert grid("run", "-o", str(tmp_path / "out"), "true") == 0


def test_after_the_last_job_is_after_the_whole_array(fake, grid):
    fake.answers["GET", "/jobs/@"] = job("5_3", array="5")
    quick(fake)
    assert grid("run", "--after", "afterany:@", "true") == 0
    assert fake.body("POST", "/jobs")["after"] == [{"id": "5", "condition": "afterany"}]


def test_who_says_for_what_to_retry_gets_a_retry(fake, grid):
    quick(fake)
    assert grid("run", "--retry-on", "75", "true") == 0
    assert fake.body("POST", "/jobs")["retries"] == 1


@pytest.mark.parametrize("given", ["-1", "x", "0"])
def test_a_grace_that_makes_no_sense_is_explained_in_its_own_unit(fake, grid, capsys, given):
    assert grid("run", "--grace", given, "x") == 125
    out = capsys.readouterr().err
    assert f"--grace: {given!r}" in out
    assert "30 (seconds)" in out
    assert "minutes" not in out


# ---- warnings


def test_what_the_controller_warns_of_is_said_at_every_job(fake, grid, capfd):
    """Row 98."""
    fake.submits(job())
    fake.answers["POST", "/jobs"]["warnings"] = ["cores may be given out twice"]
    fake.follows(end(ended()))
    for words in (["run", "x"], ["run", "-d", "x"]):
        assert grid(*words) == 0
        assert "grid: warning: cores may be given out twice\n" in capfd.readouterr().err
    assert grid("run", "-q", "x") == 0
    assert capfd.readouterr().err == ""


#    what it shows                                    the outer job                                    said
OUTER = {
    "both do not fit":                               (running("5", request={"cpu": 8}),                True),
    "both fit":                                      (running("5", request={"cpu": 2}),                False),
    "the outer one is on another node":              (running("5", request={"cpu": 8}, node="other"),  False),
    "the outer one has ended":                       (ended("5", request={"cpu": 8}),                  False),
}  # fmt: skip


@pytest.mark.parametrize(("outer", "said"), OUTER.values(), ids=OUTER)
def test_a_job_that_waits_for_the_job_it_is_in_is_told_so(
    fake, grid, capfd, monkeypatch, outer, said
):
    monkeypatch.setenv("GRIDHAND_JOB_ID", "5")
    fake.submits(job(request={"cpu": 1}))
    fake.follows(end(ended()))
    fake.answers["GET", "/jobs/5"] = outer
    fake.answers["GET", "/nodes"] = {"nodes": [samples.node()]}
    assert grid("run", "x") == 0
    assert ("job 17 waits for job 5, in which it was submitted" in capfd.readouterr().err) == said


def test_a_job_inside_a_job_of_another_controller_is_not_judged(fake, grid, capfd, monkeypatch):
    monkeypatch.setenv("GRIDHAND_JOB_ID", "5")
    fake.submits(job())
    fake.follows(end(ended()))
    assert grid("run", "x") == 0
    assert capfd.readouterr().err == ""
