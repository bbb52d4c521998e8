"""`grid jobs`, `show`, `logs`, `cancel` and `why`, as people and scripts meet them."""

import importlib
import json
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
samples = importlib.import_module("conftest")
job, running, ended = samples.job, samples.running, samples.ended


def ago(seconds):
    return datetime.fromtimestamp(time.time() - seconds, UTC).isoformat()


# ---- jobs


def test_jobs_are_listed_oldest_first_with_why_they_wait_or_how_they_ended(fake, grid, capsys):
    fake.answers["GET", "/jobs"] = {
        "jobs": [
            job("9", name="big", why="no room for 8 cpu"),
            running("8", started_at=ago(75)),
            ended("7", code=3),
            ended("6", state="failed", reason="oom", exit_code=137),
            ended("5", state="failed", reason="signal", signal=9, exit_code=137),
        ]
    }
    assert grid("jobs", "--all") == 0
    out, err = capsys.readouterr()
    assert out == (
        "ID  NAME  OWNER  STATE    TIME  NODE  REASON\n"
        "5   true  ann    failed   0:10  box   SIGKILL\n"
        "6   true  ann    failed   0:10  box   oom\n"
        "7   true  ann    failed   0:10  box   exit 3\n"
        "8   true  ann    running  1:15  box   -\n"
        "9   big   ann    queued   0:00  -     no room for 8 cpu\n"
    )
    assert err == ""


def test_without_a_wish_the_open_ones_and_own_recent_ones_are_listed(fake, grid, capsys):
    def answer(_):
        query = fake.query("/jobs")[-1]
        if ("state", "open") in query:
            return {"jobs": [running("8", started_at=ago(1))]}
        return {"jobs": [ended("9", ended_at=ago(60)), ended("2", ended_at=ago(7200))]}

    fake.answers["GET", "/jobs"] = answer
    assert grid("jobs", "--json") == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == ["9", "8"]
    assert dict(fake.query("/jobs")[1])["owner"]


def test_wishes_are_passed_on(fake, grid, capsys):
    fake.answers["GET", "/jobs"] = {"jobs": []}
    assert (
        grid(
            "jobs", "--state", "queued,failed", "--state", "open", "--owner", "bob", "--limit", "5"
        )
        == 0
    )
    assert fake.query("/jobs") == [
        [
            ("state", "queued"),
            ("state", "failed"),
            ("state", "open"),
            ("owner", "bob"),
            ("limit", "5"),
        ]
    ]
    assert capsys.readouterr().out == "ID  NAME  OWNER  STATE  TIME  NODE  REASON\n"


def test_a_list_that_was_cut_short_says_so(fake, grid, capsys):
    fake.answers["GET", "/jobs"] = {"jobs": [job("2"), job("1")]}
    assert grid("jobs", "-a", "--limit", "2") == 0
    assert capsys.readouterr().err == "grid: these are the newest 2; --limit shows more\n"


@pytest.mark.parametrize("arguments", [["--state", "asleep"], ["--limit", "0"], ["--zzz"]])
def test_a_wish_that_makes_no_sense(fake, grid, capsys, arguments):
    assert grid("jobs", *arguments) == 125
    assert arguments[-1] in capsys.readouterr().err
    assert fake.query("/jobs") == []


def test_names_cannot_command_the_terminal(fake, grid, capsys):
    fake.answers["GET", "/jobs"] = {"jobs": [job("1", name="a\033[2Jb\nc")]}
    assert grid("jobs", "-a") == 0
    out = capsys.readouterr().out
    assert "\033" not in out
    assert len(out.splitlines()) == 2


def test_nobody_reads_the_list(fake, start):
    fake.answers["GET", "/jobs"] = {"jobs": [job(str(n)) for n in range(9000)]}
    process = start("jobs", "-a")
    process.stdout.close()
    assert process.wait(timeout=20) == 141
    assert process.stderr.read() == b""


# ---- show

FULL = ended(
    "17", state="failed", reason="oom", exit_code=137, signal=9, name="train", task_type="fit",
    command=["python", "a b.py"], folder="/home/ann",
    request={"cpu": 2, "memory": 4 * 10**9, "labels": {"zone": "east"}, "prefer": ["box"]},
    after=[{"id": "5", "condition": "afterok"}], time_limit_s=3600, gpus=["GPU-1"],
    message="it used more than its 4 GB", peak_memory_bytes=4 * 10**9,
    attempts=[
        {"number": 1, "node": "box", "started_at": "2026-01-02T03:04:06.000Z",
         "ended_at": "2026-01-02T03:04:07.000Z", "reason": "node_lost", "exit_code": None,
         "signal": None, "message": "", "peak_memory_bytes": None},
        {"number": 2, "node": "box2", "started_at": "2026-01-02T03:04:06.000Z",
         "ended_at": "2026-01-02T03:05:07.000Z", "reason": "oom", "exit_code": 137,
         "signal": 9, "message": "it used more", "peak_memory_bytes": 4 * 10**9},
    ],
)  # fmt: skip


