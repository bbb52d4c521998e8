"""How far a run is: what a function is told, and the bar on a terminal."""

import os
import pty
import re
import subprocess
import sys
import time

import pytest

from gridhand import Function, FunctionFailed, Grid
from gridhand.library.graphs import progress as graphprogress
from gridhand.library.graphs.progress import GraphProgress


@pytest.fixture
def grid():
    with Grid.in_memory() as opened:
        opened.register_node("n1", cpu=4)
        yield opened


def chain(length):
    functions = [Function("f0", int)]
    return functions + [Function(f"f{n}", abs, args=[f"f{n - 1}"]) for n in range(1, length)]


def test_a_function_is_told_whenever_something_has_changed(grid, monkeypatch):
    monkeypatch.setattr("gridhand.library.graphs.driver._CHECK_S", 0.01)
    told = []
    functions = [*chain(2), Function("f2", lambda _: time.sleep(0.1), args=["f1"])]
    result = grid.execute(functions, progress=told.append)
    counts = [(one.done, one.running) for one in told]
    assert counts[0] == (0, 1)
    assert counts[-1] == (3, 0)
    assert counts == sorted(set(counts), key=lambda one: (one[0], one[1]))  # none of them twice
    assert {(one.run_id, one.total, one.retried) for one in told} == {(result.run_id, 3, 0)}
    assert [one.seconds for one in told] == sorted(one.seconds for one in told)


def test_it_is_told_of_attempts_that_were_in_vain(grid):
    told = []
    with pytest.raises(FunctionFailed):
        grid.execute([Function("f", divmod)], max_retries=2, progress=told.append)
    assert told[-1].retried == 3


def test_what_it_raises_ends_the_run(grid):
    def full(now):
        raise RuntimeError("that is enough")

    with pytest.raises(RuntimeError, match="that is enough"):
        grid.execute([Function("f", time.sleep, extra_args=[0.01], cost="cpu=1")], progress=full)


PROGRAM = """
import sys, time
from gridhand import Function, Grid
from gridhand.library.graphs import progress as graphprogress
graphprogress.PATIENCE_S = float(sys.argv[1])
progress = {"None": None, "True": True, "False": False}[sys.argv[2]]
with Grid.in_memory() as grid:
    functions = [Function(f"f{n}", time.sleep, extra_args=[0.3]) for n in range(3)]
    grid.execute(functions, progress=progress, max_concurrency=2)
print("rich" in sys.modules)
"""


def run(patience_s, progress, *, terminal):
    """What a program prints on its standard error, and whether it has loaded Rich."""
    ours, theirs = pty.openpty()
    try:
        done = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(patience_s), progress],
            stdout=subprocess.PIPE,
            stderr=theirs if terminal else subprocess.PIPE,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(theirs)
        shown = b""
        while terminal:
            try:
                shown += os.read(ours, 10_000)
            except OSError:  # the other side has ended
                break
        out, err = done.communicate(timeout=30)
        assert done.returncode == 0
        return (shown if terminal else err).decode(), out.decode().strip() == "True"
    finally:
        os.close(ours)


def test_a_bar_is_drawn_on_a_terminal_if_it_takes_a_while():
    shown, loaded = run(0.1, "None", terminal=True)
    assert "run r" in shown
    assert "0/3" in shown
    assert "2 running" in shown
    assert loaded


def test_a_short_run_draws_nothing_and_loads_nothing():
    assert run(30, "None", terminal=True) == ("", False)


def test_without_a_terminal_nothing_is_drawn_unless_it_is_asked_for():
    assert run(0.1, "None", terminal=False) == ("", False)
    assert run(0.1, "False", terminal=True) == ("", False)
    assert run(30, "True", terminal=True)[1]


def test_without_a_terminal_lines_are_printed_if_it_is_asked_for():
    shown, loaded = run(30, "True", terminal=False)
    first, last = shown.splitlines()
    assert re.fullmatch(r"run r\w+: 0 of 3 done, \d running, \d waiting, 0:00", first)
    assert re.fullmatch(r"run r\w+: 3 of 3 done, 0 running, 0 waiting, 0:0\d", last)
    assert not loaded


def test_a_line_comes_every_few_seconds(capsys):
    lines = graphprogress.TerminalLines()
    for seconds in (0.0, 1.0, 4.9, 5.0, 6.0, 75.0, 76.0):
        lines.report(GraphProgress("r1", int(seconds), 99, 1, 2, seconds))
    lines.end()
    shown = capsys.readouterr().err.splitlines()
    assert [one.rsplit(" ", 1)[1] for one in shown] == ["0:00", "0:05", "1:15", "1:16"]
    assert shown[1] == "run r1: 5 of 99 done, 1 running, 93 waiting, 2 retried, 0:05"


def test_the_clock_of_the_bar_began_with_the_run():
    bar = graphprogress.Bar(1.0)
    bar.report(GraphProgress("r1", 1, 3, 1, 0, 75.0))
    try:
        (drawn,) = bar._bar.tasks
        assert 75 <= drawn.elapsed < 80
    finally:
        bar.end()


def test_what_waits_for_room_does_not_run(grid):
    told = []
    cost = {"cpu": 4}
    functions = [Function(f"f{n}", time.sleep, extra_args=[0.5], cost=cost) for n in range(3)]
    grid.execute(functions, progress=told.append)
    assert max(one.running for one in told) == 1
    assert {(1, 1, 1), (3, 0, 0)} <= {(one.done, one.running, one.waiting) for one in told}
