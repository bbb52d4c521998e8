"""`grid jobs`, `show`, `logs`, `cancel` and `why`, as people and scripts meet them."""

import json
import re
import threading
import time
from datetime import UTC, datetime

import pytest

import fake_api as samples
from gridhand import Node, Request
from gridhand.cli.commands.why import ABOUT_ROOM
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.placement.place import place
from gridhand.core.placement.snapshot import Snapshot

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
            ("fold", "1"),
        ]
    ]
    assert capsys.readouterr().out == "ID  NAME  OWNER  STATE  TIME  NODE  REASON\n"


def test_a_list_that_was_cut_short_says_so(fake, grid, capsys):
    fake.answers["GET", "/jobs"] = {"jobs": [job("2"), job("1")]}
    assert grid("jobs", "-a", "--limit", "2") == 0
    assert capsys.readouterr().err == "grid: showing the newest 2; use --limit to see more\n"


def task(n, make=job, **facts):
    return make(f"17_{n}", array="17", array_index=n, **facts)


def line(first, count=1, named=None, nodes=1, longest_s=10):
    """A line of the controller: the first of some tasks that are alike."""
    tasks = {"count": count, "named": named or first["id"], "nodes": nodes, "longest_s": longest_s}
    return {**first, "tasks": tasks}


@pytest.fixture
def lines(fake):
    lines = [
        line(job("18", why="no room")),
        line(task(6, why="no room"), 5, "17_[6-10]", 0, 0),
        line(task(4, running), 2, "17_[4-5]", 2, 75),
        line(task(3, ended, code=1)),
        line(task(1, ended), 2, "17_[1-2]"),
    ]
    fake.answers["GET", "/jobs"] = {"jobs": lines}
    return lines


@pytest.fixture
def array(fake):
    jobs = [
        job("18", why="no room"),
        *(task(n, why="no room") for n in range(10, 5, -1)),
        task(5, running, node="b", started_at=ago(30)),
        task(4, running, started_at=ago(75)),
        task(3, ended, code=1),
        task(2, ended),
        task(1, ended),
    ]
    fake.answers["GET", "/jobs"] = {"jobs": jobs}
    return jobs


def test_the_tasks_of_an_array_are_one_line_for_each_state(fake, lines, grid, capsys):
    assert grid("jobs", "-a") == 0
    assert ("fold", "1") in fake.query("/jobs")[0]
    assert capsys.readouterr().out == (
        "ID         NAME  OWNER  STATE      TIME  NODE     REASON\n"
        "17_[1-2]   true  ann    succeeded  0:10  box      exit 0\n"
        "17_3       true  ann    failed     0:10  box      exit 1\n"
        "17_[4-5]   true  ann    running    1:15  2 nodes  -\n"
        "17_[6-10]  true  ann    queued     0:00  -        no room\n"
        "18         true  ann    queued     0:00  -        no room\n"
    )


@pytest.mark.parametrize("option", ["-r", "--expand"])
def test_each_task_has_its_own_line_if_that_is_wanted(array, grid, capsys, option):
    assert grid("jobs", "-a", option) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [one["id"] for one in reversed(array)]


def test_scripts_get_each_task_for_itself(array, grid, capsys):
    assert grid("jobs", "-a", "--json") == 0
    assert json.loads(capsys.readouterr().out) == array


def test_what_runs_is_listed_though_very_many_wait(fake, grid, capsys):
    def answer(_):
        states = [value for name, value in fake.query("/jobs")[-1] if name == "state"]
        found = {"open": [line(job("9")), line(job("8"))], "running": [line(running("2"))]}
        return {"jobs": found.get(states[0], [])}

    fake.answers["GET", "/jobs"] = answer
    assert grid("jobs", "--limit", "2") == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["ID", "2", "9"]
    assert "the newest 2" in err


def test_only_what_ended_in_the_last_hour_is_asked_for(fake, grid, capsys):
    fake.answers["GET", "/jobs"] = {"jobs": []}
    assert grid("jobs") == 0
    query = dict(fake.query("/jobs")[-1])
    assert time.time() - 3700 < float(query["since"]) < time.time() - 3500


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
    assert "State:     queued\nWaiting:   no room\n" in out
    assert "Started" not in out


def test_show_as_json(fake, grid, capsys):
    fake.answers["GET", "/jobs/@"] = FULL
    assert grid("show", "--json", "@") == 0
    assert json.loads(capsys.readouterr().out) == FULL


def test_an_array_is_shown_as_its_tasks(fake, grid, capsys):
    fake.answers["GET", "/jobs"] = {"jobs": [task(10), task(2)]}
    assert grid("show", "17") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", "17_2", "17_10"]
    assert ("array", "17") in fake.query("/jobs")[0]


def test_an_unknown_job_is_an_error(fake, grid, capsys):
    fake.answers["GET", "/jobs"] = {"jobs": []}
    for command in ("show", "logs", "cancel", "why"):
        assert grid(command, "99") == 125
        assert capsys.readouterr().err.startswith("error: there is no job")


