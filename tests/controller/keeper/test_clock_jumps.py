"""Rows 33 and 96: the wall clock is set by weeks between two starts; history ages by ledger time."""

import time

import pytest

from gridhand import Grid
from gridhand.clock import COUNTED_MS, DAY_MS, ClockJump, jump_between, time_ago
from gridhand.controller.keeper.embedded import Embedded
from gridhand.controller.keeper.keeper import Keeper
from gridhand.store.reader import audit
from gridhand.store.sql.sqlite import SqliteStore

KEPT_S = 30 * 86_400
START = 1_700_000_000_000


@pytest.mark.parametrize(
    ("jumps", "moment"),
    [
        ([], 70),
        ([(60, 40)], 70),  # before what is asked for
        ([(90, 40)], 30),
        ([(70, 40)], 70),
        ([(71, 40)], 30),
        ([(90, 5), (95, 7)], 58),
        ([(95, 7), (90, 5)], 58),
        ([(90, 40), (20, 5)], 30),
        ([(90, 40), (31, 5)], 25),
    ],
)
def test_what_was_jumped_over_does_not_count_as_age(jumps, moment):
    assert time_ago(30, 100, [ClockJump(*jump) for jump in jumps]) == moment


@pytest.mark.parametrize(
    ("high_water", "now", "jump"),
    [
        (0, START, None),  # a new store
        (START, START, None),
        (START, START + COUNTED_MS, None),
        (START, START + COUNTED_MS + 1, ClockJump(START + COUNTED_MS + 1, 1)),
        (START, START + 40 * DAY_MS, ClockJump(START + 40 * DAY_MS, 39 * DAY_MS)),
    ],
)
def test_a_step_ahead_counts_as_at_most_a_day(high_water, now, jump):
    assert jump_between(high_water, now) == jump


class Wall:
    """The wall clock of the machine, in days since the start of the test; it stands still."""

    def __init__(self, path):
        self.path, self.day = path, 0

    def now(self):
        return max(self.high_water, START + int(self.day * DAY_MS))

    def clock(self, high_water_ms):
        self.high_water = high_water_ms
        return self

    def controller(self, day):
        """Return a grid that is opened on this day of the wall clock."""
        self.day = day
        keeper = Keeper(SqliteStore(str(self.path)), clock=self.clock)
        return Grid(backend=Embedded(keeper), owner="me")


@pytest.fixture
def wall(tmp_path):
    return Wall(tmp_path / "grid.db")


def leave_history(grid, holder):
    held = grid.allocate(cpu=1, holder=holder)
    held.release()
    return held.id


def prune(grid):
    for _ in grid.prune(KEPT_S):
        pass


def ids(grid):
    """Return the allocations that the history still has."""
    return {event.subject for event in grid.events() if event.kind == "allocation.released"}


def test_a_clock_forty_days_ahead_at_a_start_costs_no_history(wall):
    with wall.controller(0) as grid:
        grid.register_node("n", cpu=1)
        old = leave_history(grid, "old")
    with wall.controller(40) as grid:
        prune(grid)
        assert ids(grid) == {old}
        young = leave_history(grid, "young")
        prune(grid)
        assert ids(grid) == {old, young}
    with wall.controller(40) as grid:  # the jump is remembered
        prune(grid)
        assert ids(grid) == {old, young}
    assert audit(str(wall.path)).violations == []


def test_after_a_jump_history_goes_when_it_is_old_in_ledger_time(wall):
    with wall.controller(0) as grid:
        grid.register_node("n", cpu=1)
        old = leave_history(grid, "old")
    with wall.controller(40) as grid:
        young = leave_history(grid, "young")
        wall.day = 68  # a day of the jump counts, and 28 have passed since
        prune(grid)
        assert ids(grid) == {old, young}
        wall.day = 69.5
        prune(grid)
        assert ids(grid) == {young}
        wall.day = 70.5
        prune(grid)
        assert ids(grid) == set()


def test_a_clock_that_is_set_back_makes_nothing_immortal(wall):
    with wall.controller(4000) as grid:
        grid.register_node("n", cpu=1)
        first = leave_history(grid, "first")
    with wall.controller(0) as grid:
        second = leave_history(grid, "second")
        assert ids(grid) == {first, second}
        wall.day = 4000 + 31
        prune(grid)
        assert ids(grid) == set()


def test_weekly_use_keeps_history_for_thirty_weeks_and_no_longer(wall):
    kept = []
    for week in range(40):
        with wall.controller(7 * week) as grid:
            if week == 0:
                grid.register_node("n", cpu=1)
            leave_history(grid, f"week-{week}")
            prune(grid)
            kept.append(len(ids(grid)))
    assert kept[:30] == list(range(1, 31))
    assert set(kept[31:]) == {31}


def test_an_answer_can_be_repeated_after_a_jump(wall):
    with wall.controller(0) as grid:
        grid.register_node("n", cpu=2)
        held = grid.allocate(cpu=1, holder="h", op_id="once").id
    with wall.controller(40) as grid:
        prune(grid)
        assert grid.allocate(cpu=1, holder="h", op_id="once").id == held


def test_a_lease_has_its_full_ttl_after_a_jump(wall):
    with wall.controller(0) as grid:
        grid.register_node("n", cpu=1)
        lease = grid.allocate(cpu=1, ttl=60)
    with wall.controller(40) as grid:
        assert [held.id for held in grid.allocations()] == [lease.id]


def test_the_real_clock_ahead_costs_no_history(tmp_path, monkeypatch):
    path = str(tmp_path / "grid.db")
    with Grid.at(path) as grid:
        grid.register_node("n", cpu=1)
        old = leave_history(grid, "old")
    ahead = time.time_ns() + 40 * DAY_MS * 10**6
    monkeypatch.setattr(time, "time_ns", lambda: ahead)
    with Grid.at(path) as grid:
        prune(grid)
        assert ids(grid) == {old}
