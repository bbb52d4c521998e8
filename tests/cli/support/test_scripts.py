"""Scripts that say in their head what they need, and `--dry-run`."""

import json
import os
from pathlib import Path

import pytest

import fake_api as samples

job, running, ended = samples.job, samples.running, samples.ended


@pytest.fixture
def sent(fake, grid, tmp_path, monkeypatch):
    """Run a command line in a folder of its own; answers what was submitted."""
    monkeypatch.chdir(tmp_path)
    fake.submits(job())
    fake.follows({"event": "job", "job": running()}, {"event": "end", "job": ended()})

    def run(*arguments):
        assert grid("run", *arguments) == 0
        return fake.asked[-2][3]  # before it is followed

    return run


def script(text, name="train.sh", mode=0o755):
    path = Path(name)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(mode)
    return str(path)


HEAD = """#
# What it is for.

#GRID -c 2 --mem=4GB   # a comment
#GRID -r fpga=1 -r lic=2 -J 'my job'
#SBATCH -c 9
#GRIDDLE -c 9
 #GRID -c 9
"""


def test_options_are_taken_from_the_head_of_a_script(sent):
    found = sent("./" + script(f"{HEAD}echo hi\n#GRID -c 7\n"), "-c", "3")
    assert found["command"] == ["./train.sh", "-c", "3"]
    assert found["request"] == {
        "cpu": "2", "memory": "4GB", "resources": {"fpga": "1", "lic": "2"},
    }  # fmt: skip
    assert found["name"] == "my job"


def test_the_command_line_wins_option_by_option(sent):
    found = sent("-c", "1", "-r", "fpga=3", "--", "./" + script(HEAD))
    assert found["request"] == {"cpu": "1", "memory": "4GB", "resources": {"fpga": "3"}}
    assert found["name"] == "my job"


def test_flags_times_and_files_are_options_like_others(fake, grid, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake.submits(job())
    assert grid("run", "./" + script("#GRID -d -q -t 1:00:00 -o out-%j -p high\n")) == 0
    found = fake.body("POST", "/jobs")
    assert found["detached"] is True
    assert found["time_limit_s"] == 3600.0
    assert found["stdout"] == str(tmp_path / "out-%j")
    assert found["priority"] == "high"
    assert capsys.readouterr() == ("17\n", "")


#    what it shows                                          arguments                             the command that is sent
COMMANDS = {
    "a path":                                              (["./train.sh", "a"],                 ["./train.sh", "a"]),
    "a name in this folder":                               (["train.sh"],                        ["./train.sh"]),
    "one word that is split":                              (["./train.sh 'a b' c"],              ["./train.sh", "a b", "c"]),
    "one that is not executable goes to its interpreter":  (["plain.sh", "x"],                   ["/bin/sh", "./plain.sh", "x"]),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "command"), COMMANDS.values(), ids=COMMANDS)
def test_how_a_script_may_be_given(sent, arguments, command):
    script("#GRID -c 2\n")
    script("#GRID -c 2\n", "plain.sh", 0o644)
    found = sent(*arguments)
    assert found["command"] == command
    assert found["request"] == {"cpu": "2"}
    assert found["name"] in ("train.sh", "plain.sh")


def test_an_interpreter_may_have_an_option(sent):
    Path("it").write_bytes(b"#! /usr/bin/env  -S python3 -u\r\n#GRID -c 2\r\nprint(1)\r\n")
    assert sent("./it")["command"] == ["/usr/bin/env", "-S python3 -u", "./it"]