def test_a_job_that_waits_again_ran_for_as_long_as_its_last_attempt(fake, grid, capsys):
    """As after `grid node remove --force`."""
    times = {"started_at": "2026-01-02T03:04:06.000Z", "ended_at": "2026-01-02T03:04:16.000Z"}
    lost = {"number": 1, "node": "box", "reason": "node_lost", **times}
    found = job(started_at=times["started_at"], node="box", attempts=[lost], why="no room")
    fake.answers["GET", "/jobs/17"] = found
    assert grid("show", "17") == 0
    assert re.search(r"Ran for: +0:10\n", capsys.readouterr().out)


def test_show_and_why_name_the_dependency_that_failed_and_its_code(fake, grid, capsys):
    after = [{"id": "5", "condition": "afterok"}]
    found = job(state="cancelled", reason="dependency", after=after, phase="ended")
    fake.answers["GET", "/jobs/17"] = found
    fake.answers["GET", "/jobs/17/why"] = found | {"explanation": None, "holders": []}
    fake.answers["GET", "/jobs/5"] = ended("5", 3)
    for command in ("show", "why"):
        assert grid(command, "17") == 0
        assert "dependency failed: job 5 (exit 3)" in capsys.readouterr().out


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

#    what it shows                       the job                   was open    what is said
CANCELS = {
    "one that waited":                  (job(state="cancelled"),   True,       "cancelled job 17\n"),
    "one that runs":                    (running(),                True,       "stopping job 17 on box\n"),
    "one that ended at that moment":    (ended(),                  True,       "job 17 had already ended: succeeded\n"),
    "one that is over":                 (ended(),                  False,      "job 17 had already ended: succeeded\n"),
    "one that was cancelled before":    (job(state="cancelled"),   False,      "job 17 had already ended: cancelled\n"),
}  # fmt: skip


@pytest.mark.parametrize(("found", "was_open", "says"), CANCELS.values(), ids=CANCELS)
def test_cancel_says_what_it_did(fake, grid, capsys, found, was_open, says):
    fake.answers["POST", "/jobs/17/cancel"] = {"jobs": [found], "was_open": was_open}
    assert grid("cancel", "17") == 0
    assert capsys.readouterr().out == says
    assert grid("cancel", "-q", "17") == 0
    assert capsys.readouterr().out == ""
    assert grid("cancel", "--json", "17") == 0
    assert json.loads(capsys.readouterr().out) == [found]


def test_of_several_the_others_are_cancelled_all_the_same(fake, grid, capsys):
    fake.answers["POST", "/jobs/17/cancel"] = {"jobs": [running("17")]}
    fake.answers["POST", "/jobs/18/cancel"] = {"jobs": [running("18")]}
    assert grid("cancel", "99", "17", "18") == 125
    out, err = capsys.readouterr()
    assert out.count("stopping job") == 2
    assert err.startswith("error: there is no job")


#    what it shows                    the first tasks                              how many           what is said
ARRAYS = {
    "some wait and some run":        ([task(1, running), task(2, state="cancelled")], (50_000, 2, True), "array 17: cancelled 49998 tasks, stopping 2 that run\n"),
    "all wait":                      ([task(1, state="cancelled")] * 2,              (1000, 0, True),   "array 17: cancelled 1000 tasks\n"),
    "all run":                       ([task(1, running)] * 2,                        (2, 2, True),      "array 17: stopping 2 that run\n"),
    "all have ended":                ([task(1, ended)] * 2,                          (2, 0, False),     "array 17 had already ended\n"),
    "all were cancelled before":     ([task(1, state="cancelled")] * 2,              (2, 0, False),     "array 17 had already ended\n"),
}  # fmt: skip


@pytest.mark.parametrize(("first", "counts", "says"), ARRAYS.values(), ids=ARRAYS)
def test_cancel_of_an_array_is_one_line(fake, grid, capsys, first, counts, says):
    count, stopping, was_open = counts
    answer = {"jobs": first, "count": count, "stopping": stopping, "was_open": was_open}
    fake.answers["POST", "/jobs/17/cancel"] = answer
    assert grid("cancel", "17") == 0
    assert capsys.readouterr().out == says


# ---- why


EXPLAINED = "cpu=1 does not fit now\nheld by:\n  a: job 9 of bob: cpu=1"
#    what it shows                              why                          explanation    what is said
WHY = {
    "room is spoken of once":                  ("no room for cpu=1: a: …",    EXPLAINED,    f"job 17: {EXPLAINED}\n"),
    "also if it is an error":                  ("x is gone",                  "x is gone. Wait.", "job 17: x is gone. Wait.\n"),
    "what is not about room is told as well":  ("2 of its array are running", EXPLAINED,    f"job 17: 2 of its array are running\n{EXPLAINED}\n"),
    "it waits for another job":                ("waits for job 9 to end",     None,         "job 17: waits for job 9 to end\n"),
}  # fmt: skip


