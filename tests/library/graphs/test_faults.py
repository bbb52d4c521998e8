"""Nodes that are lost, processes that die, interrupts, a grid that is closed."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from random import Random

import pytest

from graph_functions import (
    TWO_NODES,
    add,
    counted,
    holds_nothing,
    in_threads,
    meets,
    nodes_of,
    noted,
    running,
    together,
    waiting,
    waits,
)
from gridhand import (
    CallFailed,
    Collocated,
    Function,
    FunctionFailed,
    Grid,
    GridClosed,
    UnknownNode,
)
from until import until

# ---- nodes that are lost


@pytest.mark.parametrize("claim", ["step", "whole"])
def test_a_function_whose_node_is_lost_runs_again_elsewhere(grid, notes, claim, monkeypatch):
    monkeypatch.setattr("gridhand.library.graphs.driver._CHECK_S", 0.5)
    graph = [
        Function("before", counted, extra_args=[7, notes, "before"], cost="cpu=1"),
        Function("lost", waits_with, args=["before"], extra_args=[notes, "lost"], cost="cpu=1"),
        Function("after", together, args=["lost"], cost="cpu=1", node=Collocated("lost")),
    ]
    with running(grid, graph, claim=claim, max_retries=0) as result:
        notes.wait("lost")
        [first] = {one.node for one in grid.allocations()}
        grid.set_health(first, "down")
        if not in_threads(grid):  # which are not ended with their node
            notes.wait("lost", 2)
        notes.add("go")
    found = result()
    assert found.results == {"before": 7, "lost": 7, "after": [7]}
    assert found.attempts["lost"] == 2
    assert found.allocations["lost"].node == found.allocations["after"].node != first
    assert (notes.count("before"), notes.count("lost")) == (1, 2)  # what has a value stays


def waits_with(value, notes, name):
    waits(notes, name)
    return value


def test_those_that_wait_on_a_node_that_is_lost_are_sent_elsewhere(inner, notes):
    """One of a group runs, another waits for room behind it: both must leave the node."""
    inner.register_node("n3", cpu=4)
    for name in ("n2", "n3"):
        inner.drain(name)
    graph = [
        Function("a", waits, extra_args=[notes, "a"], cost="cpu=3"),
        Function("b", noted, extra_args=[notes, "b"], cost="cpu=3", node=Collocated("a")),
    ]
    with running(inner, graph, max_retries=0) as result:
        notes.wait("a")
        until(lambda: waiting(inner))
        inner.resume("n2")
        inner.set_health("n1", "down")
        notes.add("go")
    assert nodes_of(result()) == {"a": "n2", "b": "n2"}


def test_those_that_only_wait_leave_a_lost_node_too(inner, notes, monkeypatch):
    monkeypatch.setattr("gridhand.library.graphs.driver._CHECK_S", 0.05)
    held = [inner.allocate(cpu=4, node=name) for name in TWO_NODES]
    graph = [
        Function("a", add, cost="cpu=1"),
        Function("b", add, cost="cpu=1", node=Collocated("a")),
    ]
    with running(inner, graph) as result:
        until(lambda: waiting(inner))
        inner.set_health("n1", "down")
        held[1].release()
    assert nodes_of(result()) == {"a": "n2", "b": "n2"}


def test_a_node_that_is_removed_is_one_that_is_lost(inner, notes):
    held = [inner.allocate(cpu=4, node=name) for name in TWO_NODES]
    graph = [
        Function("a", add, cost="cpu=1"),
        Function("b", add, cost="cpu=1", node=Collocated("a")),
    ]
    with running(inner, graph) as result:
        until(lambda: waiting(inner))
        inner.unregister("n1", force=True)
        held[1].release()
    assert nodes_of(result()) == {"a": "n2", "b": "n2"}


def test_a_node_that_is_lost_again_and_again_is_enough_at_some_point(grid, notes):
    graph = [Function("f", lose_it, extra_args=[notes], cost="cpu=1", node="n1")]
    with running(grid, graph) as result:
        for again in range(1, 7):
            notes.wait("f", again)
            grid.set_health("n1", "down")
            grid.set_health("n1", "up")
            if in_threads(grid):  # which are not ended with their node
                notes.add(f"go{again}")
    with pytest.raises(FunctionFailed, match=r"after 6 attempts: .*: f: .*node") as caught:
        result()
    assert isinstance(caught.value.__cause__, CallFailed)
    assert caught.value.__cause__.reason == "node_lost"


def lose_it(notes):
    notes.wait(f"go{notes.add('f')}")


def test_a_pinned_function_whose_node_is_removed_fails_with_the_reason(inner, notes):
    held = inner.allocate(cpu=4, node="n1")
    graph = [Function("f", add, cost="cpu=1", node="n1")]
    with running(inner, graph) as result:
        until(lambda: waiting(inner))
        inner.unregister("n1", force=True)
    with pytest.raises(FunctionFailed, match="function f failed: UnknownNode") as caught:
        result()
    assert isinstance(caught.value.__cause__, UnknownNode)
    assert held.release().state == "lost"


# ---- processes that die


@pytest.mark.parametrize("claim", ["step", "whole"])
def test_a_worker_that_dies_takes_only_its_own_function_with_it(outer, notes, claim):
    graph = [
        Function("before", counted, extra_args=[7, notes, "before"], cost="cpu=1"),
        Function("beside", meets, extra_args=[notes, "beside", "again"], cost="cpu=1"),
        Function("dies", dies_once, args=["before"], extra_args=[notes, "beside"], cost="cpu=1"),
    ]
    result = outer.execute(graph, max_retries=0, claim=claim, timeout=50)
    assert result.results == {"before": 7, "beside": "beside", "dies": 7}
    assert result.attempts == {"before": 1, "beside": 1, "dies": 2}
    assert (notes.count("before"), notes.count("beside")) == (1, 1)


def dies_once(value, notes, other):
    notes.wait(other)
    if notes.add("dies") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    notes.add("again")
    return value


PROGRAM = """
import sys, time
from gridhand import Function, Grid
def long(path):
    open(path, "w").close()
    time.sleep(600)