def test_show_tells_everything(fake, grid, capsys):
    fake.answers["GET", "/jobs/17"] = FULL
    assert grid("show", "17") == 0
    out = capsys.readouterr().out
    for part in (
        "Name:        train", "failed (oom): it used more than its 4 GB", "python 'a b.py'",
        "/home/ann", "2 cpu, 4 GB memory, labels zone=east, prefer box", "1:00:00", "afterok:5",
        "GPU-1", "4 GB of 4 GB (100 %)", "/jobs/17/stdout", "node_lost", "1:01",
    ):  # fmt: skip
        assert part in out


def test_show_of_one_that_waits(fake, grid, capsys):
    fake.answers["GET", "/jobs/17"] = job(why="no room")
    assert grid("show", "17") == 0
    out = capsys.readouterr().out
    assert "State:     queued\nWhy:       no room\n" in out
    assert "Started" not in out


def test_show_as_json(fake, grid, capsys):
    fake.answers["GET", "/jobs/@"] = FULL
    assert grid("show", "--json", "@") == 0
    assert json.loads(capsys.readouterr().out) == FULL


def test_an_array_is_shown_as_its_tasks(fake, grid, capsys):
    fake.answers["GET", "/jobs"] = {"jobs": [job("17_10", array="17"), job("17_2", array="17")]}
    assert grid("show", "17") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", "17_2", "17_10"]
    assert ("array", "17") in fake.query("/jobs")[0]


def test_an_unknown_job_is_an_error(fake, grid, capsys):
    fake.answers["GET", "/jobs"] = {"jobs": []}
    for command in ("show", "logs", "cancel", "why"):
        assert grid(command, "99") == 125
        assert capsys.readouterr().err.startswith("error: there is no job")


# ---- logs


@pytest.fixture
def written(fake):
    fake.answers["GET", "/jobs/17"] = ended()
    fake.logs["17", "stdout"] = b"1\n2\n\xff3\n"
    fake.logs["17", "stderr"] = b"e1\ne2"
    return fake


#    what it shows                          arguments                          stdout             stderr
LOGS = {
    "each to its own":                     ([],                                b"1\n2\n\xff3\n",  b"e1\ne2"),
    "only the output":                     (["--stdout"],                      b"1\n2\n\xff3\n",  b""),
    "only the errors, as output":          (["--stderr"],                      b"e1\ne2",         b""),
    "the last lines":                      (["--tail", "2"],                   b"2\n\xff3\n",     b"e1\ne2"),
    "the last line, which has no end":     (["--tail", "1"],                   b"\xff3\n",        b"e2"),
    "more lines than there are":           (["--tail", "99"],                  b"1\n2\n\xff3\n",  b"e1\ne2"),
    "no lines at all":                     (["--tail", "0", "--stdout"],       b"",               b""),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "stdout", "stderr"), LOGS.values(), ids=LOGS)
def test_logs(written, grid, capfdbinary, arguments, stdout, stderr):
    assert grid("logs", *arguments, "17") == 0
    assert capfdbinary.readouterr() == (stdout, stderr)


def test_a_long_log_comes_whole(written, grid, capfdbinary):
    written.logs["17", "stdout"] = b"x" * 3_000_000 + b"\nend\n"
    assert grid("logs", "17", "--stdout") == 0
    assert capfdbinary.readouterr().out == written.logs["17", "stdout"]
    assert grid("logs", "17", "--stdout", "--tail", "1") == 0
    assert capfdbinary.readouterr().out == b"end\n"


def test_following_ends_with_the_job_and_its_code(written, grid, capfdbinary):
    how = ended(state="failed", reason="oom", exit_code=137, message="too much")
    written.follows(
        {"event": "job", "job": running()}, ("stdout", b"a"), ("stderr", b"b"),
        {"event": "cut", "stream": "stdout", "cut": 9}, {"event": "end", "job": how},
    )  # fmt: skip
    assert grid("logs", "-f", "17") == 137
    assert capfdbinary.readouterr() == (
        b"a",
        b"bgrid: job 17: 9 bytes of its stdout were not kept\ngrid: job 17: too much\n",
    )
    assert dict(written.query("/jobs/17/follow")[0])["attach"] == "0"


