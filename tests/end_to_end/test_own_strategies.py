"""`--strategy`, with strategies that an installed package provides to a real controller."""

import pytest

from grid_machine import Machine
from gridhand import AsyncGrid, Grid, Request, StrategyFailed, task
from gridhand.client import Client
from gridhand.client.transport import Address
from gridhand.core.errors import InvalidInput
from gridhand.home import Home
from until import until

STRATEGIES = """
def last(asked, snapshot, rows):
    return list(rows)


def too_few(asked, snapshot, rows):
    return [1.0]


def not_numbers(asked, snapshot, rows):
    return [float("nan") for _ in rows]


def leaves(asked, snapshot, rows):
    raise SystemExit("gone")
"""
NAMES = ("last", "too_few", "not_numbers", "leaves")
WHERE = ("sh", "-c", "echo $GRIDHAND_NODE")
NODES = ("--virtual-node", "first:cpu=8", "--virtual-node", "second:cpu=2")


def install(folder):
    """Put a package with an entry point for each strategy where Python finds it."""
    info = folder / "lab_strategies-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "lab_strategies.py").write_text(STRATEGIES)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-strategies\nVersion: 1.0\n")
    lines = [f"{name} = lab_strategies:{name}" for name in NAMES]
    lines.append("missing = lab_strategies:nothing")
    (info / "entry_points.txt").write_text("\n".join(["[gridhand.strategies]", *lines, ""]))
    return str(folder)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strategies")
    machine = Machine(folder / "home", PYTHONPATH=install(folder / "packages"))
    serve(machine)
    try:
        yield machine
        machine.check()
        machine.check_each_ended_once()
    finally:
        machine.close()


def serve(machine):
    machine.start("serve", *NODES)
    with Client(Address(Home(str(machine.home)).socket)) as client:
        until(client.probe)  # the socket of a killed one may still be there


@pytest.fixture
def grid(machine, monkeypatch):
    monkeypatch.setenv("GRIDHAND_HOME", str(machine.home))
    monkeypatch.setenv("GRIDHAND_ADDRESS", f"unix:{Home(str(machine.home)).socket}")
    with Grid() as grid:
        yield grid


def test_jobs_reservations_and_dry_runs_go_where_their_strategy_says(machine):
    assert machine.run("--", *WHERE).stdout == "second\n"  # the tightest fit
    assert machine.run("--strategy", "spread", "--", *WHERE).stdout == "first\n"
    assert machine.json("run", "--dry-run", "--strategy", "spread", "true")["node"] == "first"
    assert machine.json("why", "-c", "1", "--strategy", "spread")["node"] == "first"
    held = machine.json("reserve", "-c", "1", "--strategy", "spread", "mine")
    assert held["node"] == "first"
    machine.grid("release", "mine", check=0)


def test_a_strategy_of_a_package_decides_in_the_controller(machine, grid):
    assert machine.run("--strategy", "last", "--", *WHERE).stdout == "second\n"
    assert grid.explain(cpu=1, strategy="last").node == "second"
    with grid.allocate(cpu=1, strategy="last") as held:
        assert held.node == "second"
    jobs = grid.run_array("true", "1-3", cpu=0.5, strategy="last")
    assert {job.wait(60).node for job in jobs} == {"second"}


def test_functions_are_placed_by_their_strategy(grid):
    @task(cpu=1, strategy="spread", grid=grid)
    def where():
        import os

        return os.environ["GRIDHAND_NODE"]

    assert where.submit().result(60) == "first"
    assert where.options(strategy="pack").submit().result(60) == "second"


def test_the_methods_of_the_async_grid_take_it_too(grid):
    import asyncio

    async def nodes():
        there = AsyncGrid.of(grid)
        held = await there.allocate(cpu=1, strategy="spread")
        await held.release()
        job = await there.run("true", strategy="spread")
        return held.node, (await job.wait(60)).node, (await there.explain(cpu=1)).node

    assert asyncio.run(nodes()) == ("first", "first", "second")


def test_an_unknown_name_is_refused_with_the_names_of_the_controller(machine, grid):
    done = machine.run("--strategy", "laast", "true")
    assert done.returncode == 125
    assert "strategy: 'laast' is not valid" in done.stderr
    assert "best_fit" in done.stderr
    assert "(did you mean last?)" in done.stderr
    for ask in (grid.explain, grid.allocate):
        with pytest.raises(InvalidInput, match="strategy: 'laast'"):
            ask(cpu=1, strategy="laast")
    for words in (("why", "-c", "1"), ("reserve", "-c", "1"), ("run", "--dry-run")):
        done = machine.grid(*words, "--strategy", "laast", *(["true"] * (words[0] == "run")))
        assert "did you mean last?" in done.stderr, words


NONSENSE = {
    "too_few": "returned 1 scores for 2 nodes",
    "not_numbers": "returned the score nan, which is no number",
    "leaves": "raised SystemExit('gone')",
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_fails_its_own_request_and_nobody_elses(machine, grid, name):
    with pytest.raises(StrategyFailed) as caught:
        grid.run("true", strategy=name)
    assert str(caught.value) == f"strategy: '{name}' {NONSENSE[name]}"
    assert (caught.value.field, caught.value.strategy) == ("strategy", name)
    with pytest.raises(StrategyFailed):
        grid.allocate_group([Request.of(cpu=1, strategy=name), {"cpu": 1}])
    with pytest.raises(StrategyFailed):
        grid.explain(cpu=1, strategy=name)
    assert grid.run("true").wait(60).state == "succeeded"
    assert grid.check() == []


def test_one_that_cannot_be_loaded_is_refused(grid):
    with pytest.raises(InvalidInput) as caught:
        grid.run("true", strategy="missing")
    assert "lab_strategies:nothing failed with" in caught.value.hint


def test_a_queued_job_keeps_its_strategy_over_a_restart(machine, grid):
    all_of_it = [{"cpu": 8}, {"cpu": 2}]
    held = grid.allocate_group(all_of_it, ttl="10m", wait=60)  # once idle workers are gone
    waits = machine.detach("--strategy", "spread", "--", *WHERE)
    machine.kill(machine.controller)
    serve(machine)
    job = machine.job(waits)
    assert (job["state"], job["request"]["strategy"]) == ("queued", "spread")
    assert "strategy spread" in machine.grid("show", waits, check=0).stdout
    held[0].release()  # and with it the other: both nodes are free at once
    assert machine.wait(waits)[waits]["node"] == "first"