functions = [Function(f"f{n}", long, extra_args=[f"{sys.argv[1]}/begun.{n}.x"], cost="cpu=1") for n in range(2)]
Grid().execute([*functions, Function("after", long, args=["f0"], cost="cpu=1")], claim=sys.argv[2])
"""


@pytest.mark.parametrize("claim", ["step", "whole"])
def test_a_program_that_is_killed_gives_everything_back(outer, notes, claim):
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, notes.folder, claim])
    try:
        notes.wait("begun", 2)
        assert len(outer.allocations()) == (2 if claim == "step" else 3)
    finally:
        program.kill()
        program.wait()
    until(lambda: not outer.allocations(), seconds=30)  # a second, on a machine that is not busy
    assert outer.check() == []


# ---- interrupts


@pytest.mark.parametrize("claim", ["step", "whole"])
def test_an_interrupt_stops_everything_and_gives_everything_back(grid, notes, claim):
    graph = [
        Function("a", waits, extra_args=[notes, "a"], cost="cpu=4"),
        Function("b", waits, extra_args=[notes, "b"], cost="cpu=4"),
        Function("c", noted, args=["a"], extra_args=[notes], cost="cpu=4"),
    ]
    if claim == "whole":
        graph = graph[:2]

    def interrupt():
        notes.wait("a")
        notes.wait("b")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        grid.execute(graph, claim=claim)
    thread.join(10)
    notes.add("go")
    holds_nothing(grid)
    assert sorted(set(notes.order())) == ["a", "b", "go"]


def test_an_interrupt_while_waiting_for_room_leaves_the_line(inner):
    held = [inner.allocate(cpu=4) for _ in range(2)]

    def interrupt():
        until(lambda: waiting(inner))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    for claim in ("step", "whole"):
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            inner.execute([Function(id, add, cost="cpu=1") for id in "ab"], claim=claim)
        thread.join(10)
        until(lambda: not waiting(inner) or inner.release(inner.allocate(memory=1)))
    for one in held:
        one.release()


# What is raised while garbage is collected is lost, an interrupt like anything else. Among the long
# ones because those run without coverage, whose own code an interrupt would hit as well.
@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("claim", ["step", "whole"])
def test_an_interrupt_at_any_moment_leaves_nothing_held(grid, claim):
    """Whatever the thread that runs the graph is doing just then."""
    graph = [Function("f0", add, cost="cpu=0.1")]
    graph += [Function(f"f{n}", add, args=[f"f{n // 3}"], cost="cpu=0.1") for n in range(1, 30)]
    grid.execute(graph, claim=claim)  # an import that is interrupted is nobody's but Python's
    random = Random(1)
    armed = threading.Event()

    def interrupted(*_):
        if armed.is_set():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupted)
    ended = Counter()
    try:
        for _ in range(40):
            main = threading.main_thread().ident
            timer = threading.Timer(
                random.uniform(0, 0.03), signal.pthread_kill, (main, signal.SIGINT)
            )
            timer.start()
            try:
                armed.set()
                grid.execute(graph, claim=claim)
                armed.clear()
                ended["done"] += 1
            except KeyboardInterrupt:
                armed.clear()
                ended["interrupted"] += 1
            timer.join()
            holds_nothing(grid)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended["interrupted"] > 5


def test_a_grid_that_is_closed_ends_the_graphs_on_it(tmp_path, notes):
    grid = Grid.in_memory()
    grid.register_node("n1", cpu=1)
    graph = [Function(id, waits, extra_args=[notes, id], cost="cpu=1") for id in "ab"]
    with running(grid, graph) as result:
        notes.wait("a")
        threading.Thread(target=grid.close).start()
    with pytest.raises(GridClosed):
        result()
    notes.add("go")