@pytest.mark.parametrize(("why", "explained", "says"), WHY.values(), ids=WHY)
def test_why_a_job_waits(fake, grid, capsys, why, explained, says):
    fake.answers["GET", "/jobs/17"] = job(why=why)
    fake.answers["GET", "/jobs/17/why"] = job(why=why) | {"explanation": explained, "holders": []}
    assert grid("why", "17") == 0
    assert capsys.readouterr().out == says
    assert grid("why", "17", "--json") == 0
    assert json.loads(capsys.readouterr().out)["why"] == why


def test_a_refusal_begins_as_it_is_looked_for():
    ledger = Ledger()
    ledger.register(Node.of("a", cpu=1))
    assert place(Request.of(cpu=2), Snapshot(ledger)).sentence().startswith(ABOUT_ROOM)


def test_why_an_array_waits_by_what_its_tasks_wait_for(fake, grid, capsys):
    first = [line(task(1, why="no room for cpu=1"), 2, "17_[1,3]")]
    later = [task(2, why="tries again in 3 s"), task(4, running), task(5, ended)]
    fake.answers["GET", "/jobs"] = {"jobs": [*map(line, reversed(later)), *first]}
    for one in (*first, later[0]):
        explained = EXPLAINED if one in first else None
        fake.answers["GET", f"/jobs/{one['id']}/why"] = one | {"explanation": explained}
    assert grid("why", "17") == 0
    assert capsys.readouterr().out == (
        "array 17: 3 queued, 1 running, 1 succeeded\n"
        f"17_[1,3]: {EXPLAINED}\n"
        "17_2: tries again in 3 s\n"
    )
    assert grid("why", "17", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["states"] == {"queued": 3, "running": 1, "succeeded": 1}
    assert [(one["tasks"], one["named"]) for one in told["waiting"]] == [
        (2, "17_[1,3]"),
        (1, "17_2"),
    ]
    assert told["waiting"][0]["explanation"] == EXPLAINED
    fake.answers["GET", "/jobs/@"] = first[0]
    assert grid("why", "@") == 0
    assert capsys.readouterr().out.startswith("array 17: 3 queued")


def test_an_array_with_very_many_reasons_is_asked_about_a_few(fake, grid, capsys):
    tasks = [line(task(n, why=f"tries again in {n} s")) for n in range(9)]
    fake.answers["GET", "/jobs"] = {"jobs": tasks}
    for one in tasks:
        fake.answers["GET", f"/jobs/{one['id']}/why"] = one | {"explanation": None}
    assert grid("why", "17") == 0
    assert len(capsys.readouterr().out.splitlines()) == 10
    assert len([path for path in fake.calls("GET") if path.endswith("/why")]) == 5


def test_why_of_one_that_does_not_wait(fake, grid, capsys):
    fake.answers["GET", "/jobs/@"] = running()
    fake.answers["GET", "/jobs/17/why"] = running() | {"explanation": None}
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
    assert "ID of a job or a request" in capsys.readouterr().err


def test_the_last_job_is_the_whole_array_if_it_is_part_of_one(fake, grid, capsys):
    tasks = [job("17_1", array="17"), job("17_2", array="17")]
    fake.answers["GET", "/jobs/@"] = tasks[1]
    fake.answers["GET", "/jobs"] = {"jobs": tasks}
    fake.answers["POST", "/jobs/17/cancel"] = {"jobs": tasks, "count": 2, "stopping": 0}
    assert grid("show", "--json", "@") == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == ["17_1", "17_2"]
    assert grid("cancel", "--json", "@") == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_why_of_one_that_has_ended_says_how(fake, grid, capsys):
    fake.answers["GET", "/jobs/17"] = job(state="failed")
    fake.answers["GET", "/jobs/17/why"] = {
        **job(state="failed"), "why": None, "message": "it exited with code 3", "explanation": None
    }  # fmt: skip
    assert grid("why", "17") == 0
    assert capsys.readouterr().out == "job 17 is failed: it exited with code 3\n"


# ---- hold and unhold

HELD = {
    "a job": (["hold", "17"], {"jobs": [job(phase="held")], "count": 1}, "held job 17\n"),
    "an array": (["hold", "17"], {"jobs": [job(array="17")], "count": 9}, "array 17: held 9 tasks\n"),
    "one let go": (["unhold", "17"], {"jobs": [job()], "count": 1}, "released job 17\n"),
    "nothing": (["unhold", "17"], {"jobs": [], "count": 0}, "job 17 is as it was\n"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "answer", "says"), HELD.values(), ids=HELD)
def test_hold_says_what_it_did(fake, grid, capsys, words, answer, says):
    fake.answers["POST", f"/jobs/17/{words[0]}"] = answer
    assert grid(*words) == 0
    assert capsys.readouterr().out == says
    assert grid(*words, "--json") == 0
    assert json.loads(capsys.readouterr().out) == answer["jobs"]
