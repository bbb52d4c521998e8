"""The wall clock is set forth and back under a real controller: no lease notices (rows 31-33, 36).

A small library that is loaded before all others adds an offset, which a file says, to the wall
clock of every process of the grid, and of no other. The steady clocks stay as they are.
"""

import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from grid_machine import Machine
from gridhand.client.client import Client
from gridhand.client.transport import Address
from until import until

HOUR_S = 3600
SHIM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset_s(void) {
    char text[32] = {0};
    const char *path = getenv("WALL_CLOCK_OFFSET");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return 0;
    if (read(fd, text, sizeof text - 1) < 0) text[0] = 0;
    close(fd);
    return atol(text);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += offset_s();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    int failed = clock_gettime(CLOCK_REALTIME, &exact);
    (void)zone;
    if (!failed && now) { now->tv_sec = exact.tv_sec; now->tv_usec = exact.tv_nsec / 1000; }
    return failed;
}

time_t time(time_t *told) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    if (told) *told = exact.tv_sec;
    return exact.tv_sec;
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("the clock cannot be set: there is no C compiler")
    folder = tmp_path_factory.mktemp("clock")
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SHIM)
    made = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", library, source],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"the clock cannot be set: {made.stderr}")
    return library


class Clocked(Machine):
    """A machine whose wall clock a test sets."""

    def __init__(self, home, shim, offset):
        self._offset = offset
        self.set_clock(0)
        super().__init__(home, LD_PRELOAD=str(shim), WALL_CLOCK_OFFSET=str(offset))

    def set_clock(self, seconds):
        """So far from the true time; in one step, as whoever reads it sees."""
        new = self._offset.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._offset)

    def client(self):
        return Client(Address(str(self.home / "socket")))

    def hold(self, **terms):
        with self.client() as client:
            return client.allocate({"request": {"cpu": 0.01}, **terms})["id"]

    def held(self):
        with self.client() as client:
            return {one["id"]: one for one in client.allocations()}


@pytest.fixture
def machine(tmp_path, shim):
    machine = Clocked(tmp_path / "home", shim, tmp_path / "offset")
    try:
        machine.grid("status", check=0)
        yield machine
        machine.check()
        machine.check_each_ended_once()
        check_time(machine)
    finally:
        machine.close()


def check_time(machine):
    """What was written never goes back in time, whatever the clock said."""
    times = [event["at"] for event in machine.events()]
    assert times == sorted(times)


def wall_ms(text):
    return datetime.fromisoformat(text).timestamp() * 1000


JUMPS = {"an hour forward": HOUR_S, "an hour back": -HOUR_S}


def test_the_clock_of_the_grid_is_set_and_no_other(machine):
    """Or else the tests below would show nothing."""
    machine.set_clock(-HOUR_S)
    code = "import time; print(int(time.time()), int(time.time_ns() / 1e9))"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=machine.env, capture_output=True, text=True, check=True)
    shown = [int(word) for word in done.stdout.split()]
    assert all(abs(one - time.time() + HOUR_S) < 60 for one in shown)
    code = "import time; print(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=machine.env, capture_output=True, text=True, check=True)
    steady = [float(word) for word in done.stdout.split()]
    assert abs(steady[0] - time.monotonic()) < 60
    assert abs(steady[1] - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60


@pytest.mark.parametrize("jump", JUMPS.values(), ids=JUMPS)
def test_what_has_a_time_keeps_it_when_the_clock_is_set(machine, jump):
    """Rows 31 and 32: none ends early, and none becomes immortal."""
    limited = machine.detach("-c", "0.01", "-t", "4s", "--grace", "1s", "--", "sleep", "600")
    long = machine.detach("-c", "0.01", "-t", "10m", "--", "sleep", "600")
    until(lambda: {machine.job(id)["phase"] for id in (limited, long)} == {"running"})
    begin = time.monotonic()
    short = [machine.hold(ttl_s=3), machine.hold(ttl_s=3, state="reserved")]
    kept = [machine.hold(ttl_s=600), machine.hold(ttl_s=600, state="reserved")]
    machine.set_clock(jump)
    late = machine.hold(ttl_s=3)  # made after the jump
    assert set(machine.held()) >= {*short, *kept, late}
    until(lambda: not set(machine.held()) & {*short, late}, seconds=30)
    assert time.monotonic() - begin >= 3
    job = machine.wait(limited, timeout=30)[limited]
    assert job["reason"] == "timeout"
    assert machine.state(long) == "running"
    assert set(kept) <= set(machine.held())
    with machine.client() as client:
        assert client.move(kept[0], "renew")["state"] == "active"
        assert client.move(kept[1], "confirm")["state"] == "active"
        for id in kept:
            client.move(id, "release")
        assert 0 <= client.status()["controller"]["uptime_s"] < 600
    machine.grid("cancel", long, check=0)
    machine.wait(long)


@pytest.mark.parametrize("jump", JUMPS.values(), ids=JUMPS)
def test_a_restart_across_a_jump_gives_leases_their_time_again(machine, jump):
    """Row 33: the time of the ledger goes on from where it was, or from later."""
    lease, reserved = machine.hold(ttl_s=60), machine.hold(ttl_s=60, state="reserved")
    short = machine.hold(ttl_s=4)
    job = machine.detach("-c", "0.01", "--", "sleep", "600")
    until(lambda: machine.job(job)["phase"] == "running")
    before = max(event["at"] for event in machine.events())
    machine.kill(machine.controller)
    machine.set_clock(jump)
    machine.grid("status", check=0)  # starts the next one
    begin = time.monotonic()
    held = machine.held()
    assert {lease, reserved} <= set(held)
    left_s = [(wall_ms(held[id]["expires_at"]) - before) / 1000 for id in (lease, reserved)]
    assert min(left_s) >= 60  # from now on by the ledger, which is not before `before`
    until(lambda: short not in machine.held(), seconds=30)
    assert time.monotonic() - begin < 30
    assert machine.state(job) == "running"
    for id in (lease, reserved):
        with machine.client() as client:
            client.move(id, "release")
    machine.grid("cancel", job, check=0)
    assert machine.wait(job)[job]["state"] == "cancelled"


def test_times_are_told_in_utc_wherever_the_machine_stands(tmp_path, shim):
    """Row 36: a zone with summer time changes what nobody stores."""
    machine = Clocked(tmp_path / "home", shim, tmp_path / "offset")
    machine.env["TZ"] = "America/St_Johns"
    try:
        id = machine.detach("-c", "0.01", "--", "true")
        job = machine.wait(id)[id]
        told = datetime.fromisoformat(job["submitted_at"])
        assert job["submitted_at"].endswith("Z")
        assert abs((datetime.now(UTC) - told).total_seconds()) < 60
    finally:
        machine.close()
