"""`grid wait`, and `grid cancel` of jobs that are described instead of named."""

import json
import threading

import pytest

from fake_api import ended, job, running


def test_it_waits_for_all_and_exits_with_the_first_failure(fake, grid, capsys):
    for id, how in (("17", ended("17")), ("18", ended("18", 3)), ("19", ended("19", 4))):
        fake.answers["GET", f"/jobs/{id}"] = running(id)
        fake.follows({"event": "job", "job": running(id)}, {"event": "end", "job": how}, id=id)
    assert grid("wait", "17", "18", "19") == 3
    assert grid("wait", "17") == 0
    assert dict(fake.query("/jobs/17/follow")[0])["attach"] == "0"
    assert grid("wait", "--json", "18") == 3
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == ["18"]


def test_what_has_ended_is_not_followed(fake, grid, capfd):
    killed = ended("17", 137, reason="oom", message="out of memory")
    fake.answers["GET", "/jobs/17"] = killed
    assert grid("wait", "17") == 137
    assert capfd.readouterr().err == "grid: job 17: out of memory\n"
    assert grid("wait", "-q", "17") == 137
    assert capfd.readouterr().err == ""
    assert fake.query("/jobs/17/follow") == []


def test_it_gives_up_after_a_while(fake, start):
    fake.answers["GET", "/jobs/17"] = running()
    fake.follows({"event": "job", "job": running()}, threading.Event().wait)
    process = start("wait", "--timeout", "0.2", "17")
    _, said = process.communicate(timeout=20)
    assert process.returncode == 124
    assert said == b"grid: job 17 is still running after 0.2\n"


def test_a_time_that_is_none_is_refused(fake, grid, capsys):
    assert grid("wait", "--timeout", "soon", "17") == 125
    assert "--timeout" in capsys.readouterr().err


#    what it shows                      options                               cancelled
CHOICES = {
    "all of one's own":                (["--all"],                            ["17", "18", "20"]),
    "by name":                         (["--name", "sweep-*"],                ["17", "20"]),
    "by one of two names":             (["--name", "sweep-1", "--name", "x"], ["17", "18"]),
    "tasks in a state, not the array": (["--state", "queued"],                ["18", "20_1", "20_2"]),
}  # fmt: skip


@pytest.mark.parametrize(("options", "cancelled"), CHOICES.values(), ids=CHOICES)
def test_jobs_are_cancelled_by_description(fake, grid, capsys, options, cancelled):
    tasks = [job(f"20_{index}", name="sweep-2", array="20") for index in (2, 1)]
    listed = [*tasks, job("18", name="x"), running("17", name="sweep-1")]
    if "--state" in options:
        listed = listed[:-1]
    fake.answers["GET", "/jobs"] = {"jobs": listed}
    for id in ("17", "18", "20", "20_1", "20_2"):
        fake.answers["POST", f"/jobs/{id}/cancel"] = {"jobs": [job(id, state="cancelled")]}
    assert grid("cancel", *options) == 0
    assert fake.calls() == [f"/jobs/{id}/cancel" for id in cancelled]
    asked = fake.query("/jobs")[0]
    assert ("owner", fake.answers["GET", "/version"]["owner"]) in asked
    assert [value for name, value in asked if name == "state"] == (
        ["queued"] if "--state" in options else ["queued", "running"]
    )
    capsys.readouterr()


def test_nothing_matches_and_that_is_said(fake, grid, capsys):
    fake.answers["GET", "/jobs"] = {"jobs": [job(name="other")]}
    assert grid("cancel", "--name", "sweep-*", "--user", "bob") == 0
    assert capsys.readouterr().out == "no open job matches\n"
    assert ("owner", "bob") in fake.query("/jobs")[0]
    assert fake.calls() == []


@pytest.mark.parametrize("words", [[], ["17", "--all"], ["17", "--name", "x"]])
def test_jobs_are_either_named_or_described(fake, grid, capsys, words):
    assert grid("cancel", *words) == 125
    assert "--name, --state, --user or --all" in capsys.readouterr().err
    assert fake.calls() == []