def test_following_from_the_last_lines_on(written, grid, capfdbinary):
    written.follows({"event": "end", "job": ended()})
    assert grid("logs", "-f", "--tail", "1", "17") == 0
    assert capfdbinary.readouterr() == (b"\xff3\n", b"e2")
    query = dict(written.query("/jobs/17/follow")[0])
    assert (query["stdout"], query["stderr"]) == ("7", "5")


def test_ctrl_c_leaves_the_job_alone(written, start):
    written.follows(("stdout", b"here\n"), threading.Event().wait)
    process = start("logs", "-f", "17")
    assert process.stdout.readline() == b"here\n"
    process.send_signal(2)
    assert process.wait(timeout=20) == 130
    assert written.calls() == []


# ---- cancel

CANCELS = {
    "one that waited": (job(state="cancelled"), "job 17 is cancelled\n"),
    "one that runs": (running(), "job 17 is being stopped on box\n"),
    "one that is over": (ended(), "job 17 had ended: it is succeeded\n"),
}


@pytest.mark.parametrize(("found", "says"), CANCELS.values(), ids=CANCELS)
def test_cancel_says_what_it_did(fake, grid, capsys, found, says):
    fake.answers["POST", "/jobs/17/cancel"] = {"jobs": [found]}
    assert grid("cancel", "17") == 0
    assert capsys.readouterr().out == says
    assert grid("cancel", "-q", "17") == 0
    assert capsys.readouterr().out == ""
    assert grid("cancel", "--json", "17") == 0
    assert json.loads(capsys.readouterr().out) == [found]


def test_of_several_the_others_are_cancelled_all_the_same(fake, grid, capsys):
    fake.answers["POST", "/jobs/17/cancel"] = {"jobs": [running("17_1"), running("17_2")]}
    assert grid("cancel", "99", "17") == 125
    out, err = capsys.readouterr()
    assert out.count("is being stopped") == 2
    assert err.startswith("error: there is no job")


# ---- why


def test_why_a_job_waits(fake, grid, capsys):
    fake.answers["GET", "/jobs/17/why"] = job(why="no room") | {"explanation": "a: short of cpu"}
    assert grid("why", "17") == 0
    assert capsys.readouterr().out == "no room\na: short of cpu\n"
    assert grid("why", "17", "--json") == 0
    assert json.loads(capsys.readouterr().out)["why"] == "no room"


def test_why_of_one_that_does_not_wait(fake, grid, capsys):
    fake.answers["GET", "/jobs/@/why"] = running() | {"explanation": None}
    assert grid("why", "@") == 0
    assert capsys.readouterr().out == "job 17 is running\n"


def test_where_work_would_go(fake, grid, capsys):
    fake.answers["POST", "/explain"] = {"fits": True, "text": "it fits on box"}
    assert grid("why", "--gpus", "2", "-c", "4") == 0
    assert capsys.readouterr().out == "it fits on box\n"
    assert fake.body("POST", "/explain") == {"gpu": "2", "cpu": "4"}


@pytest.mark.parametrize("arguments", [[], ["17", "-c", "1"]])
def test_why_needs_the_one_or_the_other(fake, grid, capsys, arguments):
    assert grid("why", *arguments) == 125
    assert "ID of a job, or what" in capsys.readouterr().err


def test_the_last_job_is_the_whole_array_if_it_is_part_of_one(fake, grid, capsys):
    tasks = [job("17_1", array="17"), job("17_2", array="17")]
    fake.answers["GET", "/jobs/@"] = tasks[1]
    fake.answers["GET", "/jobs"] = {"jobs": tasks}
    fake.answers["POST", "/jobs/17/cancel"] = {"jobs": tasks}
    assert grid("show", "--json", "@") == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == ["17_1", "17_2"]
    assert grid("cancel", "--json", "@") == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_why_of_one_that_has_ended_says_how(fake, grid, capsys):
    fake.answers["GET", "/jobs/17/why"] = {
        **job(state="failed"), "why": None, "message": "it exited with code 3", "explanation": None
    }  # fmt: skip
    assert grid("why", "17") == 0
    assert capsys.readouterr().out == "job 17 is failed: it exited with code 3\n"
