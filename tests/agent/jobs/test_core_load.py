"""Jobs are pinned to cores that others do not keep busy, if there are enough of them."""

from gridhand.agent.jobs.core_load import CoreLoad
from gridhand.agent.jobs.cpu_affinity import Cores
from gridhand.core.model.resources import UNIT
from gridhand.posix.procfs import CpuTimes


def test_a_core_that_others_use_is_taken_last():
    """Row 98."""
    cores = Cores(range(3))
    assert cores.take("a", UNIT, pin=True, busy=lambda: {0}) == [1]
    assert cores.take("b", UNIT, pin=True, busy=lambda: {0}) == [2]
    assert cores.take("c", UNIT, pin=True, busy=lambda: {0}) == [0]


def test_a_core_is_busy_that_worked_most_of_the_time_since_the_last_look():
    now, times = [0.0], {0: CpuTimes(0, 0), 1: CpuTimes(0, 0)}
    load = CoreLoad(lambda: dict(times), lambda: now[0])
    assert load.busy() == frozenset()
    now[0], times[0], times[1] = 1.0, CpuTimes(90, 100), CpuTimes(10, 100)
    assert load.busy() == {0}
    now[0] = 1.1  # so short a time says nothing
    times[1] = CpuTimes(20, 110)
    assert load.busy() == {0}
    now[0], times[0], times[1] = 2.0, CpuTimes(90, 200), CpuTimes(110, 200)
    assert load.busy() == {1}
