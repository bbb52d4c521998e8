"""`grid events`, as people and scripts meet it."""

import json
import subprocess
import sys

import pytest

from api_server import Api
from gridhand.cli.main import COMMANDS, make_cli, run
from nodeless_controller import Running


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Running(tmp_path_factory.mktemp("events") / "home") as running:
        api = Api(running)
        api.ok("POST", "/nodes", {"name": "n1", "capacity": {"cpu": 8}})
        held = api.ok("POST", "/resources/allocate", {"requirements": {"cpu": 1}, "task_id": "t"})
        api.ok("POST", "/resources/release", {"allocation_id": held["allocation_id"]})
        yield running


@pytest.fixture
def grid(server, monkeypatch, capsys):
    monkeypatch.setenv("GRIDHAND_ADDRESS", f"unix:{server.home.socket}")

    def told(*words):
        assert run(make_cli(COMMANDS), ("events", *words)) == 0
        return capsys.readouterr().out.splitlines()

    return told


def test_the_last_events_are_lines_that_say_what_happened(grid):
    lines = grid("-n", "3")
    assert [line.split()[2] for line in lines] == [
        "node.registered",
        "allocation.active",
        "allocation.released",
    ]
    number, at, _, subject, *_ = lines[0].split()
    assert (number, subject) == ("1", "n1")
    assert at.endswith("Z")


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (["--kind", "node"], ["node.registered"]),
        (["--kind", "allocation", "-n", "1"], ["allocation.released"]),
        (["--after", "1"], ["allocation.active", "allocation.released"]),
        (["--after", "1", "--kind", "node"], []),
        (["--owner", "nobody"], []),
        (["-n", "0"], []),
    ],
)
def test_they_can_be_chosen(grid, words, kinds):
    found = [json.loads(line) for line in grid("--json", *words)]
    assert [event["kind"] for event in found] == kinds
    assert all("row" not in event for event in found)


def test_what_excludes_each_other_is_refused(server, monkeypatch, capsys):
    monkeypatch.setenv("GRIDHAND_ADDRESS", f"unix:{server.home.socket}")
    assert run(make_cli(COMMANDS), ("events", "--after", "1", "-n", "2")) == 125
    assert "exclude each other" in capsys.readouterr().err


def test_they_are_followed(server):
    code = "import sys; from gridhand.cli.main import main; main()"
    environment = {"GRIDHAND_ADDRESS": f"unix:{server.home.socket}", "PATH": "/usr/bin:/bin"}
    words = ["events", "-f", "-n", "1", "--json", "--kind", "node"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *words], env=environment, stdout=subprocess.PIPE, text=True
    ) as following:
        try:
            assert json.loads(following.stdout.readline())["kind"] == "node.registered"
            Api(server).ok("POST", "/nodes/n1/drain")
            assert json.loads(following.stdout.readline())["kind"] == "node.drained"
        finally:
            following.kill()
