"""Jobs are pinned to the cores that other programs use least."""

import asyncio
from types import SimpleNamespace

import pytest

from gridhand.agent import monitor
from gridhand.agent.jobs.core_load import CoreLoad
from gridhand.agent.jobs.cpu_affinity import Cores
from gridhand.core.model.resources import UNIT
from gridhand.posix.procfs import CpuTimes


class Machine:
    """Cores with the load that they are given, and a clock in hundredths of a second."""

    def __init__(self, count):
        self.now, self.busy = 0, dict.fromkeys(range(count), 0)
        self.load = CoreLoad(self._times, lambda: self.now / 100)

    def _times(self):
        return {core: CpuTimes(busy, self.now) for core, busy in self.busy.items()}

    def run(self, ticks, *parts):
        self.now += ticks
        for core, part in enumerate(parts):
            self.busy[core] += round(ticks * part)


#    what it shows                               load of the cores     taken one after the other
TAKEN = {
    "a core that others use is taken last":     ((0.9, 0.0, 0.1),      [1, 2, 0]),
    "the least load comes first":               ((0.9, 0.6, 0.3),      [2, 1, 0]),
    "a little load is chance":                  ((0.1, 0.0, 0.05),     [0, 1, 2]),
}  # fmt: skip


@pytest.mark.parametrize(("parts", "taken"), TAKEN.values(), ids=TAKEN)
def test_free_cores_are_taken_by_their_load(parts, taken):
    """Row 98."""
    machine, cores = Machine(3), Cores(range(3))
    machine.run(100, *parts)
    took = [cores.take(owner, UNIT, pin=True, loads=machine.load.steps) for owner in "abc"]
    assert took == [[core] for core in taken]


def test_the_load_is_that_of_the_time_since_the_last_reading():
    machine = Machine(2)
    assert machine.load.steps() == {}
    machine.run(100, 0.9, 0.1)
    assert machine.load.steps() == {0: 4, 1: 0}
    machine.run(10, 0.0, 1.0)  # so short a time says nothing
    assert machine.load.steps() == {0: 4, 1: 0}
    machine.run(90, 0.0, 1.0)
    assert machine.load.steps() == {0: 0, 1: 4}


def test_every_sample_of_the_node_reads_the_load_of_the_cores(monkeypatch):
    """So that an hour without jobs does not hide a core that became busy a moment ago."""

    async def sample(_, over_ms):
        return {"over_ms": over_ms}

    monkeypatch.setattr(monitor.NodeSampler, "sample", sample)
    machine, told = Machine(2), []
    found = SimpleNamespace(cpus=[0, 1], bounds=None)
    pace = SimpleNamespace(taken=lambda: 10_000)
    agent = SimpleNamespace(found=found, pace=pace, core_load=machine.load, usage=None)
    watcher = monitor.Monitor(agent, told.append, list)
    machine.run(360_000, 0.0, 0.0)
    asyncio.run(watcher.sample())
    machine.run(300, 1.0, 0.0)
    assert machine.load.steps() == {0: 4, 1: 0}
    assert told == [{"over_ms": 10_000}]
