"""A shell completes files, jobs, nodes, states and owners; and nothing if nobody answers."""

import pytest

import fake_api as samples
from gridhand.cli.main import COMMANDS, make_cli, run

JOBS = [
    samples.job("17_1", array="17", name="train"),
    samples.running("18", owner="bob"),
    samples.job("9"),
]


@pytest.fixture
def completed(fake, monkeypatch, capsys):
    """The words by which a shell would go on."""
    fake.answers["GET", "/jobs"] = {"jobs": JOBS}
    fake.answers["GET", "/nodes"] = {"nodes": [samples.node("box"), samples.node("big")]}

    def complete(line):
        monkeypatch.setenv("_GRID_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        with pytest.raises(SystemExit):
            run(make_cli(COMMANDS), [])
        return capsys.readouterr().out.split()

    return complete


#    what it shows                       the line                        the words
LINES = {
    "a file as the command":            ("grid run ./tra",               ["file,./tra"]),
    "a file after other words":         ("grid submit python tra",       ["file,tra"]),
    "a file for the output":            ("grid run -o ou",               ["file,ou"]),
    "a file for the input":             ("grid run -i in",               ["file,in"]),
    "jobs and arrays":                  ("grid logs 1",                  ["plain,17", "plain,18"]),
    "several jobs":                     ("grid cancel 9 1",              ["plain,17", "plain,18"]),
    "a job to come after":              ("grid run --after 9",           ["plain,9"]),
    "a node":                           ("grid run -w b",                ["plain,box", "plain,big"]),
    "a node to drain":                  ("grid node drain bo",           ["plain,box"]),
    "a node to look at":                ("grid stats bi",                ["plain,big"]),
    "a state":                          ("grid jobs --state r",          ["plain,running"]),
    "a second state":                   ("grid jobs --state failed,q",   ["plain,failed,queued"]),
    "an owner":                         ("grid jobs --owner b",          ["plain,bob"]),
}  # fmt: skip


@pytest.mark.parametrize(("line", "words"), LINES.values(), ids=LINES)
def test_what_a_shell_completes(completed, line, words):
    assert completed(line) == words


def test_nothing_is_completed_or_said_or_started_without_a_controller(completed, monkeypatch):
    monkeypatch.delenv("GRIDHAND_ADDRESS")
    assert completed("grid logs 1") == []