#    what it shows                                  the file                                     mode   the words      the command that is sent
AS_SBATCH = {
    "a script that is not executable":             ("#!/bin/bash\necho hi\n",                   0o644, ["p.sh", "x"],  ["/bin/bash", "./p.sh", "x"]),
    "the same by its path":                        ("#!/bin/bash\necho hi\n",                   0o644, ["./p.sh"],     ["/bin/bash", "./p.sh"]),
    "an executable one in this folder":            ("#!/bin/bash\necho hi\n",                   0o755, ["p.sh"],       ["./p.sh"]),
    "options and no interpreter":                  ("#SBATCH -c 1\necho hi\n",                  0o644, ["p.sh"],       ["/bin/sh", "./p.sh"]),
    "an executable one without an interpreter":    ("#SBATCH -c 1\necho hi\n",                  0o755, ["p.sh"],       ["/bin/sh", "./p.sh"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "mode", "words", "command"), AS_SBATCH.values(), ids=AS_SBATCH)
def test_any_script_runs_as_sbatch_runs_it(sent, text, mode, words, command):
    Path("p.sh").write_text(text)
    Path("p.sh").chmod(mode)
    assert sent(*words)["command"] == command


def test_options_of_slurm_are_translated_and_the_others_are_named(sent, capsys):
    script(
        "#SBATCH --job-name=big -c 4 --mem=8G\n#SBATCH -t 1:00:00 --gres=gpu:a100:2 -N 1\n"
        "#SBATCH --partition debug --exclusive --mail-user=ann@example.org\n#SBATCH -o out-%j\n"
    )
    found = sent("./train.sh")
    assert found["request"] == {"cpu": "4", "memory": "8G", "gpu": "2", "gpu_model": "a100"}
    assert (found["name"], found["time_limit_s"]) == ("big", 3600)
    assert found["stdout"].endswith("/out-%j")
    assert capsys.readouterr().err == (
        "grid: ./train.sh: ignored #SBATCH options:"
        " --partition=debug --exclusive --mail-user=ann@example.org\n"
    )
    sent("-q", "./train.sh")
    assert capsys.readouterr().err == ""


#    what it shows                          how the file is made                                              the words
PLAIN = {
    "no such lines":                       (lambda: script("echo hi\n"),                                     ["./train.sh"]),
    "only after the head":                 (lambda: script("echo hi\n#GRID -c 9\n"),                         ["./train.sh"]),
    "an empty one":                        (lambda: script("#GRID  # -c 9\n"),                               ["./train.sh"]),
    "no script":                           (lambda: Path("train.sh").write_text("text\n#GRID -c 9\n"),       ["./train.sh"]),
    "not there":                           (lambda: None,                                                    ["./train.sh"]),
    "a folder":                            (lambda: os.mkdir("train.sh"),                                    ["./train.sh"]),
    "a pipe nobody writes to":             (lambda: os.mkfifo("train.sh"),                                   ["./train.sh"]),
    "not the command itself":              (lambda: script("#GRID -c 9\n"),                                  ["sh", "./train.sh"]),
}  # fmt: skip


@pytest.mark.parametrize(("make", "command"), PLAIN.values(), ids=PLAIN)
def test_other_files_are_left_alone(sent, make, command):
    make()
    found = sent(*command)
    assert found["command"] == command
    assert found["request"] == {}  # the controller gives it what its queue says, else one core
    assert "name" not in found


def test_a_command_on_the_path_is_not_taken_for_a_file_in_this_folder(sent, monkeypatch):
    script("#GRID -c 9\n", "ls")
    assert sent("ls")["command"] == ["ls"]
    monkeypatch.setenv("PATH", f"{os.getcwd()}:{os.environ['PATH']}")
    assert sent("ls")["command"] == ["./ls"]  # the same file


#    what it shows                 the head                       what is said
WRONG = {
    "an option there is not":     ("#GRID --gpu 1\n",            "the #GRID or #SBATCH lines of ./train.sh: No such option '--gpu'"),
    "a value that is none":       ("#GRID --retries x\n",        "'x' is not a valid integer"),
    "a command":                  ("#GRID -c 2 python\n",        "only options and their values are allowed"),
    "two dashes":                 ("#GRID -c 2 --\n",            "only options and their values are allowed"),
    "an open quote":              ("#\n#GRID -J 'a\n",           "line 3: No closing quotation"),
    "an option without a value":  ("#GRID -c\n",                 "the #GRID or #SBATCH lines of ./train.sh"),
}  # fmt: skip


@pytest.mark.parametrize(("head", "says"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_in_a_script_is_said_with_its_name(
    fake, grid, capfd, tmp_path, monkeypatch, head, says
):
    monkeypatch.chdir(tmp_path)
    assert grid("run", "./" + script(head)) == 125
    assert says in capfd.readouterr().err
    assert fake.calls() == []


# ---- dry runs


PLAN = {"starts": True, "node": "box", "gpus": [], "why": None, "holders": []}
WAITS = {**PLAN, "starts": False, "node": None, "why": "cpu=9 does not fit now"}
#    what it shows             the plan                            arguments        code   what is said
PLANS = {
    "it would start":         (PLAN,                               [],              0,     "the job would start now on box\n"),
    "with devices":           ({**PLAN, "gpus": ["G-1", "G-2"]},   [],              0,     "the job would start now on box (GPUs G-1, G-2)\n"),
    "it would wait":          (WAITS,                              [],              1,     "the job would wait: cpu=9 does not fit now\n"),
    "of an array the first":  (PLAN,                               ["-a", "1-9"],   0,     "the first task would start now on box\n"),
}  # fmt: skip


@pytest.mark.parametrize(("plan", "more", "code", "says"), PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("option", ["--dry-run", "--test-only"])
def test_a_dry_run(fake, grid, capsys, plan, more, code, says, option):
    fake.answers["POST", "/jobs/plan"] = plan
    assert grid("run", option, *more, "-c", "9", "-J", "n", "true") == code
    assert capsys.readouterr() == (says, "")
    assert fake.calls() == ["/jobs/plan"]
    body = fake.body("POST", "/jobs/plan")
    assert (body["request"], body["name"]) == ({"cpu": "9"}, "n")
    assert "environment" not in body


def test_a_dry_run_as_json_and_one_that_is_refused(fake, grid, capsys):
    fake.answers["POST", "/jobs/plan"] = WAITS
    assert grid("run", "--dry-run", "--json", "-d", "true") == 1
    assert json.loads(capsys.readouterr().out) == WAITS
    problem = {"detail": "no room for cpu=9", "code": "never_fits", "hint": "Ask for less."}
    fake.answers["POST", "/jobs/plan"] = (422, problem)
    assert grid("run", "--dry-run", "true") == 125
    assert capsys.readouterr().err == "error: no room for cpu=9\nhint: Ask for less.\n"


def test_a_file_that_no_job_would_find_is_refused_when_nobody_watches(sent, grid, fake, capsys):
    Path("notes").write_text("echo no head\n")
    assert grid("submit", "notes") == 125
    assert (
        "./notes for a program of this folder, or begin a script with #!" in capsys.readouterr().err
    )
    for command in ("./notes", "true"):
        assert grid("submit", command) == 0
        assert fake.asked[-1][3]["command"] == [command]
