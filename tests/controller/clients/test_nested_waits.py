"""Reports of slots that wait: which of them count, for how long, and from whom."""

import asyncio
from types import SimpleNamespace

import pytest

from gridhand.controller.clients import nested_waits
from gridhand.controller.clients.nested_waits import NestedWaits, WaitReport
from gridhand.controller.keeper.job_commands import ADMIN
from gridhand.core.jobs.job import JobState
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources
from gridhand.core.queue.standstill import ALL_WAIT, NO_NODE_HAS_BOTH, SURE_S


class Place:
    """Slots of a core each on a node with four; what each of them is told when it reports."""

    def __init__(self):
        self.now = 1000.0
        self.live, self.open = {}, {}
        use = SimpleNamespace(total_resources=lambda: Resources.of(cpu=4))
        ledger = SimpleNamespace(
            live=self.live, jobs=SimpleNamespace(open=self.open), nodes={"n": use}
        )
        desk = SimpleNamespace(ledger=ledger)

        async def ask(read):
            return read.answer(desk)

        self.waits = NestedWaits(ask, lambda: self.now)

    def add(self, id, wants=3, owner="ann"):
        self.live[id] = SimpleNamespace(id=id, owner=owner, node="n", resources=Resources.of(cpu=1))
        job = SimpleNamespace(id=f"job-{id}", request=Request.of(cpu=wants), state=JobState.QUEUED)
        self.open[job.id] = job

    def report(self, id, owner="ann", running=(), blocked=True):
        report = WaitReport(owner, id, (f"job-{id}",), tuple(running), blocked)
        return asyncio.run(self.waits.report(report))

    def wait(self, *ids, seconds=SURE_S, **more):
        """Have all report once in a second, for so long."""
        for _ in range(int(seconds)):
            for id in ids:
                assert self.report(id, **more) == {}
            self.now += 1


@pytest.fixture
def place():
    place = Place()
    place.add("x")
    place.add("y")
    return place


def test_so_many_reports_are_kept_and_no_more(place, monkeypatch):
    monkeypatch.setattr(nested_waits, "_MOST", 3)
    for number in range(10):
        place.add(f"s{number}")
        assert place.report(f"s{number}") == {}
    assert [id for _, id in place.waits._waits] == ["s0", "s1", "s2"]
    place.report("s1")  # one that is kept stays
    assert sorted(id for _, id in place.waits._waits) == ["s0", "s1", "s2"]
    place.report("s1", blocked=False)
    place.report("s9")
    assert sorted(id for _, id in place.waits._waits) == ["s0", "s2", "s9"]


def test_the_last_one_is_refused_once_it_is_sure(place):
    place.wait("x", "y")
    assert place.report("x") == {}
    assert place.report("y") == {"job-y": ALL_WAIT}


def test_what_no_node_has_is_refused_at_once(place):
    place.add("z", wants=4)
    assert place.report("z", blocked=False) == {"job-z": NO_NODE_HAS_BOTH}


def test_a_report_that_is_not_repeated_counts_no_more(place):
    place.wait("x", "y")
    place.now += 5
    place.wait("y")
    assert place.report("y") == {}
    assert place.report("x") == {}


def test_a_function_that_goes_on_counts_no_more(place):
    place.wait("x", "y")
    assert place.report("x", blocked=False) == {}
    assert place.report("y") == {}


def test_a_wait_for_something_else_begins_anew(place):
    place.wait("x", "y")
    assert place.report("x", running=["another"]) == {}
    assert place.report("x") == {}
    assert place.report("y") == {}


def test_a_job_that_has_started_or_is_gone_is_not_waited_for(place):
    place.wait("x", "y")
    place.open["job-x"].state = JobState.RUNNING
    assert place.report("y") == {}
    del place.open["job-x"]
    assert place.report("y") == {}


def test_an_allocation_that_is_released_is_in_nobodys_way(place):
    place.wait("x", "y")
    del place.live["x"]
    assert place.report("x") == {}
    assert place.report("y") == {}


def test_what_others_say_of_a_slot_does_not_count(place):
    """Nobody can have another user's calls refused."""
    place.wait("x", owner="eve")
    place.wait("y")
    assert place.report("x", owner="eve") == {}
    assert place.report("y") == {}


def test_whoever_runs_the_controller_speaks_for_all(place):
    place.wait("x", "y", owner=ADMIN)
    assert place.report("y", owner=ADMIN) == {"job-y": ALL_WAIT}
