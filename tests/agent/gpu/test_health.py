"""A device that fails is out at once, and back only after a while."""

import os

import pytest

from gridhand.agent.gpu.health import HOLD_DOWN_MS, DeviceHealth
from gridhand.agent.gpu.nvml import DeviceMemory, Devices, MemoryUse
from gridhand.agent.hardware.machine_problem import MachineProblem
from gridhand.core.model.gpus import Gpu, GpuHealth

GB = 10**9
OK, SICK, LOST = GpuHealth.OK, GpuHealth.SICK, GpuHealth.LOST


def gpus(*healths):
    found = tuple(
        Gpu(f"g{n}", n, memory_bytes=40 * GB, health=one) for n, one in enumerate(healths)
    )
    wrong = tuple(MachineProblem("broken", "mend", gpu.id) for gpu in found if gpu.health is not OK)
    return Devices(found, wrong)


def use(**used):
    """Bytes in use that no process has, of each device."""
    return MemoryUse({id: DeviceMemory(count, 0, 0, {}) for id, count in used.items()})


def health(watch):
    return [gpu.health for gpu in watch.gpus.values()]


@pytest.fixture
def watch():
    made = DeviceHealth(gpus(OK, OK).gpus)
    made.take(gpus(OK, OK), use(g0=0, g1=0), now=0)
    return made


def test_nothing_new_is_no_news(watch):
    assert not watch.take(gpus(OK, OK), use(g0=0, g1=0), now=2000)


def test_a_lost_device_is_out_at_once_and_the_other_stays(watch):
    assert watch.take(gpus(LOST, OK), use(g1=0), now=2000)
    assert health(watch) == [LOST, OK]
    assert watch.lost(["g0", "g1"]) == {"g0"}
    assert watch.lost(["g1"]) == set()
    assert [problem.device for problem in watch.problems] == ["g0"]


UUID = "GPU-00000000-aaaa-bbbb-cccc-000000000000"
OTHER = "GPU-00000001-aaaa-bbbb-cccc-000000000001"

#    a device that a job has had since before we stood here          the driver tells of                 lost
MISSING = {
    "it is not listed":                                              ([(OTHER, OK)],                     True),
    "it is listed and lost, and its UUID cannot be read":            ([("here/0", LOST), (OTHER, OK)],   True),
    "it may be the one that is only sick and tells no UUID":         ([("here/0", SICK), (OTHER, OK)],   False),
    "there is no driver, so nothing is known of it":                 ([],                                False),
}  # fmt: skip


@pytest.mark.parametrize(("told", "lost"), MISSING.values(), ids=MISSING)
def test_one_that_was_lost_while_nobody_looked(told, lost):
    found = tuple(Gpu(id, n, health=one) for n, (id, one) in enumerate(told))
    watch = DeviceHealth(found)
    watch.take(Devices(found), use(), now=0)
    assert watch.lost([UUID]) == ({UUID} if lost else set())
    assert watch.lost(["here/7"]) == set(), "one that was declared, and is not the driver's"
    watch.take(Devices(found, hidden=frozenset({UUID})), use(), now=2000)
    assert watch.lost([UUID]) == set(), "one that is hidden from us is there"


def test_one_that_is_well_again_must_stay_so_for_a_while(watch):
    watch.take(gpus(SICK, OK), use(), now=2000)
    watch.take(gpus(OK, OK), use(), now=4000)
    assert health(watch) == [SICK, OK]
    watch.take(gpus(SICK, OK), use(), now=6000)
    watch.take(gpus(OK, OK), use(), now=8000)
    watch.take(gpus(OK, OK), use(), now=8000 + HOLD_DOWN_MS - 1)
    assert health(watch) == [SICK, OK]
    assert watch.take(gpus(OK, OK), use(), now=8000 + HOLD_DOWN_MS)
    assert health(watch) == [OK, OK]


def test_memory_that_is_not_given_back_keeps_a_device_out(watch):
    full = use(g0=20 * GB, g1=0)
    assert watch.left_behind({"g0", "g1"}, full) == ["g0"]
    watch.quarantine(["g0"], full)
    assert health(watch) == [SICK, OK]
    assert "in use that no process has" in watch.problems[0].what
    watch.take(gpus(OK, OK), full, now=60_000)
    assert health(watch) == [SICK, OK]
    watch.take(gpus(OK, OK), use(g0=0, g1=0), now=62_000)
    assert health(watch) == [SICK, OK]
    watch.take(gpus(OK, OK), use(g0=0, g1=0), now=62_000 + HOLD_DOWN_MS)
    assert health(watch) == [OK, OK]
    assert watch.problems == ()


def test_what_the_driver_always_keeps_is_not_left_behind():
    watch = DeviceHealth(gpus(OK).gpus)
    watch.take(gpus(OK), use(g0=GB), now=0)
    assert watch.left_behind({"g0"}, use(g0=GB)) == []
    assert watch.left_behind({"g0"}, use(g0=2 * GB)) == ["g0"]


def test_a_process_that_is_dead_has_nothing():
    watch = DeviceHealth(gpus(OK).gpus)
    watch.take(gpus(OK), use(g0=0), now=0)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    held = MemoryUse({"g0": DeviceMemory(5 * GB, 0, 5 * GB, {pid: 5 * GB})})
    assert watch.left_behind({"g0"}, held) == ["g0"]
    mine = MemoryUse({"g0": DeviceMemory(5 * GB, 0, 5 * GB, {os.getpid(): 5 * GB})})
    assert watch.left_behind({"g0"}, mine) == []
