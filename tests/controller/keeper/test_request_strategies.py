"""Strategies that requests name: for jobs and allocations, over retries and restarts."""

import pytest

from gridhand import Grid, InvalidInput, Request, StrategyFailed
from gridhand.core.jobs.job import JobSpec, JobState, Reason
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.observations import UseStrategy
from gridhand.core.operations import Submit
from gridhand.core.placement import strategies


class Point:
    """An entry point of a package."""

    value = "elsewhere:strategy"

    def __init__(self, name, load):
        self.name, self.load = name, load


@pytest.fixture
def provided(monkeypatch):
    """Strategies that packages provide, by name."""
    found = {}
    monkeypatch.setattr(strategies, "_loaded", {})
    monkeypatch.setattr(
        strategies,
        "_entry_points",
        lambda: {name: Point(name, lambda name=name: found[name]) for name in found},
    )
    return found


def submit(desk, strategy, cpu=1, **wishes):
    asked = Request.of(cpu=cpu, strategy=strategy)
    return desk.ask(Submit("ann", None, JobSpec("ann", ("true",), "/", asked, **wishes))).ids[0]


def last(asked, snapshot, rows):
    return list(rows)


def test_each_job_goes_where_its_own_strategy_says(desk):
    desk.nodes(a=100, b=4)
    assert desk.job(submit(desk, "spread")).attempt.node == "a"
    assert desk.job(submit(desk, "pack")).attempt.node == "b"
    desk.ask(UseStrategy(strategies.STRATEGIES["pack"]))
    assert desk.job(submit(desk, "spread")).attempt.node == "a"
    assert desk.job(submit(desk, None)).attempt.node == "b"


def test_default_names_the_built_in_one_whatever_is_configured(desk):
    desk.nodes(a=100, b=4)
    desk.ask(UseStrategy(strategies.STRATEGIES["spread"]))
    assert desk.job(submit(desk, None)).attempt.node == "a"
    assert desk.job(submit(desk, "default")).attempt.node == "b"


def test_a_queued_job_keeps_its_strategy_over_a_restart_and_a_retry(desk):
    desk.nodes(a=100, b=4)
    held = [desk.submit(100, node="a"), desk.submit(4, node="b")]
    id = submit(desk, "spread", retry=RetryPolicy.of(1))
    assert desk.state(id) is JobState.QUEUED
    desk.restart()
    assert desk.job(id).request.strategy == "spread"
    desk.end(*held)
    assert desk.job(id).attempt.node == "a"
    desk.end(id, reason=Reason.EXIT, code=1)
    desk.clock.ms += 3_600_000
    desk.nodes(c=1)  # whatever wakes the keeper
    assert [attempt.node for attempt in desk.job(id).attempts] == ["a", "a"]


def test_an_unknown_name_is_refused_with_all_that_are_known(desk, provided):
    desk.nodes(a=1)
    provided["coolest"] = last
    with pytest.raises(InvalidInput) as caught:
        submit(desk, "coolst")
    assert str(caught.value) == "strategy: 'coolst' is not valid"
    assert caught.value.hint == (
        "Use any of balanced, best_fit, cheapest, coolest, default, first_available, fragmentation,"
        " pack, round_robin, spread (did you mean coolest?)."
    )
    assert desk.jobs() == {}


def test_an_unknown_name_is_refused_although_the_neighbour_may_come_and_go(desk):
    desk.nodes(a=1)
    asked = Request.of(cpu=1, strategy="x", apart_from="other")
    with pytest.raises(InvalidInput, match="strategy: 'x'"):
        desk.ask(Submit("ann", None, JobSpec("ann", ("true",), "/", asked)))


def test_a_job_whose_strategy_is_gone_waits_and_says_so(desk, provided):
    desk.nodes(a=1)
    provided["mine"] = last
    running, id = desk.submit(), submit(desk, "mine")
    provided.clear()
    desk.restart()
    desk.end(running)
    assert desk.state(id) is JobState.QUEUED
    assert "strategy: 'mine'" in desk.why(id)
    other = desk.submit()
    assert desk.state(other) is JobState.RUNNING
    provided["mine"] = last
    desk.end(other)
    assert desk.state(id) is JobState.RUNNING


def test_a_strategy_that_breaks_stops_its_own_jobs_alone(desk, provided):
    broken = []

    def moody(asked, snapshot, rows):
        if broken:
            raise ZeroDivisionError
        return last(asked, snapshot, rows)

    provided["moody"] = moody
    desk.nodes(a=2, b=2)
    held = [desk.submit(2), desk.submit(2)]
    id, other = submit(desk, "moody"), desk.submit()
    broken.append(True)
    desk.end(*held)
    assert (desk.state(id), desk.state(other)) == (JobState.QUEUED, JobState.RUNNING)
    assert "strategy: 'moody' raised ZeroDivisionError()" in desk.why(id)
    with pytest.raises(StrategyFailed, match="moody"):
        submit(desk, "moody", 0.5)
    broken.clear()
    desk.end(other)
    assert desk.job(id).attempt.node == "b"


def test_allocations_groups_and_explanations_follow_the_request():
    with Grid.in_memory(strategy="pack") as grid:
        grid.register_node("a", cpu=100)
        grid.register_node("b", cpu=4)
        assert grid.explain(cpu=1).node == "b"
        assert grid.explain(cpu=1, strategy="spread").node == "a"
        assert grid.allocate(cpu=1, strategy="spread").node == "a"
        assert grid.reserve(cpu=1, strategy="spread").node == "a"
        both = [Request.of(cpu=1, strategy="spread"), {"cpu": 1}]
        assert [held.node for held in grid.allocate_group(both)] == ["a", "b"]
        together = grid.allocate_group([Request.of(cpu=1, strategy="spread")] * 2, together=True)
        assert {held.node for held in together} == {"a"}


def test_a_strategy_is_loaded_once(provided, desk, monkeypatch):
    loads = []
    provided["mine"] = last
    point = Point("mine", lambda: loads.append("mine") or last)
    monkeypatch.setattr(strategies, "_entry_points", lambda: {"mine": point})
    desk.nodes(a=2, b=2)
    assert desk.job(submit(desk, "mine")).attempt.node == "b"
    submit(desk, "mine")
    assert loads == ["mine"]
