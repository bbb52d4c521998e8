"""Random graphs give what a plain evaluation gives, or the right error, and leave nothing held.

In threads of this process, and on real processes; while nodes come and go, and while workers die.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import cloudpickle
import pytest
from hypothesis import HealthCheck, Phase, assume, event, example, given, settings
from hypothesis import strategies as st

import graph_cases
from example_budget import examples as budget
from graph_cases import (
    AMOUNTS,
    NODES,
    Files,
    Watch,
    a_bit_of_everything,
    can_run,
    cases,
    check,
    check_result,
    evaluated,
)
from graph_functions import holds_nothing, register
from gridhand import FunctionFailed, Grid, GridError

ANY_TIME = settings(suppress_health_check=list(HealthCheck))
# A smaller case of a fault takes minutes to find on processes; the cases are small as they are.
AS_FOUND = settings(ANY_TIME, phases=set(Phase) - {Phase.shrink, Phase.explain})


@pytest.fixture(scope="module")
def threads():
    with Grid.in_memory() as opened:
        register(opened, AMOUNTS)
        yield opened


@settings(ANY_TIME, max_examples=budget(60))
@given(case=cases())
def test_a_random_graph_gives_what_a_plain_evaluation_gives(threads, case):
    watch = Watch(case)
    found = case.outcome(threads, watch.code, timeout=30)
    event(type(found).__name__)
    check(case, found, watch)
    holds_nothing(threads)


@settings(ANY_TIME, max_examples=budget(15))
@given(case=cases(), seed=st.integers(0, 10**6))
def test_nodes_that_come_and_go_change_nothing_but_where_and_how_often(threads, case, seed):
    """Functions are run again when their node is lost; what they come to is the same."""
    assume(can_run(case.without_failures()))
    watch = Watch(case, slow_s=0.003)
    stop, random = threading.Event(), Random(seed)

    def trouble():
        while not stop.is_set():
            name = random.choice(list(NODES))
            threads.set_health(name, "down")
            stop.wait(random.uniform(0, 0.004))
            threads.set_health(name, "up")
            stop.wait(random.uniform(0, 0.02))

    thread = threading.Thread(target=trouble)
    thread.start()
    try:
        found = case.outcome(threads, watch.code, timeout=60)
    finally:
        stop.set()
        thread.join()
    again = not isinstance(found, GridError) and max(found.attempts.values(), default=1) > 1
    event("something was run again" if again else type(found).__name__)
    if isinstance(found, FunctionFailed):  # it was lost once too often
        assert found.attempts == 6
        assert found.__cause__.reason == "node_lost"
    else:
        values = evaluated(case)
        assert found.results == {id: values[id] for id in case.kept}
    for name in NODES:
        threads.set_health(name, "up")
    holds_nothing(threads)


# ---- on processes


@pytest.fixture
def workers(processes):
    """A grid that calls functions in other processes, with the nodes of these cases."""
    cloudpickle.register_pickle_by_value(graph_cases)
    register(processes, AMOUNTS)
    return processes


def test_a_random_graph_on_processes_gives_what_a_plain_evaluation_gives(workers, tmp_path):
    assert run_on(workers, tmp_path, examples=15)["functions"] > 0


@pytest.mark.soak
def test_three_hundred_random_graphs_on_processes(workers, tmp_path):
    began = time.monotonic()
    counts = run_on(workers, tmp_path, examples=300)
    print(f"\n{told(counts)} in {time.monotonic() - began:.0f} s")


def run_on(grid, folder, examples):
    """Run so many; tells how many graphs and functions ran, and what came of them."""
    counts = Counter()

    @settings(AS_FOUND, max_examples=examples)
    @example(case=a_bit_of_everything("step"))
    @example(case=a_bit_of_everything("whole"))
    @given(case=cases(fewest=4))
    def run(case):
        files = Files(case, tempfile.mkdtemp(dir=folder))
        found = case.outcome(grid, files.code, timeout=60)
        seen = files.seen()
        check(case, found, seen)
        holds_nothing(grid)
        counts.update(graphs=1, functions=seen.started.total())
        counts[type(found).__name__] += 1

    run()
    return counts


def told(counts):
    return ", ".join(f"{count} {what}" for what, count in counts.items())


@pytest.mark.soak
def test_workers_that_are_killed_change_nothing_but_how_often(workers, home, tmp_path):
    """What was lost with its worker is run again, beside those that it goes with."""
    counts, began = Counter(), time.monotonic()

    @settings(AS_FOUND, max_examples=100)
    @given(case=cases(fewest=4), seed=st.integers(0, 10**6))
    def run(case, seed):
        assume(can_run(case.without_failures()))
        files = Files(case, tempfile.mkdtemp(dir=tmp_path), slow_s=0.1)
        with Killer(home, Random(seed)) as killer:
            found = case.outcome(workers, files.code, timeout=100)
        seen = files.seen()
        if isinstance(found, FunctionFailed):
            assert found.attempts == 6
            assert found.__cause__.lost
            counts["lost once too often"] += 1
        else:
            check_result(case, found)
            assert found.attempts.keys() == seen.started.keys()
            assert all(seen.started[id] <= tries for id, tries in found.attempts.items())
            counts["run again"] += sum(tries - 1 for tries in found.attempts.values())
        holds_nothing(workers)
        counts.update(graphs=1, functions=seen.started.total(), kills=killer.kills)

    run()
    print(f"\n{told(counts)} in {time.monotonic() - began:.0f} s")
    assert counts["run again"] > 0
    assert counts["lost once too often"] < counts["graphs"] / 5


class Killer:
    """Kills a worker of this home now and then, meanwhile."""

    def __init__(self, home, random):
        self.home = home
        self.random = random
        self.kills = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        while not self._stop.wait(self.random.uniform(0.05, 0.8)):
            if found := sorted(workers_at(self.home)):
                self._kill(self.random.choice(found))

    def _kill(self, pid):
        with suppress(ProcessLookupError):
            file = os.pidfd_open(pid)
            try:
                if pid in workers_at(self.home):  # and not another that has its number by now
                    signal.pidfd_send_signal(file, signal.SIGKILL)
                    self.kills += 1
            finally:
                os.close(file)


def workers_at(home):
    """The workers that the starter of this home is the parent of, or this process itself."""
    parents, found = {os.getpid()}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (folder / "cmdline").read_text().split("\0")
            if "gridhand.agent.starter" in command and f"{home}/starter" in command:
                parents.add(int(folder.name))
            if any(one.endswith("gridhand/worker/__main__.py") for one in command):
                stat = (folder / "stat").read_text()
                found[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    return {pid for pid, parent in found.items() if parent in parents}
