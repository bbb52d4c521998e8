"""An array of fifty thousand tasks beside one of five hundred, as `grid` shows them."""

import json
import re
import time

import pytest

from api_server import Api, Server
from gridhand.cli.main import COMMANDS, make_cli, run
from until import until


@pytest.fixture
def large(tmp_path, monkeypatch):
    """`grid` beside a controller on which nothing ends."""
    with Server(tmp_path) as server:
        monkeypatch.setenv("GRIDHAND_ADDRESS", f"unix:{server.home.socket}")
        yield server, Api(server), lambda *words: run(make_cli(COMMANDS), words)


def measured(api, grid, capsys, count):
    """Submit, list, explain and cancel an array; return how long each took and what was said."""
    took, said = {}, {}

    def timed(name, *words):
        begun = time.perf_counter()
        assert grid(*words) == 0
        took[name] = time.perf_counter() - begun
        said[name] = capsys.readouterr().out

    timed("submit", "run", "-d", "-q", "-a", f"1-{count}", "true")
    id = said["submit"].strip()
    until(lambda: api.ok("GET", "/status")["jobs"]["running"] >= 4)
    timed("list", "jobs", "--state", "open")
    timed("why", "why", id)
    timed("cancel", "cancel", id)
    until(lambda: not any(api.ok("GET", "/status")["jobs"].values()))
    timed("ended", "jobs", "--all")
    return id, took, said


def test_fifty_thousand_tasks_take_no_longer_than_their_number_allows(large, capsys):
    """Within ten times of five hundred and a constant, and each answer is a few lines."""
    _, api, grid = large
    _, small, _ = measured(api, grid, capsys, 500)
    id, took, said = measured(api, grid, capsys, 50_000)
    assert f"{id}_[1-4]" in said["list"]
    assert f"{id}_[5-50000]" in said["list"]
    assert f"array {id}: " in said["why"]
    assert "49996 queued" in said["why"]
    assert re.fullmatch(
        rf"array {id}: cancelled \d+ tasks(, stopping \d that run)?\n", said["cancel"]
    )
    assert f"{id}_[1-50000]" in said["ended"]
    print(json.dumps({"500": small, "50000": took}))
    for name in took:
        assert took[name] < 10 * small[name] + 15, name
    replies = api.raw("GET", f"/jobs?fold=1&array={id}")[2]
    assert len(replies) < 10_000  # so the memory of the client is bounded
